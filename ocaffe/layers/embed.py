"""Embed."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import reduce
from ocaffe.kernels.rearrange.rows import gather, gather_adjoint
from ocaffe.layers.base import Layer, ParamBlob, register
from ocaffe.onnx.graph import OnnxGraph


@register("Embed")
class Embed(Layer):
    """The row of a learned table for each index in the bottom, plus a bias; the top has one more axis, of size num_output.

    Indices run from 0 to input_dim - 1. Any other index gives a row of NaN and no gradient. Blobs: table (input_dim, num_output), bias (num_output).
    """

    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.positive(p, {"num_output": "the length of a row"})
        self.positive(p, {"input_dim": "the number of rows, one for each word"})
        self.check(x, "bottom 0 has no axes", "give a batch of numbers: N, or more axes")
        return [(*x, p.num_output)]

    def parameters(self) -> Sequence[ParamBlob]:
        p = self.own()
        table = ParamBlob((p.input_dim, p.num_output), p.weight_filler)
        return [table, ParamBlob((p.num_output,), p.bias_filler)] if p.bias_term else [table]

    def force_backward(self, bottom: int) -> bool:
        return False

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        bias = self.params[1].data if len(self.params) > 1 else None
        gather(rec, self.params[0].data, bottoms[0].data, tops[0].data, bias=bias)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        table, *bias = (graph.parameter(parameter) for parameter in self.params)
        y = graph.op("Gather", table, graph.cast(bottoms[0], np.int64), to=None if bias else tops[0])
        if bias:
            graph.op("Add", y, bias[0], to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {0: "the numbers"})
        table, dy = self.params[0].diff, tops[0].diff
        assert dy is not None
        if table is not None:
            gather_adjoint(rec, dy, bottoms[0].data, table)
        if len(self.params) > 1 and self.params[1].diff is not None:
            reduce(rec, "v0 = x0", reads=[dy], writes=[self.params[1].diff], axes=range(len(dy.shape) - 1))
