"""ChannelScale: a factor for each pixel, or one for all."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import TEST_PHASE, Layer, ParamBlob, register
from ocaffe.onnx.graph import OnnxGraph


@register("ChannelScale")
class ChannelScale(Layer):
    """y = x s, where bottom 1 has a factor s for each pixel of bottom 0 (N x C x ..), or with global_scale one factor for all.

    The global factor is blob 0. In TRAIN it is the mean of |s| in the first pass, later 0.99 of itself and 0.01 of that mean, from min_global_scale to
    max_global_scale; a second top has it. do_forward: false gives y = x, do_backward_feature: false passes the gradient to bottom 0 unchanged,
    do_backward_scale: false gives bottom 1 none. As in the fork, the gradient of bottom 0 has the factor of the pixel in each of these cases.
    Source: happynear/caffe-windows, src/caffe/layers/channel_scale_layer.cu.
    """

    origin = "happynear/caffe-windows"
    bottoms, tops = 2, (1, 2)
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        (x, s), p = bottoms, self.own()
        fits = len(x) >= 2 and s[:1] == x[:1] and math.prod(s) * x[1] == math.prod(x)
        self.check(
            fits,
            f"bottom 1 is {shape_text(s)}, bottom 0 is {shape_text(x)}",
            f"give one factor for each pixel as bottom 1: {shape_text((*x[:1], 1, *x[2:]))}",
        )
        self.shape, self.single = (x[0], x[1], math.prod(x[2:])), (x[0], 1, math.prod(x[2:]))
        self.common = bool(p.do_forward and p.global_scale)
        count = max(1, len(self.param.top))
        self.check(count == 1 or self.common, "a second top is given without global_scale", "remove the second top, or write global_scale: true")
        return [x, (1,)][:count]

    def parameters(self) -> Sequence[ParamBlob]:
        return [ParamBlob((1,), proto.FillerParameter(value=-1), learned=False)] if self.own().global_scale else []

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        p, x, y = self.own(), bottoms[0].data.view(self.shape), tops[0].data.view(self.shape)
        scale: Read = (bottoms[1].data.view(self.single), 0)
        if self.common:
            factor: Ref = self.params[0].data
            if self.phase == proto.TRAIN:
                finish = "m = v0 / n; m0 = fmin(fmax(m0 < 0 ? m : 0.99 * m0 + 0.01 * m, least), most)"
                scalars = {"n": float(bottoms[1].count), "least": float(p.min_global_scale), "most": float(p.max_global_scale)}
                flat = bottoms[1].data.view((bottoms[1].count,))
                reduce(rec, "v0 = fabs(x0)", reads=[flat], writes=[], modifies=[factor], axes=[0], finish=finish, scalars=scalars)
            if len(tops) > 1:
                pointwise(rec, "y0 = x0", reads=[factor], writes=[tops[1].data])
            scale = (factor.view(()), 0)
        text = "y0 = x0 * x1" if p.do_forward else "y0 = x0"
        pointwise(rec, text, reads=[x, scale] if p.do_forward else [x], writes=[y])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if not self.own().do_forward:
            graph.op("Identity", bottoms[0], to=tops[0])
        elif self.common:
            if self.phase == proto.TRAIN:
                raise graph.refused("it changes its factor in the TRAIN phase", TEST_PHASE)
            factor = graph.parameter(self.params[0])
            graph.op("Mul", bottoms[0], factor, to=tops[0])
            if len(tops) > 1:
                graph.op("Identity", factor, to=tops[1])
        else:
            graph.op("Mul", bottoms[0], graph.reshape(bottoms[1], (-1, 1, *bottoms[0].shape[2:])), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        p = self.own()
        assert tops[0].diff is not None
        dy, x = tops[0].diff.view(self.shape), bottoms[0].data.view(self.shape)
        if propagate[0]:
            assert bottoms[0].diff is not None
            reads: list[Read] = [dy, *([(bottoms[1].data.view(self.single), 0)] if p.do_backward_feature else [])]
            pointwise(rec, "y0 = x0 * x1" if p.do_backward_feature else "y0 = x0", reads=reads, writes=[bottoms[0].diff.view(self.shape)])
        if propagate[1]:
            assert bottoms[1].diff is not None
            if p.do_backward_scale:
                reduce(rec, "v0 = x0 * x1", reads=[dy, x], writes=[bottoms[1].diff.view((self.shape[0], self.shape[2]))], axes=[1])
            else:
                pointwise(rec, "y0 = 0", writes=[bottoms[1].diff])
