"""PReLU: a ReLU with a learned slope."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, ParamBlob, register
from ocaffe.onnx.graph import OnnxGraph


@register("PReLU")
class PReLU(Layer):
    """y = x for x > 0, else slope * x, with a learned slope per channel (axis 1) or, with channel_shared, one slope; the derivative at 0 is the slope.

    Backward reads the bottom, because a learned slope can become negative, and then the sign of the top is not that of the bottom.
    """

    by_sample = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x = bottoms[0]
        self.check_axes(x, "N x C x ..")
        self.shape = () if self.own().channel_shared else (x[1],)
        self.others = [d for d in range(len(x)) if d != 1 or not self.shape]
        return [x]

    def parameters(self) -> Sequence[ParamBlob]:
        p = self.own()
        return [ParamBlob(self.shape, p.filler if p.HasField("filler") else proto.FillerParameter(type="constant", value=0.25))]

    @property
    def slope(self) -> Read:
        return self.params[0].data, 1 if self.shape else 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        pointwise(rec, "y0 = x0 > 0 ? x0 : x1 * x0", reads=[bottoms[0].data, self.slope], writes=[tops[0].data])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        slope = (-1, *(1,) * (len(bottoms[0].shape) - 2)) if self.shape else (1,)
        graph.op("PRelu", bottoms[0], graph.parameter(self.params[0], slope), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy, gradient = tops[0].diff, self.params[0].diff
        assert dy is not None
        if gradient is not None:
            reduce(rec, "v0 = x1 > 0 ? 0 : x0 * x1", reads=[dy, bottoms[0].data], writes=[gradient], axes=self.others)
        if propagate[0]:
            assert bottoms[0].diff is not None
            pointwise(rec, "y0 = x1 > 0 ? x0 : x2 * x0", reads=[dy, bottoms[0].data, self.slope], writes=[bottoms[0].diff])
