"""Bias, and Broadcast, the base that it shares with Scale."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.expression import ChannelAffine, pointwise, reduce
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.layers.base import Layer, ParamBlob, register
from ocaffe.onnx.graph import OnnxGraph


def _where(x: Shape, shape: Shape, first: int) -> str:
    """Return the remedy for a second bottom of this shape that does not fit x from axis `first` on."""
    starts = [f"axis: {start}" for start in range(len(x) - len(shape) + 1) if x[start : start + len(shape)] == shape]
    return f"write {' or '.join(starts)}" if starts else f"give a second bottom of {shape_text(x[first : first + len(shape)])}"


class Broadcast(Layer):
    """Base of layers that broadcast a second tensor over the bottom from `axis` on: the second bottom, or else a parameter of `num_axes` axes."""

    bottoms = (1, 2)

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.learned = len(bottoms) == 1
        self.first = 0 if not self.learned and not bottoms[1] else self.axis(p.axis, x)
        if self.learned:
            self.check(
                p.num_axes >= -1,
                f"num_axes is {p.num_axes}",
                f"set num_axes to a number from 0 (a single value) to {len(x) - self.first}, or to -1 for all axes to the end",
            )
            end = len(x) if p.num_axes == -1 else self.first + p.num_axes
            fact = f"axis {self.first} and num_axes {p.num_axes} go beyond the {len(x)} axes of bottom {shape_text(x)}"
            self.check(end <= len(x), fact, f"set num_axes to {len(x) - self.first} or less, or to -1 for all axes to the end")
            self.shape = x[self.first : end]
        else:
            self.shape = bottoms[1]
            end = self.first + len(self.shape)
            self.check(
                x[self.first : end] == self.shape,
                f"the second bottom is {shape_text(self.shape)}, the first {shape_text(x)} has {shape_text(x[self.first : end])} from axis {self.first} on",
                _where(x, self.shape, self.first),
            )
        self.others = [d for d in range(len(x)) if not self.first <= d < end]
        return [x]

    @property
    def by_sample(self) -> bool:
        return self.learned and 0 in self.others

    def operand(self, bottoms: list[Blob]) -> Ref:
        """Return the data of the second tensor."""
        return self.params[0].data if self.learned else bottoms[1].data

    def operand_diff(self, bottoms: list[Blob], propagate: list[bool]) -> Ref | None:
        """Return the diff of the second tensor, or None if no gradient is needed."""
        if self.learned:
            return self.params[0].diff
        return bottoms[1].diff if propagate[1] else None

    @property
    def spread(self) -> Shape:
        """The shape of the second tensor with trailing ones, for broadcasting."""
        return (*self.shape, *(1,) * sum(axis >= self.first for axis in self.others))

    def onnx_operand(self, graph: OnnxGraph, bottoms: list[Blob]) -> str:
        """Return the second tensor in a shape that ONNX can broadcast."""
        if self.learned:
            return graph.parameter(self.params[0], self.spread)
        ones = range(len(self.shape), len(self.spread))
        return graph.op("Unsqueeze", bottoms[1], list(ones)) if ones else graph.values[bottoms[1]]


@register("Bias")
class Bias(Broadcast):
    """y = x + b with b broadcast; b is the second bottom if there is one, else a parameter."""

    passes_diff = True

    def parameters(self) -> Sequence[ParamBlob]:
        filler: Any = self.own().filler
        return [ParamBlob(self.shape, filler)] if self.learned else []

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        pointwise(rec, "y0 = x0 + x1", reads=[bottoms[0].data, (self.operand(bottoms), self.first)], writes=[tops[0].data], means=ChannelAffine("", "1", "x1"))

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.op("Add", bottoms[0], self.onnx_operand(graph, bottoms), to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if len(bottoms) > 1 and propagate[1]:
            rec.diff_of(bottoms[1])
        gradient = self.operand_diff(bottoms, propagate)
        if gradient is not None:
            reduce(rec, "v0 = x0", reads=[tops[0].diff], writes=[gradient], axes=self.others)
        if propagate[0]:
            alias_diff(rec, bottoms[0], tops[0])
