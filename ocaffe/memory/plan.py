"""The memory planner: a pure function from a schedule to places in a few slabs. It imports no OpenCL and knows no layers.

A recyclable root Ref lives from the first to the last step that touches it. Refs are placed one by one at the lowest gap that is free over their
whole life. Several orders are tried and the smallest result is kept. On image nets, ordering by size comes within a few percent of the bound.
"""
from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import numpy as np

from ocaffe.ir.launch import Schedule, roots
from ocaffe.ir.target import LARGEST_IMPORT
from ocaffe.ir.tensor import Ref, Role

GOOD_ENOUGH_RATIO = 1.002  # plan / bound at which the search stops
LARGE_DIVISOR = 100  # Refs of at least bound / LARGE_DIVISOR bytes take part in the search for a better order
MANY = 512  # places of a slab from which numpy is faster than a loop
MAX_PLACEMENTS = 20000  # Refs that the search may place, which takes 0.2 s


@dataclass(frozen=True)
class Life:
    """A Ref with its first and last step, both inclusive, and its placed size in bytes."""

    ref: Ref
    first: int
    last: int
    size: int


@dataclass
class MemoryPlan:
    """The place of every recyclable root Ref: `places[ref] = (slab, byte offset)`. Sizes are bytes.

    `lower_bound` is the largest sum of live bytes over the steps, reached at `peak_step`. No placement can be smaller.
    `host_slabs`, `host_lives`: the same for values in the host's memory, whose places are also in `places`.
    """

    places: dict[Ref, tuple[int, int]] = field(default_factory=dict)
    slabs: list[int] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    lower_bound: int = 0
    peak_step: int = 0
    host_slabs: list[int] = field(default_factory=list)
    host_lives: list[Life] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.slabs)

    def live_at(self, step: int) -> list[Life]:
        return [life for life in self.lives if life.first <= step <= life.last]


Order = Callable[[Life], tuple[int, ...]]
ORDERS: dict[str, Order] = {
    "size": lambda life: (-life.size, life.first),
    "area": lambda life: (-life.size * (life.last - life.first + 1), life.first),
    "duration": lambda life: (life.first - life.last, -life.size),
    "time": lambda life: (life.first, -life.size),
}


@dataclass(frozen=True)
class Limits:
    """`slab`: bytes of a slab. `gradients`: bytes of the first slab, which then holds all gradients that fit; 0: any slab holds them."""

    slab: int
    gradients: int

    def of(self, index: int) -> int:
        """Return the bytes of slab number `index`."""
        return self.gradients if index == 0 and self.gradients else self.slab


def plan(
    schedule: Schedule, *, alignment: int = 256, slab_limit: int = 1 << 62, gradient_slab: int = 0, share: bool = True, enough: int | None = None
) -> MemoryPlan:  # fmt: skip
    """Place the recyclable Refs of `schedule`. `share=False` gives every Ref memory of its own (OCAFFE_DEBUG=plan=none).

    A slab holds at most `slab_limit` bytes. A larger Ref gets a slab of its own; if the device refuses it, the caller reports that.
    `gradient_slab`: see Target. `enough`: the bytes that a plan may have. One that has no more, or cannot be so small, is not improved: that takes most
    of the time.
    """
    limits = Limits(slab_limit, gradient_slab)
    lives = lifetimes(schedule, alignment)
    bound, peak = lower_bound(lives, len(schedule))
    if not share:
        lives = [Life(life.ref, 0, len(schedule), life.size) for life in lives]
    best = None
    for key in ORDERS.values():
        order = sorted(lives, key=key)
        candidate = _place(order, limits)
        if best is None or candidate.total < best[0].total:
            best = candidate, order
        if best[0].total <= bound:
            break
    assert best is not None
    improves = share and (enough is None or bound <= enough < best[0].total)
    placement = _improve(*best, bound, limits) if improves else best[0]
    stored = lifetimes(schedule, alignment, on_host=True)
    on_host = _place(sorted(stored, key=ORDERS["size"]), Limits(LARGEST_IMPORT, 0))
    return MemoryPlan({**placement.places, **on_host.places}, placement.slabs, lives, bound, peak, on_host.slabs, stored)


