"""Reshape: the same data with another shape."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.layers.base import Layer, register
from ocaffe.onnx.graph import OnnxGraph


@register("Reshape")
class Reshape(Layer):
    """Replaces the `num_axes` axes that begin at `axis` (-1: all axes up to the last) with the axes of `shape`; no data moves.

    In `shape`, 0 copies the bottom's axis at that position, and one -1 is inferred from the count. A negative `axis` counts from the end: -1 is the
    position after the last axis.
    """

    moves_data = False
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        param, x = self.own(), bottoms[0]
        dims, rank, count = list(param.shape.dim), len(x), math.prod(x)
        bottom, wanted = f"bottom {shape_text(x)}", f"shape {shape_text(dims)}"
        start = param.axis if param.axis >= 0 else param.axis + rank + 1
        self.check(0 <= start <= rank, f"axis {param.axis} is outside the {rank} axes of {bottom}", f"set axis to a number from {-rank - 1} to {rank}")
        self.check(
            param.num_axes >= -1,
            f"num_axes is {param.num_axes}",
            f"set num_axes to a number from 0 to {rank - start}, or to -1 for all axes that follow",
        )
        end = rank if param.num_axes == -1 else start + param.num_axes
        self.check(
            end <= rank,
            f"axis {start} and num_axes {param.num_axes} reach beyond the {rank} axes of {bottom}",
            f"set num_axes to {rank - start} or less, or to -1 for all axes that follow",
        )
        self.check(dims.count(-1) <= 1, f"{wanted} has {dims.count(-1)} dims of -1", "write one dim of -1 at most, and numbers for the others")
        self.check(all(dim >= -1 for dim in dims), f"{wanted} has a dim below -1", "write each dim as a size, 0 to copy that of the bottom, or -1 for the rest")
        for i, dim in enumerate(dims):
            if dim == 0:
                self.check(
                    start + i < rank,
                    f"dim {i} of {wanted} copies axis {start + i}, which {bottom} does not have",
                    f"write the size of dim {i} in place of 0",
                )
                dims[i] = x[start + i]
        if -1 in dims:
            known = math.prod(x[:start]) * math.prod(dim for dim in dims if dim != -1) * math.prod(x[end:])
            empty = f"{bottom} has no values, so the dim of -1 in {wanted} may be any number"
            self.check(known > 0, empty, "write -1 for the axis that may have no samples, and numbers for the others")
            self.check(
                count % known == 0,
                f"{bottom} has {count} values, which {known}, the product of the other sizes of {wanted}, does not divide",
                f"write dims whose product divides {count // max(1, math.prod(x[:start]) * math.prod(x[end:]))}",
            )
            dims[dims.index(-1)] = count // known
        shape = (*x[:start], *dims, *x[end:])
        self.check(
            math.prod(shape) == count,
            f"output count must match input count: top {shape_text(shape)} has {math.prod(shape)} values, {bottom} has {count}",
            f"write dims with the product {count // max(1, math.prod(x[:start]) * math.prod(x[end:]))}; one may be -1, for the rest",
        )
        return [shape]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        rec.alias(tops[0], bottoms[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        graph.reshape(bottoms[0], to=tops[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        alias_diff(rec, bottoms[0], tops[0])
