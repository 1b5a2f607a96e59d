"""Crop, and the base that it shares with CropCenter."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role, Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.kernels.rearrange.copy import copy
from ocaffe.kernels.rearrange.rearrange import crop, uncrop
from ocaffe.layers.base import Layer, once_or, register
from ocaffe.onnx.graph import OnnxGraph
from ocaffe.support import log


class Cropped(Layer):
    """Base of layers whose top is a part of bottom 0. If the part is the whole bottom, no data moves."""

    inplace_top = False
    starts: Sequence[int]

    def plan(self, x: Shape, starts: Sequence[int], y: Shape) -> Sequence[Shape]:
        """Set the first index of the part along each axis of a bottom of shape x. Return the shape y of the part as the top shapes."""
        self.starts = starts
        self.moves_data = y != x
        return [y]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, y = bottoms[0].data, tops[0].data
        cut = [axis for axis, (a, b) in enumerate(zip(bottoms[0].shape, tops[0].shape)) if a != b]
        if cut in ([0], [1]):  # whole samples or channels: the planner may elide the copy
            copy(rec, x, y, cut[0], tops[0].shape[cut[0]], x_start=self.starts[cut[0]])
        elif self.moves_data:
            crop(rec, x, y, self.starts)
        else:
            rec.alias(tops[0], bottoms[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        cut = [axis for axis, (before, after) in enumerate(zip(bottoms[0].shape, tops[0].shape)) if before != after]
        if cut:
            starts = [self.starts[axis] for axis in cut]
            ends = [start + graph.fixed(tops[0], axis) for start, axis in zip(starts, cut)]
            graph.op("Slice", bottoms[0], starts, ends, cut, to=tops[0])
        else:
            graph.alias(tops[0], bottoms[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if propagate[0] and self.moves_data:
            assert bottoms[0].diff is not None
            uncrop(rec, tops[0].diff, bottoms[0].diff, self.starts)
        elif propagate[0]:
            alias_diff(rec, bottoms[0], tops[0])


@register("Crop")
class Crop(Cropped):
    """A part of bottom 0 that starts at `offset` (one for all axes, or one per axis) and has the size of bottom 1 from `axis` on.

    Only the size of bottom 1 is used; its diff is zero. If the sizes are equal, no data moves.
    """

    bottoms = 2

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, like) = self.own(), bottoms
        first = self.axis(p.axis, x)
        offsets, cut = list(p.offset) or [0], len(x) - first
        self.check(len(offsets) in (1, cut), f"{len(offsets)} offset for the {cut} axes from axis {first} on", f"write offset {once_or(cut)}")
        self.check(len(like) == len(x), f"bottom 0 is {shape_text(x)}, bottom 1 is {shape_text(like)}", f"give bottom 1 {len(x)} axes, as bottom 0 has")
        starts = [0] * first + (offsets * cut if len(offsets) == 1 else offsets)
        for axis in range(first, len(x)):
            self.check(
                starts[axis] + like[axis] <= x[axis],
                f"axis {axis}: offset {starts[axis]} and size {like[axis]} (bottom 1 is {shape_text(like)}) go beyond {x[axis]} "
                f"(bottom 0 is {shape_text(x)})",
                f"set the offset of axis {axis} to {x[axis] - like[axis]} or less" if like[axis] <= x[axis]
                else f"give a bottom 1 of at most {x[axis]} along axis {axis}",
            )
        if not self.param.HasField("crop_param") and like[first:] != x[first:]:
            log.warn_once(
                "crop_layer.cpp:1",
                f"{self.title}: without crop_param the part begins at offset 0, as in BVLC Caffe. The forks of FCN and HED compute the offset from the layers "
                f"between, which is often half of the difference: crop_param {{ offset: {(x[-1] - like[-1]) // 2} }}",
            )
        return self.plan(x, starts, (*x[:first], *like[first:]))

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        super().backward(rec, tops, bottoms, propagate)
        if propagate[1]:
            if bottoms[1].diff is None:  # no diff exists yet if no data moves
                bottoms[1].diff = Ref(f"{bottoms[1].name}.diff", bottoms[1].shape, Role.DIFF)
            pointwise(rec, "y0 = 0", writes=[bottoms[1].diff])
