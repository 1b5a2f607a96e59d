"""RNN over the time steps of a batch of sequences."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.kernels.matmul.gemm import gemm
from ocaffe.layers.base import ParamBlob, register
from ocaffe.layers.recurrent import Recurrent
from ocaffe.onnx.graph import OnnxGraph


@register("RNN")
class RNN(Recurrent):
    """A simple recurrent net over T time steps: h = tanh(W_x x + b + W_h h' (+ W_static x_static)) and top = tanh(W_o h + b_o).

    h' is the hidden state of the previous step times cont. The last two blobs are W_o (D, D) and b_o (D). Other bottoms, tops and blobs: see `Recurrent`.
    """

    bottoms = (2, 4)
    tops = (1, 2)
    gates = 1
    states = ("h",)
    inside = "h_neuron"

    def more_parameters(self) -> Sequence[ParamBlob]:
        p = self.own()
        return [ParamBlob((self.units, self.units), p.weight_filler), ParamBlob((self.units,), p.bias_filler)]

    def flops(self) -> int:
        return super().flops() + 2 * self.steps * self.sequences * self.units**2

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        super().forward(rec, bottoms, tops)
        self.show(rec, "Forward", [("h", self.steps_data)])
        weight, bias = self.params[-2:]
        gemm(rec, self.steps_data, weight.data, self._rows(tops[0].data), trans_b=True, bias=bias.data, mergeable=False)
        pointwise(rec, "m0 = tanh(m0)", modifies=[self._rows(tops[0].data)], side_effect=True)

    def step(self, rec: Recorder, t: int, product: Ref, top: Ref) -> None:
        more, reads, writes = self.hand_over(t, 1, 0, ("h",))
        pointwise(
            rec, f"h = tanh(m0 + x0); m0 = h{more}", reads=[product, *reads], writes=writes, modifies=[self.at(self.steps_data, t)], side_effect=True
        )

    def onnx_step(self, graph: OnnxGraph, product: str, before: list[str], keep: str) -> list[str]:
        return [graph.op("Tanh", product)]

    def onnx_top(self, graph: OnnxGraph, hidden: str, top: Blob) -> None:
        weight, bias = (graph.parameter(parameter) for parameter in self.params[-2:])
        y = graph.op("Gemm", graph.reshape(hidden, (-1, self.units)), weight, bias, transB=1)
        graph.reshape(graph.op("Tanh", y), to=top)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        weight, bias = self.params[-2:]
        output, hidden = (rec.scratch(name, self.steps_data.shape, role=Role.DIFF) for name in ("output", "hidden"))  # gradients of the inputs of both tanh
        pointwise(rec, "y0 = x0 * (1 - x1 * x1)", reads=[self._rows(tops[0].diff), self._rows(tops[0].data)], writes=[output])
        if bias.diff is not None:
            reduce(rec, "v0 = x0", reads=[output], writes=[bias.diff], axes=[0])
        if weight.diff is not None:
            gemm(rec, output, self.steps_data, weight.diff, trans_a=True)
        gemm(rec, output, weight.data, hidden)
        final = self.final_diffs(tops)

        def step(t: int, product: Ref | None) -> None:
            own, reads, text = self.at(hidden, t), [self.at(self.steps_data, t)], "m0"
            more: list[Read] = list(final.values()) if product is None else []
            if more:
                text = "(m0 + x1)"
            if product is not None:
                more, text = [product, self.cont_of(t + 1)], "(m0 + x1 * x2)"
            pointwise(rec, f"m0 = {text} * (1 - x0 * x0)", reads=[*reads, *more], modifies=[own], side_effect=True)

        self.through_time(rec, propagate, hidden, step)
        self.show(rec, "Backward", [("h_neuron_input", hidden)])
        self.finish_backward(rec, hidden, self.steps_data, bottoms, propagate)

    def _rows(self, ref: Ref) -> Ref:
        return ref.view((self.steps * self.sequences, self.units))
