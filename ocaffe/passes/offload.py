"""Keep values in the host's memory between two uses that are far apart, so that their memory on the device serves others.

A copy to the host begins right after the last use before the gap, on a queue of its own. The value's memory is free at the EndStore. It stands where the copy
is complete by the predicted times, or earlier where the limit needs the memory: launches then wait. The copy back begins as late as it can without a wait, or
later where the limit leaves no room. The launches after the gap read a new Ref. The same bits come back.
"""
from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ocaffe.ir.launch import Access, BeginFetch, BeginStore, EndFetch, EndStore, Launch, Measure, Schedule, transfer
from ocaffe.ir.rates import Rates
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.plan import Life, lifetimes, live_bytes
from ocaffe.memory.predict import copy_seconds

MIN_VALUE_BYTES = 1 << 20  # smaller values are not worth the copies
ROLES = frozenset({Role.ACTIVATION, Role.SAVED})


@dataclass(frozen=True)
class Gap:
    """The steps of the last launch before and of the first launch after a gap in the use of a root."""

    root: Ref
    last: int
    next: int


def gaps(schedule: Schedule) -> dict[Ref, Gap]:
    """The gap between forward and backward of each value that could be in the host's memory: all launches after it only read the value."""
    if any(isinstance(launch, Measure) for launch in schedule):
        return {}  # values move from one recording to the next step by step
    touches: dict[Ref, list[tuple[int, bool]]] = defaultdict(list)  # step, and whether the launch writes
    shared: set[Ref] = set()  # roots that a view reuses for another value
    for step, launch in enumerate(schedule):
        for operand in launch.operands:
            root = operand.ref.root
            if root.role in ROLES and root.nbytes >= MIN_VALUE_BYTES and not root.persistent:
                touches[root].append((step, operand.access is not Access.READ))
                if operand.ref.reuses_root:
                    shared.add(root)
    result = {}
    for root, steps in touches.items():
        last_write = max((step for step, writes in steps if writes), default=len(schedule))
        last = max((step for step, _ in steps if schedule[step].phase == "forward"), default=len(schedule))
        following = next((step for step, _ in steps if step > last), 0)
        if last_write <= last < following - 1 and root not in shared:
            result[root] = Gap(root, last, following)
    return result


def lives_with(schedule: Schedule, chosen: Iterable[Gap], alignment: int) -> list[Life]:
    """The lives on the device, if the values of the gaps are on the host between their uses: a value then has two lives."""
    by_root = {gap.root: gap for gap in chosen}
    result = []
    for life in lifetimes(schedule, alignment):
        gap = by_root.get(life.ref)
        result += [life] if gap is None else [replace(life, last=gap.last), replace(life, first=gap.next)]
    return result


def offload(schedule: Schedule, wanted: Collection[Ref], rates: Rates, limit: int, alignment: int = 256) -> Schedule:
    """The schedule with the copies of the wanted values, whose live bytes stay within `limit` where that is possible."""
    found = gaps(schedule)
    chosen = sorted((found[root] for root in wanted if root in found), key=lambda gap: (gap.last, gap.next))
    if not chosen:
        return schedule
    lives = lives_with(schedule, chosen, alignment)
    sizes = {life.ref: life.size for life in lives}
    copies = [Copy(gap.last, gap.next, sizes[gap.root], gap.root.nbytes) for gap in chosen]
    place_copies(copies, live_bytes(lives, len(schedule)), [rates.seconds(launch) for launch in schedule], rates, limit)
    before: dict[int, list[tuple[int, Gap]]] = defaultdict(list)  # step -> the kinds of copies' launches before it, in their order
    for gap, copy in zip(chosen, copies):
        for kind, step in enumerate((gap.last + 1, copy.stored, copy.fetched, gap.next)):
            before[step].append((kind, gap))
    hosts = {gap: Ref(f"{gap.root.name} on host", gap.root.shape, Role.HOST, gap.root.dtype, layout=gap.root.layout) for gap in chosen}
    back = {gap: Ref(f"{gap.root.name} back", gap.root.shape, gap.root.role, gap.root.dtype, layout=gap.root.layout) for gap in chosen}
    moved: dict[Ref, Ref] = {}
    result: Schedule = []
    for step, launch in enumerate(schedule):
        for kind, gap in sorted(before[step], key=lambda entry: entry[0]):
            result.append(_copy(kind, gap.root, hosts[gap], back[gap], launch, schedule[gap.last]))
            if kind == 3:
                moved[gap.root] = back[gap]
        result.append(launch.moved(moved))
    return result


