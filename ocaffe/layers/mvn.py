"""MVN: mean-variance normalization of each image."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register, shape_field
from ocaffe.onnx.graph import OnnxGraph


@register("MVN")
class MVN(Layer):
    """y = (x - mean) / (standard deviation + eps) over the pixels of each channel of an image, or of the whole image with across_channels.

    With normalize_variance: false, y = x - mean. The top has four axes. Backward reads the top and the inverse deviations.
    """

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        self.by_variance, self.eps = bool(p.normalize_variance), float(p.eps)
        top = four_axes(self, bottoms[0])
        self.axes = (1, 2, 3) if p.across_channels else (2, 3)
        self.kept = top[: self.axes[0]]
        self.size = {"n": float(top[2] * top[3] * (top[1] if p.across_channels else 1))}
        return [top]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, y = bottoms[0].data.view(tops[0].shape), tops[0].data
        mean = rec.scratch("mean", self.kept)
        reduce(rec, "v0 = x0", reads=[x], writes=[mean], axes=self.axes, finish="y0 = v0 / n", scalars=self.size)
        centred: list[Read] = [x, (mean, 0)]
        if not self.by_variance:
            pointwise(rec, "y0 = x0 - x1", reads=centred, writes=[y])
            return
        self.inverse: Ref = (rec.saved if rec.train else rec.scratch)("inverse", self.kept)
        # The variance takes a second pass: E[x^2] - E[x]^2 loses precision for images whose mean is far from zero.
        finish, scalars = "y0 = 1 / (sqrt(v0 / n) + eps)", {**self.size, "eps": self.eps}
        reduce(rec, "d = x0 - x1; v0 = d * d", reads=centred, writes=[self.inverse], axes=self.axes, finish=finish, scalars=scalars)
        pointwise(rec, "y0 = (x0 - x1) * x2", reads=[*centred, (self.inverse, 0)], writes=[y])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        x = graph.values[bottoms[0]] if bottoms[0].shape == tops[0].shape else graph.reshape(bottoms[0], graph.shape(tops[0]))
        mean = graph.reduce("ReduceMean", x, self.axes)
        centred = graph.op("Sub", x, mean, to=None if self.by_variance else tops[0])
        if self.by_variance:
            variance = graph.reduce("ReduceMean", graph.op("Mul", centred, centred), self.axes)
            graph.op("Div", centred, graph.op("Add", graph.op("Sqrt", variance), self.eps), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        """As in Caffe, the gradient ignores eps in the derivative of 1 / (deviation + eps)."""
        dy, y = tops[0].diff, tops[0].data
        assert dy is not None and bottoms[0].diff is not None
        dx = bottoms[0].diff.view(tops[0].shape)
        mean_dy = rec.scratch("mean_dy", self.kept)
        if not self.by_variance:
            reduce(rec, "v0 = x0", reads=[dy], writes=[mean_dy], axes=self.axes, finish="y0 = v0 / n", scalars=self.size)
            pointwise(rec, "y0 = x0 - x1", reads=[dy, (mean_dy, 0)], writes=[dx])
            return
        mean_dy_y = rec.scratch("mean_dy_y", self.kept)
        finish = "y0 = v0 / n; y1 = v1 / n"
        reduce(rec, "v0 = x0; v1 = x0 * x1", reads=[dy, y], writes=[mean_dy, mean_dy_y], axes=self.axes, finish=finish, scalars=self.size)
        pointwise(rec, "y0 = (x0 - x2 - x1 * x3) * x4", reads=[dy, y, (mean_dy, 0), (mean_dy_y, 0), (self.inverse, 0)], writes=[dx])


def four_axes(layer: Layer, x: Shape) -> tuple[int, int, int, int]:
    """Return N x C x H x W with trailing ones for missing axes, the top shape of some old layers of Caffe."""
    fix = "give a bottom of 1 to 4 axes"
    if len(x) > 4:
        merged = (*x[:2], math.prod(x[2:-1]), x[-1])
        fix = f"add a Reshape layer before it: {shape_field(merged)}, and one after it: {shape_field(x)}"
    layer.check(1 <= len(x) <= 4, f"bottom 0 is {shape_text(x)}, {layer.param.type} takes 1 to 4 axes", fix)
    return (*x, *(1,) * (4 - len(x)))  # type: ignore[return-value]
