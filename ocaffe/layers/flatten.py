"""Flatten: merge adjacent axes."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("Flatten")
class Flatten(Layer):
    """Merges the axes from `axis` to `end_axis` into one; no data moves. An `end_axis` of `axis - 1` adds an axis of 1, as in Caffe."""

    moves_data = False
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        param, x = self.own(), bottoms[0]
        first, last = self.axis(param.axis, x), self.axis(param.end_axis, x, "end_axis")
        self.check(
            first <= last + 1,
            f"end_axis {last} is before axis {first} of bottom {shape_text(x)}",
            f"set end_axis to {first} or more, or to -1 for the last axis",
        )
        self.first = first
        return [(*x[:first], math.prod(x[first : last + 1]), *x[last + 1 :])]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        rec.alias(tops[0], bottoms[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if tops[0].shape == bottoms[0].shape:
            graph.alias(tops[0], bottoms[0])
        elif len(tops[0].shape) == 2:
            graph.op("Flatten", bottoms[0], to=tops[0], axis=1 if self.first == 1 else len(bottoms[0].shape) - 1)
        else:
            graph.reshape(bottoms[0], to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        alias_diff(rec, bottoms[0], tops[0])
