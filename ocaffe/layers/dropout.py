"""Dropout of single values or whole channels."""
from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ocaffe import proto
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.layers.base import TEST_PHASE, Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("Dropout")
class Dropout(Layer):
    """TRAIN: y = 0 with probability dropout_ratio, else x / (1 - dropout_ratio); TEST: y = x.

    With `scale_train: false` (the Fast R-CNN fork) TRAIN does not scale, and TEST multiplies by 1 - dropout_ratio. With `sample_weights_test`
    (SegNet) TEST drops as TRAIN does. TEST takes a dropout_ratio of 1 too, as Caffe does. Backward draws the same random numbers again, so no mask is kept.
    """

    dropped: ClassVar[str] = "values"

    def settings(self) -> tuple[bool, bool]:
        """Return scale_train and sample_weights_test."""
        p = self.own()
        return p.scale_train, p.sample_weights_test

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        scale_train, sample_weights_test = self.settings()
        self.ratio = float(self.own().dropout_ratio)
        kept = 1 - self.ratio
        self.training = self.phase == proto.TRAIN or sample_weights_test
        fits = 0 <= self.ratio < 1 or (self.ratio == 1 and not self.training)
        fix = f"set dropout_ratio to the share of the {self.dropped} that are dropped, 0 or more and below 1"
        self.check(fits, f"dropout_ratio {self.ratio:g} is outside [0, 1)", fix)
        self.scale = (1 / kept if scale_train else 1.0) if self.training else (1.0 if scale_train else kept)
        self.moves_data = self.training or self.scale != 1
        return [bottoms[0]]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            self.apply(rec, bottoms[0].data, tops[0].data)
        else:
            rec.alias(tops[0], bottoms[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.training:
            raise graph.refused(f"it drops {self.dropped} at random in the TRAIN phase", TEST_PHASE)
        if self.moves_data:
            graph.op("Mul", bottoms[0], self.scale, to=tops[0])
        else:
            graph.alias(tops[0], bottoms[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if self.moves_data:
            assert bottoms[0].diff is not None
            self.apply(rec, tops[0].diff, bottoms[0].diff)
        else:
            alias_diff(rec, bottoms[0], tops[0])

    def apply(self, rec: Recorder, x: Ref, y: Ref) -> None:
        if self.training:
            text = "y0 = uniform >= ratio ? scale * x0 : 0"
            pointwise(rec, text, reads=[x], writes=[y], scalars={"ratio": self.ratio, "scale": self.scale}, random="mask")
        else:
            pointwise(rec, "y0 = scale * x0", reads=[x], writes=[y], scalars={"scale": self.scale})


@register("SpatialDropout")
class SpatialDropout(Dropout):
    """TRAIN: each channel of each image is 0 with probability dropout_ratio, else x / (1 - dropout_ratio); TEST: y = x."""

    origin = "Intel Caffe"
    dropped = "channels"

    def settings(self) -> tuple[bool, bool]:
        return True, False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        shapes = super().infer(*bottoms)
        self.check_axes(bottoms[0], "N x C x ..")
        return shapes

    def apply(self, rec: Recorder, x: Ref, y: Ref) -> None:
        factor = rec.scratch("factor", x.shape[:2])
        scalars = {"ratio": self.ratio, "scale": self.scale}
        pointwise(rec, "y0 = uniform >= ratio ? scale : 0", writes=[factor], scalars=scalars, random="mask")
        pointwise(rec, "y0 = x0 * x1", reads=[x, (factor, 0)], writes=[y])
