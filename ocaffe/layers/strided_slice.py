"""StridedSlice: every n-th value along some axes."""
from __future__ import annotations

from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.rearrange.alias import alias_diff
from ocaffe.kernels.rearrange.strided import Steps, put, take
from ocaffe.layers.base import Layer, register, times
from ocaffe.onnx.graph import OnnxGraph

FARTHEST = 2**31 - 1  # a bound beyond every axis


class Strided(Layer):
    """Base of layers whose top is a part of the bottom, or all of it, with `steps` along each axis."""

    inplace_top = False
    steps: Sequence[Steps]

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        if self.moves_data:
            take(rec, bottoms[0].data, tops[0].data, self.steps)
        else:
            rec.alias(tops[0], bottoms[0])

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        assert tops[0].diff is not None
        if self.moves_data:
            assert bottoms[0].diff is not None
            put(rec, tops[0].diff, bottoms[0].diff, self.steps)
        else:
            alias_diff(rec, bottoms[0], tops[0])


@register("StridedSlice")
class StridedSlice(Strided):
    """The values start, start + step, .. before end along each named axis, as in a slice of numpy; a negative step goes backwards."""

    origin = "ocaffe"

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        p, x = self.own(), bottoms[0]
        self.check(x, "bottom 0 has no axes", "give a bottom of one axis or more")
        named = [self.axis(axis, x) for axis in p.axis]
        self.check(len(set(named)) == len(named), f"axis {', '.join(map(str, named))} names an axis twice", "write each axis once")
        for name in ("start", "end", "step"):
            count = len(getattr(p, name))
            self.check(
                count in (0, len(named)),
                f"{name} is given {times(count)} for {len(named)} axes",
                f"write {name} {times(len(named))}, or not at all",
            )
        self.steps = steps = [Steps(0, 1, size) for size in x]
        for index, axis in enumerate(named):
            step = p.step[index] if p.step else 1
            self.check(step, f"the step along axis {axis} is 0", "set step to 1 or more, or to -1 or less to go backwards")
            bounds = slice(p.start[index] if p.start else None, p.end[index] if p.end else None, step)
            chosen = range(x[axis])[bounds]
            given = ":".join("" if bound is None else str(bound) for bound in (bounds.start, bounds.stop, step))
            fix = f"set start and end to places from 0 to {x[axis]}, start {'before' if step > 0 else 'after'} end"
            self.check(chosen, f"the slice {given} of axis {axis} of bottom {shape_text(x)} is empty", fix)
            steps[axis] = Steps(chosen.start, step, len(chosen))
        self.whole = steps[0] == Steps(0, 1, x[0])
        return [tuple(along.outs for along in steps)]

    @property
    def by_sample(self) -> bool:
        return self.whole

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        p = self.own()
        steps = list(p.step) or [1] * len(p.axis)
        starts = list(p.start) or [0 if step > 0 else FARTHEST for step in steps]
        ends = list(p.end) or [FARTHEST if step > 0 else -FARTHEST for step in steps]
        graph.op("Slice", bottoms[0], starts, ends, [axis % len(bottoms[0].shape) for axis in p.axis], steps, to=tops[0])
