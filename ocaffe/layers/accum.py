"""Accum: images of several sizes, resized to one and joined."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.rearrange.copy import copy
from ocaffe.kernels.resampling.interp import Resampling
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("Accum")
class Accum(Layer):
    """The bottoms (N x C x H x W), resized bilinearly with aligned corners to one size, joined along the channels.

    The size is that of the last bottom with have_reference, which is not joined. Else it is the largest height and width, unless top_height and top_width
    are both larger; size_divisible_by makes them the next multiples. Source: lmb-freiburg/flownet2, src/caffe/layers/accum_layer.cpp.
    """

    origin = "FlowNet"
    bottoms = (1, None)
    by_sample = True
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        own, first = self.own(), bottoms[0]
        for number, shape in enumerate(bottoms):
            self.check_axes(shape, "N x C x H x W", number, values=True)
            fact = f"bottom {number} is {shape_text(shape)}, bottom 0 is {shape_text(first)}: their batches differ"
            self.check(shape[0] == first[0], fact, f"give bottom {number} the batch size {first[0]}")
        self.joined = len(bottoms) - bool(own.have_reference)
        self.check(self.joined, "have_reference is true, and 1 bottom is given", "give the image of the wanted size as last bottom, or remove have_reference")
        largest = [max(shape[axis] for shape in bottoms) for axis in (2, 3)]
        size = own.top_height, own.top_width
        if own.have_reference:
            largest = list(bottoms[-1][2:])
        elif own.HasField("size_divisible_by"):
            part = own.size_divisible_by
            self.check(part > 0, f"size_divisible_by is {part}", "set size_divisible_by to 1 or more, or remove it")
            size = -(-largest[0] // part) * part, -(-largest[1] // part) * part
        if not own.have_reference and size[0] > largest[0] and size[1] > largest[1]:
            largest = list(size)
        self.size = largest[0], largest[1]
        return [(first[0], sum(shape[1] for shape in bottoms[: self.joined]), *self.size)]

    def force_backward(self, bottom: int) -> bool:
        return bottom < self.joined

    def _parts(self, bottoms: list[Blob]) -> Iterator[tuple[Blob, int, Resampling | None]]:
        """Yield the joined bottoms, their first channels in the top, and how they are resized (None: not at all)."""
        channel = 0
        for bottom in bottoms[: self.joined]:
            size = bottom.shape[2], bottom.shape[3]
            yield bottom, channel, Resampling(0, size, self.size) if size != self.size else None
            channel += bottom.shape[1]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        for bottom, channel, resampling in self._parts(bottoms):
            part = bottom.data
            if resampling is not None:
                part = rec.scratch(f"part{channel}", (*bottom.shape[:2], *self.size))
                resampling.forward(rec, bottom.data, part)
            copy(rec, part, tops[0].data, 1, bottom.shape[1], y_start=channel)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        parts = []
        for bottom, _, resampling in self._parts(bottoms):
            how: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
            sizes = graph.sizes(bottom, 2, self.size)
            parts.append(graph.values[bottom] if resampling is None else graph.op("Resize", bottom, None, None, sizes, **how))
        graph.op("Concat", *parts, to=tops[0], axis=1)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy = tops[0].diff
        assert dy is not None
        for (bottom, channel, resampling), wanted in zip(self._parts(bottoms), propagate):
            if not wanted:
                continue
            dx = rec.diff_of(bottom)
            if resampling is None:
                copy(rec, dy, dx, 1, bottom.shape[1], x_start=channel)
            else:
                part = rec.scratch(f"slope{channel}", (*bottom.shape[:2], *self.size))
                copy(rec, dy, part, 1, bottom.shape[1], x_start=channel)
                resampling.backward(rec, part, dx)
        for bottom, wanted in zip(bottoms[self.joined :], propagate[self.joined :]):
            if wanted:
                pointwise(rec, "y0 = 0", writes=[rec.diff_of(bottom)])
