"""ReLU, with an optional negative slope."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Relu, ReluBackward, pointwise
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("ReLU")
class ReLU(Layer):
    """y = x for x > 0, else negative_slope * x; the derivative at 0 is negative_slope.

    Backward reads the top, which has the sign of the bottom, so the bottom can be overwritten. If negative_slope is below 0, the signs differ and
    backward reads the bottom.
    """

    by_sample = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.slope = float(self.own().negative_slope)
        return [bottoms[0]]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        text = "y0 = x0 > 0 ? x0 : slope * x0"
        pointwise(rec, text, reads=[bottoms[0].data], writes=[tops[0].data], scalars={"slope": self.slope}, means=Relu(self.slope))

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.slope:
            graph.op("LeakyRelu", bottoms[0], to=tops[0], alpha=self.slope)
        else:
            graph.op("Relu", bottoms[0], to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None and bottoms[0].diff is not None
        sign = tops[0].data if self.slope >= 0 else bottoms[0].data
        text = "y0 = x1 > 0 ? x0 : slope * x0"
        pointwise(rec, text, reads=[tops[0].diff, sign], writes=[bottoms[0].diff], scalars={"slope": self.slope}, means=ReluBackward(self.slope))
