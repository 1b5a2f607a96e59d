"""Choose for each value that backward needs: keep it, compute it again, or move it to the host and back, so that a limit is kept in the least time.

The choice begins with all values kept, or with forward cut into segments (`segmentations` of ocaffe/passes/recompute.py). While the live bytes exceed the
limit, values are dropped or moved that are idle where they do, least seconds first for each byte and step that they help. Then each choice is taken back, or
exchanged for the other way, if the limit still holds and the predicted time is shorter. Of the results the fastest is taken. `Estimate` predicts both.
"""
from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from ocaffe.ir.launch import Schedule
from ocaffe.ir.rates import Rates
from ocaffe.ir.tensor import Ref
from ocaffe.memory.predict import beside_seconds, copy_seconds
from ocaffe.passes.estimate import Estimate, Found
from ocaffe.passes.group import expanded, grouped
from ocaffe.passes.offload import offload
from ocaffe.passes.recompute import segmentations

BUSY = 0.75  # share of forward, or of backward, that copies may take before they cost their whole time
TOGETHER = 8  # values that one round drops or moves at most
NEAREST = 3  # choices that exceed the limit, from which a way to it is looked for
FAR = 2  # times the limit: choices above it are too far from it to look for a way
MOVING = 40  # steps that a value is on its way at most, as far as the search for such choices goes
MAX_NEARER = 4_000_000  # steps of schedules that all calls of `nearest` may evaluate
QUICK = 8  # a quick search may evaluate so many times fewer
DESCENT = 0.9  # of the memory of a choice, as the next limit on the way to a smaller one
MAX_SEARCHED = 100_000  # steps of schedules, for each of which a part of the choice is made anew
MAX_TAKEN_BACK = 6  # choices that are made anew together
MAX_EVALUATED = 300_000  # steps of schedules that `improved` may evaluate


@dataclass
class Choice:
    """Values that backward computes again, values that are on the host meanwhile, and values that live longer for recomputation. All by number."""

    dropped: set[int]
    stored: set[int]
    kept: set[int]
    found: Found


@dataclass
class Fit:
    """The two passes that keep a limit of `limit` bytes: `choose_to_fit` chooses, `offload_to_fit` adds the copies once launches are fused.

    `quick`: take the first choice within the limit. `below`: keep all values, if that alone takes so many seconds. `least`: the seconds with all values kept.
    Attempts for the same launches may have other limits: each begins with the choice of the one before.
    """

    limit: int
    rates: Rates
    alignment: int = 256
    quick: bool = False
    below: float = math.inf
    least: float = 0.0
    choice: Choice | None = None
    offloaded: set[Ref] = field(default_factory=set)

    @property
    def keeps_limit(self) -> bool:
        """Whether the live bytes of the last choice are within the limit."""
        return self.choice is not None and self.choice.found.peak <= self.limit

    @property
    def keeps_all(self) -> bool:
        """Whether the last choice keeps all values."""
        return self.choice is not None and not self.choice.dropped and not self.choice.stored

    def choose_to_fit(self, schedule: Schedule) -> Schedule:
        """Choose, and return the schedule with the launches that compute values again; if nothing keeps the limit, that with the fewest live bytes."""
        schedule = grouped(schedule)
        estimate = Estimate(schedule, self.rates, self.limit, self.alignment)
        self.least = float(estimate.begin[-1])
        if self.least >= self.below:
            return expanded(schedule)
        aim = max(self.limit, estimate.narrowest(schedule))  # a search for less than a launch accesses reaches less
        self.choice = choice = choose(estimate, schedule, aim, self.rates, self.quick, self.choice)
        self.offloaded = estimate.refs(choice.stored)
        plan = estimate.plan
        plan.dropped, plan.kept = estimate.refs(choice.dropped), estimate.refs(choice.kept)
        return expanded(plan.apply())

    def offload_to_fit(self, schedule: Schedule) -> Schedule:
        """Return the schedule with the copies of the chosen values."""
        return offload(schedule, self.offloaded, self.rates, self.limit, self.alignment)


