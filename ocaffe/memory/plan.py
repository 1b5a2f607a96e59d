"""The memory planner: a pure function from a schedule to places in a few slabs. It imports no OpenCL and knows nothing of layers.

Each recyclable root Ref lives from the first to the last step that touches it. Refs are placed one by one at the lowest gap that is free over their
whole life; several orders are tried and the smallest result is kept (greedy by size is within a few percent of the bound on image nets).
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ocaffe.graph.ir import Ref, Schedule, roots


@dataclass(frozen=True)
class Life:
    """A Ref with its first and last step, both inclusive, and its size in bytes as it is placed."""

    ref: Ref
    first: int
    last: int
    size: int


@dataclass
class MemoryPlan:
    """Where every recyclable root Ref lies: `places[ref] = (slab, byte offset)`; sizes in bytes.

    `lower_bound` is the largest sum of live bytes over the steps, reached at `peak_step`: no placement can be smaller.
    """

    places: dict[Ref, tuple[int, int]] = field(default_factory=dict)
    slabs: list[int] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    lower_bound: int = 0
    peak_step: int = 0

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


def plan(schedule: Schedule, *, alignment: int = 256, slab_limit: int = 1 << 62, share: bool = True) -> MemoryPlan:
    """Place the recyclable Refs of `schedule`. `share=False` gives every Ref memory of its own (OCAFFE_PLAN=none).

    A slab holds at most `slab_limit` bytes; a Ref larger than that gets a slab of its own (the device
    may refuse it: the caller reports). Steps are indices into `schedule`.
    """
    lives = lifetimes(schedule, alignment)
    bound, peak = _lower_bound(lives, len(schedule))
    if not share:
        lives = [Life(life.ref, 0, len(schedule), life.size) for life in lives]
    candidates = (_place(sorted(lives, key=order), slab_limit) for order in ORDERS.values())
    places, slabs = min(candidates, key=lambda candidate: sum(candidate[1]))
    return MemoryPlan(places, slabs, lives, bound, peak)


def lifetimes(schedule: Schedule, alignment: int = 1) -> list[Life]:
    """The lives of all recyclable root Refs."""
    return [
        Life(ref, first, last, -(-max(ref.nbytes, 1) // alignment) * alignment)
        for ref, (first, last) in roots(schedule).items()
        if not ref.persistent
    ]


def _lower_bound(lives: list[Life], steps: int) -> tuple[int, int]:
    change = [0] * (steps + 1)
    for life in lives:
        change[life.first] += life.size
        change[life.last + 1] -= life.size
    bound = peak = live = 0
    for step, delta in enumerate(change):
        live += delta
        if live > bound:
            bound, peak = live, step
    return bound, peak


def _place(lives: list[Life], slab_limit: int) -> tuple[dict[Ref, tuple[int, int]], list[int]]:
    """First fit in the given order: the lowest offset that is free during the Ref's life, in the first slab with room."""
    slabs: list[int] = []
    placed: list[list[tuple[int, int, Life]]] = []  # per slab: (begin, end, life), sorted by begin
    places: dict[Ref, tuple[int, int]] = {}
    for life in lives:
        for index in range(len(slabs) + 1):
            if index == len(slabs):
                slabs.append(0)
                placed.append([])
            begin = _gap(placed[index], life)
            if begin + life.size <= slab_limit or begin == 0:
                break
        placed[index].append((begin, begin + life.size, life))
        placed[index].sort(key=lambda block: block[0])
        slabs[index] = max(slabs[index], begin + life.size)
        places[life.ref] = (index, begin)
    return places, slabs


def _gap(blocks: list[tuple[int, int, Life]], life: Life) -> int:
    """The lowest offset where `life` fits between the blocks that live at the same time."""
    offset = 0
    for begin, end, other in blocks:
        if other.first > life.last or other.last < life.first:
            continue
        if begin - offset >= life.size:
            break
        offset = max(offset, end)
    return offset
