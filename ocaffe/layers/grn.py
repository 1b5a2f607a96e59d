"""GRN: features of length 1."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("GRN")
class GRN(Layer):
    """y = x / sqrt(sum of the squares of the channels + bias) at each pixel; without grn_param the bias is 0.

    Sources: the GRN layer of 2015 (beenfrog), which has no bias; that of OpenVINO, which has one.
    """

    origin = "beenfrog, OpenVINO"
    by_sample = True
    message = "grn_param"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, bias = bottoms[0], float(self.own().bias)
        self.check_axes(x, "N x C x ..", values=True)
        self.check(bias >= 0, f"bias is {bias:g}", "set bias to 0 or more")
        self.bias, self.shape, self.single = bias, (x[0], x[1], math.prod(x[2:])), (x[0], 1, math.prod(x[2:]))
        return [x]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x = bottoms[0].data.view(self.shape)
        self.norms = (rec.saved if rec.train else rec.scratch)("norms", self.single)
        flat = self.norms.view((self.shape[0], self.shape[2]))
        reduce(rec, "v0 = x0 * x0", reads=[x], writes=[flat], axes=[1], finish="y0 = sqrt(v0 + bias)", scalars={"bias": self.bias})
        pointwise(rec, "y0 = x0 / x1", reads=[x, (self.norms, 0)], writes=[tops[0].data.view(self.shape)])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        squares = graph.op("Add", graph.reduce("ReduceSumSquare", bottoms[0], [1]), self.bias)
        graph.op("Div", bottoms[0], graph.op("Sqrt", squares), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None and bottoms[0].diff is not None
        dy, y, dot = tops[0].diff.view(self.shape), tops[0].data.view(self.shape), rec.scratch("dot", self.single)
        reduce(rec, "v0 = x0 * x1", reads=[dy, y], writes=[dot.view((self.shape[0], self.shape[2]))], axes=[1])
        reads: list[Read] = [dy, y, (dot, 0), (self.norms, 0)]
        pointwise(rec, "y0 = (x0 - x1 * x2) / x3", reads=reads, writes=[bottoms[0].diff.view(self.shape)])
