"""GroupNorm: LayerNorm over groups of channels."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import register
from ocaffe.layers.layer_norm import LayerNorm
from ocaffe.onnx.graph import OnnxGraph


@register("GroupNorm")
class GroupNorm(LayerNorm):
    """y = (x - mean) / sqrt(variance + eps) over the values of each of `group_num` groups of channels, separately for each sample.

    TRAIN and TEST compute the same. For a learned scale and bias, add a Scale layer. LayerNorm normalizes over all channels, or over one.
    Source: dongyf43/Spatio-Temporal-3D-CNN-for-lock-in-INDT, layers/group_norm_layer.cu.
    """

    origin = "lock-in INDT"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, groups = bottoms[0], int(self.own().group_num)
        self.check(len(x) >= 2, f"bottom 0 is {shape_text(x)}, GroupNorm needs a channel axis", "give bottom 0 as N x C, or with more axes")
        fitting = next((n for n in range(max(1, min(groups, x[1])), 1, -1) if x[1] % n == 0), 1)
        given = "write" if self.own().HasField("group_num") else "group_num is not given:"
        fact = f"group_num is {groups}, bottom 0 has {x[1]} channels"
        self.check(groups > 0 and x[1] % groups == 0, fact, f"{given} group_num: {fitting}, or another number that divides {x[1]}")
        self.folded: Shape = (x[0], groups, x[1] // groups * math.prod(x[2:]))
        self.first, self.axes = 2, range(2, 3)
        self.scalars = {"n": float(self.folded[2]), "eps": float(self.own().eps)}
        return [x]

    @property
    def by_sample(self) -> bool:
        return True

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        x = graph.reshape(bottoms[0], (0, self.folded[1], -1))
        graph.reshape(self.normalized(graph, x), to=tops[0])
