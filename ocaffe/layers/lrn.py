"""LRN: local response normalization across channels or within each channel."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.normalization.lrn import Response
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph
from ocaffe.onnx.pooling import padded


@register("LRN")
class LRN(Layer):
    """y = x (k + alpha / n * sum of x^2 over n channels)^-beta; WITHIN_CHANNEL sums over n x n pixels, divides by n^2 and sets k = 1.

    Backward recomputes the sums from the bottom, so nothing is saved.
    """

    by_sample = True

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        param, x = self.own(), bottoms[0]
        self.check(
            param.local_size % 2 == 1,
            f"local_size is {param.local_size}, LRN takes odd values only",
            f"set local_size to {param.local_size + 1}" + (f", or to {param.local_size - 1}" if param.local_size else ""),
        )
        self.check_axes(x, "N x C x H x W")
        self.across = param.norm_region == param.ACROSS_CHANNELS
        self.response = Response(param.local_size, param.alpha, param.beta, param.k)
        return [x]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        normalize = self.response.across if self.across else self.response.within
        normalize(rec, bottoms[0].data, tops[0].data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, r = graph.values[bottoms[0]], self.response
        if self.across:
            graph.op("LRN", x, to=tops[0], size=r.size, alpha=r.alpha, beta=r.beta, bias=r.k)
            return
        half = r.size // 2
        squares = padded(graph, graph.op("Mul", x, x), [half] * 2, [half] * 2, np.float32(0))
        mean = graph.op("AveragePool", squares, kernel_shape=[r.size] * 2, strides=[1, 1])
        graph.op("Div", x, graph.op("Pow", graph.affine(mean, r.alpha, 1), r.beta), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None and bottoms[0].diff is not None
        backward = self.response.across_backward if self.across else self.response.within_backward
        backward(rec, bottoms[0].data, tops[0].diff, bottoms[0].diff)
