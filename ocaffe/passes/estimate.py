"""Live bytes and seconds of a schedule for any choice of values to compute again or to keep on the host, without writing the schedule of that choice.

It repeats what `Recomputation.apply`, `offload` and `reuse_dying_inputs` would do, on numbers alone: a search may ask a thousand times.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from ocaffe.ir.launch import Access, Launch, Schedule
from ocaffe.ir.rates import Rates
from ocaffe.ir.tensor import Ref
from ocaffe.memory.plan import lifetimes
from ocaffe.memory.predict import beside_seconds
from ocaffe.passes.group import Group
from ocaffe.passes.offload import Copy, gaps, place_copies, waits_for
from ocaffe.passes.recompute import MAX_CHAIN_LAUNCHES, MIN_VALUE_BYTES, NEVER, Recomputation


@dataclass(frozen=True)
class Found:
    """The cost of a choice. `live`: the largest number of live bytes at each step of the schedule, with the launches that are inserted before it."""

    live: np.ndarray
    seconds: float

    @property
    def peak(self) -> int:
        return int(self.live.max(initial=0))


class Estimate:
    """The values of one schedule, by number, and the costs of choices. `roots`: the Refs by number."""

    def __init__(self, schedule: Schedule, rates: Rates, limit: int, alignment: int) -> None:
        self.plan = plan = Recomputation(schedule)
        self.rates, self.limit = rates, limit
        lives = lifetimes(schedule, alignment)
        self.roots = [life.ref for life in lives]
        self.number = number = {root: index for index, root in enumerate(self.roots)}
        self.steps = len(schedule)
        self.size = np.array([life.size for life in lives], np.int64)
        self.first = np.array([life.first for life in lives], np.int64)
        self.last = np.array([life.last for life in lives], np.int64)
        self.spent = [sum(map(rates.seconds, launch.members if isinstance(launch, Group) else (launch,))) for launch in schedule]
        self.begin = np.concatenate([[0.0], np.cumsum(self.spent)])  # seconds before each step, without inserted launches
        end = plan.forward_end
        self.forward_last: dict[int, int] = {}  # the last step of forward that touches a root
        self.backward_reads: dict[int, list[int]] = defaultdict(list)  # root -> steps
        self.read_at: dict[int, list[int]] = {}  # step of backward -> roots
        for step, launch in enumerate(schedule):
            if step < end:
                self.forward_last.update((number[ref.root], step) for ref in launch.refs(*Access) if ref.root in number)
            else:
                self.read_at[step] = [number[root] for root in dict.fromkeys(ref.root for ref in launch.reads) if root in number]
                for root in self.read_at[step]:
                    self.backward_reads[root].append(step)
        self.maker = {number[root]: step for root, (step, _) in plan.makers.items() if root in number}
        self.needed = {number[root]: step for root, step in plan.needed.items() if root in number}
        self.first_use = {number[root]: step for root, step in plan.first_use.items() if root in number}
        self.small = {index for index, root in enumerate(self.roots) if root.nbytes < MIN_VALUE_BYTES}
        self.sources: dict[int, list[int]] = {}  # of the launch at a maker's step
        self.results: dict[int, list[int]] = {}
        self.valid: dict[int, int] = {}  # the first step at which it would read other parameters
        for step in {*self.maker.values()}:
            launch = schedule[step]
            self.sources[step] = [number[root] for root in dict.fromkeys(ref.root for ref in launch.reads) if root in number]
            self.results[step] = [number[root] for root in dict.fromkeys(ref.root for ref in launch.writes) if root in number]
            self.valid[step] = plan.changed_after(launch, step)
        pairs = [
            (step, number[launch[i].root], number[launch[j].root]) for step, launch in enumerate(schedule) for i, j in launch.inplace
            if launch[i].root in number and launch[j].root in number and launch[j].base is None and launch[i].root.nbytes == launch[j].nbytes
            and launch[i].root.dtype == launch[j].dtype and launch[i].count == launch[i].root.count
        ]  # fmt: skip
        self.pairs = np.array(pairs, np.int64).reshape(-1, 3)
        self.pairs_at: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for step, source, result in pairs:
            self.pairs_at[step].append((source, result))
        self.gaps = {number[root]: gap for root, gap in gaps(schedule).items()} if rates.to_host and rates.from_host else {}
        self._inside: dict[tuple[int, int], bool] = {}

    def numbers(self, refs: Collection[Ref]) -> set[int]:
        return {self.number[ref] for ref in refs if ref in self.number}

    def refs(self, numbers: Collection[int]) -> set[Ref]:
        return {self.roots[index] for index in numbers}

    def narrowest(self, schedule: Schedule) -> int:
        """The bytes that the largest launch accesses. An output may take the memory of a dying input."""
        return max((self._accessed(step, launch) for step, launch in enumerate(schedule)), default=0)

    def _accessed(self, step: int, launch: Launch) -> int:
        roots = {ref.root for ref in launch.refs(*Access)}
        shared = max((int(self.size[result]) for _, result in self.pairs_at.get(step, ())), default=0)
        return sum(int(self.size[self.number[root]]) for root in roots if root in self.number) - shared

    # -- one choice --------------------------------------------------------------------------------------------------------

    def chain(self, root: int, dropped: Collection[int], kept: Collection[int] = ()) -> set[int] | None:
        """The steps of the launches that compute `root` again before its first use in backward; None: it cannot be."""
        if root not in self.maker or root not in self.first_use or root in self.small:
            return None
        use, todo, seen = self.first_use[root], [self.maker[root]], {self.maker[root]}
        while todo:
            step = todo.pop()
            if self.valid[step] < use or len(seen) > MAX_CHAIN_LAUNCHES:
                return None
            for source in self.sources[step]:
                if source in kept or (source not in dropped and self.needed.get(source, -1) >= use):
                    continue
                if source in self.small:
                    continue  # such as BatchNorm's mean: keeping it longer costs little
                if source not in self.maker or (source in self.needed and source not in dropped):
                    return None
                if (other := self.maker[source]) not in seen:
                    seen.add(other)
                    todo.append(other)
        return seen

    def better_inside(self, root: int, step: int, dropped: Collection[int]) -> bool:
        """`Recomputation._is_better_inside`: no memory is needed for the value."""
        if (root, step) not in self._inside:
            self.plan.dropped = set()
            self._inside[root, step] = self.plan.better_inside(self.roots[root], step)
        return self._inside[root, step] and not any(source in dropped for source in self.sources[self.maker[root]])

    def found(self, dropped: Collection[int], stored: Collection[int], kept: Collection[int] = ()) -> Found | None:
        """The live bytes and seconds of a choice. None: a launch would read parameters that have changed."""
        inserted: dict[int, list[int]] = {}  # step -> steps of makers, in order
        births: list[list[int]] = []  # of new values: root, step and place of the first and of the last access; the place of the step itself is NEVER
        late: dict[int, tuple[int, int]] = {}  # roots that recomputation reads, and the last such place
        early: dict[int, int] = {}  # the first such step
        again: dict[int, int] = {}  # root -> number in births
        used_at: dict[int, list[int]] = defaultdict(list)
        for root in dropped:
            for step in self.backward_reads[root]:
                used_at[step].append(root)
        for step in sorted(used_at):
            own: dict[int, int] = {}
            chain = inserted.setdefault(step, [])
            wanted = set(used_at[step])
            for root in self.read_at[step]:
                if root not in wanted:
                    continue
                inside = self.better_inside(root, step, dropped)
                values = own if inside else again
                if (inside or root not in again) and not self._make(root, step, chain, values, births, late, early, dropped, kept):
                    return None
                births[values[root]][3:] = [step, NEVER]
                if inside:
                    births[values[root]][0] = -1  # it takes no memory
        count = np.zeros(self.steps + 1, np.int64)
        for step, chain in inserted.items():
            count[step] = len(chain)
        before = np.concatenate([[0], np.cumsum(count)])[: self.steps + 1]
        at = np.arange(self.steps + 1) + before + count  # the place of each step
        first, last = self.first, self.last.copy()
        for root in dropped:
            last[root] = self.forward_last[root]
        ends = at[last]
        for root, (step, place) in late.items():
            ends[root] = max(ends[root], step + before[step] + place)
        starts = at[first]
        total = int(at[-1])
        born, died = (np.bincount(places, self.size, total + 2) for places in (starts, ends + 1))  # float64 is exact for bytes
        change = (born - died).astype(np.int64)
        copies: list[Copy] = []
        for root in stored:
            gap, back = self.gaps[root], min(self.gaps[root].next, early.get(root, NEVER))
            if root not in dropped and back > gap.last + 1:
                copy = Copy(int(at[gap.last]), int(at[back] - count[back]), int(self.size[root]), self.roots[root].nbytes)
                copies.append(copy)
                change[copy.last + 1] -= copy.size
                change[copy.next] += copy.size
        dies: dict[tuple[int, int], int] = {}  # of new values: (place, root)
        for root, step, place, end_step, end_place in births:
            if root < 0:
                continue
            end = int(at[end_step]) if end_place == NEVER else end_step + int(before[end_step]) + end_place
            change[step + before[step] + place] += self.size[root]
            change[end + 1] -= self.size[root]
            if end_place == NEVER:
                dies[end_step, root] = end
        live = np.cumsum(change[:-1])
        in_place = self._in_place(births, inserted)
        waits = self._waits(copies, live[:total], inserted) if copies else 0.0  # `offload` runs before `reuse_dying_inputs`
        for step, place, root in in_place:
            live[step + before[step] + place] -= self.size[root]
        if len(self.pairs):
            steps, sources, results = self.pairs.T
            together = (ends[sources] == at[steps]) & (starts[results] == at[steps])
            chosen, index = np.unique(steps[together], return_index=True)
            live[at[chosen]] -= self.size[sources[together][index]]
            for step, root in dies:
                if step not in chosen and any(source == root and self.first[result] == step for source, result in self.pairs_at.get(step, ())):
                    live[at[step]] -= self.size[root]
        spent = sum(self.spent[maker] for chain in inserted.values() for maker in chain)
        by_step = np.maximum.reduceat(live[:total], np.concatenate([[0], at[: self.steps - 1] + 1])) if self.steps else live
        beside = beside_seconds(sum(copy.nbytes for copy in copies), self.rates)
        return Found(by_step, float(self.begin[-1]) + spent + waits + beside)

    def _make(
        self, root: int, step: int, chain: list[int], place: dict[int, int], births: list[list[int]], late: dict[int, tuple[int, int]],
        early: dict[int, int], dropped: Collection[int], kept: Collection[int],
    ) -> bool:  # fmt: skip
        """Insert the launches that compute `root` before `step`, as `Recomputation._make` does. Return whether they may run there."""
        maker = self.maker[root]
        if self.valid[maker] < step:
            return False
        for source in self.sources[maker]:
            if source in place or source not in self.maker:
                continue
            wanted = source in dropped or (source not in self.needed and source not in kept)
            if wanted and not self._make(source, step, chain, place, births, late, early, dropped, kept):
                return False
        number = len(chain)
        chain.append(maker)
        for source in self.sources[maker]:
            if source in place:
                if births[place[source]][3:] < [step, number]:
                    births[place[source]][3:] = [step, number]
            else:
                late[source] = (step, number)
                early.setdefault(source, step)
        for result in self.results[maker]:
            births.append([result, step, number, step, number])
            if result in dropped or (result not in self.needed and result not in kept):
                place[result] = len(births) - 1
        return True

    def _in_place(self, births: list[list[int]], inserted: dict[int, list[int]]) -> Iterator[tuple[int, int, int]]:
        """Yield the step, the place and the root of each new value that reuses the memory of a new value that dies there."""
        died = {(root, step, place) for root, *_, step, place in births}
        born = {(root, step, place) for root, step, place, *_ in births}
        for step, place in dict.fromkeys((step, place) for root, step, place, *_ in births if root >= 0):
            for source, result in self.pairs_at.get(inserted[step][place], ()):
                if (source, step, place) in died and (result, step, place) in born:
                    yield step, place, result
                    break

    def _waits(self, copies: list[Copy], live: np.ndarray, inserted: dict[int, list[int]]) -> float:
        """Seconds for which launches wait for copies, which are by place."""
        seconds: list[float] = []
        done = 0
        for step in sorted(inserted):
            seconds += self.spent[done:step]
            seconds += [self.spent[maker] for maker in inserted[step]]
            done = step
        seconds += self.spent[done:]
        copies.sort(key=lambda copy: (copy.last, copy.next))
        place_copies(copies, live.tolist(), seconds, self.rates, self.limit)
        return waits_for(copies, seconds, self.rates)
