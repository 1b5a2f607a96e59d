"""Recomputation: values that backward needs are computed again from others that are kept, instead of being kept themselves.

A value qualifies if one launch without side effects writes all of it in forward, that launch is cheap (one pass over memory: an expression, a
pooling, the transform of a batch), and everything the launch reads is kept anyway, or qualifies itself. The first launch of backward that reads
such a value is preceded by copies of the launches that make it; what they make then lives as long as backward wants it. Statistics and random
numbers are not drawn again: BatchNorm's copy reads the saved mean, Dropout's the counter of the same iteration. (Chen et al., Training Deep Nets with
Sublinear Memory Cost, 2016, do this by segments.)
"""
from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ocaffe.graph.ir import Access, Launch, Operand, Ref, Role, Schedule

LEAST = 1 << 20  # bytes; smaller values are not worth the launches
CHAIN = 64  # launches behind one value, at the most: a residual net's stage


def recompute(schedule: Schedule) -> Schedule:
    """The schedule in which every value that qualifies is computed again for backward."""
    makers = _makers(schedule)
    forward_end = next((step for step, launch in enumerate(schedule) if launch.phase != "forward"), len(schedule))
    needed: dict[Ref, int] = {}  # roots that backward reads, and the last step that does
    for step in range(forward_end, len(schedule)):
        for ref in schedule[step].reads:
            needed[ref.root] = step
    first_use: dict[Ref, int] = {}
    for step in range(len(schedule) - 1, forward_end - 1, -1):
        for ref in schedule[step].reads:
            first_use[ref.root] = step
    dropped: set[Ref] = set()
    for root in sorted((root for root in needed if root in makers), key=lambda root: makers[root][0]):
        if _reachable(root, makers, needed, first_use[root], dropped) is not None:
            dropped.add(root)
    if not dropped:
        return schedule
    result = list(schedule[:forward_end])
    again: dict[Ref, Ref] = {}
    for launch in schedule[forward_end:]:
        for ref in launch.reads:
            if ref.root in dropped and ref.root not in again:
                _make(ref.root, makers, needed, dropped, again, result, launch)
        if any(operand.ref.root in again for operand in launch.operands):
            launch.operands = [Operand(_moved(op.ref, again), op.access) for op in launch.operands]
        result.append(launch)
    return result


Makers = dict[Ref, tuple[int, Launch]]


def _makers(schedule: Schedule) -> Makers:
    """Roots that one cheap launch of forward writes whole, with the step."""
    writers: dict[Ref, list[int]] = defaultdict(list)
    for step, launch in enumerate(schedule):
        for ref in launch.writes:
            writers[ref.root].append(step)
    return {
        root: (steps[0], schedule[steps[0]])
        for root, steps in writers.items()
        if len(steps) == 1 and root.role in (Role.ACTIVATION, Role.SAVED) and not root.persist and _whole(schedule[steps[0]], root)
    }


def _whole(launch: Launch, root: Ref) -> bool:
    """Whether a launch may run again and writes all of `root`, which is worth it."""
    if not launch.cheap or launch.side_effect or launch.phase != "forward" or root.nbytes < LEAST:
        return False
    return all(op.access is Access.WRITE and op.ref.count == root.count for op in launch.operands if op.ref.root is root)


def _reachable(root: Ref, makers: Makers, needed: dict[Ref, int], use: int, dropped: set[Ref]) -> int | None:
    """Launches that compute `root` again at step `use` from what is kept until then; None if it cannot be had, or not cheaply."""
    total = 1
    for ref in makers[root][1].reads:
        source = ref.root
        if source.persistent:
            continue
        if source not in dropped and needed.get(source, -1) >= use:
            continue
        if source not in makers or (source in needed and source not in dropped):
            return None
        more = _reachable(source, makers, needed, use, dropped)
        if more is None or total + more > CHAIN:
            return None
        total += more
    return total


def _make(
    root: Ref, makers: Makers, needed: dict[Ref, int], dropped: set[Ref], again: dict[Ref, Ref], result: list[Launch], user: Launch
) -> None:
    """Append the launches that compute `root` again for `user`."""
    launch = makers[root][1]
    for ref in launch.reads:
        source = ref.root
        if source in makers and source not in again and not source.persistent and (source in dropped or source not in needed):
            _make(source, makers, needed, dropped, again, result, user)
    fresh = {}
    for written in {ref.root for ref in launch.writes}:
        fresh[written] = Ref(f"{written.name} again", written.shape, Role.ACTIVATION, written.dtype)
        if written in dropped or written not in needed:
            again[written] = fresh[written]
    operands = [Operand(_moved(op.ref, again if op.access is Access.READ else fresh), op.access) for op in launch.operands]
    result.append(replace(launch, phase="backward", operands=operands, before=user))


def _moved(ref: Ref, again: dict[Ref, Ref]) -> Ref:
    """The same view of what was computed again."""
    root = again.get(ref.root)
    if root is None:
        return ref
    if ref.base is None:
        return root
    return Ref(ref.name, ref.shape, ref.role, ref.dtype, base=root, offset=ref.root_offset, stride=ref.stride)
