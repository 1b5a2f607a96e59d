"""Where: a choice between two bottoms for each value."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.layers.base import Layer, register
from ocaffe.layers.broadcast import broadcast_shape, reads, write_gradient
from ocaffe.onnx.graph import OnnxGraph


@register("Where")
class Where(Layer):
    """The value of bottom 1 where bottom 0 is not 0, else that of bottom 2. The bottoms are broadcast as in numpy; bottom 0 gets no gradient."""

    origin = "ocaffe"
    message = ""
    bottoms = 3

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        return [broadcast_shape(self, bottoms)]

    def force_backward(self, bottom: int) -> bool:
        return bottom > 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        y = tops[0].data
        pointwise(rec, "y0 = x0 != 0 ? x1 : x2", reads=reads([bottom.data for bottom in bottoms], y.shape), writes=[y])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {0: "the condition"})
        assert tops[0].diff is not None
        for bottom, wanted, text in zip(bottoms[1:], propagate[1:], ("x1 != 0 ? x0 : 0", "x1 != 0 ? 0 : x0")):
            if wanted:
                assert bottom.diff is not None
                write_gradient(rec, text, [tops[0].diff, bottoms[0].data], bottom.diff)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Where", graph.cast(bottoms[0], np.bool_), bottoms[1], bottoms[2], to=tops[0])
