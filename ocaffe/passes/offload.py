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

from ocaffe.ir.launch import Access, BeginFetch, BeginStore, EndFetch, EndStore, Launch, Measure, Operand, Schedule
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
    """The longest gap of each value that could be in the host's memory: all launches after it only read the value."""
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
        pairs = [(b - a, a, b) for (a, _), (b, _) in itertools.pairwise(steps) if a >= last_write and b > a + 1]
        if pairs and root not in shared:
            _, last, following = max(pairs)
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
    return _Copies(schedule, chosen, rates, limit, alignment).apply()


class _Copies:
    def __init__(self, schedule: Schedule, chosen: list[Gap], rates: Rates, limit: int, alignment: int) -> None:
        self.schedule, self.chosen, self.rates, self.limit = schedule, chosen, rates, limit
        lives = lives_with(schedule, chosen, alignment)
        self.live = live_bytes(lives, len(schedule))
        sizes = {life.ref: life.size for life in lives}
        self.size = {gap: sizes[gap.root] for gap in chosen}
        self.seconds = [rates.seconds(launch) for launch in schedule]

    def stores_end(self) -> dict[Gap, int]:
        """The step before which each copy to the host has to be complete."""
        begins: dict[int, list[Gap]] = defaultdict(list)
        for gap in self.chosen:
            begins[gap.last].append(gap)
        result: dict[Gap, int] = {}
        flying: deque[tuple[Gap, float]] = deque()
        now = free = 0.0
        for step in range(len(self.schedule)):
            while flying:
                gap, done = flying[0]
                crowded = self.live[step] + sum(self.size[each] for each, _ in flying) > self.limit
                if done > now and not crowded and gap.next > step + 1:
                    break
                now = max(now, done)
                result[gap] = step
                flying.popleft()
            for gap, _ in flying:
                self.live[step] += self.size[gap]
            now += self.seconds[step]
            for gap in begins[step]:
                free = max(free, now) + copy_seconds(gap.root.nbytes, self.rates.to_host)
                flying.append((gap, free))
        return result

    def fetches_begin(self, stored: dict[Gap, int]) -> dict[Gap, int]:
        """The step before which each copy from the host begins."""
        ends: dict[int, list[Gap]] = defaultdict(list)
        for gap in self.chosen:
            ends[gap.next].append(gap)
        start = [0.0]
        for seconds in self.seconds:
            start.append(start[-1] + seconds)
        result: dict[Gap, int] = {}
        flying: deque[tuple[Gap, float]] = deque()  # with the time at which the copy begins
        free = start[-1]
        for step in range(len(self.schedule) - 1, -1, -1):
            while flying:
                gap, begin = flying[0]
                crowded = self.live[step] + sum(self.size[each] for each, _ in flying) > self.limit
                if begin < start[step + 1] and not crowded and stored[gap] <= step:
                    break
                result[gap] = step + 1
                free = min(free, start[step + 1])
                flying.popleft()
            for gap, _ in flying:
                self.live[step] += self.size[gap]
            for gap in sorted(ends[step], key=lambda gap: gap.last):
                free = min(free, start[step]) - copy_seconds(gap.root.nbytes, self.rates.from_host)
                flying.append((gap, free))
        return result

    def apply(self) -> Schedule:
        stored = self.stores_end()
        fetched = self.fetches_begin(stored)
        before: dict[int, list[tuple[int, Gap]]] = defaultdict(list)  # step -> the kinds of copies' launches before it, in their order
        for gap in self.chosen:
            for kind, step in enumerate((gap.last + 1, stored[gap], fetched[gap], gap.next)):
                before[step].append((kind, gap))
        hosts = {gap: Ref(f"{gap.root.name} on host", gap.root.shape, Role.HOST, gap.root.dtype, layout=gap.root.layout) for gap in self.chosen}
        back = {gap: Ref(f"{gap.root.name} back", gap.root.shape, gap.root.role, gap.root.dtype, layout=gap.root.layout) for gap in self.chosen}
        moved: dict[Ref, Ref] = {}
        result: Schedule = []
        for step, launch in enumerate(self.schedule):
            for kind, gap in sorted(before[step], key=lambda entry: entry[0]):
                result.append(_copy(kind, gap.root, hosts[gap], back[gap], launch, self.schedule[gap.last]))
                if kind == 3:
                    moved[gap.root] = back[gap]
            result.append(launch.moved(moved))
        return result


def _copy(kind: int, root: Ref, host: Ref, back: Ref, launch: Launch, maker: Launch) -> Launch:
    """A launch of a copy: the begin or end of a store or of a fetch, which stands before `launch`."""
    read, write = Access.READ, Access.WRITE
    operands = (
        [Operand(root, read), Operand(host, write)], [Operand(root, read), Operand(host, Access.MODIFY)],
        [Operand(host, read), Operand(back, write)], [Operand(host, read), Operand(back, Access.MODIFY)],
    )[kind]  # fmt: skip
    made = (BeginStore, EndStore, BeginFetch, EndFetch)[kind]
    return made(maker.layer, "forward" if launch.phase == "forward" else "backward", operands, origin=launch.origin or launch)
