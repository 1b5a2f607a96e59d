"""GRU over the time steps of a batch of sequences."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.ir.graph import Blob, Parameter
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.kernels.matmul.gemm import gemm
from ocaffe.layers.base import ParamBlob, register
from ocaffe.layers.lstm_unit import gates_of
from ocaffe.layers.recurrent import Recurrent
from ocaffe.onnx.graph import OnnxGraph

GATES = 3  # update gate, reset gate and candidate, in this order: z, r, n


@register("GRU")
class GRU(Recurrent):
    """Gated recurrent units over T time steps: h = (1 - z) n + z h', with z, r = sigmoid and n = tanh of W_x x + b + W h'.

    h' is h of the previous step times cont. In n, W h' is W_n (r h'); with linear_before_reset it is r (W_n h' + b_n), as in cuDNN and PyTorch.
    Blobs: W_x (3 D, inputs), b (3 D), W_static if there is a static input, W_z, W_r, W_n (each D, D), and with linear_before_reset b_n (D).
    Bottoms and tops: see `Recurrent`. From synopsys-caffe (src/caffe/layers/gru_layer.cpp).
    """

    origin = "synopsys-caffe"
    bottoms = (2, 4)
    tops = (1, 2)
    gates = GATES
    states = ("h",)
    inside = "h"

    @property
    def linear(self) -> bool:
        """Whether the reset gate multiplies the product W_n h' + b_n."""
        return bool(self.own().linear_before_reset)

    def parameters(self) -> Sequence[ParamBlob]:
        p = self.own()
        before = [*super().parameters()][: 2 + self.statics]
        own = [ParamBlob((self.units, self.units), p.weight_filler)] * GATES
        return [*before, *own, *([ParamBlob((self.units,), p.bias_filler)] if self.linear else [])]

    @property
    def weights(self) -> list[Parameter]:
        """W_z, W_r and W_n."""
        return self.params[2 + self.statics : 2 + self.statics + GATES]

    # -- forward -----------------------------------------------------------------------------------------------------

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        state = (self.sequences, self.units)
        (initial,) = self.prepare(rec, bottoms, tops)
        kept = self.steps if rec.train else min(2, self.steps)
        self.before = rec.saved("before", (kept * self.sequences, self.units))  # h' of each step
        # The second operand of the product r W_n h', or the operand r h' of W_n
        self.inner = rec.saved("inner", ((self.steps if rec.train else 1) * self.sequences, self.units))
        pointwise(rec, "y0 = x0 * x1", reads=[initial, self.cont_of(0)], writes=[self._of(self.before, 0)], side_effect=True)
        products = [rec.scratch(name, state) for name in "zrn"]
        for t in range(self.steps):
            self._step(rec, t, products, tops[0].data)
        self.show(rec, "Forward", [("h", tops[0].data)])

    def _step(self, rec: Recorder, t: int, products: list[Ref], top: Ref) -> None:
        before, inner, gates = self._of(self.before, t), self._of(self.inner, t), self._gates(t)
        for weight, product in zip(self.weights[:2], products):
            gemm(rec, before, weight.data, product, trans_b=True, mergeable=False)
        z, r = (f"1 / (1 + exp(-(m{k} + x{k})))" for k in (0, 1))
        if self.linear:
            gemm(rec, before, self.weights[2].data, inner, trans_b=True, bias=self.params[-1].data, mergeable=False)
        else:
            text = f"m0 = {z}; m1 = {r}; y0 = m1 * x2"
            pointwise(rec, text, reads=[*products[:2], before], writes=[inner], modifies=gates[:2], side_effect=True)
            gemm(rec, inner, self.weights[2].data, products[2], trans_b=True, mergeable=False)
        if t + 1 < self.steps:
            self.next = self._of(self.before, t + 1)
        if self.linear:
            more, reads, writes = self.hand_over(t, 4, 1, ("h",))
            text = f"z = {z}; r = {r}; n = tanh(m2 + r * x2); h = n + z * (x3 - n); m0 = z; m1 = r; m2 = n; y0 = h{more}"
            pointwise(rec, text, reads=[*products[:2], inner, before, *reads], writes=[self.at(top, t), *writes], modifies=gates, side_effect=True)
        else:
            more, reads, writes = self.hand_over(t, 3, 1, ("h",))
            text = f"n = tanh(m0 + x0); h = n + x1 * (x2 - n); m0 = n; y0 = h{more}"
            write = [self.at(top, t), *writes]
            pointwise(rec, text, reads=[products[2], gates[0], before, *reads], writes=write, modifies=gates[2:], side_effect=True)

    def onnx_weights(self, graph: OnnxGraph) -> list[str]:
        """ONNX has two biases; only that of the candidate is used by linear_before_reset."""
        bias = graph.array(self.params[1])
        second = np.zeros_like(bias)
        if self.linear:
            second[2 * self.units :] = graph.array(self.params[-1])
        arrays = graph.array(self.params[0]), np.concatenate([graph.array(weight) for weight in self.weights]), np.concatenate([bias, second])
        return [graph.constant(array[None], str(parameter)) for array, parameter in zip(arrays, (self.params[0], self.weights[0], self.params[1]))]

    def onnx_attributes(self) -> dict[str, int]:
        return {"linear_before_reset": int(self.linear)}

    def onnx_product(self, graph: OnnxGraph, inputs: str, hidden: str) -> str:
        """Return h of the step: the gates need h' twice."""
        z, r, n = graph.split(inputs, [None] * GATES, 1, [self.units] * GATES)
        weights = [graph.parameter(weight) for weight in self.weights]
        z, r = (graph.op("Sigmoid", graph.op("Add", graph.op("Gemm", hidden, weight, transB=1), gate)) for weight, gate in zip(weights, (z, r)))
        if self.linear:
            product = graph.op("Gemm", hidden, weights[2], graph.parameter(self.params[-1]), transB=1)
            n = graph.op("Tanh", graph.op("Add", n, graph.op("Mul", r, product)))
        else:
            n = graph.op("Tanh", graph.op("Add", graph.op("Gemm", graph.op("Mul", r, hidden), weights[2], transB=1), n))
        return graph.op("Add", n, graph.op("Mul", z, graph.op("Sub", hidden, n)))

    def onnx_step(self, graph: OnnxGraph, product: str, before: list[str], keep: str) -> list[str]:
        return [product]

    # -- backward ----------------------------------------------------------------------------------------------------

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "the sequence indicators"})
        assert tops[0].diff is not None
        state = (self.sequences, self.units)
        # The gradient of h' is direct + the products. `of_reset`: the gradient of r h'.
        self.direct, of_reset = rec.scratch("direct", state), rec.scratch("of_reset", state)
        self.back = [rec.scratch(f"{name} back", state) for name in ("zr" if not self.linear else "zrn")]
        final = list(self.final_diffs(tops).values())
        for t in reversed(range(self.steps)):
            self._step_back(rec, t, self.at(tops[0].diff, t), final, of_reset)
        self.finish_backward(rec, self.steps_data, tops[0].data, bottoms, propagate)

    def _step_back(self, rec: Recorder, t: int, dh: Ref, final: list[Ref], of_reset: Ref) -> None:
        """Record step t: the gates are overwritten with the gradients of their inputs."""
        gates, before, inner = self._gates(t), self._of(self.before, t), self._of(self.inner, t)
        last = t + 1 == self.steps
        reads: list[Read] = [dh, before, *(final if last else [self.cont_of(t + 1), *self.back])]
        after = " + ".join(["x0", *(f"x{2 + k}" for k in range(len(final)))])
        if not last:
            after = f"x0 + x2 * ({' + '.join(['m3', *(f'x{3 + k}' for k in range(len(self.back)))])})"
        text = f"dh = {after}; z = m0; r = m1; n = m2; dn = dh * (1 - z) * (1 - n * n); m0 = dh * (x1 - n) * z * (1 - z); m2 = dn"
        writes, modifies = ([self.direct], gates) if last else ([], [*gates, self.direct])
        text += f"; {'y0' if last else 'm3'} = dh * z"
        if self.linear:  # inner becomes the gradient of W_n h' + b_n
            name = f"m{len(modifies)}"
            text += f"; m1 = dn * {name} * r * (1 - r); {name} = dn * r"
            pointwise(rec, text, reads=reads, writes=writes, modifies=[*modifies, inner], side_effect=True)
            products = [*gates[:2], inner]
        else:
            pointwise(rec, f"{text}; m1 = r", reads=reads, writes=writes, modifies=modifies, side_effect=True)
            gemm(rec, gates[2], self.weights[2].data, of_reset)
            text = "r = m0; m0 = x0 * x1 * r * (1 - r); m1 = m1 + x0 * r"
            pointwise(rec, text, reads=[of_reset, before], modifies=[gates[1], self.direct], side_effect=True)
            products = gates[:2]
        for product, weight, back in zip(products, self.weights, self.back):
            gemm(rec, product, weight.data, back)

    def initial_gradients(self, rec: Recorder, diffs: Ref) -> list[Ref]:
        text = " + ".join(f"x{k}" for k in range(1 + len(self.back)))
        total = rec.scratch("initial", (self.sequences, self.units))
        pointwise(rec, f"y0 = {text}", reads=[self.direct, *self.back], writes=[total])
        return [total]

    def recurrent_gradients(self, rec: Recorder, diffs: Ref, hidden: Ref) -> None:
        rows = self.steps * self.sequences
        columns = gates_of(diffs, rows, self.units, gates=GATES)
        operands = [(columns[0], self.before), (columns[1], self.before), (self.inner, self.before) if self.linear else (columns[2], self.inner)]
        for weight, (left, right) in zip(self.weights, operands):
            if weight.diff is not None:
                gemm(rec, left, right, weight.diff, trans_a=True)
        if self.linear and (bias := self.params[-1].diff) is not None:
            reduce(rec, "v0 = x0", reads=[self.inner], writes=[bias], axes=[0])

    # -- help --------------------------------------------------------------------------------------------------------

    def _gates(self, t: int) -> list[Ref]:
        return gates_of(self.steps_data, self.sequences, self.units, t * self.sequences * GATES * self.units, GATES)

    def _of(self, ref: Ref, t: int) -> Ref:
        """Return the rows of step t of a Ref that keeps all steps, or the last ones."""
        count = ref.shape[0] // self.sequences
        return ref.view((self.sequences, self.units), t % count * self.sequences * self.units, self.units)
