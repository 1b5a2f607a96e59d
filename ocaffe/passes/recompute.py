"""Recompute values in backward from others that are kept, instead of keeping them.

A value qualifies if one launch without side effects writes all of it in forward, and every operand of that launch is kept or qualifies itself. Copies of
the launches that compute such a value precede the first launch of backward that reads it. Its new Ref lives until the last read. Statistics and
random numbers stay the same: BatchNorm's copy reads the saved mean, Dropout's copy the counter of the same iteration.

Cheap values take one pass over memory: an expression, a pooling, the transform of a batch. Without a memory limit they are recomputed where a plan does not
keep all values. Under a limit, ocaffe/passes/fit.py chooses what is dropped, convolutions among it. It may begin with forward cut into segments where little
is live: values at the cuts are kept, the rest is dropped (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).
"""
from __future__ import annotations

import bisect
import copy
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import replace

from ocaffe.ir.launch import HOST, Access, Launch, Measure, Schedule
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.expression.expression import Pointwise
from ocaffe.passes.elementwise_fusion import MAX_OPERANDS

MIN_VALUE_BYTES = 1 << 20  # smaller values are not worth the launches
MIN_SHARE_DIVISOR = 128  # without a limit, values below 1/128 of all droppable bytes are kept
MAX_TRAFFIC_RATIO = 4  # without a limit, recompute if the traffic is at most four times the size
NEVER = 1 << 60  # a step after all others
MAX_CHAIN_LAUNCHES = 400  # launches that recompute one value, at most: a stage of a residual net


def recompute(schedule: Schedule) -> Schedule:
    """The schedule in which backward recomputes every cheap value that qualifies."""
    return Recomputation(schedule).apply()


