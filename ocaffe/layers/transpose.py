"""Transpose."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.tensor import Shape
from ocaffe.layers.base import register, times
from ocaffe.layers.permute import Permuted, axes_list


@register("Transpose")
class Transpose(Permuted):
    """Permutes the axes: axis i of the top is axis dim[i] of the bottom; `dim` names every axis once.

    Source: dlunion/CC4.0, src/caffe/layers/transpose_layer.cpp at 1225991.
    """

    origin = "text recognition forks"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        x, order = bottoms[0], list(self.own().dim)
        fact = f"dim {axes_list(order) or 'is empty'} does not name each of the {len(x)} axes of bottom {shape_text(x)} once"
        self.check(sorted(order) == list(range(len(x))), fact, f"write dim {times(len(x))}: each number from 0 to {len(x) - 1} once")
        return self.plan(x, x, order, tuple(x[axis] for axis in order))
