"""LSTMUnit: one step of an LSTM after its matrix products, and the expressions that it shares with LSTM."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph

GATES = 4  # input, forget and output gate and the cell input, in this order: i, f, o, g

# As in Caffe, f includes the sequence indicator, also in its derivative f (1 - f). This matters only if the indicator is neither 0 nor 1.
FORWARD = (
    "i = 1 / (1 + exp(-in_i)); f = cont == 0 ? 0 : cont / (1 + exp(-in_f)); o = 1 / (1 + exp(-in_o)); g = tanh(in_g); "
    "c = f * before + i * g; h = o * tanh(c)"
)
BACKWARD = (
    "tanh_c = tanh(c); all_dc = dc + dh * o * (1 - tanh_c * tanh_c); d_before = all_dc * f; "
    "d_i = all_dc * g * i * (1 - i); d_f = all_dc * before * f * (1 - f); d_o = dh * tanh_c * o * (1 - o); d_g = all_dc * i * (1 - g * g)"
)


def gates_of(ref: Ref, rows: int, units: int, first: int = 0, gates: int = GATES) -> list[Ref]:
    """Return views of the gates in `rows` rows of `gates` x `units` elements, in which they are adjacent. The rows start at element `first`."""
    return [ref.view((rows, units), first + k * units, gates * units) for k in range(gates)]


def cell(graph: OnnxGraph, gates: Sequence[str], before: str, cont: str, to: Sequence[Blob | None]) -> list[str]:
    """Write the nodes that compute c and h from the inputs of i, f, o and g, and return both values."""
    i, f, o = (graph.op("Sigmoid", gate) for gate in gates[:3])
    c = graph.op("Add", graph.op("Mul", graph.op("Mul", f, cont), before), graph.op("Mul", i, graph.op("Tanh", gates[3])), to=to[0])
    return [c, graph.op("Mul", o, graph.op("Tanh", c), to=to[1])]


@register("LSTMUnit")
class LSTMUnit(Layer):
    """One step of an LSTM: c = f c_prev + i g and h = o tanh(c); the quarters of bottom 1 are the inputs of i, f, o (sigmoid) and g (tanh).

    Bottoms: c_prev (1, N, D), the inputs of the gates (1, N, 4 D), and cont (1, N). cont multiplies f, so 0 drops c_prev. Tops: c, h (1, N, D).
    """

    bottoms = 3
    tops = 2
    message = ""
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        before, x, cont = bottoms
        self.check(
            len(before) == 3 and before[0] == 1,
            f"bottom 0 (c_prev) is {shape_text(before)}, it must be one time step: 1 x N x D",
            "add a Reshape layer that makes 1 x N x D: N sequences, D units",
        )
        self.sequences, self.units = before[1:]
        for index, (shape, wanted) in enumerate(((x, (1, self.sequences, GATES * self.units)), (cont, (1, self.sequences))), 1):
            what = "4 values for each unit" if index == 1 else "one indicator for each sequence"
            fact = f"bottom {index} is {shape_text(shape)}, {shape_text(wanted)} is required for bottom 0 {shape_text(before)}"
            self.check(shape == wanted, fact, f"give bottom {index} the shape {shape_text(wanted)}: {what}")
        return [before, before]

    def force_backward(self, bottom: int) -> bool:
        return bottom != 2

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        text = f"in_i = x0; in_f = x1; in_o = x2; in_g = x3; before = x4; cont = x5; {FORWARD}; y0 = c; y1 = h"
        pointwise(rec, text, reads=self._inputs(bottoms), writes=[self._matrix(top.data) for top in tops])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        before, x, cont = bottoms
        cell(graph, graph.split(x, [None] * GATES, 2, [self.units] * GATES), graph.values[before], graph.op("Unsqueeze", cont, [2]), tops)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {2: "the sequence indicators"})
        writes: list[Ref] = []
        names: list[str] = []
        for bottom, wanted, values in zip(bottoms, propagate, (["d_before"], ["d_i", "d_f", "d_o", "d_g"])):
            if wanted:
                assert bottom.diff is not None
                writes += [self._matrix(bottom.diff)] if len(values) == 1 else gates_of(bottom.diff, self.sequences, self.units)
                names += values
        if not writes:
            return
        diffs = [self._matrix(top.diff) for top in tops if top.diff is not None]
        text = f"in_i = x0; in_f = x1; in_o = x2; in_g = x3; before = x4; cont = x5; dc = x6; dh = x7; {FORWARD}; {BACKWARD}; "
        text += "; ".join(f"y{k} = {name}" for k, name in enumerate(names))
        pointwise(rec, text, reads=[*self._inputs(bottoms), *diffs], writes=writes)

    def _inputs(self, bottoms: list[Blob]) -> list[Read]:
        before, x, cont = (bottom.data for bottom in bottoms)
        return [*gates_of(x, self.sequences, self.units), self._matrix(before), (cont.view((self.sequences,)), 0)]

    def _matrix(self, ref: Ref) -> Ref:
        return ref.view((self.sequences, self.units))
