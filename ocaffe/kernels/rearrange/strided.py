"""Parts of a tensor with steps, and their adjoint: strided.cl."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ocaffe.ir.kernel import JOIN, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape

FORWARD = Kernel("strided.forward", read("x"), write("y"), can=JOIN)
BACKWARD = Kernel("strided.backward", read("dy"), write("dx"), can=JOIN)
GPU_GROUP = 64
CPU_PIECE = 2048  # elements per CPU work-item


class Steps(NamedTuple):
    """The values start, start + step, .. along an axis: `outs` values. A negative step goes backwards."""

    start: int
    step: int
    outs: int


def take(rec: Recorder, x: Ref, y: Ref, steps: Sequence[Steps]) -> None:
    """y = the part of x with these steps, one for each axis."""
    parts = _parts(x.shape, steps)
    for (axis, first, along), (source, target) in zip(parts, _chain(rec, x, y, parts)):
        _launch(rec, FORWARD, target, source.shape, target.shape, axis, first, along, x=source, y=target)


def put(rec: Recorder, dy: Ref, dx: Ref, steps: Sequence[Steps]) -> None:
    """The adjoint of `take`: dx = dy at the places that `take` reads, else 0."""
    parts = _parts(dx.shape, steps)
    for (axis, first, along), (source, target) in reversed(list(zip(parts, _chain(rec, dx, dy, parts)))):
        more = first.outs, rec.accumulates(source)
        _launch(rec, BACKWARD, source, source.shape, target.shape, axis, first, along, *more, dy=target, dx=source)


def _parts(shape: Shape, steps: Sequence[Steps]) -> list[tuple[int, Steps, Steps]]:
    """Return axis, steps of axis 0 and steps of the axis for each launch. The first launch also takes the steps along axis 0."""
    idle = [Steps(0, 1, size) for size in shape]
    axes = [axis for axis in range(1, len(shape)) if steps[axis] != idle[axis]] or [min(1, len(shape) - 1)]
    parts = []
    for number, axis in enumerate(axes):
        first = Steps(0, 1, steps[0].outs) if number else steps[0]
        parts.append((axis, first, steps[axis] if axis else Steps(0, 1, 1)))
    return parts


def _chain(rec: Recorder, x: Ref, y: Ref, parts: Sequence[tuple[int, Steps, Steps]]) -> list[tuple[Ref, Ref]]:
    """Return the tensors before and after each launch, from x to y."""
    refs = [x]
    for axis, first, along in parts[:-1]:
        shape = refs[-1].shape
        refs.append(rec.scratch(f"axis{axis}", (first.outs, *shape[1:axis], along.outs, *shape[axis + 1 :])))
    return list(zip(refs, [*refs[1:], y]))


def _launch(
    rec: Recorder, kernel: Kernel, over: Ref, whole: Shape, part: Shape, axis: int, first: Steps, along: Steps, *more: int | bool, **operands: Ref
) -> None:
    ins, outs = (shape[axis] if axis else 1 for shape in (whole, part))
    count, piece = over.dense_stride, CPU_PIECE if rec.target.is_cpu else 1
    rec.launch(
        kernel(**operands),
        args=[count, piece, ins, outs, math.prod(whole[axis + 1 :]), first.start, first.step, along.start, along.step, *more],
        size=(-(-count // piece), over.shape[0]),
        local=(1, 1) if rec.target.is_cpu else (GPU_GROUP, 1),
    )
