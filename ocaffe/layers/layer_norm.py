"""LayerNorm, which with other values of `axis` is instance or group normalization."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register

if TYPE_CHECKING:
    from ocaffe.onnx.graph import OnnxGraph, Value


class FromAxis(Layer):
    """Base of layers that normalize over all axes from `axis` on."""

    origin = "ocaffe"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x = bottoms[0]
        self.first = self.axis(self.own().axis, x)
        self.axes = range(self.first, len(x))
        self.scalars = {"n": float(math.prod(x[self.first :])), "eps": float(self.own().eps)}
        self.folded = x  # the shape as which the bottom is normalized
        return [x]


@register("LayerNorm")
class LayerNorm(FromAxis):
    """y = (x - mean) / sqrt(variance + eps) over all axes from `axis` on: 1 is per image, 2 per channel, -1 over the last axis.

    TRAIN and TEST compute the same; there are no running statistics. For a learned scale and bias, add a Scale layer. Unlike in MVN, eps is added to
    the variance. Backward reads the top and the inverse deviations.
    """

    def _folded(self, ref: Ref) -> Ref:
        """Return a value in the normalized shape. Of equal shape it is the value itself, because passes do not fuse through views."""
        return ref if ref.shape == self.folded else ref.view(self.folded)

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, kept = self._folded(bottoms[0].data), self.folded[: self.first]
        mean, self.inverse = rec.scratch("mean", kept), (rec.saved if rec.train else rec.scratch)("inverse", kept)
        centred: list[Read] = [x, (mean, 0)]
        reduce(rec, "v0 = x0", reads=[x], writes=[mean], axes=self.axes, finish="y0 = v0 / n", scalars=self.scalars)
        # The variance takes a second pass: E[x^2] - E[x]^2 loses precision for values far from zero.
        finish = "y0 = 1 / sqrt(v0 / n + eps)"
        reduce(rec, "d = x0 - x1; v0 = d * d", reads=centred, writes=[self.inverse], axes=self.axes, finish=finish, scalars=self.scalars)
        pointwise(rec, "y0 = (x0 - x1) * x2", reads=[*centred, (self.inverse, 0)], writes=[self._folded(tops[0].data)])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None and bottoms[0].diff is not None
        dy, y, dx = (self._folded(ref) for ref in (tops[0].diff, tops[0].data, bottoms[0].diff))
        means: list[Ref] = [rec.scratch(name, self.inverse.shape) for name in ("mean_dy", "mean_dy_y")]
        finish = "y0 = v0 / n; y1 = v1 / n"
        reduce(rec, "v0 = x0; v1 = x0 * x1", reads=[dy, y], writes=means, axes=self.axes, finish=finish, scalars=self.scalars)
        pointwise(rec, "y0 = (x0 - x2 - x1 * x3) * x4", reads=[dy, y, *((ref, 0) for ref in (*means, self.inverse))], writes=[dx])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.normalized(graph, bottoms[0], tops[0])

    def normalized(self, graph: OnnxGraph, x: Value, to: Blob | None = None) -> str:
        """Write operators that all opsets have. Return the name of the result."""
        centred = graph.op("Sub", x, graph.reduce("ReduceMean", x, list(self.axes)))
        variance = graph.reduce("ReduceMean", graph.op("Mul", centred, centred), list(self.axes))
        return graph.op("Div", centred, graph.op("Sqrt", graph.op("Add", variance, self.scalars["eps"])), to=to)
