"""MaskPooling: features times a mask."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("MaskPooling")
class MaskPooling(Layer):
    """Bottom 0 (R x C x H x W) times the mask in bottom 1 (R x 1 x H x W), for all channels alike. Both bottoms get gradients.

    Source: daijifeng001/caffe-mnc, src/caffe/layers/mask_pooling_layer.cu.
    """

    origin = "MNC"
    message = ""
    bottoms = 2
    by_sample = True
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, mask = bottoms
        wanted = (*x[:1], 1, *x[2:])
        self.check_axes(x, "N x C x ..")
        self.check(
            mask == wanted,
            f"bottom 1 is {shape_text(mask)}, bottom 0 is {shape_text(x)}",
            f"give bottom 1 the shape {shape_text(wanted)}: a mask of 1 channel for each sample",
        )
        self.shape, self.single = (x[0], x[1], math.prod(x[2:])), (x[0], 1, math.prod(x[2:]))
        return [x]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        reads: list[Read] = [bottoms[0].data.view(self.shape), (bottoms[1].data.view(self.single), 0)]
        pointwise(rec, "y0 = x0 * x1", reads=reads, writes=[tops[0].data.view(self.shape)])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Mul", *bottoms, to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        dy = tops[0].diff.view(self.shape)
        if propagate[0]:
            mask: Read = (bottoms[1].data.view(self.single), 0)
            pointwise(rec, "y0 = x0 * x1", reads=[dy, mask], writes=[rec.diff_of(bottoms[0]).view(self.shape)])
        if propagate[1]:
            to = rec.diff_of(bottoms[1]).view((self.shape[0], self.shape[2]))
            reduce(rec, "v0 = x0 * x1", reads=[dy, bottoms[0].data.view(self.shape)], writes=[to], axes=[1])
