"""Reduction."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe import proto
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph

OP = proto.ReductionParameter
TEXTS = {  # text of the sum; text of the gradient from x0 (the top's diff) and x1 (the bottom)
    OP.SUM: ("v0 = x0", "y0 = s * x0"),
    OP.MEAN: ("v0 = x0", "y0 = s * x0"),
    OP.ASUM: ("v0 = fabs(x0)", "y0 = s * x0 * sign(x1)"),
    OP.SUMSQ: ("v0 = x0 * x0", "y0 = 2 * s * x0 * x1"),
}

ONNX = {OP.SUM: "ReduceSum", OP.MEAN: "ReduceMean", OP.ASUM: "ReduceL1", OP.SUMSQ: "ReduceSumSquare"}


@register("Reduction")
class Reduction(Layer):
    """SUM, ASUM (sum of magnitudes), SUMSQ (sum of squares) or MEAN over all axes from `axis` on, times `coeff`."""

    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.check(
            p.operation in TEXTS,
            f"operation: {OP.ReductionOp.Name(p.operation)} (of TSN's fork) is not supported",
            "write operation: SUM, ASUM, SUMSQ or MEAN",
        )
        self.first = self.axis(p.axis, x) if x else 0
        self.scale = p.coeff / max(1, math.prod(x[self.first :])) if p.operation == OP.MEAN else p.coeff
        return [x[: self.first]]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        text, _ = TEXTS[self.own().operation]
        axes = range(self.first, len(bottoms[0].shape))
        reduce(rec, text, reads=[bottoms[0].data], writes=[tops[0].data], axes=axes, finish="y0 = s * v0", scalars={"s": self.scale})

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        coeff, axes = float(self.own().coeff), range(self.first, len(bottoms[0].shape))
        y = graph.reduce(ONNX[self.own().operation], bottoms[0], axes, keepdims=False, to=tops[0] if coeff == 1 else None)
        if coeff != 1:
            graph.op("Mul", y, coeff, to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None and bottoms[0].diff is not None
        _, text = TEXTS[self.own().operation]
        reads: list[Read] = [(tops[0].diff, 0)]
        if "x1" in text:
            reads.append(bottoms[0].data)
        pointwise(rec, text, reads=reads, writes=[bottoms[0].diff], scalars={"s": self.scale})
