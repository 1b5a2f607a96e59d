"""RMSNorm: normalization by the root of the mean square."""
from __future__ import annotations

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.kernels.expression.expression import pointwise, reduce
from ocaffe.layers.base import register
from ocaffe.layers.layer_norm import FromAxis
from ocaffe.onnx.graph import OnnxGraph


@register("RMSNorm")
class RMSNorm(FromAxis):
    """y = x / sqrt(mean of x^2 + eps) over all axes from `axis` on (default: the last). For a learned scale, add a Scale layer.

    TRAIN and TEST compute the same. Backward reads the top and the inverse roots.
    """

    @property
    def by_sample(self) -> bool:
        return self.first > 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x = bottoms[0].data
        self.inverse = (rec.saved if rec.train else rec.scratch)("inverse", x.shape[: self.first])
        finish = "y0 = 1 / sqrt(v0 / n + eps)"
        reduce(rec, "v0 = x0 * x0", reads=[x], writes=[self.inverse], axes=self.axes, finish=finish, scalars=self.scalars)
        pointwise(rec, "y0 = x0 * x1", reads=[x, (self.inverse, 0)], writes=[tops[0].data])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy, y, dx = tops[0].diff, tops[0].data, bottoms[0].diff
        assert dy is not None and dx is not None
        mean = rec.scratch("mean_dy_y", self.inverse.shape)
        reduce(rec, "v0 = x0 * x1", reads=[dy, y], writes=[mean], axes=self.axes, finish="y0 = v0 / n", scalars={"n": self.scalars["n"]})
        pointwise(rec, "y0 = (x0 - x1 * x2) * x3", reads=[dy, y, (mean, 0), (self.inverse, 0)], writes=[dx])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Write operators that all opsets have."""
        square = graph.reduce("ReduceMean", graph.op("Mul", bottoms[0], bottoms[0]), list(self.axes))
        graph.op("Div", bottoms[0], graph.op("Sqrt", graph.op("Add", square, self.scalars["eps"])), to=tops[0])
