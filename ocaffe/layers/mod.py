"""Mod: the remainder of a division."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.layers.base import Layer, register
from ocaffe.layers.broadcast import broadcast_shape, reads
from ocaffe.onnx.graph import OnnxGraph


@register("Mod")
class Mod(Layer):
    """The remainder of bottom 0 divided by bottom 1, exactly, with the sign of bottom 0 (C's fmod). The bottoms are broadcast as in numpy."""

    origin = "ocaffe"
    message = ""
    bottoms = 2
    has_backward = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        return [broadcast_shape(self, bottoms)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        y = tops[0].data
        pointwise(rec, "y0 = fmod(x0, x1)", reads=reads([bottom.data for bottom in bottoms], y.shape), writes=[y])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Mod", *bottoms, fmod=1, to=tops[0])
