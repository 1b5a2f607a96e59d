"""Slice: parts of the bottom along an axis."""
from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.kernels.rearrange.copy import copy
from ocaffe.layers.base import Layer, register, times
from ocaffe.layers.concat import legacy_axis
from ocaffe.onnx.graph import OnnxGraph


@register("Slice")
class Slice(Layer):
    """Splits the bottom along `axis` (or the legacy slice_dim) at the `slice_point`s, or into equal parts without slice_point.

    A single top is not copied.
    """

    tops = (1, None)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, tops = bottoms[0], max(1, len(self.param.top))
        self.copy_axis = legacy_axis(self, "slice_dim", x)
        size, points = x[self.copy_axis], list(self.own().slice_point)
        where = f"axis {self.copy_axis} of bottom {shape_text(x)}"
        if points:
            self.check(
                len(points) == tops - 1,
                f"{len(points)} slice_points for {tops} tops",
                f"write slice_point {times(tops - 1)}, one between each two tops; or give {len(points) + 1} tops",
            )
            self.starts = [0, *points, size]
            self.check(
                all(a < b for a, b in pairwise(self.starts)),
                f"slice_points {', '.join(map(str, points))} do not rise from 1 to {size - 1} ({where})",
                f"write slice_point in rising order, from 1 to {size - 1}",
            )
        else:
            fix = f"write slice_point {times(tops - 1)}, or give a number of tops that divides {size}"
            self.check(size % tops == 0, f"{tops} tops do not evenly divide {where}", fix)
            self.starts = [size // tops * i for i in range(tops + 1)]
        self.moves_data = tops > 1
        return [(*x[: self.copy_axis], end - start, *x[self.copy_axis + 1 :]) for start, end in pairwise(self.starts)]

    @property
    def by_sample(self) -> bool:
        return self.copy_axis > 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if not self.moves_data:
            rec.alias(tops[0], bottoms[0])
            return
        for top, (start, end) in zip(tops, pairwise(self.starts)):
            copy(rec, bottoms[0].data, top.data, self.copy_axis, end - start, x_start=start)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if not self.moves_data:
            graph.alias(tops[0], bottoms[0])
            return
        axis, sizes = self.copy_axis, [end - start for start, end in pairwise(self.starts)]
        if axis in graph.varying.get(bottoms[0], {}) and not self.own().slice_point:
            graph.split(bottoms[0], tops, axis, None)
        else:
            graph.fixed(bottoms[0], axis)
            graph.split(bottoms[0], tops, axis, sizes)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        if not self.moves_data:
            alias_diff(rec, bottoms[0], tops[0])
            return
        for top, (start, end) in zip(tops, pairwise(self.starts)):
            assert top.diff is not None and bottoms[0].diff is not None
            copy(rec, top.diff, bottoms[0].diff, self.copy_axis, end - start, y_start=start)
