"""Reverse and Flip: axes in the opposite order."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.layers.base import Layer, register
from ocaffe.layers.permute import axes_list
from ocaffe.onnx.builder.graph import OnnxGraph
from ocaffe.ops.alias import alias_diff
from ocaffe.ops.reverse import reverse


class Reversed(Layer):
    """Base of layers that reverse `ranges` of neighbouring axes, given as (first, end). Without ranges no data moves."""

    inplace_top = False
    ranges: Sequence[tuple[int, int]]

    def plan(self, x: Shape, ranges: Sequence[tuple[int, int]]) -> Sequence[Shape]:
        """Set the ranges. Return the top shapes."""
        self.ranges = ranges
        self.moves_data = bool(ranges)
        return [x]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            self.apply(rec, bottoms[0].data, tops[0].data)
        else:
            rec.alias(tops[0], bottoms[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            axes = [axis for first, end in self.ranges for axis in range(first, end)]
            graph.op("Slice", bottoms[0], [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes), to=tops[0])
        else:
            graph.alias(tops[0], bottoms[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if self.moves_data:
            assert bottoms[0].diff is not None
            self.apply(rec, tops[0].diff, bottoms[0].diff)
        else:
            alias_diff(rec, bottoms[0], tops[0])

    def apply(self, rec: Recorder, x: Ref, y: Ref) -> None:
        """y = x with all ranges reversed, one after another."""
        for i, (first, end) in enumerate(self.ranges):
            target = y if i == len(self.ranges) - 1 else rec.scratch(f"reversed{i}", x.shape)
            reverse(rec, x, target, first, end)
            x = target


@register("Reverse")
class Reverse(Reversed):
    """Reverses the order of the indices of `axis` (default 0), which may be given several times.

    Source: dlunion/CC4.0, src/caffe/layers/reverse_layer.cpp at 1225991; there, axis is given once at most. Ascend's reverse_param takes several axes.
    """

    origin = "text recognition forks, Ascend"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, given = bottoms[0], list(self.own().axis) or [0]
        axes = sorted({self.axis(axis, x) for axis in given})
        self.check(len(axes) == len(given), f"axis {axes_list(given)} names an axis of bottom {shape_text(x)} twice", "each axis once")
        return self.plan(x, [(axis, axis + 1) for axis in axes])


@register("Flip")
class Flip(Reversed):
    """Mirrors N x C x H x W: the columns with flip_width (default true), the rows with flip_height (default false).

    Source: happynear/caffe-windows, src/caffe/layers/flip_layer.cpp at 434b0fa.
    """

    origin = "happynear"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.check(len(x) == 4, f"bottom 0 is {shape_text(x)}, it must be N x C x H x W", "add a Reshape layer before it")
        first, end = 3 - p.flip_height, 3 + p.flip_width  # rows and columns together are one range
        return self.plan(x, [(first, end)] if first < end else [])
