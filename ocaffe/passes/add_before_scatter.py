"""Add the gradients of branches before they are scattered.

Strided 1x1 convolutions of several branches read the same pixels of an image. Each branch scatters its gradient of these pixels over the gradient of the image,
and the second one adds to the first. Scattering is linear. So the product of the second branch adds to the pixels instead, and one launch scatters the sum.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ocaffe.ir.launch import Access, Launch, Schedule
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.pooling.pooling import is_linear_scatter


def add_before_scatter(schedule: Schedule) -> Schedule:
    """The schedule without the first of two such launches, if nothing uses its result in between."""
    uses: dict[Ref, list[int]] = defaultdict(list)
    for step, launch in enumerate(schedule):
        for root in {operand.ref.root for operand in launch.operands}:
            uses[root].append(step)
    gone: set[int] = set()
    for step, second in enumerate(schedule):
        if not is_linear_scatter(second):
            continue
        users = uses[second.operands[-1].ref.root]
        place = users.index(step)
        if place > 0 and _join(schedule, users[place - 1], step, uses):
            gone.add(users.pop(place - 1))
    return [launch for step, launch in enumerate(schedule) if step not in gone]


def _join(schedule: Schedule, before: int, step: int, uses: Mapping[Ref, list[int]]) -> bool:
    """Let the maker of the gradient that launch `step` scatters add to the gradient that launch `before` scatters.

    Return whether it can, so that `before` is not needed.
    """
    first, second = schedule[before], schedule[step]
    if not is_linear_scatter(first) or not _adds(first, second):
        return False
    (sum_, result), (added, _) = first.operands, second.operands
    sum_uses, (made, *others) = uses[sum_.ref.root], uses[added.ref.root]
    maker = schedule[made]
    if others != [step] or made < before or sum_uses[-1] != before or maker.epilogue is None:
        return False
    index = next(index for index, operand in enumerate(maker.operands) if operand.ref.root is added.ref.root)
    written = maker.operands[index]
    if written.access is not Access.WRITE or not _place(written.ref) == _place(added.ref) == _place(sum_.ref):
        return False
    maker.operands[index] = replace(written, ref=sum_.ref, access=Access.MODIFY)
    maker.set_scalar(maker.epilogue.accumulate, np.int32(1))
    second.operands[:] = [sum_, result]
    second.set_scalar(-1, np.int32(0))
    sum_uses[-1:] = [made, step]
    return True


def _adds(first: Launch, second: Launch) -> bool:
    """Whether `second` adds to what `first` wrote, by the same call but for its last scalar."""
    assert first.call is not None and second.call is not None
    into, adds = first.operands[-1], second.operands[-1]
    accesses = into.access is Access.WRITE and adds.access is Access.MODIFY
    same = into.ref.root is adds.ref.root and _place(into.ref) == _place(adds.ref)
    return accesses and same and replace(first.call, scalars=(*first.call.scalars[:-1], second.call.scalars[-1])) == second.call


def _place(ref: Ref) -> tuple[object, ...]:
    """Return the elements of its root that a view has."""
    return ref.root_offset, ref.shape, ref.batch_stride, ref.dtype