@dataclass
class Copy:
    """A copy to the host and back, by steps. `size`: bytes on the device. `stored`: the EndStore stands before this step; `fetched`: so does the BeginFetch."""

    last: int
    next: int
    size: int
    nbytes: int
    stored: int = 0
    fetched: int = 0


def place_copies(copies: list[Copy], live: list[int], seconds: list[float], rates: Rates, limit: int) -> None:
    """Set `stored` and `fetched` of copies, which are in the order of `last`. `live`: bytes by step without values on their way; it is changed.

    Copies of a direction end in the order in which they begin. So one ends early if another one behind it has no more time.
    """
    begins: dict[int, list[Copy]] = defaultdict(list)
    ends: dict[int, list[Copy]] = defaultdict(list)
    for copy in copies:
        begins[copy.last].append(copy)
        ends[copy.next].append(copy)
    start = [0.0, *itertools.accumulate(seconds)]
    queue = _Queue()
    free = waited = 0.0
    steps = iter(sorted(begins))
    step = next(steps, len(seconds))
    while step < len(seconds):  # those at which a copy begins or is in progress
        now = start[step] + waited
        while queue.copies:
            done = queue.copies[0].time
            if done > now and live[step] + queue.size <= limit and -queue.most > step + 1:
                break
            waited += max(0.0, done - now)
            now = max(now, done)
            queue.popped().stored = step
        live[step] += queue.size
        for copy in begins.get(step, ()):
            free = max(free, start[step + 1] + waited) + copy_seconds(copy.nbytes, rates.to_host)
            queue.add(copy, free, -copy.next)
        step = step + 1 if queue.copies else next((later for later in steps if later > step), len(seconds))
    free = start[-1]
    steps = iter(sorted(ends, reverse=True))
    step = next(steps, -1)
    while step >= 0:
        while queue.copies:
            if queue.copies[0].time < start[step + 1] and live[step] + queue.size <= limit and queue.most <= step:
                break
            free = min(free, start[step + 1])
            queue.popped().fetched = step + 1
        live[step] += queue.size
        for copy in sorted(ends.get(step, ()), key=lambda copy: copy.last):
            free = min(free, start[step]) - copy_seconds(copy.nbytes, rates.from_host)
            queue.add(copy, free, copy.stored)
        step = step - 1 if queue.copies else next((earlier for earlier in steps if earlier < step), -1)


class _Queued(NamedTuple):
    copy: Copy
    time: float  # at which it ends, or begins
    rank: int


class _Queue:
    """Copies of one direction in progress, in the order of their begin. `size`: their bytes on the device."""

    def __init__(self) -> None:
        self.copies: deque[_Queued] = deque()
        self.size = 0
        self._ranks: deque[int] = deque()  # those that are larger than all behind them

    @property
    def most(self) -> int:
        """The largest rank of the copies."""
        return self._ranks[0]

    def add(self, copy: Copy, time: float, rank: int) -> None:
        self.copies.append(_Queued(copy, time, rank))
        self.size += copy.size
        while self._ranks and self._ranks[-1] < rank:
            self._ranks.pop()
        self._ranks.append(rank)

    def popped(self) -> Copy:
        """Remove the first copy and return it."""
        copy, _, rank = self.copies.popleft()
        self.size -= copy.size
        if self._ranks[0] == rank:
            self._ranks.popleft()
        return copy


def waits_for(copies: list[Copy], seconds: list[float], rates: Rates) -> float:
    """The seconds in which launches wait for placed copies, as `predict` finds them for the schedule."""
    start = [0.0, *itertools.accumulate(seconds)]
    steps = ((copy.last + 1, copy.stored, copy.fetched, copy.next) for copy in copies)
    events = sorted((step, kind, number) for number, four in enumerate(steps) for kind, step in enumerate(four))
    done, link, waits = [0.0] * len(copies), [0.0, 0.0], 0.0
    for step, kind, number in events:
        if kind in (0, 2):
            way = kind // 2
            rate = (rates.to_host, rates.from_host)[way]
            link[way] = done[number] = max(link[way], start[step] + waits) + copy_seconds(copies[number].nbytes, rate)
        else:
            waits += max(0.0, done[number] - start[step] - waits)
    return waits


def _copy(kind: int, root: Ref, host: Ref, back: Ref, launch: Launch, maker: Launch) -> Launch:
    """A launch of a copy: the begin or end of a store or of a fetch, which stands before `launch`."""
    made, source, target = ((BeginStore, root, host), (EndStore, root, host), (BeginFetch, host, back), (EndFetch, host, back))[kind]
    return transfer(made, maker.layer, "forward" if launch.phase == "forward" else "backward", source, target, launch.origin or launch)
