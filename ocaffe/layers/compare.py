"""Compare: a comparison or a logical operation on two bottoms."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe import proto
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.layers.base import Layer, register
from ocaffe.layers.broadcast import broadcast_shape, reads
from ocaffe.onnx.graph import OnnxGraph

OPERATION = proto.CompareParameter
FORMS = {  # the expression, and the ONNX operator
    OPERATION.EQUAL: ("x0 == x1", "Equal"),
    OPERATION.GREATER: ("x0 > x1", "Greater"),
    OPERATION.GREATER_OR_EQUAL: ("x0 >= x1", "GreaterOrEqual"),
    OPERATION.LESS: ("x0 < x1", "Less"),
    OPERATION.LESS_OR_EQUAL: ("x0 <= x1", "LessOrEqual"),
    OPERATION.AND: ("x0 != 0 && x1 != 0", "And"),
    OPERATION.OR: ("x0 != 0 || x1 != 0", "Or"),
    OPERATION.XOR: ("(x0 != 0) != (x1 != 0)", "Xor"),
}


@register("Compare")
class Compare(Layer):
    """1 where `operation` holds for the values of the two bottoms, else 0. The bottoms are broadcast as in numpy. For AND, OR and XOR, 0 means false."""

    origin = "ocaffe"
    bottoms = 2
    has_backward = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        return [broadcast_shape(self, bottoms)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        text, _ = FORMS[self.own().operation]
        y = tops[0].data
        pointwise(rec, f"y0 = {text}", reads=reads([bottom.data for bottom in bottoms], y.shape), writes=[y])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        _, operator = FORMS[self.own().operation]
        logical = self.own().operation in (OPERATION.AND, OPERATION.OR, OPERATION.XOR)
        inputs = [graph.cast(bottom, np.bool_) for bottom in bottoms] if logical else bottoms
        graph.cast(graph.op(operator, *inputs), np.float32, tops[0])
