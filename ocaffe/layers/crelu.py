"""CReLU: the positive and the negative part of the bottom."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("CReLU")
class CReLU(Layer):
    """ReLU of x and of -x, concatenated along `concat_axis`; ReLU is x for x > 0, else negative_slope x.

    The derivative at 0 is negative_slope in either half. Source: Cambricon/caffe, src/caffe/layers/crelu_layer.cpp at 77445b2. In winggan/caffe
    (at 635408a) the two halves of a batch follow each other, which is not a concatenation of channels; this mistake is not kept.
    """

    origin = "Cambricon, winggan/caffe"
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, p = bottoms[0], self.own()
        axis = self.axis(p.concat_axis, x, "concat_axis")
        self.concat_axis, self.slope = axis, float(p.negative_slope)
        self.one: Shape = (*x[:axis], 1, *x[axis:])
        self.halves: Shape = (*x[:axis], 2, *x[axis:])
        return [(*x[:axis], 2 * x[axis], *x[axis + 1 :])]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, y = bottoms[0].data, tops[0].data
        text = "t = x0 * x1; y0 = t > 0 ? t : slope * t"
        pointwise(rec, text, reads=[(x.view(self.one), 0), self.signs(rec)], writes=[y.view(self.halves)], scalars={"slope": self.slope})

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        both = graph.op("Concat", bottoms[0], graph.op("Neg", bottoms[0]), axis=self.concat_axis)
        if self.slope:
            graph.op("LeakyRelu", both, to=tops[0], alpha=self.slope)
        else:
            graph.op("Relu", both, to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None and bottoms[0].diff is not None
        reads: list[Read] = [tops[0].diff.view(self.halves), (bottoms[0].data.view(self.one), 0), self.signs(rec)]
        text = "v0 = x1 * x2 > 0 ? x0 * x2 : slope * x0 * x2"
        reduce(rec, text, reads=reads, writes=[bottoms[0].diff], axes=[self.concat_axis], scalars={"slope": self.slope})

    def signs(self, rec: Recorder) -> Read:
        """Return 1 for the first half and -1 for the second."""
        return rec.constant("signs", np.array([1, -1], np.float32)), self.concat_axis
