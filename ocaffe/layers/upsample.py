"""Upsample: SegNet's unpooling and YOLO's nearest-neighbour upsampling."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.kernels.resampling.upsample import nearest, nearest_backward, unpool, unpool_backward
from ocaffe.layers.base import Layer, LayerClass, register
from ocaffe.layers.plane_map import MappedPlanes, repeated
from ocaffe.onnx.graph import OnnxGraph


@register("Upsample")
class Upsample(Layer):
    """Nearest-neighbour upsampling by `scale` (one bottom, YOLO), or max-unpooling by a mask (second bottom, SegNet).

    These are layers of different forks. The number of bottoms selects one. Other forks name the scale height_scale and width_scale (ports of YOLOv5),
    or stride, or stride_h and stride_w (Ascend).
    """

    origin = "SegNet (2 bottoms), YOLO ports (1 bottom)"
    bottoms = (1, 2)
    inplace_top = False

    @classmethod
    def implementation(cls, param: Any) -> LayerClass:
        if len(param.bottom) == 2:
            return Unpooling
        return Nearest if len({factor for _, factor in _factors(param.upsample_param)}) <= 1 else UnequalNearest

    def image(self, x: Shape) -> tuple[int, int]:
        """Return the height and width of the bottom."""
        self.check_axes(x, "N x C x H x W")
        return x[2], x[3]


FORMS = (("scale", "scale"), ("height_scale", "width_scale"), ("stride_h", "stride_w"), ("stride", "stride"))  # fields of the two factors, by fork


def _factors(p: Any) -> list[tuple[str, float]]:
    """Return the fields that hold the factors for rows and columns, and their values; nothing if there are none."""
    form = next((form for form in FORMS[1:] if any(p.HasField(name) for name in form)), FORMS[0])
    return [(name, getattr(p, name)) for name in form if p.HasField(name)]


def _other(name: str) -> str:
    """Return the field of the other factor of the same fork."""
    return next((b if a == name else a for a, b in FORMS if name in (a, b)), name)


def whole_factors(layer: Upsample) -> tuple[int, int]:
    """Return the factors of rows and columns."""
    p = layer.own()
    found = _factors(p)
    names = {name for name, _ in found} | {"mode"} | ({"scale"} if p.scale == 1 else set())
    foreign = [field.name for field, _ in p.ListFields() if field.name not in names]
    fork = "SegNet" if not found or found[0][0] == "scale" else "another fork"
    fix = f"remove {' and '.join(foreign)}" + (", or give a mask as bottom 1" if fork == "SegNet" else "")
    layer.check(not foreign, f"{' and '.join(foreign)} given, which {fork}'s Upsample takes only with a mask", fix)
    pair = [value for _, value in found] or [1]
    both = found[0][0] in FORMS[0] + FORMS[3] if found else True
    alone = found[0][0] if found else ""
    layer.check(both or len(found) == 2, f"{alone} is given alone", f"add {_other(alone)}: one field is the factor of rows, the other of columns")
    for name, value in found:
        layer.check(value > 0 and value % 1 == 0, f"{name} is {value:g}", f"set {name} to a whole number, 1 or more")
    return int(pair[0]), int(pair[-1])


class Nearest(Upsample):
    """Repeats each pixel scale x scale times; the default scale is 1."""

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x = bottoms[0]
        self.scale = whole_factors(self)[0]
        height, width = self.image(x)
        self.moves_data = self.scale > 1
        return [(*x[:2], height * self.scale, width * self.scale)]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            nearest(rec, bottoms[0].data, tops[0].data, self.scale)
        else:
            rec.alias(tops[0], bottoms[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            graph.op("Resize", bottoms[0], None, np.array([1, 1, self.scale, self.scale], np.float32), to=tops[0], **how)
        else:
            graph.alias(tops[0], bottoms[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if self.moves_data:
            assert bottoms[0].diff is not None
            nearest_backward(rec, tops[0].diff, bottoms[0].diff, self.scale)
        else:
            alias_diff(rec, bottoms[0], tops[0])


class UnequalNearest(Upsample, MappedPlanes):
    """Repeats each pixel with other factors for rows than for columns."""

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        return self.plan(bottoms[0], *(repeated(size, factor) for size, factor in zip(self.image(bottoms[0]), whole_factors(self))))


class Unpooling(Upsample):
    """Writes each value of bottom 0 to the position in the top's plane that bottom 1 (the mask of a MAX Pooling) holds; other values are 0.

    The top has size upsample_h x upsample_w, or the bottom's size times `scale` (2), or times scale_h and scale_w. pad_out_h and pad_out_w then
    remove the last row and column. If several values have one position, the last value is written and each gets the position's gradient, as in
    the fork. The mask has no gradient.
    """

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, mask = bottoms
        self.check(
            x == mask,
            f"bottom 0 is {shape_text(x)}, the mask (bottom 1) is {shape_text(mask)}",
            f"give the mask of a Pooling layer as bottom 1, of {shape_text(x)}",
        )
        size = self.size(self.image(x))
        sized = any(field.name == "upsample_h" for field, _ in self.own().ListFields())
        self.check(
            min(size) > 0,
            f"the top would be {shape_text(size)} pixels",
            "set upsample_h and upsample_w to 1 or more" if sized else "remove pad_out_h and pad_out_w, or give a larger image",
        )
        return [(*x[:2], *size)]

    def size(self, image: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width of the top."""
        p = self.own()
        for one, other in (("upsample_h", "upsample_w"), ("scale_h", "scale_w")):
            given, missing = (one, other) if p.HasField(one) else (other, one)
            self.check(p.HasField(one) == p.HasField(other), f"{given} is given without {missing}", f"add {missing}")
        if p.HasField("upsample_h"):
            return p.upsample_h, p.upsample_w
        both = p.scale if p.HasField("scale") else 2
        scales = (p.scale_h, p.scale_w) if p.HasField("scale_h") else (both, both)
        cut = p.pad_out_h, p.pad_out_w
        self.check(min(scales) > 0, f"the scale is {scales[0]} x {scales[1]}", "set scale, or scale_h and scale_w, to 1 or more")
        self.check(
            all(scale == 2 for scale, given in zip(scales, cut) if given),
            f"pad_out_h and pad_out_w go with a scale of 2, it is {scales[0]} x {scales[1]}",
            "remove pad_out_h and pad_out_w, and write upsample_h and upsample_w: the size of the image before the pooling",
        )
        height, width = (size * scale - less for size, scale, less in zip(image, scales, cut))
        return height, width

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        unpool(rec, bottoms[0].data, bottoms[1].data, tops[0].data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        zeros = graph.op("ConstantOfShape", graph.sizes(bottoms[0], 2, [tops[0].shape[2] * tops[0].shape[3]]), value=np.zeros(1, np.float32))
        values, places = (graph.reshape(bottom, (0, 0, -1)) for bottom in bottoms)
        graph.reshape(graph.op("ScatterElements", zeros, graph.cast(places, np.int64), values, axis=2), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if propagate[0]:
            assert bottoms[0].diff is not None
            unpool_backward(rec, tops[0].diff, bottoms[1].data, bottoms[0].diff)
        if propagate[1]:  # the mask has a diff if the Pooling layer that writes it runs backward
            assert bottoms[1].diff is not None
            pointwise(rec, "y0 = 0", writes=[bottoms[1].diff])
