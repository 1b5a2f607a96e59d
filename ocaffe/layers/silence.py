"""Silence."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("Silence")
class Silence(Layer):
    """Consumes unused bottoms, so that they are not outputs of the net; their diffs are zero."""

    bottoms = (1, None)
    tops = 0

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        return []

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        pass

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Write nothing: the bottoms are not outputs."""

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        for bottom, wanted in zip(bottoms, propagate):
            if wanted:
                assert bottom.diff is not None
                pointwise(rec, "y0 = 0", writes=[bottom.diff])
