"""Tile."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import reduce
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.kernels.rearrange.rearrange import tile
from ocaffe.layers.base import Layer, register, stated
from ocaffe.onnx.graph import OnnxGraph


@register("Tile")
class Tile(Layer):
    """Repeats the bottom `tiles` times along `axis`. With one tile, the bottom is not copied."""

    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.tile_axis = self.axis(p.axis, x)
        self.check(
            p.tiles > 0,
            stated(p, "tiles"),
            "set tiles to 1 or more" if p.HasField("tiles") else f"{self.written('tiles: N')}, where N is the number of copies",
        )
        self.moves_data = p.tiles > 1
        return [(*x[: self.tile_axis], x[self.tile_axis] * p.tiles, *x[self.tile_axis + 1 :])]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            tile(rec, bottoms[0].data, tops[0].data, self.tile_axis)
        else:
            rec.alias(tops[0], bottoms[0])

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            repeats = [self.own().tiles if axis == self.tile_axis else 1 for axis in range(len(bottoms[0].shape))]
            graph.op("Tile", bottoms[0], repeats, to=tops[0])
        else:
            graph.alias(tops[0], bottoms[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if not self.moves_data:
            alias_diff(rec, bottoms[0], tops[0])
            return
        x, axis = bottoms[0].shape, self.tile_axis
        assert bottoms[0].diff is not None
        reduce(rec, "v0 = x0", reads=[tops[0].diff.view((*x[:axis], self.own().tiles, *x[axis:]))], writes=[bottoms[0].diff], axes=[axis])
