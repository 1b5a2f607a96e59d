"""Softmax."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.loss.softmax import softmax, softmax_backward
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("Softmax")
class Softmax(Layer):
    """y = exp(x) / sum of exp(x) along `axis`, for each position of the other axes."""

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.class_axis = self.axis(self.own().axis, bottoms[0])
        return [bottoms[0]]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        softmax(rec, bottoms[0].data, tops[0].data, self.class_axis)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Softmax", bottoms[0], to=tops[0], axis=self.class_axis)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None and bottoms[0].diff is not None
        softmax_backward(rec, tops[0].data, tops[0].diff, bottoms[0].diff, self.class_axis)
