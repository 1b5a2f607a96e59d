"""ChannelNorm: the length of the vector of channels at each pixel."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("ChannelNorm")
class ChannelNorm(Layer):
    """The square root of the sum of squares over the channels: N x C x H x W gives N x 1 x H x W. The gradient is dy x / (y + 1e-9).

    Source: lmb-freiburg/flownet2, src/caffe/layers/channel_norm_layer.cu.
    """

    origin = "FlowNet 2"
    message = ""
    by_sample = True
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x = bottoms[0]
        self.check_axes(x, "N x C x ..")
        self.shape, self.single = (x[0], x[1], math.prod(x[2:])), (x[0], 1, math.prod(x[2:]))
        return [(x[0], 1, *x[2:])]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        top = tops[0].data.view((self.shape[0], self.shape[2]))
        reduce(rec, "v0 = x0 * x0", reads=[bottoms[0].data.view(self.shape)], writes=[top], axes=[1], finish="y0 = sqrt(v0)")

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.reduce("ReduceL2", bottoms[0], [1], to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy, dx = tops[0].diff, bottoms[0].diff
        assert dy is not None and dx is not None
        reads: list[Read] = [bottoms[0].data.view(self.shape), (dy.view(self.single), 0), (tops[0].data.view(self.single), 0)]
        pointwise(rec, "y0 = x1 * x0 / (x2 + 1e-9)", reads=reads, writes=[dx.view(self.shape)])
