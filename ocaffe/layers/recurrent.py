"""What LSTM and RNN share: their bottoms and tops, the state that is carried from run to run, the products over all time steps."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ocaffe import log
from ocaffe.errors import Place, shape_text
from ocaffe.ir.graph import Blob, Parameter
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.layers.base import Layer, ParamBlob
from ocaffe.onnx.builder.graph import OnnxGraph
from ocaffe.ops.expression import Read, pointwise, reduce
from ocaffe.ops.gemm import gemm


class Recurrent(Layer):
    """A layer over T time steps of N sequences, with D = num_output hidden units.

    Bottoms: x (T, N, ...), cont (T, N), perhaps a static input (N, ...) that every step sees, and with expose_hidden the initial states (1, N, D). Tops:
    (T, N, D), and with expose_hidden the final states (1, N, D). cont multiplies the state that a step takes over: 0 begins a new sequence.

    Blobs: W_x (G, inputs), b (G), perhaps W_static (G, static inputs), W_h (G, D), with G = D times the layer's gates; then those of `more_parameters`.

    Without expose_hidden a run begins with the states that the run before ended with, whichever commands it was on: their memory belongs to the layer.
    As in Caffe, it begins with zeros, a smaller batch goes on with the first sequences of it, and a batch that it has no room for begins anew.
    """

    message = "recurrent_param"
    inplace_top = False
    gradient_in_rows = True
    gates: ClassVar[int]
    states: ClassVar[tuple[str, ...]]  # what a step hands to the next one; the first is the hidden state that W_h multiplies
    inside: ClassVar[str]  # for debug_info: what Caffe calls the last layer of a step in its unrolled net

    def __init__(self, param: Any, phase: int, place: Place | None = None) -> None:
        super().__init__(param, phase, place)
        self.carried: dict[str, Ref] = {}

    # -- shapes ------------------------------------------------------------------------------------------------------

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x, cont = self.own(), *bottoms[:2]
        self.check(p.num_output > 0, "num_output is missing or 0", "give num_output, the number of hidden units")
        self.check(len(x) >= 3, f"bottom 0 is {shape_text(x)}", "T x N x ...: time steps, sequences, and what a step sees")
        self.check(cont == x[:2], f"bottom 1 (cont) is {shape_text(cont)}, bottom 0 {shape_text(x)}", f"cont {shape_text(x[:2])}, one number for each step")
        self.steps, self.sequences, self.inputs, self.units = *x[:2], math.prod(x[2:]), p.num_output
        self.exposed = len(self.states) if p.expose_hidden else 0
        self.statics = len(bottoms) - 2 - self.exposed
        given = f"bottoms and {len(self.param.top)} tops given, expose_hidden is {str(bool(self.exposed)).lower()}"
        names = ", ".join(self.states)
        fix = f"bottoms x, cont, perhaps a static input; with expose_hidden: true the initial {names} behind these, and the final {names} as further tops"
        self.check(self.statics in (0, 1) and len(self.param.top) == 1 + self.exposed, f"{len(bottoms)} {given}", fix)
        self.static_inputs = 0
        for static in bottoms[2 : 2 + self.statics]:
            fact = f"the static input (bottom 2) is {shape_text(static)}, bottom 0 {shape_text(x)}"
            self.check(len(static) >= 2 and static[0] == self.sequences, fact, f"{self.sequences} x ..., one row for each sequence")
            self.static_inputs = math.prod(static[1:])
        state = (1, self.sequences, self.units)
        for index, shape in enumerate(bottoms[2 + self.statics :], 2 + self.statics):
            self.check(shape == state, f"bottom {index} is {shape_text(shape)}, the state {shape_text(state)}", f"an initial state {shape_text(state)}")
        self.check(self.steps > 0 or len(bottoms) == 2, "there are no time steps", "a bottom 0 of one step at the least")
        what = f"Initializing recurrent layer: assuming input batch contains {self.steps} timesteps of {self.sequences} independent streams."
        self.notes = [("recurrent_layer.cpp:19", what)]
        return [(*x[:2], self.units), *[state] * self.exposed]

    def parameters(self) -> Sequence[ParamBlob]:
        p, outputs = self.own(), self.gates * self.units
        columns = [self.inputs, *[self.static_inputs] * self.statics, self.units]
        first, *others = (ParamBlob((outputs, n), p.weight_filler) for n in columns)
        return [first, ParamBlob((outputs,), p.bias_filler), *others, *self.more_parameters()]

    def more_parameters(self) -> Sequence[ParamBlob]:
        """Those behind W_h."""
        return ()

    def force_backward(self, bottom: int) -> bool:
        return bottom != 1

    def flops(self) -> int:
        step = self.sequences * (self.inputs + self.units) + self.static_inputs * self.sequences // max(1, self.steps)
        return 2 * self.steps * self.gates * self.units * step

    # -- forward -----------------------------------------------------------------------------------------------------

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        rows, width = self.steps * self.sequences, self.gates * self.units
        self.cont = bottoms[1].data
        self.steps_data = rec.saved("steps", (rows, width))  # the inputs' part of every step's gates, where each step then leaves what backward needs
        gemm(rec, bottoms[0].data.view((rows, self.inputs)), self.params[0].data, self.steps_data, trans_b=True, bias=self.params[1].data, mergeable=False)
        if self.statics:
            static = rec.scratch("static", (self.sequences, width))
            gemm(rec, self._static(bottoms[2].data), self.params[2].data, static, trans_b=True, mergeable=False)
            pointwise(rec, "m0 = m0 + x0", reads=[(static, 1)], modifies=[self.steps_data.view((self.steps, self.sequences, width))])
        if self.exposed:
            initial = [self._state(bottom.data) for bottom in bottoms[-self.exposed :]]
            self.final = [self._state(top.data) for top in tops[1:]]
        else:
            initial = self.final = [self._carried(name) for name in self.states]
        self.begin = rec.saved("begin", (self.sequences, self.units))
        self.next = rec.scratch("next", (self.sequences, self.units))
        more = self.keep_initial(rec)
        text = "; ".join(["y0 = x0 * x1", *(f"y{k} = x{k + 1}" for k in range(1, 1 + len(more)))])
        # A side effect: it may not run again, for the last step overwrites what it reads.
        pointwise(rec, text, reads=[initial[0], self.cont_of(0), *initial[1:]], writes=[self.begin, *more], side_effect=True)
        product = rec.scratch("product", (self.sequences, width))
        for t in range(self.steps):
            gemm(rec, self.next if t else self.begin, self._recurrent.data, product, trans_b=True, mergeable=False)
            self.step(rec, t, product, tops[0].data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, cont, width = bottoms[0], bottoms[1], self.gates * self.units
        rows = graph.reshape(x, (-1, self.inputs))
        y = graph.op("Gemm", rows, graph.parameter(self.params[0]), graph.parameter(self.params[1]), transB=1)
        y = graph.reshape(y, (*graph.shape(cont), width))
        if self.statics:
            static = graph.reshape(bottoms[2], (-1, self.static_inputs))
            y = graph.op("Add", y, graph.op("Gemm", static, graph.parameter(self.params[2]), transB=1))
        if self.exposed:
            states = [graph.op("Squeeze", bottom, [0]) for bottom in bottoms[-self.exposed :]]
        else:  # a run of the model begins anew: it keeps nothing from the one before
            states = [graph.constant(np.zeros((graph.fixed(cont, 1), self.units), np.float32))] * len(self.states)
        weight = graph.parameter(self._recurrent)

        def step(*values: str) -> tuple[list[str], str]:
            *before, product, keep = values
            product = graph.op("Gemm", graph.op("Mul", before[0], keep), weight, product, transB=1)
            after = self.onnx_step(graph, product, before, keep)
            return after, after[0]

        *final, collected = graph.scan(states, [y, graph.op("Unsqueeze", cont, [2])], step, [*[None] * len(states), None])
        self.onnx_top(graph, collected, tops[0])
        for top, state in zip(tops[1:], final):
            graph.op("Unsqueeze", state, [0], to=top)

    def onnx_step(self, graph: OnnxGraph, product: str, before: list[str], keep: str) -> list[str]:
        """The new states from the inputs of the gates (N, G), the states before, and cont (N, 1)."""
        raise NotImplementedError

    def onnx_top(self, graph: OnnxGraph, hidden: str, top: Blob) -> None:
        """The top from the hidden states of all steps."""
        graph.alias(top, hidden)

    def keep_initial(self, rec: Recorder) -> list[Ref]:
        """Where the initial states but the hidden one are put, for the first step."""
        return []

    def step(self, rec: Recorder, t: int, product: Ref, top: Ref) -> None:
        """Record step t, when `product` (N, G) is its W_h h: one launch, with a side effect (on `steps_data`), that ends with what `hand_over` says."""
        raise NotImplementedError

    def hand_over(self, t: int, reads: int, writes: int, values: Sequence[str]) -> tuple[str, list[Read], list[Ref]]:
        """Text and operands, behind so many others, that make of the new states, `values`, what W_h multiplies in the next step, or the final states."""
        if t + 1 < self.steps:
            return f"; y{writes} = x{reads} * {values[0]}", [self.cont_of(t + 1)], [self.next]
        return "".join(f"; y{writes + k} = {value}" for k, value in enumerate(values)), [], self.final

    # -- backward ----------------------------------------------------------------------------------------------------

    def through_time(self, rec: Recorder, propagate: list[bool], diffs: Ref, step: Callable[[int, Ref | None], None]) -> None:
        """Call `step(t, product)` for every step, last one first, to make the part of `diffs` (T * N, G) that is of step t.

        `product` (N, D) is the gradient of what W_h multiplied in the step after; None for the last step.
        """
        self.check(not propagate[1], "there is no gradient for the sequence indicators (bottom 1)", "propagate_down: false, or an Input")
        product = rec.scratch("product", (self.sequences, self.units))
        for t in reversed(range(self.steps)):
            if t + 1 < self.steps:
                gemm(rec, self.at(diffs, t + 1), self._recurrent.data, product)
            step(t, product if t + 1 < self.steps else None)

    def finish_backward(self, rec: Recorder, diffs: Ref, hidden: Ref, bottoms: list[Blob], propagate: list[bool]) -> None:
        """Gradients of bottoms and parameters from those of the gates' inputs, `diffs` (T * N, G), and the hidden states (T * N, D) of all steps."""
        rows, width = self.steps * self.sequences, self.gates * self.units
        x = bottoms[0]
        dx = self._diff_of(x, propagate[0])
        if dx is not None:
            gemm(rec, diffs, self.params[0].data, dx.view((rows, self.inputs)))
        if self.statics:
            self._static_backward(rec, diffs, bottoms[2], propagate[2])
        for bottom, wanted in list(zip(bottoms, propagate))[2 + self.statics :]:
            if wanted:  # the initial states: Caffe does not pass the gradient on (quirk 19)
                assert bottom.diff is not None
                pointwise(rec, "y0 = 0", writes=[bottom.diff])
        weight, bias = self.params[:2]
        if bias.diff is not None:
            reduce(rec, "v0 = x0", reads=[diffs], writes=[bias.diff], axes=[0])
        if self._recurrent.diff is not None:
            gemm(rec, diffs, self._multiplied(rec, hidden), self._recurrent.diff, trans_a=True)
        if weight.diff is not None:
            for start, part in rec.gradient_rows(weight.diff):
                gemm(rec, diffs.view((rows, part.shape[0]), start, width), x.data.view((rows, self.inputs)), part, trans_a=True)

    def _static_backward(self, rec: Recorder, diffs: Ref, static: Blob, wanted: bool) -> None:
        weight, width = self.params[2], self.gates * self.units
        total = rec.scratch("static", (self.sequences, width))
        reduce(rec, "v0 = x0", reads=[diffs.view((self.steps, self.sequences, width))], writes=[total], axes=[0])
        if weight.diff is not None:
            gemm(rec, total, self._static(static.data), weight.diff, trans_a=True)
        diff = self._diff_of(static, wanted)
        if diff is not None:
            gemm(rec, total, weight.data, self._static(diff))

    @staticmethod
    def _diff_of(bottom: Blob, wanted: bool) -> Ref | None:
        """The diff of a bottom where it is to be computed. Caffe's unrolled net computes it whether it is asked for or not; so does this where a script
        looks at a blob (which makes its memory persist) whose diff goes nowhere else."""
        if not wanted and bottom.diff is None and bottom.data.root.persist and bottom.producer is not None and not bottom.producer.backward:
            bottom.diff = Ref(f"{bottom.name}.diff", bottom.shape, Role.DIFF, persist=True)
            return bottom.diff
        return bottom.diff if wanted else None

    def _multiplied(self, rec: Recorder, hidden: Ref) -> Ref:
        """What W_h multiplied in all steps, made again from the hidden states: as scratch at the end of backward it takes the place of what died there."""
        result = rec.scratch("multiplied", (self.steps * self.sequences, self.units))
        pointwise(rec, "y0 = x0", reads=[self.begin], writes=[self.at(result, 0)])
        if self.steps > 1:
            rest = (self.steps - 1, self.sequences, self.units)
            reads: list[Read] = [hidden.view(rest), (self.cont.view(rest[:2], self.sequences), 0)]
            pointwise(rec, "y0 = x0 * x1", reads=reads, writes=[result.view(rest, self.sequences * self.units)])
        return result

    # -- help --------------------------------------------------------------------------------------------------------

    def at(self, ref: Ref, t: int) -> Ref:
        """The rows of step t of a Ref with T * N of them. The stride is given, so that no optimisation gives the whole another one."""
        width = ref.count // (self.steps * self.sequences)
        return ref.view((self.sequences, width), t * self.sequences * width, width)

    def cont_of(self, t: int) -> Read:
        """cont of step t, for all units."""
        return self.cont.view((self.sequences,), t * self.sequences, 1), 0

    def _state(self, ref: Ref) -> Ref:
        return ref.view((self.sequences, self.units))

    def _static(self, ref: Ref) -> Ref:
        return ref.view((self.sequences, self.static_inputs))

    @property
    def _recurrent(self) -> Parameter:
        return self.params[2 + self.statics]

    def _carried(self, name: str) -> Ref:
        """The state that is carried from run to run."""
        ref = self.carried.get(name)
        if ref is None or ref.shape[0] < self.sequences:
            ref = self.carried[name] = Ref(f"{self.param.name}.{name}", (self.sequences, self.units), Role.STATE, value=0)
        return self._state(ref)

    def show(self, rec: Recorder, phase: str, blobs: Sequence[tuple[str, Ref]]) -> None:
        """recurrent_param { debug_info }: the mean magnitude of blobs (T * N rows) for every step, in the words of Caffe's unrolled net."""
        if not self.own().debug_info:
            return
        place, what = {"Forward": ("net.cpp:593", "top blob {} data"), "Backward": ("net.cpp:621", "bottom blob {} diff")}[phase]
        means = []
        for name, ref in blobs:
            means.append(rec.scratch(f"{name} means", (self.steps,)))
            size = ref.count // self.steps
            reduce(rec, "v0 = fabs(x0)", reads=[ref.view((self.steps, size))], writes=means[-1:], axes=[1], finish="y0 = v0 / n", scalars={"n": float(size)})
        layer, names = f"{self.param.name}_{self.inside}", [name for name, _ in blobs]
        order = range(1, 1 + self.steps) if phase == "Forward" else range(self.steps, 0, -1)

        def run(commands: Any) -> None:
            values = [commands.read(ref) for ref in means]
            for t in order:
                for name, value in zip(names, values):
                    log.info(place, f"    [{phase}] Layer {layer}_{t}, {what.format(f'{name}_{t}')}: {log.number(value[t - 1])}")

        rec.host(run, reads=means, what="debug_info")
