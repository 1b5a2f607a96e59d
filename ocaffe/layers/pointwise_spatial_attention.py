"""PointwiseSpatialAttention: each pixel collects features of others, or distributes its own, by weights that the net computes."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.loss.softmax import softmax, softmax_backward
from ocaffe.kernels.matmul.gemm import batched_gemm
from ocaffe.kernels.rearrange.attention import AttentionMask
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("PointwiseSpatialAttention")
class PointwiseSpatialAttention(Layer):
    """Sums of the features in bottom 0 (N x C x H x W) over all pixels, with weights for each pixel in bottom 1 (N x (h w) x H x W).

    The weights of a pixel are a mask of h x w = attention_mask_height x attention_mask_width around it, by default (2 H - 1) x (2 W - 1). With psa_type:
    COLLECT a pixel gets the features of its mask, with DISTRIBUTE it gives its features to them. is_softmax normalizes the weights over the pixels that are
    summed. The sums are divided by normalization_factor, by default h w. Source: hszhao/PSANet,
    src/caffe/layers/pointwise_spatial_attention_layer.cu.
    """

    origin = "PSANet"
    bottoms = 2
    by_sample = True
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, mask) = self.own(), bottoms
        self.check_axes(x, "N x C x H x W", values=True)
        given = p.HasField("attention_mask_height"), p.HasField("attention_mask_width")
        self.check(
            given[0] == given[1],
            f"attention_mask_{'height' if given[0] else 'width'} is given alone",
            f"add attention_mask_{'width' if given[0] else 'height'}, or remove it",
        )
        size = (p.attention_mask_height, p.attention_mask_width) if given[0] else (2 * x[2] - 1, 2 * x[3] - 1)
        self.check(
            all(n % 2 for n in size),
            f"the mask is {shape_text(size)}, and both sizes must be odd",
            "set attention_mask_height and attention_mask_width to odd numbers",
        )
        wanted = (x[0], size[0] * size[1], *x[2:])
        self.check(
            mask == wanted,
            f"bottom 1 is {shape_text(mask)}, bottom 0 is {shape_text(x)}",
            f"give bottom 1 the shape {shape_text(wanted)}: num_output: {wanted[1]} in the layer before",
        )
        self.mask = AttentionMask((x[2], x[3]), size, p.psa_type == p.COLLECT)
        self.scale = 1 / (p.normalization_factor if p.HasField("normalization_factor") else size[0] * size[1])
        self.images, self.channels, self.pixels = x[0], x[1], x[2] * x[3]
        return [x]

    def flops(self) -> int:
        return 2 * self.images * self.channels * self.pixels**2

    def _rows(self, ref: Ref, rows: int) -> Ref:
        return ref.view((self.images * rows, self.pixels))

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        shape = (self.images, self.pixels, self.pixels)
        keep = rec.saved if rec.train else rec.scratch
        normal = bool(self.own().is_softmax)
        spread = (rec.scratch if normal else keep)("spread", shape)
        self.mask.spread(rec, bottoms[1].data, spread)
        self.weights = keep("weights", shape) if normal else spread
        if normal:
            softmax(rec, spread, self.weights, 1)
        sums = rec.scratch("sums", (self.images * self.channels, self.pixels))
        batched_gemm(rec, self._rows(bottoms[0].data, self.channels), self._rows(self.weights, self.pixels), sums, self.images)
        pointwise(rec, "y0 = scale * x0", reads=[sums], writes=[self._rows(tops[0].data, self.channels)], scalars={"scale": self.scale})

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        (height, width), (rows, columns), pixels = self.mask.image, self.mask.mask, self.pixels
        q, p = np.indices((pixels, pixels)) if self.mask.collect else np.indices((pixels, pixels))[::-1]
        i, j = q // width - p // width + rows // 2, q % width - p % width + columns // 2
        covered = (i >= 0) & (i < rows) & (j >= 0) & (j < columns)
        places = np.where(covered, (i * columns + j) * pixels + p, rows * columns * pixels)  # the last value is a 0
        flat = graph.op("Pad", graph.reshape(bottoms[1], (-1, rows * columns * pixels)), [0, 0, 0, 1])
        weights = graph.op("Gather", flat, places.astype(np.int64), axis=1)
        if self.own().is_softmax:
            weights = graph.op("Softmax", weights, axis=1)
        sums = graph.op("MatMul", graph.reshape(bottoms[0], (-1, self.channels, pixels)), weights)
        graph.reshape(graph.op("Mul", sums, float(self.scale)), (-1, self.channels, height, width), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        x, weights = self._rows(bottoms[0].data, self.channels), self._rows(self.weights, self.pixels)
        dy = rec.scratch("scaled", x.shape)
        pointwise(rec, "y0 = scale * x0", reads=[self._rows(tops[0].diff, self.channels)], writes=[dy], scalars={"scale": self.scale})
        if propagate[0]:
            batched_gemm(rec, dy, weights, self._rows(rec.diff_of(bottoms[0]), self.channels), self.images, trans_b=True)
        if propagate[1]:
            slope = rec.scratch("weights.diff", self.weights.shape)
            batched_gemm(rec, x, dy, self._rows(slope, self.pixels), self.images, trans_a=True)
            if self.own().is_softmax:
                inner = rec.scratch("spread.diff", self.weights.shape)
                softmax_backward(rec, self.weights, slope, inner, 1)
                slope = inner
            self.mask.take(rec, slope, rec.diff_of(bottoms[1]))
