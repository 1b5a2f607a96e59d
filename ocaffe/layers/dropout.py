"""Dropout of single values, and of whole channels."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.builder.graph import OnnxGraph
from ocaffe.ops.alias import alias_diff
from ocaffe.ops.expression import pointwise


@register("Dropout")
class Dropout(Layer):
    """TRAIN: zero with probability dropout_ratio, else x / (1 - dropout_ratio); TEST: x itself.

    With `scale_train: false` (the Fast R-CNN fork) TRAIN leaves the scale alone and TEST multiplies by 1 - dropout_ratio. With `sample_weights_test`
    (SegNet) TEST drops as TRAIN does. No mask is kept: backward draws the same random numbers again.
    """

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p = self.own()
        self.ratio, kept = float(p.dropout_ratio), 1 - float(p.dropout_ratio)
        self.check(0 <= self.ratio < 1, f"dropout_ratio {self.ratio:g} is outside [0, 1)", "0.5 drops half of the values")
        self.training = self.phase == proto.TRAIN or p.sample_weights_test
        self.scale = (1 / kept if p.scale_train else 1.0) if self.training else (1.0 if p.scale_train else kept)
        self.moves_data = self.training or self.scale != 1
        return [bottoms[0]]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            self.apply(rec, bottoms[0].data, tops[0].data)
        else:
            rec.alias(tops[0], bottoms[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.training:
            raise graph.refused("it drops values at random here", "export the TEST phase")
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
class SpatialDropout(Layer):
    """TRAIN: each channel of each image is zero with probability dropout_ratio, else x / (1 - dropout_ratio); TEST: x itself."""

    origin = "Intel Caffe"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.ratio = float(self.own().dropout_ratio)
        self.check(0 <= self.ratio < 1, f"dropout_ratio {self.ratio:g} is outside [0, 1)", "0.5 drops half of the channels")
        self.check(len(bottoms[0]) >= 2, f"bottom 0 is {shape_text(bottoms[0])}, SpatialDropout needs a channel axis", "N x C or more axes")
        self.moves_data = self.phase == proto.TRAIN
        return [bottoms[0]]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            self.apply(rec, bottoms[0].data, tops[0].data)
        else:
            rec.alias(tops[0], bottoms[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            raise graph.refused("it drops channels at random here", "export the TEST phase")
        graph.alias(tops[0], bottoms[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if self.moves_data:
            assert bottoms[0].diff is not None
            self.apply(rec, tops[0].diff, bottoms[0].diff)
        else:
            alias_diff(rec, bottoms[0], tops[0])

    def apply(self, rec: Recorder, x: Ref, y: Ref) -> None:
        factor = rec.scratch("factor", x.shape[:2])
        scalars = {"ratio": self.ratio, "scale": 1 / (1 - self.ratio)}
        pointwise(rec, "y0 = uniform >= ratio ? scale : 0", writes=[factor], scalars=scalars, random="mask")
        pointwise(rec, "y0 = x0 * x1", reads=[x, (factor, 0)], writes=[y])
