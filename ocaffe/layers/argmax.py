"""ArgMax."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.loss.argmax import argmax
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("ArgMax")
class ArgMax(Layer):
    """Indices of the `top_k` largest values along `axis` (with out_max_val: the values), or without axis of each sample (N x 1 x top_k).

    Without axis, out_max_val gives N x 2 x top_k: the indices, then the values. In that case the top has at least three axes, or as many as the
    bottom if the bottom has more. Of equal values the one with the larger index comes first, as in Caffe. NaN values are ignored.
    """

    has_backward = False
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.along = self.axis(p.axis, x) if p.HasField("axis") else None
        if self.along is None:
            self.check(x, "bottom 0 has no axes", "give a bottom of N samples, or set axis")
            choice, what = math.prod(x[1:]), f"each sample of bottom {shape_text(x)} has"
            top = (x[0], 2 if p.out_max_val else 1, p.top_k, *[1] * (len(x) - 3))
        else:
            choice, what = x[self.along], f"axis {self.along} of bottom {shape_text(x)} has"
            top = (*x[: self.along], p.top_k, *x[self.along + 1 :])
        self.check(
            1 <= p.top_k <= choice,
            f"top_k is {p.top_k}, {what} {choice} values",
            f"set top_k to a number from 1 to {choice} in argmax_param" if choice else "give a bottom with values",
        )
        return [top]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, y, k, values = bottoms[0].data, tops[0].data, self.own().top_k, self.own().out_max_val
        if self.along is None:
            samples = x.shape[0]
            x, y = x.view((samples, x.dense_stride)), y.view((samples, y.dense_stride))
            argmax(rec, x, y, 1, k, index_at=0, value_at=k if values else None)
        else:
            argmax(rec, x, y, self.along, k, index_at=None if values else 0, value_at=0 if values else None)

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        p, axis = self.own(), 1 if self.along is None else self.along
        x = graph.reshape(bottoms[0], (0, -1)) if self.along is None else graph.values[bottoms[0]]
        count = math.prod(bottoms[0].shape[1:]) if self.along is None else graph.fixed(bottoms[0], axis)
        # Of equal values TopK takes the first and Caffe the last. Reversing the axis makes them agree.
        values, places = graph.ops("TopK", graph.op("Slice", x, [-1], [-count - 1], [axis], [-1]), [p.top_k], to=[None, None], axis=axis)
        chosen = graph.op("Sub", float(count - 1), graph.cast(places, np.float32))
        if self.along is not None:
            graph.alias(tops[0], values if p.out_max_val else chosen)
        elif p.out_max_val:
            graph.reshape(graph.op("Concat", chosen, values, axis=1), to=tops[0])
        else:
            graph.reshape(chosen, to=tops[0])
