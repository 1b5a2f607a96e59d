"""Choose for each value that backward needs: keep it, compute it again, or move it to the host and back, so that a limit is kept in the least time.

The choice begins with all values kept. While the live bytes exceed the limit, values that are alive at the peak are dropped, least seconds per byte first.
A copy costs little while the link is free; beyond that, its whole time. If no value helps any more, forward is cut into segments first (`segmentations` of
ocaffe/passes/recompute.py), and the same steps follow. Of all choices within the limit, the one with the least predicted time is taken. At last, values that
still fit are kept after all, most seconds first.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ocaffe.ir.launch import Launch, Schedule
from ocaffe.ir.rates import Rates
from ocaffe.ir.tensor import Ref
from ocaffe.memory.plan import live_bytes
from ocaffe.memory.predict import copy_seconds, predict
from ocaffe.passes.elementwise_fusion import fuse_elementwise
from ocaffe.passes.offload import Gap, gaps, lives_with, offload
from ocaffe.passes.recompute import Recomputation, segmentations

FREE_LINK = 0.02  # share of the time of a copy that it costs while the link is free: it takes memory bandwidth and few work-groups
SLACK = (1.0, 0.95, 0.9, 0.8, 0.7)  # shares of the limit to aim at with copies: values whose copies are in progress take the rest
FILLED = 0.95  # share of the limit up to which copies in progress may fill the memory: a plan may exceed its bound
BUSY = 0.75  # share of forward, or of backward, that copies may take before they cost their whole time
MAX_EVALUATED = 150_000  # launches of schedules that the last step may evaluate, about 1.5 s


@dataclass
class Choice:
    """Values that backward computes again, and values that are on the host meanwhile. `live`: bytes at the peak; `seconds`: the predicted time."""

    schedule: Schedule
    dropped: set[Ref]
    offloaded: set[Ref]
    live: int
    seconds: float


@dataclass
class Fit:
    """The two passes that keep a limit of `limit` bytes: `choose_to_fit` chooses, `offload_to_fit` adds the copies once launches are fused."""

    limit: int
    rates: Rates
    alignment: int = 256
    offloaded: set[Ref] = field(default_factory=set)

    def choose_to_fit(self, schedule: Schedule) -> Schedule:
        """Choose, and return the schedule with the launches that compute values again; if nothing keeps the limit, that with the fewest live bytes."""
        choice = choose(schedule, self.limit, self.rates, self.alignment)
        self.offloaded = choice.offloaded
        return choice.schedule

    def offload_to_fit(self, schedule: Schedule) -> Schedule:
        """Return the schedule with the copies of the chosen values."""
        return offload(schedule, self.offloaded, self.rates, int(FILLED * self.limit), self.alignment)


def choose(schedule: Schedule, limit: int, rates: Rates, alignment: int = 256) -> Choice:
    """The choice for a limit in bytes of recycled memory; if none keeps it, that with the fewest live bytes."""
    search = _Search(schedule, limit, rates, alignment)
    found: list[tuple[Recomputation, Choice]] = []
    for share in SLACK:
        plain = Recomputation(schedule)
        plain.dropped = set()
        found.append((plain, search.reduced(plain, int(share * limit))))
    best = min((choice for _, choice in found), key=search.rank)
    if best.live > limit:
        for start in segmentations(schedule):
            found.append((start, search.reduced(start, limit)))
    plan, best = min(found, key=lambda entry: search.rank(entry[1]))
    return search.kept_again(plan, best) if best.live <= limit else best


class _Search:
    def __init__(self, schedule: Schedule, limit: int, rates: Rates, alignment: int) -> None:
        self.limit, self.rates, self.alignment = limit, rates, alignment
        self.gaps = gaps(schedule)
        self.spent = {id(launch): rates.seconds(launch) for launch in schedule}
        forward = sum(self.spent[id(launch)] for launch in schedule if launch.phase == "forward")
        self.room = BUSY * forward, BUSY * (sum(self.spent.values()) - forward)  # seconds for copies to the host, and from it

    def time(self, launch: Launch) -> float:
        return self.spent[id(launch)]

    def rank(self, choice: Choice) -> tuple[int, float]:
        return max(choice.live, self.limit), choice.seconds

    def seconds(self, schedule: Schedule, offloaded: Iterable[Ref]) -> float:
        """Predicted seconds, with launches fused as a later pass does: most values that are computed again are then never in memory."""
        fused = fuse_elementwise(schedule)
        return predict(offload(fused, {*offloaded}, self.rates, int(FILLED * self.limit), self.alignment), self.rates).seconds

    def evaluated(self, plan: Recomputation, offloaded: set[Ref]) -> tuple[Schedule, dict[Ref, Gap], list[int]]:
        """The schedule that computes the plan's values again, its gaps, and its live bytes by step."""
        current = plan.apply()
        found = gaps(current)
        chosen = [found[root] for root in offloaded if root in found]
        return current, found, live_bytes(lives_with(current, chosen, self.alignment), len(current))

    def reduced(self, plan: Recomputation, aim: int) -> Choice:
        """Drop values at the peak, until at most `aim` bytes are alive or no value helps. Changes `plan`."""
        offloaded: set[Ref] = set()
        refused: set[Ref] = set()
        current, found, live = self.evaluated(plan, offloaded)
        bound = max(live, default=0)
        while bound > aim:
            options = [option for option in self.options(plan, offloaded, found, live.index(bound)) if option[2] not in refused]
            taken: list[tuple[bool, Ref]] = []
            chosen: set[Ref] = set()
            excess = bound - aim
            link = not self.busy(copied := sum(root.nbytes for root in offloaded))
            for _, recomputes, root in sorted(options, key=lambda option: option[0]):
                if excess <= 0:
                    break
                if root in chosen or (not recomputes and link and taken and self.busy(copied + root.nbytes)):
                    continue  # the next round knows what this one costs
                copied += 0 if recomputes else root.nbytes
                excess -= root.nbytes
                chosen.add(root)
                taken.append((recomputes, root))
            if not taken:
                break
            for recomputes, root in taken:
                (plan.dropped if recomputes else offloaded).add(root)
            after, its_gaps, its_live = self.evaluated(plan, offloaded)
            if (lower := max(its_live)) >= bound and its_live.index(lower) == live.index(bound) and len(after) == len(current):
                for recomputes, root in taken:  # they did not help
                    (plan.dropped if recomputes else offloaded).discard(root)
                refused.update(root for _, root in taken)
                continue
            current, found, live, bound = after, its_gaps, its_live, lower
        return Choice(current, set(plan.dropped), offloaded, bound, self.seconds(current, offloaded))

    def busy(self, copied: int) -> bool:
        """Whether launches wait for copies of so many bytes in each direction."""
        return copy_seconds(copied, self.rates.to_host) > self.room[0] or copy_seconds(copied, self.rates.from_host) > self.room[1]

    def options(self, plan: Recomputation, offloaded: set[Ref], found: dict[Ref, Gap], peak: int) -> list[tuple[float, bool, Ref]]:
        """Seconds per byte, the way (True: compute again) and the root of each value that is alive and not used at step `peak`. `found`: gaps."""
        copied = sum(root.nbytes for root in offloaded)
        result = []
        for root, gap in found.items():
            if root in plan.dropped or root in offloaded or not gap.last < peak < gap.next:
                continue
            cost = plan.cost(root, self.time) if root in plan.needed else None
            if cost is not None:
                result.append((cost / root.nbytes, True, root))
            if root in self.gaps:
                there, back = copy_seconds(root.nbytes, self.rates.to_host), copy_seconds(root.nbytes, self.rates.from_host)
                result.append((max(there, back) * (1 if self.busy(copied + root.nbytes) else FREE_LINK) / root.nbytes, False, root))
        return result

    def kept_again(self, plan: Recomputation, best: Choice) -> Choice:
        """Keep values after all that the limit leaves room for, most seconds first."""
        plan.dropped, offloaded = set(best.dropped), set(best.offloaded)
        costs = {root: sum(map(self.time, plan.chain(root))) for root in plan.dropped}
        left = MAX_EVALUATED
        for root in sorted(costs, key=lambda root: (-costs[root], plan.makers[root][0])):
            if left < 0:
                break
            left -= len(best.schedule)
            plan.dropped.discard(root)
            current, _, live = self.evaluated(plan, offloaded)
            if max(live) <= self.limit and (seconds := self.seconds(current, offloaded)) <= best.seconds:
                best = Choice(current, set(plan.dropped), offloaded, max(live), seconds)
            else:
                plan.dropped.add(root)
        return best
