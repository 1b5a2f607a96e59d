"""Elide the copies of Concat and Slice: a bottom of Concat becomes a view of its top, a top of Slice a view of its bottom.

The same holds for their diffs, in the other direction. A tensor becomes a view only if every launch that touches it steps from sample to sample by the batch
stride (docs/kernels.md). A Ref of other samples needs dense memory.
"""
from __future__ import annotations

import math
from collections import defaultdict
from typing import NamedTuple

import numpy as np

from ocaffe.ir.kernel import Access
from ocaffe.ir.launch import CopyRegion, Launch, Schedule
from ocaffe.ir.tensor import Ref, Role

VIEW_ROLES = frozenset({Role.ACTIVATION, Role.DIFF})


def elide_concat_copies(schedule: Schedule) -> Schedule:
    """The schedule without the copies that views replace."""
    views = _Views(schedule)
    copies = [launch for launch in schedule if isinstance(launch.details, CopyRegion)]
    # Outer tensors first, so that strides are final: the last Concat first, then the first Slice first.
    needless = {id(launch) for launch in reversed(copies) if views.may_go(launch, gathers=True)}
    needless |= {id(launch) for launch in copies if id(launch) not in needless and views.may_go(launch, gathers=False)}
    return [launch for launch in schedule if id(launch) not in needless]


class _Use(NamedTuple):
    """A step that touches a tensor. `region`: that of `ref` which a copy touches; None: all of it."""

    step: int
    writes: bool
    ref: Ref
    region: _Region | None


class _Region(NamedTuple):
    """Some samples of a tensor, and some elements of each sample."""

    samples: range
    elements: range

    @property
    def bounds(self) -> tuple[int, int, int, int]:
        return self.samples.start, self.samples.stop, self.elements.start, self.elements.stop


class _Views:
    """The uses of every tensor, while copies turn into views."""

    def __init__(self, schedule: Schedule) -> None:
        self.uses: dict[Ref, list[_Use]] = defaultdict(list)
        self.places: dict[Ref, np.ndarray] = {}  # of the first uses of a root: the bounds of their regions, one row each
        self.step = {id(launch): step for step, launch in enumerate(schedule)}
        for step, launch in enumerate(schedule):
            for index, operand in enumerate(launch.operands):
                region = _copied(operand.ref, launch.details, index) if isinstance(launch.details, CopyRegion) else None
                self.uses[operand.ref.root].append(_Use(step, operand.access is not Access.READ, operand.ref, region))

    def may_go(self, launch: Launch, gathers: bool) -> bool:
        """Make one side of a copy a view of the other, if that is right.

        `gathers`: the producer writes directly into the target. Otherwise the target stays in the source.
        """
        axis, x_start, y_start, size = launch.details
        x, y = launch["x"], launch["y"]
        if launch.operand("y").access is not Access.WRITE or (x.shape[axis] == size and y.shape[axis] != size) is not gathers:
            return False
        part, whole, start = (x, y, y_start) if gathers else (y, x, x_start)
        root = part.root
        inner = math.prod(whole.shape[axis + 1 :])
        if (
            part.count != root.count or not part.is_dense or part.shape[axis] != size or whole.root is root or root.slots != 1
            or root.persist or whole.root.persist or root.role not in VIEW_ROLES or whole.root.role not in VIEW_ROLES
            or (axis > 0 and math.prod(whole.shape[1:axis]) != 1) or (axis == 0 and not whole.is_dense)
            or not all(use.ref.follows(root) for use in self.uses[root])
            or root.shape[:1] != part.shape[:1]
        ):  # fmt: skip
            return False
        old = root.base, root.offset, root.stride
        root.base, root.offset = whole, start * inner
        root.stride = None if axis == 0 else whole.batch_stride
        if not self._stays(root, whole.root, self.step[id(launch)], gathers, launch.phase):
            root.base, root.offset, root.stride = old
            return False
        self.uses[whole.root] += self.uses.pop(root)
        return True

    def _stays(self, part: Ref, whole: Ref, copy: int, gathers: bool, phase: str) -> bool:
        """Whether every launch still reads the right value.

        No launch may change the part's place in `whole` while the part is live, and none may change the part while its place is live. An addition to a copied
        diff is also an addition to its place.
        """
        place = _place(part, None, whole)
        own = [use for use in self.uses[part] if use.step != copy]
        others = [use for use in self._touching(whole, place) if use.step != copy]
        changed = [use.step for use in others if use.writes]
        last = max((use.step for use in own), default=copy)
        if gathers:
            begin = min((use.step for use in own), default=copy)
            return not any(use.writes and use.step > copy for use in own) and not any(begin <= step <= max(last, copy) for step in changed)
        added = [use.step for use in own if use.writes]
        if any(use.step < copy for use in own) or (added and phase == "forward") or any(copy < step <= last for step in changed):
            return False
        return not added or all(use.step < min(added) for use in others if use.step > copy)

    def _touching(self, root: Ref, place: _Region) -> list[_Use]:
        """Return the uses of a root that overlap a place. A root of a wide Concat has thousands, so their places are compared as arrays."""
        uses, known = self.uses[root], self.places.get(root, np.empty((0, 4), np.int64))
        if len(known) < len(uses):
            new = [_place(use.ref, use.region, root).bounds for use in uses[len(known) :]]
            known = self.places[root] = np.concatenate([known, np.array(new, np.int64)])
        begin, end, first, last = known.T
        samples, elements = place
        overlap = (begin < samples.stop) & (samples.start < end) & (first < elements.stop) & (elements.start < last)
        return [uses[i] for i in np.flatnonzero(overlap)]


def _copied(ref: Ref, region: CopyRegion, operand: int) -> _Region | None:
    """The region of an operand (0: source, 1: target) that a copy touches; None: perhaps all of it."""
    axis, size = region.axis, region.size
    start = region.target_start if operand else region.source_start
    if axis == 0:
        return _Region(range(start, start + size), range(ref.dense_stride))
    inner = math.prod(ref.shape[axis + 1 :])
    return _Region(range(ref.shape[0]), range(start * inner, (start + size) * inner)) if math.prod(ref.shape[1:axis]) == 1 else None


def _place(ref: Ref, region: _Region | None, root: Ref) -> _Region:
    """The place in its root of a region of a view (None: all of it)."""
    samples, elements = region or (range(ref.shape[0] if ref.shape else 1), range(ref.dense_stride))
    width = max(root.dense_stride, 1)
    sample, offset = divmod(ref.root_offset, width)
    if ref.batch_stride == width and offset + elements.stop <= width:
        return _Region(range(samples.start + sample, samples.stop + sample), range(elements.start + offset, elements.stop + offset))
    end = ref.root_offset + (samples.stop - 1) * ref.batch_stride + elements.stop
    return _Region(range(sample, -(-end // width)), range(width))
