"""GuidedDropout: keeps the channels that a second bottom recommends."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import TEST_PHASE, Layer, register
from ocaffe.onnx.graph import OnnxGraph

TYPES = ("deterministic", "stochastic")


@register("GuidedDropout")
class GuidedDropout(Layer):
    """Keeps channel c of sample n of bottom 0 (N x C x ..) by the guidance g in bottom 1 (N x C), and multiplies by C / (the number of kept channels).

    deterministic: channels with g above guidance_threshold are kept, in TRAIN and TEST. stochastic: in TRAIN a channel is kept with the probability
    sigmoid(sigmoid_scaler g), and the number is the sum of the probabilities; in TEST the top is the bottom. A number of 0 counts as C. The guidance has no
    gradient. Source: dgd_person_reid, external/caffe/src/caffe/layers/guided_dropout_layer.cpp.
    """

    origin = "dgd_person_reid"
    bottoms = 2

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, (x, guidance) = self.own(), bottoms
        self.check_axes(x, "N x C x ..")
        fits = math.prod(guidance) == math.prod(x[:2]) and guidance[:1] == x[:1]
        self.check(
            fits,
            f"bottom 1 is {shape_text(guidance)}, bottom 0 is {shape_text(x)}",
            f"give bottom 1 the shape {shape_text(x[:2])}: one value for each channel of each sample",
        )
        wanted = " or ".join(f'type: "{name}"' for name in TYPES)
        self.check(p.type in TYPES, f"type is '{p.type}'", f"write {wanted}")
        self.shape = (x[0], x[1], math.prod(x[2:]))
        self.random = p.type == "stochastic"
        self.active = not self.random or self.phase == proto.TRAIN
        return [x]

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        p, x, y = self.own(), bottoms[0].data.view(self.shape), tops[0].data.view(self.shape)
        if not self.active:
            pointwise(rec, "y0 = x0", reads=[x], writes=[y])
            return
        images, channels, _ = self.shape
        guidance = bottoms[1].data.view((images, channels))
        kept, chance, total = rec.scratch("kept", guidance.shape), rec.scratch("chance", guidance.shape), rec.scratch("total", (images,))
        self.factor: Ref = (rec.saved if rec.train else rec.scratch)("factor", (images, channels, 1))
        if self.random:
            text, scalars = "y1 = 1 / (1 + exp(-scaler * x0)); y0 = uniform <= y1 ? 1 : 0", {"scaler": float(p.sigmoid_scaler)}
            pointwise(rec, text, reads=[guidance], writes=[kept, chance], scalars=scalars, random="guided")
        else:
            text, scalars = "y0 = x0 > threshold ? 1 : 0; y1 = y0", {"threshold": float(p.guidance_threshold)}
            pointwise(rec, text, reads=[guidance], writes=[kept, chance], scalars=scalars)
        reduce(rec, "v0 = x0", reads=[chance], writes=[total], axes=[1])
        reads: list[Read] = [kept, (total.view((images, 1)), 0)]
        pointwise(rec, "y0 = x1 > 0 ? x0 * channels / x1 : x0", reads=reads, writes=[self.factor.view(kept.shape)], scalars={"channels": float(channels)})
        pointwise(rec, "y0 = x0 * x1", reads=[x, (self.factor, 0)], writes=[y])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.random:
            if self.active:
                raise graph.refused("it draws channels at random in the TRAIN phase", TEST_PHASE)
            graph.op("Identity", bottoms[0], to=tops[0])
            return
        guidance = graph.reshape(bottoms[1], (-1, self.shape[1], *[1] * (len(bottoms[0].shape) - 2)))
        kept = graph.op("Greater", guidance, float(self.own().guidance_threshold))
        number = graph.reduce("ReduceSum", (ones := graph.cast(kept, np.float32)), [1])
        share = graph.op("Div", float(self.shape[1]), graph.op("Max", number, 1.0))
        graph.op("Mul", bottoms[0], graph.op("Mul", ones, share), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if propagate[0]:
            dy, dx = tops[0].diff.view(self.shape), rec.diff_of(bottoms[0]).view(self.shape)
            reads: list[Read] = [dy, (self.factor, 0)] if self.active else [dy]
            pointwise(rec, "y0 = x0 * x1" if self.active else "y0 = x0", reads=reads, writes=[dx])
        if propagate[1]:
            pointwise(rec, "y0 = 0", writes=[rec.diff_of(bottoms[1])])
