"""Input: blobs that the caller fills."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import Layer, once_or, register
from ocaffe.onnx.graph import OnnxGraph


@register("Input")
class Input(Layer):
    """Tops that the caller fills, with one `shape` for each top or one for all."""

    bottoms = 0
    tops = (1, None)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        shapes, tops = [tuple(shape.dim) for shape in self.own().shape], len(self.param.top)
        fix = f"write shape {{ dim: .. }} in input_param {once_or(tops)}"
        self.check(len(shapes) in (1, tops), f"input_param has {len(shapes)} shapes for {tops} tops", fix)
        for shape in shapes:
            self.check(all(dim > 0 for dim in shape), f"shape {shape_text(shape)} has a dim below 1", "set each dim to 1 or more, the batch size first")
        return shapes if len(shapes) == tops else shapes * tops

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        """Record nothing: the caller writes the values."""

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        for top in tops:
            graph.input(top)