def lifetimes(schedule: Schedule, alignment: int = 1, on_host: bool = False) -> list[Life]:
    """The lives of all recyclable root Refs on the device, or of those in the host's memory."""
    return [
        Life(ref, first, last, -(-max(ref.nbytes, 1) // alignment) * alignment)
        for ref, (first, last) in roots(schedule).items()
        if not ref.persistent and (ref.role is Role.HOST) == on_host
    ]


def overlap(plan: MemoryPlan) -> tuple[Life, Life] | None:
    """Two Refs that share memory while both are alive; None: there are none. A right plan has none."""
    for lives in (plan.lives, plan.host_lives):
        by_slab: dict[int, list[tuple[int, Life]]] = {}
        for life in lives:
            slab, offset = plan.places[life.ref]
            by_slab.setdefault(slab, []).append((offset, life))
        for placed in by_slab.values():
            placed.sort(key=lambda entry: entry[0])
            for index, (offset, life) in enumerate(placed):
                for other_offset, other in placed[index + 1 :]:
                    if other_offset >= offset + life.size:
                        break
                    if life.first <= other.last and other.first <= life.last:
                        return life, other
    return None


def live_bytes(lives: Iterable[Life], steps: int) -> list[int]:
    """The sum of live bytes at each step."""
    change = [0] * (steps + 1)
    for life in lives:
        change[life.first] += life.size
        change[life.last + 1] -= life.size
    return list(itertools.accumulate(change[:-1]))


def lower_bound(lives: Iterable[Life], steps: int) -> tuple[int, int]:
    """The largest sum of live bytes, and the step where it is reached."""
    live = live_bytes(lives, steps)
    bound = max(live, default=0)
    return bound, live.index(bound) if bound else 0


@dataclass
class _Placement:
    places: dict[Ref, tuple[int, int]]
    slabs: list[int]

    @property
    def total(self) -> int:
        return sum(self.slabs)


def _place(lives: list[Life], limits: Limits) -> _Placement:
    """First fit in the given order: the lowest offset that is free during the Ref's life, in the first slab with room.

    If gradients have a slab, they come first.
    """
    slabs: list[_Slab] = []
    places: dict[Ref, tuple[int, int]] = {}
    if limits.gradients:
        slabs.append(_Slab())
        lives = sorted(lives, key=lambda life: life.ref.role is not Role.GRADIENT)
    for life in lives:
        for index in range(len(slabs) + 1):
            if index == len(slabs):
                slabs.append(_Slab())
            begin = slabs[index].gap(life)
            if begin + life.size <= limits.of(index) or (begin == 0 and limits.of(index) == limits.slab):
                break
        slabs[index].add(life, begin)
        places[life.ref] = (index, begin)
    return _Placement(places, [slab.size for slab in slabs])


class _Slab:
    """The places in one slab that are taken, sorted by their begin. A Python loop over a few hundred tuples is three times faster than numpy calls."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, int, int, int]] = []  # begin, end, first step, last step
        self._table = np.empty((4, 0), np.int64)  # the same as columns, if there are MANY; further columns are free
        self.size = 0

    def gap(self, life: Life) -> int:
        """The lowest offset where `life` fits between the places that are taken at the same time."""
        first, last, size, top = life.first, life.last, life.size, 0
        if len(self._taken) >= MANY:
            begins, ends, born, died = self._table[:, : len(self._taken)]
            both = (born <= last) & (died >= first)
            begins, tops = begins[both], np.maximum.accumulate(np.concatenate([[0], ends[both]]))
            fits = np.flatnonzero(begins - tops[:-1] >= size)
            return int(tops[fits[0]] if fits.size else tops[-1])
        for begin, end, born, died in self._taken:
            if born <= last and died >= first:
                if begin - top >= size:
                    break
                if end > top:
                    top = end
        return top

    def add(self, life: Life, begin: int) -> None:
        place = (begin, begin + life.size, life.first, life.last)
        index, count = bisect(self._taken, place), len(self._taken)
        self._taken.insert(index, place)
        self.size = max(self.size, begin + life.size)
        if count + 1 < MANY:
            return
        if count == self._table.shape[1] or count + 1 == MANY:
            self._table = np.empty((4, 2 * count + 2), np.int64)
            self._table[:, : count + 1] = np.array(self._taken).T
            return
        self._table[:, index + 1 : count + 1] = self._table[:, index:count].copy()
        self._table[:, index] = place


def _improve(best: _Placement, order: list[Life], bound: int, limits: Limits) -> _Placement:
    """A better order of the large Refs, found by moving one at a time, mostly one at the top of its slab. Small Refs fill the gaps.

    It is a random walk over orders that never get worse. The seed is fixed, so that a plan is always the same.
    """
    if best.total <= bound * GOOD_ENOUGH_RATIO:
        return best
    large = [life for life in order if life.size * LARGE_DIVISOR >= bound]
    small = [life for life in order if life.size * LARGE_DIVISOR < bound]
    random = Random(0)
    current = _place(large, limits)
    left, fresh = MAX_PLACEMENTS, True
    while left > 0:
        if fresh and current.total <= bound:
            best = min(best, _place([*large, *small], limits), key=lambda placement: placement.total)
            left -= len(order)
            if best.total <= bound * GOOD_ENOUGH_RATIO:
                return best
        top = [index for index, life in enumerate(large) if current.places[life.ref][1] + life.size == current.slabs[current.places[life.ref][0]]]
        source = random.choice(top) if random.random() < 0.7 else random.randrange(len(large))
        target = random.randrange(len(large))
        moved = [*large[:source], *large[source + 1 :]]
        moved.insert(min(source, target) if random.random() < 0.5 else target, large[source])
        candidate = _place(moved, limits)
        left -= len(large)
        fresh = candidate.total <= current.total and moved != large
        if fresh:
            current, large = candidate, moved
    return min(best, _place([*large, *small], limits), key=lambda placement: placement.total)