def segmentations(schedule: Schedule) -> Iterator[Recomputation]:
    """Ways to cut forward into segments, from few to many. Each segment writes at most a given number of bytes that backward reads."""
    plain = Recomputation(schedule)
    total = sum(root.nbytes for root in plain.needed if root in plain.makers)
    for pieces in (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
        plan = copy.copy(plain)
        plan.cut(total // pieces)
        yield plan


class Recomputation:
    """The roots of a recorded schedule that are dropped after forward. `apply` writes the schedule that recomputes them."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.forward_end = next((step for step, launch in enumerate(schedule) if launch.phase != "forward"), len(schedule))
        self.makers = _makers(schedule)
        self.needed: dict[Ref, int] = {}  # roots that backward reads, and the last step that does
        self.first_use: dict[Ref, int] = {}
        for step in range(self.forward_end, len(schedule)):
            for ref in schedule[step].reads:
                self.needed[ref.root] = step
                self.first_use.setdefault(ref.root, step)
        self.changes: dict[Ref, list[tuple[int, int, int]]] = defaultdict(list)  # persistent root -> the steps that write it, first and end of the values
        for step, launch in enumerate(schedule):
            for ref in launch.writes:
                if ref.persistent:
                    self.changes[ref.root].append((step, ref.root_offset, ref.root_end))
        self.dropped: set[Ref] = set()
        self.kept: set[Ref] = set()  # values that may live longer than recorded, because recomputation reads them
        for root in sorted((root for root in self.needed if root in self.makers), key=lambda root: self.makers[root][0]):
            if not _cheap(self.makers[root][1], root):
                continue
            possible = self._reachable(root, self.first_use[root], cheap=True) is not None
            if possible and self._traffic(root) <= MAX_TRAFFIC_RATIO * root.nbytes:
                self.dropped.add(root)
        if any(isinstance(launch, Measure) for launch in schedule):
            return  # the choice does not depend on shapes that change: the next plan must not need a value that this one drops
        least = sum(root.nbytes for root in self.dropped) / MIN_SHARE_DIVISOR
        for root in [root for root in self.dropped if root.nbytes < least]:
            self.dropped.discard(root)  # recomputation reads it instead

    def _traffic(self, root: Ref) -> int:
        """Bytes of memory traffic to recompute `root`. A value that passes from expression to expression costs none."""
        total, todo, seen = root.nbytes, [root], {root}
        while todo:
            launch = self.makers[todo.pop()][1]
            for ref in launch.reads:
                if ref.root in self.dropped or ref.root in self.needed or ref.root not in self.makers:
                    total += ref.nbytes
                elif ref.root not in seen:
                    total += 0 if isinstance(launch.lower, Pointwise) else 2 * ref.nbytes
                    seen.add(ref.root)
                    todo.append(ref.root)
        return total

    def cut(self, budget: int) -> None:
        """Keep the values that are live at the cuts, and drop all others that can be recomputed.

        A segment writes about `budget` bytes that backward reads.
        """
        last_read: dict[Ref, int] = {}
        for step in range(self.forward_end):
            for ref in self.schedule[step].reads:
                last_read[ref.root] = step
        alive: dict[Ref, None] = {}
        made, best = 0, None
        self.kept = set()
        for step in range(self.forward_end):
            for ref in self.schedule[step].writes:
                root = ref.root
                if root not in alive and not root.persistent:
                    alive[root] = None
                    made += root.nbytes if root in self.needed else 0
            for root in [root for root in alive if last_read.get(root, step) <= step]:
                del alive[root]
            size = sum(root.nbytes for root in alive)
            if made >= budget // 2 and (best is None or size <= best[0]):
                best = size, set(alive)
            if made >= budget and best is not None:
                self.kept |= best[1]
                made, best = 0, None
        self.dropped = {root for root in self.needed if root in self.makers and root not in self.kept and root.nbytes >= MIN_VALUE_BYTES}
        for root in sorted(self.dropped, key=lambda root: self.makers[root][0]):
            if self._reachable(root, self.first_use[root], cheap=False) is None:
                self.dropped.discard(root)

    def apply(self) -> Schedule:
        """The schedule with the launches that recompute dropped values. The recorded launches stay as they are."""
        if not self.dropped:
            return self.schedule
        result = list(self.schedule[: self.forward_end])
        recomputed: dict[Ref, Ref] = {}
        for step, launch in enumerate(self.schedule[self.forward_end :], self.forward_end):
            own: dict[Ref, Ref] = {}  # values that are recomputed for this launch alone
            for root in {ref.root: None for ref in launch.reads if ref.root in self.dropped}:
                if self.better_inside(root, step):
                    self._make(root, own, result, launch)
                elif root not in recomputed:
                    self._make(root, recomputed, result, launch)
            moved = {**recomputed, **own}
            result.append(launch.moved(moved))
        return result

    def better_inside(self, root: Ref, step: int) -> bool:
        """Whether the expression at a step that reads `root` can compute it from one live value. Elementwise fusion then needs no memory for it."""
        maker_step, maker = self.makers[root]
        user = self.schedule[step]
        a, b = maker.lower, user.lower
        if not isinstance(a, Pointwise) or not isinstance(b, Pointwise) or a.domain != b.domain or a.key is not None or b.key is not None:
            return False
        large = [ref for ref in maker.reads if ref.nbytes >= MIN_VALUE_BYTES]
        plain = all(op.ref.shape == root.shape and op.ref.is_dense for op in user.operands if op.ref.root is root)
        there = all(
            self._changed(ref, maker_step) >= step if ref.persistent else ref.root not in self.dropped and self.needed.get(ref.root, -1) >= step
            for ref in maker.reads
        )
        return plain and there and len(large) == 1 and len(maker.writes) == 1 and len(maker.operands) + len(user.operands) <= MAX_OPERANDS + 1

    def _reachable(self, root: Ref, use: int, cheap: bool, seen: Collection[Launch] = ()) -> list[Launch] | None:
        """The launches that recompute `root` at step `use` from kept values; None if that is impossible."""
        step, launch = self.makers[root]
        chain = [*seen, launch]
        if len(chain) > MAX_CHAIN_LAUNCHES or self.changed_after(launch, step) < use:
            return None
        for ref in launch.reads:
            source = ref.root
            if source.persistent or source in self.kept or (source not in self.dropped and self.needed.get(source, -1) >= use):
                continue
            if source.nbytes < MIN_VALUE_BYTES and not (cheap and source in self.makers):
                continue  # small, such as BatchNorm's mean: keeping it longer costs little
            if source not in self.makers or (source in self.needed and source not in self.dropped):
                return None
            maker = self.makers[source][1]
            if maker in chain:
                continue
            if cheap and not _cheap(maker, source):
                return None
            more = self._reachable(source, use, cheap, chain)
            if more is None:
                return None
            chain = more
        return chain

    def changed_after(self, launch: Launch, made: int) -> int:
        """The first step after `made` that changes a persistent Ref that a launch reads: an update, or running statistics. NEVER: no step does."""
        return min((self._changed(ref, made) for ref in launch.reads if ref.persistent), default=NEVER)

    def _changed(self, ref: Ref, made: int) -> int:
        first, end = ref.root_offset, ref.root_end  # once: a net of many layers has as many changes as layers
        changes = self.changes[ref.root]
        later = changes[bisect.bisect_right(changes, made, key=lambda change: change[0]) :]
        return next((step for step, other, other_end in later if first < other_end and other < end), NEVER)

    def _make(self, root: Ref, recomputed: dict[Ref, Ref], result: list[Launch], user: Launch) -> None:
        """Append the launches that recompute `root` for `user`."""
        launch = self.makers[root][1]
        for ref in launch.reads:
            source = ref.root
            wanted = source in self.dropped or (source not in self.needed and source not in self.kept)
            if source in self.makers and source not in recomputed and not source.persistent and wanted:
                self._make(source, recomputed, result, user)
        fresh = {}
        for written in {ref.root: None for ref in launch.writes}:
            fresh[written] = Ref(f"{written.name} again", written.shape, written.role, written.dtype, layout=written.layout)  # places are no bfloat16
            if written in self.dropped or (written not in self.needed and written not in self.kept):
                recomputed[written] = fresh[written]
        operands = [replace(op, ref=op.ref.on(recomputed if op.access is Access.READ else fresh)) for op in launch.operands]
        result.append(replace(launch, phase="backward", recomputed=True, operands=operands, origin=user.origin or user))


Makers = dict[Ref, tuple[int, Launch]]


def _makers(schedule: Schedule) -> Makers:
    """Roots that one launch of forward writes completely and could write recomputed, with its step."""
    writers: dict[Ref, list[int]] = defaultdict(list)
    for step, launch in enumerate(schedule):
        for ref in launch.writes:
            writers[ref.root].append(step)
    roles = (Role.ACTIVATION, Role.SAVED, Role.SCRATCH)
    return {
        root: (steps[0], schedule[steps[0]])
        for root, steps in writers.items()
        if len(steps) == 1 and root.role in roles and not root.persist and _repeatable(schedule[steps[0]], root)
    }


def _repeatable(launch: Launch, root: Ref) -> bool:
    """Whether a launch may run again and writes all of `root`."""
    if launch.kernel.can.side_effect or launch.phase != "forward" or isinstance(launch, HOST):
        return False
    return all(op.access is Access.WRITE and op.ref.count == root.count for op in launch.operands if op.ref.root is root)


def _cheap(launch: Launch, root: Ref) -> bool:
    return launch.kernel.can.recompute and root.nbytes >= MIN_VALUE_BYTES
