"""Normalize: division by the norm, in two variants of different forks."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ocaffe import proto
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape, split_axes
from ocaffe.kernels.expression.expression import Read, pointwise, reduce
from ocaffe.layers.base import Layer, LayerClass, ParamBlob, register
from ocaffe.layers.mvn import four_axes
from ocaffe.onnx.graph import OnnxGraph


@register("Normalize")
class Normalize(Layer):
    """y = scale x / sqrt(sum of x^2 + eps), with a learned scale if norm_param is set (SSD), else without a scale (happynear).

    SSD sums over the channels at each position, or over the whole image with across_spatial. It has one scale or one per channel.
    """

    origin = "SSD; happynear"
    message = "norm_param"

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        return Normalize if param.HasField("norm_param") else NormalizeOnly

    @classmethod
    def recognise(cls, param: Any, blobs: Sequence[np.ndarray | None]) -> None:
        if len(blobs) == 1 and not param.HasField("norm_param") and not param.HasField("normalize_param"):
            param.norm_param.SetInParent()

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.check(
            not self.param.HasField("normalize_param"),
            "norm_param and normalize_param are both given",
            "remove normalize_param for SSD's Normalize, with a learned scale; or norm_param for that of other forks",
        )
        self.check_axes(x, "N x C x ..")
        self.planes = split_axes(x, 1)  # images, channels, positions
        self.axes = (1, 2) if p.across_spatial else (1,)
        self.norms: Shape = (self.planes[0], 1, 1 if p.across_spatial else self.planes[2])
        self.eps = float(p.eps)
        self.scales: Shape = () if p.channel_shared else (x[1],)
        return [x]

    def parameters(self) -> Sequence[ParamBlob]:
        p = self.own()
        return [ParamBlob(self.scales, p.scale_filler if p.HasField("scale_filler") else proto.FillerParameter(type="constant", value=1))]

    @property
    def scale(self) -> Read:
        return self.params[0].data, 1 if self.scales else 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, y = bottoms[0].data.view(self.planes), tops[0].data.view(self.planes)
        self.inverse: Ref = (rec.saved if rec.train else rec.scratch)("inverse", self.norms)
        finish = "y0 = 1 / sqrt(v0 + eps)"
        reduce(rec, "v0 = x0 * x0", reads=[x], writes=[self.inverse], axes=self.axes, finish=finish, scalars={"eps": self.eps})
        pointwise(rec, "y0 = x0 * x1 * x2", reads=[x, (self.inverse, 0), self.scale], writes=[y])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, axes = graph.values[bottoms[0]], range(1, len(bottoms[0].shape)) if self.own().across_spatial else [1]
        norm = graph.op("Sqrt", graph.op("Add", graph.reduce("ReduceSumSquare", x, axes), self.eps))
        scale = graph.parameter(self.params[0], (-1, *[1] * (len(bottoms[0].shape) - 2)) if self.scales else ())
        graph.op("Mul", graph.op("Div", x, norm), scale, to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        """As in SSD, the scale is multiplied last. With different scales per channel, this is not the derivative."""
        assert tops[0].diff is not None
        reads: list[Read] = [tops[0].diff.view(self.planes), bottoms[0].data.view(self.planes), (self.inverse, 0)]
        gradient = self.params[0].diff
        if gradient is not None:
            reduce(rec, "v0 = x0 * x1 * x2", reads=reads, writes=[gradient], axes=(0, 2) if self.scales else (0, 1, 2))
        if propagate[0]:
            assert bottoms[0].diff is not None
            dot = rec.scratch("dot", self.norms)
            reduce(rec, "v0 = x0 * x1 * x2", reads=reads, writes=[dot], axes=self.axes)
            text = "y0 = (x0 - x1 * x2 * x3) * x2 * x4"
            pointwise(rec, text, reads=[*reads, (dot, 0), self.scale], writes=[bottoms[0].diff.view(self.planes)])


class NormalizeOnly(Layer):
    """y = x / norm over the channels at each position, with norm = sqrt(sum of x^2 + 1e-6) (L2) or sum of |x| + 1e-6 (L1).

    A second top has the norms.
    """

    tops = (1, 2)
    forms: ClassVar[dict[str, tuple[str, str, str]]] = {  # type: the term that is summed, the norm of the sum, the norm's derivative in terms of x and y
        "L2": ("x0 * x0", "sqrt(v0 + 1e-6)", "y"),
        "L1": ("fabs(x0)", "v0 + 1e-6", "sign(x)"),
    }

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.param.normalize_param
        self.check(p.normalize_type in self.forms, f"normalize_type is {p.normalize_type!r}", f"set normalize_type to {' or '.join(map(repr, self.forms))}")
        self.term, self.norm, self.slope = self.forms[p.normalize_type]
        top = four_axes(self, bottoms[0])
        self.norms: Shape = (top[0], 1, *top[2:])
        return [top, self.norms][: max(1, len(self.param.top))]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x = bottoms[0].data.view(tops[0].shape)
        self.inverse: Ref = (rec.saved if rec.train else rec.scratch)("inverse", self.norms)
        writes, finish = [self.inverse], f"norm = {self.norm}; y0 = 1 / norm"
        if len(tops) > 1:
            writes, finish = [*writes, tops[1].data], f"{finish}; y1 = norm"
        reduce(rec, f"v0 = {self.term}", reads=[x], writes=writes, axes=(1,), finish=finish)
        pointwise(rec, "y0 = x0 * x1", reads=[x, (self.inverse, 0)], writes=[tops[0].data])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        x = graph.values[bottoms[0]] if bottoms[0].shape == tops[0].shape else graph.reshape(bottoms[0], graph.shape(tops[0]))
        squared = self.param.normalize_param.normalize_type == "L2"
        total = graph.op("Add", graph.reduce("ReduceSumSquare" if squared else "ReduceL1", x, [1]), 1e-6)
        norm = graph.op("Sqrt", total) if squared else total
        graph.op("Div", x, norm, to=tops[0])
        for top in tops[1:]:
            graph.alias(top, norm)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        """As in the fork without bp_norm, the diff of the norms is ignored."""
        dy, x = tops[0].diff, bottoms[0].data.view(tops[0].shape)
        assert dy is not None and bottoms[0].diff is not None
        dot = rec.scratch("dot", self.norms)
        reads: list[Read] = [dy, x, (self.inverse, 0)]
        reduce(rec, "v0 = x0 * x1 * x2", reads=reads, writes=[dot], axes=(1,))
        text = f"x = x1; y = x * x2; y0 = (x0 - {self.slope} * x3) * x2"
        pointwise(rec, text, reads=[*reads, (dot, 0)], writes=[bottoms[0].diff.view(tops[0].shape)])
