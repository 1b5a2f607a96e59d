"""Scale, with an optional bias."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe import proto
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import ChannelAffine, Read, pointwise, reduce
from ocaffe.layers.base import ParamBlob, register
from ocaffe.layers.bias import Broadcast
from ocaffe.onnx.graph import OnnxGraph


@register("Scale")
class Scale(Broadcast):
    """y = x * s, or x * s + b with bias_term; s and b are broadcast.

    s is the second bottom if there is one, else a parameter. b is always a parameter. Forward limits a parameter s to min_value and max_value, where a
    prototxt of a fork gives them.
    """

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        self.biased = bool(p.bias_term)
        self.bounds = [float(getattr(p, name)) if p.HasField(name) else bound for name, bound in (("min_value", -math.inf), ("max_value", math.inf))]
        self.bounded = p.HasField("min_value") or p.HasField("max_value")
        self.check(self.bounds[0] <= self.bounds[1], f"min_value is {self.bounds[0]:g}, max_value is {self.bounds[1]:g}", "set min_value to max_value or less")
        self.check(
            not self.bounded or len(bottoms) == 1,
            f"{'min_value' if p.HasField('min_value') else 'max_value'} is given, and the scale is bottom 1: it limits a learned scale only",
            "remove min_value and max_value, or bottom 1 for a learned scale",
        )
        return super().infer(*bottoms)

    def parameters(self) -> Sequence[ParamBlob]:
        p = self.own()
        ones = proto.FillerParameter(type="constant", value=1)
        blobs = [ParamBlob(self.shape, p.filler if p.HasField("filler") else ones)] if self.learned else []
        return [*blobs, ParamBlob(self.shape, p.bias_filler)] if self.biased else blobs

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.bounded:
            text, scalars = "m0 = fmin(fmax(m0, low), high)", dict(zip(("low", "high"), self.bounds))
            pointwise(rec, text, modifies=[self.params[0].data], scalars=scalars, side_effect=True)
        reads: list[Read] = [bottoms[0].data, (self.operand(bottoms), self.first)]
        if self.biased:
            reads.append((self.params[-1].data, self.first))
            pointwise(rec, "y0 = x0 * x1 + x2", reads=reads, writes=[tops[0].data], means=ChannelAffine("", "x1", "x2"))
        else:
            pointwise(rec, "y0 = x0 * x1", reads=reads, writes=[tops[0].data], means=ChannelAffine("", "x1", "0"))

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        scale = self.onnx_operand(graph, bottoms)
        if self.bounded:
            scale = graph.op("Clip", scale, *self.bounds)
        y = graph.op("Mul", bottoms[0], scale, to=None if self.biased else tops[0])
        if self.biased:
            graph.op("Add", y, graph.parameter(self.params[-1], self.spread), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy = tops[0].diff
        assert dy is not None
        scale_diff, bias_diff = self.operand_diff(bottoms, propagate), self.params[-1].diff if self.biased else None
        if scale_diff is not None and bias_diff is not None:
            text, finish = "v0 = x0 * x1; v1 = x0", "y0 = v0; y1 = v1"
            reduce(rec, text, reads=[dy, bottoms[0].data], writes=[scale_diff, bias_diff], axes=self.others, finish=finish)
        elif scale_diff is not None:
            reduce(rec, "v0 = x0 * x1", reads=[dy, bottoms[0].data], writes=[scale_diff], axes=self.others)
        elif bias_diff is not None:
            reduce(rec, "v0 = x0", reads=[dy], writes=[bias_diff], axes=self.others)
        if propagate[0]:  # last, because it may overwrite the top's diff
            assert bottoms[0].diff is not None
            pointwise(rec, "y0 = x0 * x1", reads=[dy, (self.operand(bottoms), self.first)], writes=[bottoms[0].diff])
