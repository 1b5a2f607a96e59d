"""ExpMax: exponentials of differences from the largest channel."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("ExpMax")
class ExpMax(Layer):
    """y = base^(shift + scale (x - m)), with the maximum m of the channels of a pixel; base -1 is e.

    m counts as a constant in the gradient, as in the fork. LiteFlowNet divides by the sum over channels afterwards, so m does not matter there. Its layer
    subtracts m from the first sample only; here from all. Source: twhui/LiteFlowNet, src/caffe/layers/expmax_layer.cu.
    """

    origin = "LiteFlowNet"
    message = "expmax_param"
    by_sample = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.check_axes(x, "N x C x ..", values=True)
        self.check(p.base == -1 or p.base > 0, f"base is {p.base:g}", "set base to a number above 0, or to -1 for base e")
        log = 1.0 if p.base == -1 else math.log(p.base)
        self.rate, self.factor = log * p.scale, math.exp(log * p.shift)
        self.shape, self.largest = (x[0], x[1], math.prod(x[2:])), (x[0], 1, math.prod(x[2:]))
        return [x]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, largest = bottoms[0].data.view(self.shape), rec.scratch("largest", self.largest)
        reduce(rec, "v0 = x0", reads=[x], writes=[largest.view((self.shape[0], self.shape[2]))], axes=[1], op="max")
        reads: list[Read] = [x, (largest, 0)]
        scalars = {"inner": self.rate, "outer": self.factor}
        pointwise(rec, "y0 = outer * exp(inner * (x0 - x1))", reads=reads, writes=[tops[0].data.view(self.shape)], scalars=scalars)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        lower = graph.op("Sub", bottoms[0], graph.reduce("ReduceMax", bottoms[0], [1]))
        graph.op("Mul", graph.op("Exp", graph.op("Mul", lower, self.rate)), self.factor, to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy, dx = tops[0].diff, bottoms[0].diff
        assert dy is not None and dx is not None
        pointwise(rec, "y0 = inner * x0 * x1", reads=[dy, tops[0].data], writes=[dx], scalars={"inner": self.rate})
