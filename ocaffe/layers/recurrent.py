"""The base of LSTM, RNN and GRU: bottoms and tops, the state that is carried from run to run, and the products over all time steps."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ocaffe.errors import Place, shape_text
from ocaffe.ir.graph import Blob, Parameter
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.kernels.matmul.gemm import gemm
from ocaffe.layers.base import Layer, ParamBlob
from ocaffe.onnx.graph import OnnxGraph, origin
from ocaffe.support import log


class Recurrent(Layer):
    """A layer over T time steps of N sequences, with D = num_output hidden units.

    Bottoms: x (T, N, ...), cont (T, N), optionally a static input (N, ...) for all steps, and with expose_hidden the initial states (1, N, D).
    Tops: (T, N, D), and with expose_hidden the final states (1, N, D). cont multiplies the previous state in each step; 0 starts a new sequence.

    Blobs: W_x (G, inputs), b (G), W_static (G, static inputs) if there is a static input, W_h (G, D), then those of `more_parameters`. G is D times
    the number of gates.

    Without expose_hidden, a run starts with the final states of the previous run. Their memory belongs to the layer, so other command lists see them
    too. As in Caffe, the first run starts with zeros. A smaller batch continues with the first sequences.
    A batch with more sequences than any before starts with zeros.
    """

    message = "recurrent_param"
    inplace_top = False
    gradient_in_rows = True
    gates: ClassVar[int]
    unrolled: ClassVar[bool] = True  # whether Caffe's layer is a net of its own
    states: ClassVar[tuple[str, ...]]  # the states that a step passes to the next; the first is the hidden state, which W_h multiplies
    inside: ClassVar[str]  # for debug_info: the name of a step's last layer in Caffe's unrolled net

    def __init__(self, param: Any, phase: int, place: Place | None = None) -> None:
        super().__init__(param, phase, place)
        self.carried: dict[str, Ref] = {}

    # -- shapes ------------------------------------------------------------------------------------------------------

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x, cont = self.own(), *bottoms[:2]
        self.positive(p, {"num_output": "the number of hidden units"})
        self.check(
            len(x) >= 3,
            f"bottom 0 is {shape_text(x)}, it must be T x N x ..: time steps, sequences, inputs",
            "add a Reshape layer before it that makes T x N x I",
        )
        self.check(
            cont == x[:2],
            f"bottom 1 (cont) is {shape_text(cont)}, bottom 0 is {shape_text(x)}",
            f"give bottom 1 the shape {shape_text(x[:2])}: one number for each step of each sequence",
        )
        self.steps, self.sequences, self.inputs, self.units = *x[:2], math.prod(x[2:]), p.num_output
        self.exposed = len(self.states) if p.expose_hidden else 0
        self.statics = len(bottoms) - 2 - self.exposed
        given = f"bottoms and {len(self.param.top)} tops given, expose_hidden is {str(bool(self.exposed)).lower()}"
        names = ", ".join(self.states)
        fix = f"give x, cont and optionally a static input as bottoms, then the initial {names}; and {1 + self.exposed} tops: the last are the final {names}"
        if not self.exposed:
            fix = f"give x, cont and optionally a static input as bottoms, and 1 top; expose_hidden: true adds {names} to both"
        self.check(self.statics in (0, 1) and len(self.param.top) == 1 + self.exposed, f"{len(bottoms)} {given}", fix)
        self.static_inputs = 0
        for static in bottoms[2 : 2 + self.statics]:
            fact = f"the static input (bottom 2) is {shape_text(static)}, bottom 0 is {shape_text(x)}"
            self.check(len(static) >= 2 and static[0] == self.sequences, fact, f"give bottom 2 the shape {self.sequences} x I: one row for each sequence")
            self.static_inputs = math.prod(static[1:])
        state = (1, self.sequences, self.units)
        for index, shape in enumerate(bottoms[2 + self.statics :], 2 + self.statics):
            self.check(
                shape == state,
                f"bottom {index} is {shape_text(shape)}, an initial state is {shape_text(state)}",
                f"give bottom {index} the shape {shape_text(state)}",
            )
        self.check(self.steps > 0 or len(bottoms) == 2, f"bottom 0 is {shape_text(x)}, without a time step", "give bottom 0 at least one time step")
        what = f"Initializing recurrent layer: assuming input batch contains {self.steps} timesteps of {self.sequences} independent streams."
        self.notes = [("recurrent_layer.cpp:19", what)]
        return [(*x[:2], self.units), *[state] * self.exposed]

    def parameters(self) -> Sequence[ParamBlob]:
        p, outputs = self.own(), self.gates * self.units
        columns = [self.inputs, *[self.static_inputs] * self.statics, self.units]
        first, *others = (ParamBlob((outputs, n), p.weight_filler) for n in columns)
        return [first, ParamBlob((outputs,), p.bias_filler), *others, *self.more_parameters()]

    def more_parameters(self) -> Sequence[ParamBlob]:
        """Return the parameters after W_h."""
        return ()

    def force_backward(self, bottom: int) -> bool:
        return bottom != 1

    def flops(self) -> int:
        step = self.sequences * (self.inputs + self.units) + self.static_inputs * self.sequences // max(1, self.steps)
        return 2 * self.steps * self.gates * self.units * step

    # -- forward -----------------------------------------------------------------------------------------------------

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        initial = self.prepare(rec, bottoms, tops)
        self.begin = rec.saved("begin", (self.sequences, self.units))
        self.next = rec.scratch("next", (self.sequences, self.units))
        more = self.keep_initial(rec)
        text = "; ".join(["y0 = x0 * x1", *(f"y{k} = x{k + 1}" for k in range(1, 1 + len(more)))])
        # side_effect: the launch must not be recomputed, because the last step overwrites the states that it reads.
        pointwise(rec, text, reads=[initial[0], self.cont_of(0), *initial[1:]], writes=[self.begin, *more], side_effect=True)
        product = rec.scratch("product", (self.sequences, self.gates * self.units))
        for t in range(self.steps):
            gemm(rec, self.next if t else self.begin, self._recurrent.data, product, trans_b=True, mergeable=False)
            self.step(rec, t, product, tops[0].data)

    def prepare(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> list[Ref]:
        """Record `steps_data`, the inputs of the gates in every step without W_h h, and set `final`. Return the initial states."""
        rows, width = self.steps * self.sequences, self.gates * self.units
        self.cont = bottoms[1].data
        self.steps_data = rec.saved("steps", (rows, width))  # W_x x + b of every step; each step overwrites its rows with the values for backward
        gemm(rec, bottoms[0].data.view((rows, self.inputs)), self.params[0].data, self.steps_data, trans_b=True, bias=self._bias.data, mergeable=False)
        if self.statics:
            static = rec.scratch("static", (self.sequences, width))
            gemm(rec, self._static(bottoms[2].data), self.params[2].data, static, trans_b=True, mergeable=False)
            pointwise(rec, "m0 = m0 + x0", reads=[(static, 1)], modifies=[self.steps_data.view((self.steps, self.sequences, width))])
        if self.exposed:
            initial = [self._state(bottom.data) for bottom in bottoms[-self.exposed :]]
            self.final = [self._state(top.data) for top in tops[1:]]
        else:
            initial = self.final = [self._carried(name) for name in self.states]
        return initial

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        first = self.onnx_first(graph, bottoms)
        weights = None if first is None else self.onnx_weights(graph)
        if weights is None:
            self._onnx_steps(graph, bottoms, tops)
            return
        x = graph.values[bottoms[0]] if len(bottoms[0].shape) == 3 else graph.reshape(bottoms[0], (*graph.shape(bottoms[0])[:2], self.inputs))
        states = [graph.values[bottom] for bottom in bottoms[2:]] if first else []  # an ONNX model keeps no state between runs
        y, *_ = graph.ops(self.type.upper(), x, *weights, None, *states, to=[None, *tops[1:]], hidden_size=self.units, **self.onnx_attributes())
        graph.op("Squeeze", y, [1], to=tops[0])

    def onnx_first(self, graph: OnnxGraph, bottoms: list[Blob]) -> bool | None:
        """Return whether the first step continues, if all other steps do. Return None if that is not known, or there is a static input."""
        return None if self.statics else _first_of_continued(graph, bottoms[1])

    def onnx_weights(self, graph: OnnxGraph) -> list[str] | None:
        """Return the weights of the ONNX operator, LSTM or GRU: of the inputs, of the states, biases. Return None if there is no operator."""
        return None

    def onnx_attributes(self) -> dict[str, int]:
        """Return the attributes of the operator besides its size."""
        return {}

    def _onnx_steps(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Write the time steps as single operators, for any cont."""
        x, cont, width = bottoms[0], bottoms[1], self.gates * self.units
        rows = graph.reshape(x, (-1, self.inputs))
        y = graph.op("Gemm", rows, graph.parameter(self.params[0]), graph.parameter(self._bias), transB=1)
        y = graph.reshape(y, (*graph.shape(cont), width))
        if self.statics:
            static = graph.reshape(bottoms[2], (-1, self.static_inputs))
            y = graph.op("Add", y, graph.op("Gemm", static, graph.parameter(self.params[2]), transB=1))
        if self.exposed:
            states = [graph.op("Squeeze", bottom, [0]) for bottom in bottoms[-self.exposed :]]
        else:  # an ONNX model keeps no state between runs
            states = [graph.constant(np.zeros((graph.fixed(cont, 1), self.units), np.float32))] * len(self.states)

        def step(*values: str) -> tuple[list[str], str]:
            *before, inputs, keep = values
            product = self.onnx_product(graph, inputs, graph.op("Mul", before[0], keep))
            after = self.onnx_step(graph, product, before, keep)
            return after, after[0]

        steps, sequences = (None if axis in graph.varying.get(cont, {}) else size for axis, size in enumerate(cont.shape))
        *final, collected = graph.loop(steps, sequences, states, [y, graph.op("Unsqueeze", cont, [2])], step)
        self.onnx_top(graph, collected, tops[0])
        for top, state in zip(tops[1:], final):
            graph.op("Unsqueeze", state, [0], to=top)

    def onnx_product(self, graph: OnnxGraph, inputs: str, hidden: str) -> str:
        """Write the nodes of W_h h + inputs, the inputs of the gates (N, G), and return their value.

        OpenCV 5.0 ignores the third input of Gemm in ENGINE_CLASSIC if it is computed.
        """
        return graph.op("Add", graph.op("Gemm", hidden, graph.parameter(self._recurrent), transB=1), inputs)

    def onnx_step(self, graph: OnnxGraph, product: str, before: list[str], keep: str) -> list[str]:
        """Write the nodes of one step and return the new states. `product`: the inputs of the gates (N, G); `keep`: cont (N, 1)."""
        raise NotImplementedError

    def onnx_top(self, graph: OnnxGraph, hidden: str, top: Blob) -> None:
        """Write the nodes that compute the top from the hidden states of all steps."""
        graph.alias(top, hidden)

    def keep_initial(self, rec: Recorder) -> list[Ref]:
        """Return the Refs for the initial states except the hidden one. The first step reads them."""
        return []

    def step(self, rec: Recorder, t: int, product: Ref, top: Ref) -> None:
        """Record step t as one launch that ends with the text of `hand_over`. `product` (N, G) is W_h h.

        The launch modifies `steps_data`, so it has side_effect.
        """
        raise NotImplementedError

    def hand_over(self, t: int, reads: int, writes: int, values: Sequence[str]) -> tuple[str, list[Read], list[Ref]]:
        """Return the text, reads and writes that end step t. They compute the next step's input of W_h, or the final states.

        `values` names the new states. `reads` and `writes` count the operands before these.
        """
        if t + 1 < self.steps:
            return f"; y{writes} = x{reads} * {values[0]}", [self.cont_of(t + 1)], [self.next]
        return "".join(f"; y{writes + k} = {value}" for k, value in enumerate(values)), [], self.final

    # -- backward ----------------------------------------------------------------------------------------------------

    def through_time(self, rec: Recorder, propagate: list[bool], diffs: Ref, step: Callable[[int, Ref | None], None]) -> None:
        """Call `step(t, product)` for every step from last to first. It records the launch that writes the rows of step t in `diffs` (T * N, G).

        `product` (N, D) is the gradient of W_h's operand in step t + 1. It is None for the last step.
        """
        self.no_gradient(propagate, {1: "the sequence indicators"})
        product = rec.scratch("product", (self.sequences, self.units))
        for t in reversed(range(self.steps)):
            if t + 1 < self.steps:
                gemm(rec, self.at(diffs, t + 1), self._recurrent.data, product)
            step(t, product if t + 1 < self.steps else None)

    def finish_backward(self, rec: Recorder, diffs: Ref, hidden: Ref, bottoms: list[Blob], propagate: list[bool]) -> None:
        """Record the gradients of bottoms and parameters.

        `diffs` (T * N, G) has the gradients of the gates' inputs, `hidden` (T * N, D) the hidden states of all steps.
        """
        rows, width = self.steps * self.sequences, self.gates * self.units
        x = bottoms[0]
        dx = self._diff_of(x, propagate[0])
        if dx is not None:
            gemm(rec, diffs, self.params[0].data, dx.view((rows, self.inputs)))
        if self.statics:
            self._static_backward(rec, diffs, bottoms[2], propagate[2])
        self._initial_backward(rec, diffs, bottoms, propagate)
        weight, bias = self.params[0], self._bias
        if bias.diff is not None:
            reduce(rec, "v0 = x0", reads=[diffs], writes=[bias.diff], axes=[0])
        self.recurrent_gradients(rec, diffs, hidden)
        if weight.diff is not None:
            for start, part in rec.gradient_rows(weight.diff):
                gemm(rec, diffs.view((rows, part.shape[0]), start, width), x.data.view((rows, self.inputs)), part, trans_a=True)

    def recurrent_gradients(self, rec: Recorder, diffs: Ref, hidden: Ref) -> None:
        """Record the gradients of the parameters that multiply the hidden state."""
        if self._recurrent.diff is not None:
            gemm(rec, diffs, self._multiplied(rec, hidden), self._recurrent.diff, trans_a=True)

    def final_diffs(self, tops: list[Blob]) -> dict[str, Ref]:
        """Return the gradients of the final states by name. Caffe passes none (docs/quirks.md, quirk 19), unless state_gradient is set."""
        pairs = zip(self.states, tops[1:]) if self.own().state_gradient else ()
        return {name: self._state(top.diff) for name, top in pairs if top.diff is not None}

    def initial_gradients(self, rec: Recorder, diffs: Ref) -> list[Ref]:
        """Return the gradients of the initial states (N, D) after the last launch of `through_time`. That of the hidden state lacks the factor cont."""
        product = rec.scratch("initial", (self.sequences, self.units))
        gemm(rec, self.at(diffs, 0), self._recurrent.data, product)
        return [product]

    def _initial_backward(self, rec: Recorder, diffs: Ref, bottoms: list[Blob], propagate: list[bool]) -> None:
        wanted = [bottom if flag else None for bottom, flag in zip(bottoms, propagate)][2 + self.statics :]
        if not any(wanted):
            return
        gradients = self.initial_gradients(rec, diffs) if self.own().state_gradient else []
        for index, bottom in enumerate(wanted):
            if bottom is None:
                continue
            assert bottom.diff is not None
            if not gradients:  # Caffe passes no gradient to the initial states (docs/quirks.md, quirk 19)
                pointwise(rec, "y0 = 0", writes=[bottom.diff])
            else:
                reads: list[Read] = [gradients[index], *([] if index else [self.cont_of(0)])]
                pointwise(rec, "y0 = x0" if index else "y0 = x0 * x1", reads=reads, writes=[self._state(bottom.diff)])

    def _static_backward(self, rec: Recorder, diffs: Ref, static: Blob, wanted: bool) -> None:
        weight, width = self.params[2], self.gates * self.units
        total = rec.scratch("static", (self.sequences, width))
        reduce(rec, "v0 = x0", reads=[diffs.view((self.steps, self.sequences, width))], writes=[total], axes=[0])
        if weight.diff is not None:
            gemm(rec, total, self._static(static.data), weight.diff, trans_a=True)
        diff = self._diff_of(static, wanted)
        if diff is not None:
            gemm(rec, total, weight.data, self._static(diff))

    def _diff_of(self, bottom: Blob, wanted: bool) -> Ref | None:
        """Return the diff of a bottom that must be computed, else None.

        Caffe's unrolled net always computes it. For the same result, so does this layer if a script reads the blob (its memory persists) and the
        blob's producer has no backward.
        """
        if self.unrolled and not wanted and bottom.diff is None and bottom.data.root.persist and bottom.producer is not None and not bottom.producer.backward:
            bottom.diff = Ref(f"{bottom.name}.diff", bottom.shape, Role.DIFF, persist=True)
            return bottom.diff
        return bottom.diff if wanted else None

    def _multiplied(self, rec: Recorder, hidden: Ref) -> Ref:
        """Recompute the operand of W_h in all steps from the hidden states. As scratch at the end of backward it can reuse memory that is free by then."""
        result = rec.scratch("multiplied", (self.steps * self.sequences, self.units))
        pointwise(rec, "y0 = x0", reads=[self.begin], writes=[self.at(result, 0)])
        if self.steps > 1:
            rest = (self.steps - 1, self.sequences, self.units)
            reads: list[Read] = [hidden.view(rest), (self.cont.view(rest[:2], self.sequences), 0)]
            pointwise(rec, "y0 = x0 * x1", reads=reads, writes=[result.view(rest, self.sequences * self.units)])
        return result

    # -- help --------------------------------------------------------------------------------------------------------

    def at(self, ref: Ref, t: int) -> Ref:
        """Return the rows of step t of a Ref with T * N rows. The view fixes the stride, so that no pass changes the stride of the whole Ref."""
        width = ref.count // (self.steps * self.sequences)
        return ref.view((self.sequences, width), t * self.sequences * width, width)

    def cont_of(self, t: int) -> Read:
        """Return cont of step t, broadcast to all units."""
        return self.cont.view((self.sequences,), t * self.sequences, 1), 0

    def _state(self, ref: Ref) -> Ref:
        return ref.view((self.sequences, self.units))

    def _static(self, ref: Ref) -> Ref:
        return ref.view((self.sequences, self.static_inputs))

    @property
    def _bias(self) -> Parameter:
        return self.params[1]

    @property
    def _recurrent(self) -> Parameter:
        return self.params[2 + self.statics]

    def _carried(self, name: str) -> Ref:
        """Return the state that is carried from run to run."""
        ref = self.carried.get(name)
        if ref is None or ref.shape[0] < self.sequences:
            ref = self.carried[name] = Ref(f"{self.param.name}.{name}", (self.sequences, self.units), Role.STATE, value=0)
        return self._state(ref)

    def show(self, rec: Recorder, phase: str, blobs: Sequence[tuple[str, Ref]]) -> None:
        """For recurrent_param { debug_info }, log the mean magnitude of blobs (T * N rows) in every step, in the format of Caffe's unrolled net."""
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


def _first_of_continued(graph: OnnxGraph, cont: Blob) -> bool | None:
    """Return whether the first step continues, if cont is known and all other steps continue; else None.

    It is known where it is computed as the ONNX importer writes it: zeros from a Reduction with coeff 0, plus a Bias for each step.
    """
    bias = origin(cont).producer
    if bias is None or bias.type != "Bias" or len(bias.bottoms) != 1:
        return None
    zeros = origin(bias.bottoms[0]).producer
    if zeros is None or zeros.type != "Reduction" or zeros.layer.param.reduction_param.coeff != 0:
        return None
    values = graph.weights[bias.layer.params[0]]
    known = values.shape == cont.shape[:1] and (values[1:] == 1).all() and values[0] in (0, 1)
    return bool(values[0]) if known else None
