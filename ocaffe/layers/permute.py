"""Permute, and the base that it shares with ShuffleChannel and Reorg."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.kernels.rearrange.rearrange import inverse, permute
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


class Permuted(Layer):
    """Base of layers that view the bottom with shape `split` and permute its axes by `order`. If no data moves, the top is a view of the bottom."""

    inplace_top = False
    split: Shape
    order: Sequence[int]

    def plan(self, x: Shape, split: Shape, order: Sequence[int], y: Shape) -> Sequence[Shape]:
        """Set the permutation from a bottom of shape x to a top of shape y. Return the top shapes."""
        self.split, self.order = split, order
        long = [axis for axis in order if split[axis] > 1]
        self.moves_data = long != sorted(long) or y[:1] != x[:1]
        return [y]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            permute(rec, bottoms[0].data, tops[0].data, self.split, self.order)
        else:
            rec.alias(tops[0], bottoms[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if not self.moves_data:
            graph.alias(tops[0], bottoms[0])
            return
        whole = self.split == bottoms[0].shape
        x = graph.values[bottoms[0]] if whole else graph.reshape(bottoms[0], (-1, *self.split[1:]))
        shape = tuple(self.split[axis] for axis in self.order)
        y = graph.op("Transpose", x, to=tops[0] if shape == tops[0].shape else None, perm=list(self.order))
        if shape != tops[0].shape:
            graph.reshape(y, to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if self.moves_data:
            assert bottoms[0].diff is not None
            permute(rec, tops[0].diff, bottoms[0].diff, tuple(self.split[axis] for axis in self.order), inverse(self.order))
        else:
            alias_diff(rec, bottoms[0], tops[0])


@register("Permute")
class Permute(Permuted):
    """Permutes the axes: axis i of the top is axis order[i] of the bottom. Axes that `order` does not name follow in their original order."""

    origin = "SSD"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, named = bottoms[0], list(self.own().order)
        self.check(all(axis < len(x) for axis in named), f"order {axes_list(named)} goes beyond the {len(x)} axes of bottom {shape_text(x)}",
                   f"write order with numbers from 0 to {len(x) - 1}" if x else "give a bottom with axes")  # fmt: skip
        self.check(len(set(named)) == len(named), f"order {axes_list(named)} names an axis twice", f"name each axis from 0 to {len(x) - 1} at most once")
        order = named + [axis for axis in range(len(x)) if axis not in named]
        return self.plan(x, x, order, tuple(x[axis] for axis in order))


def axes_list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))