def choose(estimate: Estimate, schedule: Schedule, limit: int, rates: Rates, quick: bool = False, start: Choice | None = None) -> Choice:
    """The choice for a limit in bytes of recycled memory; if none keeps it, that with the fewest live bytes. `start`: a choice for another limit."""
    search = _Search(estimate, limit, rates, MAX_NEARER // (QUICK if quick else 1))
    if start is not None and (found := estimate.found(start.dropped, start.stored, start.kept)) is not None:
        near = search.nearest(search.reduced(replace(start, found=found)))
        return near if quick or near.found.peak > limit else search.improved(near)
    starts = [search.begun(set(), set()), *([search.begun(set(), set(), copies=False)] if estimate.gaps else [])]
    if all(start is None or start.found.peak > limit for start in starts):
        starts += [search.begun(estimate.numbers(plan.dropped), estimate.numbers(plan.kept)) for plan in segmentations(schedule)]
        nearest = sorted(filter(None, starts), key=search.excess)[:NEAREST]
        if min(choice.found.peak for choice in nearest) <= FAR * limit:
            nearest = [search.nearest(choice) for choice in nearest]
        starts = [min(nearest, key=search.rank)]
    within = [start for start in starts if start is not None and start.found.peak <= limit]
    if within and not quick:
        return search.searched(min(map(search.improved, within), key=search.rank))
    near = min(filter(None, starts), key=search.rank)
    return near if quick else descended(estimate, schedule, limit, rates, near)


def descended(estimate: Estimate, schedule: Schedule, limit: int, rates: Rates, near: Choice) -> Choice:
    """Search for larger limits first, and go on from each choice: much of it is right for a smaller limit, too. `near`: the result without this."""
    aim, start = math.isqrt(limit * near.found.peak), None
    while aim < DESCENT * near.found.peak:
        search = _Search(estimate, aim, rates, MAX_NEARER)
        found = search.nearest(search.reduced(start)) if start else choose(estimate, schedule, aim, rates, quick=True)
        near = min(near, found, key=lambda each: each.found.peak)
        if found.found.peak > aim:
            break
        if aim == limit:
            return search.improved(found)
        start, aim = found, max(limit, int(DESCENT * found.found.peak))
    return near


class _Search:
    def __init__(self, estimate: Estimate, limit: int, rates: Rates, left: int) -> None:
        self.estimate, self.limit, self.rates, self.left = estimate, limit, rates, left
        forward = float(estimate.begin[estimate.plan.forward_end])
        self.room = BUSY * forward, BUSY * (float(estimate.begin[-1]) - forward)  # seconds for copies to the host, and from it

    def busy(self, copied: int) -> bool:
        """Whether launches wait for copies of so many bytes in each direction."""
        return copy_seconds(copied, self.rates.to_host) > self.room[0] or copy_seconds(copied, self.rates.from_host) > self.room[1]

    def cost(self, root: int, dropped: set[int], kept: set[int]) -> float | None:
        """Seconds to compute `root` again; None: that is impossible."""
        chain = self.estimate.chain(root, dropped, kept)
        return None if chain is None else sum(self.estimate.spent[step] for step in chain)

    def rank(self, choice: Choice) -> tuple[int, float]:
        """The order of choices: within the limit the fastest, else the smallest."""
        return max(choice.found.peak, self.limit), choice.found.seconds

    def excess(self, choice: Choice) -> int:
        """The bytes above the limit, summed over all steps."""
        return int(np.maximum(0, choice.found.live - self.limit).sum())

    def begun(self, dropped: set[int], kept: set[int], copies: bool = True) -> Choice | None:
        """The choice that `reduced` reaches from a start, with or without copies to the host; None: the start is impossible."""
        found = self.estimate.found(dropped, (), kept)
        return None if found is None else self.reduced(Choice(dropped, set(), kept, found), copies=copies)

    def reduced(self, choice: Choice, spared: Collection[int] = (), copies: bool = True) -> Choice:
        """Drop values, and move them if `copies`, until the limit holds or no value helps, but none that is `spared`."""
        refused = {(root, again) for root in spared for again in (True, False)} | {(root, False) for root in self.estimate.gaps if not copies}
        together = TOGETHER
        while excess := self.excess(choice):
            taken = self.taken(choice, refused, together)
            if not taken:
                break
            dropped = choice.dropped | {root for root, again in taken if again}
            stored = choice.stored | {root for root, again in taken if not again}
            found = self.estimate.found(dropped, stored, choice.kept)
            after = None if found is None else Choice(dropped, stored, choice.kept, found)
            if after is not None and self.excess(after) < excess:
                choice, together = after, TOGETHER
            elif len(taken) > 1:
                together = 1
            else:
                refused.update(taken)
        return choice

    def nearest(self, choice: Choice) -> Choice:
        """Go from neighbour to neighbour until the limit holds, or no neighbour is nearer to it."""
        while self.excess(choice) and (nearer := self.nearer(choice)) is not None:
            choice = self.reduced(nearer)
        return choice

    def nearer(self, choice: Choice) -> Choice | None:
        """The neighbour of a choice that is nearest to the limit; None: no neighbour is nearer than it, or all evaluations are spent."""
        best, least = None, self.excess(choice)
        for dropped, stored in self.neighbours(choice):
            if (left := self.left - self.estimate.steps) < 0:
                return None
            self.left = left
            found = self.estimate.found(dropped, stored, choice.kept)
            if found is not None and (excess := self.excess(other := Choice(dropped, stored, choice.kept, found))) < least:
                best, least = other, excess
        return best

    def neighbours(self, choice: Choice) -> Iterator[tuple[set[int], set[int]]]:
        """Choices that differ in one value, of those that may change the memory where the limit is exceeded."""
        estimate = self.estimate
        steps = np.flatnonzero(choice.found.live > self.limit)
        low, high = int(steps[0]), int(steps[-1])
        for root, use in estimate.first_use.items():
            last = estimate.forward_last.get(root, estimate.steps)
            if root in choice.dropped or root in choice.stored:
                again = use - MOVING <= high and low <= estimate.backward_reads[root][-1]  # it is there again
                leaving = root in choice.stored and last <= high and low <= last + MOVING
                if not again and not leaving:
                    continue
            elif last >= high or use <= low:
                continue
            dropped, stored = choice.dropped - {root}, choice.stored - {root}
            if root in choice.dropped or root in choice.stored:
                yield dropped, stored
            if root not in choice.dropped and estimate.chain(root, dropped, choice.kept) is not None:
                yield dropped | {root}, stored
            if root not in choice.stored and root in estimate.gaps:
                yield dropped, stored | {root}

    def taken(self, choice: Choice, refused: Collection[tuple[int, bool]], together: int) -> list[tuple[int, bool]]:
        """The values to drop (True) or to move (False) next: those that are idle above the limit, least seconds for each byte and step first."""
        estimate, dropped, stored, kept = self.estimate, choice.dropped, choice.stored, choice.kept
        excess = np.maximum(0, choice.found.live - self.limit)
        steps = np.flatnonzero(excess)
        low, high = steps[0], steps[-1]
        copied = int(sum(estimate.size[root] for root in stored))
        options = []
        for root, use in estimate.first_use.items():
            last = estimate.forward_last.get(root, estimate.steps)
            if root in dropped or root in stored or root in estimate.small or last >= high or use <= low:
                continue
            helps = int(np.minimum(estimate.size[root], excess[last + 1 : use]).sum())
            if helps and (root, True) not in refused and (cost := self.cost(root, dropped, kept)) is not None:
                options.append((cost / helps, root, True, last + 1, use, helps))
            if helps and (root, False) not in refused and root in estimate.gaps:
                size = int(estimate.size[root])
                whole = max(copy_seconds(size, self.rates.to_host), copy_seconds(size, self.rates.from_host))
                copy = whole if self.busy(copied + size) else beside_seconds(size, self.rates)
                options.append((copy / helps, root, False, last + 1, use, helps))
        result: list[tuple[int, bool]] = []
        left = excess.copy()
        chosen: set[int] = set()
        for _, root, again, begin, end, helps in sorted(options):
            if len(result) == together:
                break
            size = int(estimate.size[root])
            if root in chosen or 2 * int(np.minimum(size, left[begin:end]).sum()) < helps or (not again and chosen and self.busy(copied + size)):
                continue  # the next round knows what this one costs
            left[begin:end] = np.maximum(0, left[begin:end] - size)
            copied += 0 if again else size
            chosen.add(root)
            result.append((root, again))
        return result

    def improved(self, best: Choice) -> Choice:
        """Take back or exchange choices, most seconds first, as long as the limit holds and the time gets shorter."""
        estimate, left = self.estimate, MAX_EVALUATED
        changed = True
        while changed:
            changed = False
            costs = {root: self.cost(root, best.dropped, best.kept) or 0.0 for root in best.dropped}
            for root in sorted({*best.dropped, *best.stored}, key=lambda root: (-costs.get(root, 0.0), root)):
                ways = [(best.dropped - {root}, best.stored - {root})]
                if root in best.dropped and root in estimate.gaps:
                    ways.append((best.dropped - {root}, best.stored | {root}))
                if root in best.stored and estimate.chain(root, best.dropped, best.kept) is not None:
                    ways.append((best.dropped | {root}, best.stored - {root}))
                if root in best.dropped and not self.fits(root, best):
                    ways = ways[1:]
                for dropped, stored in ways:
                    if (left := left - estimate.steps) < 0:
                        return best
                    found = estimate.found(dropped, stored, best.kept)
                    if found is not None and found.peak <= self.limit and found.seconds < best.found.seconds:
                        best, changed = Choice(dropped, stored, best.kept, found), True
                        break
        return best

    def fits(self, root: int, choice: Choice) -> bool:
        """Whether the limit leaves room for a value between forward and its first use in backward, beside all others."""
        begin, end = self.estimate.forward_last.get(root, 0) + 1, self.estimate.first_use[root]
        return int(choice.found.live[begin:end].max(initial=0)) + int(self.estimate.size[root]) <= self.limit

    def searched(self, best: Choice) -> Choice:
        """Take back some neighbouring choices, drop or move others instead, and keep what is faster. The seed is fixed, so that a plan is always the same."""
        random, left = Random(0), MAX_SEARCHED // max(1, self.estimate.steps)
        while left > 0:
            order = sorted({*best.dropped, *best.stored}, key=lambda root: (self.estimate.first_use[root], root))
            if not order:
                break
            begin, count = random.randrange(len(order)), random.randint(1, MAX_TAKEN_BACK)
            spared = {root for root in order[begin : begin + count] if random.random() < 0.7}
            found = self.estimate.found(best.dropped - spared, best.stored - spared, best.kept)
            left -= 1
            if found is None or not spared:
                continue
            other = self.reduced(Choice(best.dropped - spared, best.stored - spared, best.kept, found), spared if random.random() < 0.7 else ())
            if other.found.peak <= self.limit and other.found.seconds < best.found.seconds:
                best = other
        return best
