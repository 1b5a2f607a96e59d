"""L2Norm and NormalizationL2: samples of length 1."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("L2Norm", "NormalizationL2")
class L2Norm(Layer):
    """y = x / (|x| + eps) with the norm over all values of a sample. NormalizationL2 (GGL) has no eps.

    A sample of zeros gives NaN without eps, as in the fork. Normalize divides by the norm over the channels at each position.
    Sources: vzhangmeng726/caffe_video_face, src/caffe/layers/l2norm_layer.cpp; liu-xb/GGL, src/caffe/layers/normalization_l2_layer.cu.
    """

    origin = "caffe_video_face, GGL"
    message = "l2norm_param"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x = bottoms[0]
        self.check(len(x) >= 1, f"bottom 0 is {shape_text(x)}, {self.param.type} needs samples", "give bottom 0 as N x C, or with more axes")
        self.rows: Shape = (x[0], math.prod(x[1:]))
        self.scalars = {"eps": float(self.own().eps) if self.param.type == "L2Norm" else 0.0}
        return [x]

    @property
    def by_sample(self) -> bool:
        return True

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x = bottoms[0].data.view(self.rows)
        keep = rec.saved if rec.train else rec.scratch
        self.norm: Ref = keep("norm", (self.rows[0], 1))
        reduce(rec, "v0 = x0 * x0", reads=[x], writes=[self.norm], axes=[1], finish="y0 = sqrt(v0)")
        pointwise(rec, "y0 = x0 / (x1 + eps)", reads=[x, (self.norm, 0)], writes=[tops[0].data.view(self.rows)], scalars=self.scalars)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None and bottoms[0].diff is not None
        dot = rec.scratch("dot", (self.rows[0], 1))
        dy, y = tops[0].diff.view(self.rows), tops[0].data.view(self.rows)
        reduce(rec, "v0 = x0 * x1", reads=[dy, y], writes=[dot], axes=[1])
        reads: list[Read] = [dy, y, (dot, 0), (self.norm, 0)]
        # The derivative of the norm is x / norm = y (norm + eps) / norm, which has the limit 0 for a sample of zeros.
        text = "y0 = (x0 - (x3 > 0 ? x1 * x2 * (x3 + eps) / x3 : 0)) / (x3 + eps)"
        pointwise(rec, text, reads=reads, writes=[bottoms[0].diff.view(self.rows)], scalars=self.scalars)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        axes = list(range(1, len(bottoms[0].shape)))
        norm = graph.op("Sqrt", graph.reduce("ReduceSumSquare", bottoms[0], axes)) if axes else graph.op("Abs", bottoms[0])
        graph.op("Div", bottoms[0], graph.op("Add", norm, self.scalars["eps"]) if self.scalars["eps"] else norm, to=tops[0])
