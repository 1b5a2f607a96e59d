"""Reverse and Flip: axes in the opposite order."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.rearrange.strided import Steps
from ocaffe.layers.base import register
from ocaffe.layers.permute import axes_list
from ocaffe.layers.strided_slice import Strided
from ocaffe.onnx.graph import OnnxGraph


class Reversed(Strided):
    """Base of layers that reverse some axes. Without axes no data moves."""

    axes: Sequence[int]

    def plan(self, x: Shape, axes: Sequence[int]) -> Sequence[Shape]:
        """Set the axes. Return the top shapes."""
        self.axes = axes
        self.steps = [Steps(size - 1, -1, size) if axis in axes else Steps(0, 1, size) for axis, size in enumerate(x)]
        self.moves_data = bool(axes)
        return [x]

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            count = len(self.axes)
            graph.op("Slice", bottoms[0], [-1] * count, [-(2**31)] * count, list(self.axes), [-1] * count, to=tops[0])
        else:
            graph.alias(tops[0], bottoms[0])


@register("Reverse")
class Reverse(Reversed):
    """Reverses the order of the indices of `axis` (default 0), which may be given several times.

    Source: dlunion/CC4.0, src/caffe/layers/reverse_layer.cpp at 1225991; there, axis is given once at most. Ascend's reverse_param takes several axes.
    """

    origin = "text recognition forks, Ascend"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, given = bottoms[0], list(self.own().axis) or [0]
        axes = sorted({self.axis(axis, x) for axis in given})
        self.check(len(axes) == len(given), f"axis {axes_list(given)} names an axis of bottom {shape_text(x)} twice", "write each axis once")
        return self.plan(x, axes)


@register("Flip")
class Flip(Reversed):
    """Mirrors N x C x H x W: the columns with flip_width (default true), the rows with flip_height (default false).

    Source: happynear/caffe-windows, src/caffe/layers/flip_layer.cpp at 434b0fa.
    """

    origin = "happynear"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.check_axes(x, "N x C x H x W")
        return self.plan(x, [axis for axis, flipped in ((2, p.flip_height), (3, p.flip_width)) if flipped])
