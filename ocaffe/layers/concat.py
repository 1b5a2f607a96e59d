"""Concat: bottoms one after another along an axis."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.kernels.rearrange.copy import copy
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("Concat")
class Concat(Layer):
    """The bottoms concatenated along `axis` (or the legacy concat_dim). A single bottom is not copied."""

    bottoms = (1, None)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.copy_axis = legacy_axis(self, "concat_dim", bottoms[0])
        for i, shape in enumerate(bottoms[1:], 1):
            agree = len(shape) == len(bottoms[0]) and all(a == b for k, (a, b) in enumerate(zip(bottoms[0], shape)) if k != self.copy_axis)
            self.check(
                agree,
                f"all bottoms must agree except in axis {self.copy_axis}: "
                f"bottom 0 is {shape_text(bottoms[0])}, bottom {i} is {shape_text(shape)}",
                _joined(bottoms[0], shape, self.copy_axis, i),
            )
        self.moves_data = len(bottoms) > 1
        self.sizes = [shape[self.copy_axis] for shape in bottoms]
        return [tuple(sum(self.sizes) if k == self.copy_axis else size for k, size in enumerate(bottoms[0]))]

    @property
    def by_sample(self) -> bool:
        return self.copy_axis > 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if not self.moves_data:
            rec.alias(tops[0], bottoms[0])
            return
        start = 0
        for bottom, size in zip(bottoms, self.sizes):
            copy(rec, bottom.data, tops[0].data, self.copy_axis, size, y_start=start)
            start += size

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            graph.op("Concat", *bottoms, to=tops[0], axis=self.copy_axis)
        else:
            graph.alias(tops[0], bottoms[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        if not self.moves_data:
            alias_diff(rec, bottoms[0], tops[0])
            return
        start = 0
        for bottom, size, wanted in zip(bottoms, self.sizes, propagate):
            if wanted:
                assert tops[0].diff is not None and bottom.diff is not None
                copy(rec, tops[0].diff, bottom.diff, self.copy_axis, size, x_start=start)
            start += size


def _joined(first: Shape, other: Shape, axis: int, bottom: int) -> str:
    """Return the remedy for a bottom that cannot follow the first one along the axis."""
    if len(first) != len(other):
        return f"give bottom {bottom} {len(first)} axes, as bottom 0 has"
    fix = f"give bottom {bottom} the shape {shape_text([*first[:axis], other[axis], *first[axis + 1 :]])}, by equal strides and pads before it"
    unequal = [k for k, (a, b) in enumerate(zip(first, other)) if a != b]
    return f"{fix}, or write axis: {unequal[0]}" if len(unequal) == 1 else fix


def legacy_axis(layer: Layer, legacy: str, shape: Shape) -> int:
    """Return `axis`, which may be negative, or the field of old prototxts, which may not be negative."""
    param = layer.own()
    if not param.HasField(legacy):
        return layer.axis(param.axis, shape)
    layer.check(not param.HasField("axis"), f"axis and {legacy} are both given, two names for the same setting", f"remove {legacy}")
    return layer.axis(getattr(param, legacy), shape, legacy)
