"""BatchReindex."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.rearrange.rows import gather, gather_adjoint
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("BatchReindex")
class BatchReindex(Layer):
    """The samples of bottom 0 whose indices are in bottom 1, in that order; an index may repeat. An index out of range gives NaN."""

    bottoms = 2
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, numbers = bottoms
        self.check(
            len(numbers) == 1,
            f"bottom 1 is {shape_text(numbers)}, it must have one axis: numbers of samples",
            f"add a Reshape layer before bottom 1, with shape {{ dim: {math.prod(numbers)} }}",
        )
        self.check(x, "bottom 0 has no axes", "give a bottom with a batch axis: N x ...")
        return [(numbers[0], *x[1:])]

    def force_backward(self, bottom: int) -> bool:
        return bottom == 0

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        gather(rec, bottoms[0].data, bottoms[1].data, tops[0].data)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Gather", bottoms[0], graph.cast(bottoms[1], np.int64), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "the numbers of samples"})
        if propagate[0]:
            assert tops[0].diff is not None and bottoms[0].diff is not None
            gather_adjoint(rec, tops[0].diff, bottoms[1].data, bottoms[0].diff)
