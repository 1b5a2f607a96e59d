"""Copies with arbitrary strides, which permute, repeat or crop axes.

Like expressions, they become kernels late, when strides are known.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ocaffe.ir.kernel import JOIN, Access, Kernel
from ocaffe.ir.launch import Call, Launch
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Shape
from ocaffe.kernels.expression.formula import parse
from ocaffe.kernels.expression.render_pointwise import render
from ocaffe.kernels.expression.render_transpose import dense_axis, render_transpose
from ocaffe.kernels.expression.source import CTYPES, Port
from ocaffe.kernels.expression.strides import merge


def permute(rec: Recorder, x: Ref, y: Ref, split: Shape, order: Sequence[int]) -> None:
    """y = x, viewed with the shape `split`, with its axes in `order`.

    All operations in this module add to y if y is a diff that accumulates.
    """
    moved = tuple(split[axis] for axis in order)
    _record(rec, moved, x, Walk(tuple(split), tuple(order), x.dense_stride), y, Walk.straight(moved, y))


def inverse(order: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse of the permutation `order`."""
    return tuple(sorted(range(len(order)), key=lambda axis: order[axis]))


def tile(rec: Recorder, x: Ref, y: Ref, axis: int) -> None:
    """y = x, repeated along `axis`."""
    domain = (*x.shape[:axis], y.shape[axis] // x.shape[axis], *x.shape[axis:])
    order = (*range(axis), None, *range(axis, len(x.shape)))
    _record(rec, domain, x, Walk(x.shape, order, x.dense_stride), y, Walk.straight(domain, y))


def crop(rec: Recorder, x: Ref, y: Ref, starts: Sequence[int]) -> None:
    """y = the part of x that starts at `starts`, one number per axis."""
    _record(rec, y.shape, _part(x, starts, y.shape), Walk.straight(x.shape, x), y, Walk.straight(y.shape, y))


def uncrop(rec: Recorder, y: Ref, x: Ref, starts: Sequence[int], value: float = 0) -> None:
    """The adjoint of `crop`: x = y inside the cropped part, `value` elsewhere."""
    if not rec.accumulates(x):
        inside = list(zip(starts, y.shape))
        for axis, (start, size) in enumerate(inside):  # the elements before and after the part along this axis, within the part along earlier axes
            for first, end in ((0, start), (start + size, x.shape[axis])):
                corner = [(first, end - first) if d == axis else inside[d] if d < axis else (0, n) for d, n in enumerate(x.shape)]
                _write(rec, None, x, corner, value)
    _write(rec, y, x, list(zip(starts, y.shape)))


@dataclass(frozen=True)
class Walk:
    """The way an operand is traversed. It is split into axes of sizes `split`; axis d moves along `order[d]` of these (None: not at all).

    `sample`: the elements per sample of the tensor. The operand itself may be a part of it.
    """

    split: Shape
    order: tuple[int | None, ...]
    sample: int

    @classmethod
    def straight(cls, split: Shape, tensor: Ref) -> Walk:
        """Return a walk along all axes in order."""
        return cls(split, tuple(range(len(split))), tensor.dense_stride)

    def strides(self, ref: Ref) -> tuple[int, ...]:
        """Return the stride in elements along each axis of the walk."""
        dense = [math.prod(self.split[axis + 1 :]) for axis in range(len(self.split))]
        if ref.shape and ref.shape[0] > 1 and ref.batch_stride != self.sample:
            assert self.sample in dense, f"the strided {ref} cannot be split into {self.split}"
            dense = [step // self.sample * ref.batch_stride if step >= self.sample else step for step in dense]
        return tuple(0 if axis is None else dense[axis] for axis in self.order)


REARRANGE = Kernel("rearrange", can=JOIN)


@dataclass(frozen=True)
class Rearrange:
    """A copy over `domain` before strides are known, from one operand to another. With a single operand, it is filled with `value`."""

    domain: Shape
    walks: tuple[Walk, ...]
    target: Target
    value: float = 0

    def __str__(self) -> str:
        return REARRANGE.name

    def __call__(self, launch: Launch) -> Call:
        space = merge(self.domain, [walk.strides(operand.ref) for walk, operand in zip(self.walks, launch.operands)])
        names = ("x0", "y0")[-len(self.walks) :]
        *reads, write = (Port(name, CTYPES[operand.ref.dtype.name], strides, name == "y0")
                         for name, operand, strides in zip(names, launch.operands, space.strides))  # fmt: skip
        accumulate = int(launch.operands[-1].access is Access.MODIFY)
        axis = dense_axis(space.sizes, reads[0], write, self.target) if reads else None
        if axis is not None:
            return render_transpose(space.sizes, axis, reads[0], write, accumulate, self.target)
        return render(parse("y0 = x0" if reads else f"y0 = {self.value!r}"), space.sizes, reads, [write], (), (), accumulate, self.target)


def _record(rec: Recorder, domain: Shape, x: Ref | None, x_walk: Walk | None, y: Ref, y_walk: Walk, value: float = 0) -> None:
    reads = [] if x is None else [x]
    if 0 in domain:
        rec.empty(reads, [y], what="rearrange")
        return
    walks = (y_walk,) if x_walk is None else (x_walk, y_walk)
    rec.add(Launch(rec.layer, rec.phase, rec.operands(reads, [y]), REARRANGE, lower=Rearrange(domain, walks, rec.target, value)))


def _part(ref: Ref, starts: Sequence[int], shape: Shape) -> Ref:
    """Return the view of a part of a tensor: in each sample, the memory from the first element of the part to the last."""
    dense = [math.prod(ref.shape[axis + 1 :]) for axis in range(len(ref.shape))]
    span = 1 + sum((size - 1) * step for size, step in zip(shape[1:], dense[1:]))
    offset = starts[0] * ref.batch_stride + sum(start * step for start, step in zip(starts[1:], dense[1:]))
    return ref.view((shape[0], span), offset, ref.batch_stride)


def _write(rec: Recorder, y: Ref | None, x: Ref, part: Sequence[tuple[int, int]], value: float = 0) -> None:
    """Write y, or `value` if y is None, to the part of x given as (start, size) along each axis."""
    starts, shape = zip(*part)
    if 0 not in shape:
        walk = None if y is None else Walk.straight(y.shape, y)
        _record(rec, shape, y, walk, _part(x, starts, shape), Walk.straight(x.shape, x), value)
