"""Pad: a border around the bottom, with separate widths for both ends of an axis."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ocaffe import proto
from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.kernels.rearrange.border import Border
from ocaffe.kernels.rearrange.rearrange import crop, uncrop
from ocaffe.layers.base import Layer, register, times

if TYPE_CHECKING:
    from ocaffe.onnx.graph import OnnxGraph

MODE = proto.PadParameter


@register("Pad")
class Pad(Layer):
    """The bottom with `begin` values before and `end` values after it along each axis from `axis` on: `value`, mirrored values or the edge."""

    origin = "ocaffe"
    inplace_top = False

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        first = self.axis(p.axis, x)
        self.check(first > 0, "axis 0 is the batch, which cannot be padded", "set axis to 1 or more")
        for name in ("begin", "end"):
            given = len(getattr(p, name))
            self.check(
                given in (0, len(x) - first),
                f"{name} is given {times(given)} for the {len(x) - first} axes from axis {first} on of bottom {shape_text(x)}",
                f"write {name} {times(len(x) - first)}, or not at all",
            )
        none = [0] * (len(x) - first)
        self.begin, self.end = ([0] * first + (list(getattr(p, name)) or none) for name in ("begin", "end"))
        for axis, (size, *pads) in enumerate(zip(x, self.begin, self.end)):
            self.check(p.mode != MODE.REFLECT or max(pads) < size, f"axis {axis} of bottom {shape_text(x)} has {size} values, {max(pads)} cannot be mirrored",
                       f"set begin and end of axis {axis} to {max(0, size - 1)} or less, or write mode: EDGE")  # fmt: skip
            self.check(
                p.mode != MODE.EDGE or size > 0 or max(pads) == 0,
                f"axis {axis} of bottom {shape_text(x)} has no values to repeat",
                "write mode: CONSTANT",
            )
        top = tuple(before + size + behind for size, before, behind in zip(x, self.begin, self.end))
        self.borders = [Border(axis, size, self.begin[axis], top[axis], p.mode == MODE.REFLECT) for axis, size in enumerate(x) if top[axis] != size]
        self.moves_data = bool(self.borders)
        return [top]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        x, y = bottoms[0].data, tops[0].data
        if not self.moves_data:
            rec.alias(tops[0], bottoms[0])
        elif self.own().mode == MODE.CONSTANT:
            uncrop(rec, x, y, self.begin, self.own().value)
        else:
            for border, (inner, outer) in zip(self.borders, self.steps(rec, x, y)):
                border.forward(rec, inner, outer)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        dy = tops[0].diff
        assert dy is not None
        if not self.moves_data:
            alias_diff(rec, bottoms[0], tops[0])
            return
        dx = bottoms[0].diff
        assert dx is not None
        if self.own().mode == MODE.CONSTANT:
            crop(rec, dy, dx, self.begin)
        else:
            for border, (inner, outer) in reversed(list(zip(self.borders, self.steps(rec, dx, dy)))):
                border.backward(rec, outer, inner)

    def steps(self, rec: Recorder, x: Ref, y: Ref) -> list[tuple[Ref, Ref]]:
        """Return (input, output) of each border. The borders are added one axis at a time, from x to y."""
        refs = [x]
        for border in self.borders[:-1]:
            shape = refs[-1].shape
            refs.append(rec.scratch(f"axis{border.axis}", (*shape[: border.axis], border.outs, *shape[border.axis + 1 :])))
        return list(zip(refs, [*refs[1:], y]))

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        mode = MODE.Mode.Name(self.own().mode).lower()
        graph.op("Pad", bottoms[0], [*self.begin, *self.end], float(self.own().value) if mode == "constant" else None, to=tops[0], mode=mode)
