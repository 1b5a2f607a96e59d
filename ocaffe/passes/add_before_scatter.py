"""Add the gradients of branches before they are scattered.

Strided 1x1 convolutions of several branches read the same pixels of an image. Each branch scatters its gradient of these pixels over the gradient of the image,
and the second one adds to the first. Scattering is linear. So the product of the second branch adds to the pixels instead, and one launch scatters the sum.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ocaffe.ir.launch import Access, Launch, Operand, Schedule
from ocaffe.ir.tensor import Ref
from ocaffe.ops.pooling import is_linear_scatter


def add_before_scatter(schedule: Schedule) -> Schedule:
    """The schedule without the first of two such launches, if nothing uses its result in between."""
    uses: dict[Ref, list[Launch]] = defaultdict(list)
    for launch in schedule:
        for root in {operand.ref.root for operand in launch.operands}:
            uses[root].append(launch)
    gone: set[int] = set()
    for second in filter(is_linear_scatter, schedule):
        users = uses[second.operands[-1].ref.root]
        place = users.index(second)
        if place > 0 and _join(users[place - 1], second, uses):
            gone.add(id(users.pop(place - 1)))
    return [launch for launch in schedule if id(launch) not in gone]


def _join(first: Launch, second: Launch, uses: Mapping[Ref, Sequence[Launch]]) -> bool:
    """Let the launch before `second` add to the operand of `first`. Return whether it can, so that `first` is not needed."""
    if not is_linear_scatter(first) or not _same_result(first, second):
        return False
    (sum_, result), (added, _) = first.operands, second.operands
    makers = [launch for launch in uses[added.ref.root] if launch is not second]
    if len(makers) != 1 or makers[0].epilogue is None or len(uses[sum_.ref.root]) != 2:
        return False
    maker = makers[0]
    index = next(index for index, operand in enumerate(maker.operands) if operand.ref.root is added.ref.root)
    written = maker.operands[index]
    if written.access is not Access.WRITE or not _same(written.ref, added.ref) or not _same(sum_.ref, added.ref, root=False):
        return False
    maker.operands[index] = Operand(sum_.ref, Access.MODIFY)
    assert maker.epilogue is not None
    maker.set_scalar(maker.epilogue.accumulate, np.int32(1))
    second.operands[:] = [replace(added, ref=sum_.ref), replace(second.operands[-1], access=result.access)]
    second.set_scalar(-1, np.int32(0))
    return True


def _same_result(first: Launch, second: Launch) -> bool:
    """Whether `second` adds to what `first` wrote, by the same call."""
    assert first.call is not None and second.call is not None
    one, other = (replace(launch.call, scalars=launch.call.scalars[:-1]) for launch in (first, second) if launch.call is not None)
    into, adds = first.operands[-1], second.operands[-1]
    return one == other and into.access is Access.WRITE and adds.access is Access.MODIFY and _same(into.ref, adds.ref)


def _same(x: Ref, y: Ref, root: bool = True) -> bool:
    """Whether two views are the same elements of one root, or of two roots."""
    return (x.root is y.root or not root) and (x.root_offset, x.shape, x.batch_stride, x.dtype) == (y.root_offset, y.shape, y.batch_stride, y.dtype)
