"""Axpy: the last step of SENet's channel attention."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("Axpy")
class Axpy(Layer):
    """y = a x + b with bottoms a (N x C, or N x C x 1 x 1), x and b (both N x C x ..); a has one factor for each channel of each image."""

    bottoms = 3
    passes_diff = True
    origin = "SENet"
    message = ""
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        a, x, b = bottoms
        self.check(
            x == b,
            f"bottom 2 is {shape_text(b)}, bottom 1 is {shape_text(x)}: they must be equal",
            f"give bottom 2 the shape {shape_text(x)}: equal num_output, stride and pad before it",
        )
        fits = len(x) >= 2 and a[:2] == x[:2] and all(size == 1 for size in a[2:])
        wanted = shape_text(x[:2])
        fact = f"bottom 0 is {shape_text(a)}, for bottom 1 of {shape_text(x)} it must be {wanted} or {wanted} x 1 x 1"
        self.check(fits, fact, f"give {wanted} factors as bottom 0: num_output: {x[1] if len(x) > 1 else 1} in the layer that makes them")
        return [x]

    def factor(self, bottoms: list[Blob]) -> Read:
        return bottoms[0].data.view(bottoms[0].shape[:2]), 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        pointwise(rec, "y0 = x0 * x1 + x2", reads=[self.factor(bottoms), bottoms[1].data, bottoms[2].data], writes=[tops[0].data])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        a, x, b = bottoms
        factor = graph.values[a] if len(a.shape) == len(x.shape) else graph.reshape(a, (0, 0, *[1] * (len(x.shape) - 2)))
        graph.op("Add", graph.op("Mul", factor, x), b, to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy = tops[0].diff
        assert dy is not None
        if propagate[0]:
            axes = range(2, len(dy.shape))
            da = rec.diff_of(bottoms[0])
            reduce(rec, "v0 = x0 * x1", reads=[dy, bottoms[1].data], writes=[da.view(bottoms[0].shape[:2])], axes=axes)
        if propagate[1]:
            pointwise(rec, "y0 = x0 * x1", reads=[self.factor(bottoms), dy], writes=[rec.diff_of(bottoms[1])])
        if propagate[2]:
            alias_diff(rec, bottoms[2], tops[0])
