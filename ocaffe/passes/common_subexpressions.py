"""One launch instead of two that compute the same: the branches of a residual block both begin with every second pixel of its input."""
from __future__ import annotations

from typing import Any

from ocaffe.ir.launch import Access, Launch, Schedule
from ocaffe.ir.tensor import Ref, Role


def eliminate_common_subexpressions(schedule: Schedule) -> Schedule:
    """The schedule without cheap launches whose result is there already: made by the same launch from the same values, and still unchanged."""
    writes: dict[Ref, int] = {}  # by root: how often it was written so far
    total: dict[Ref, int] = {}
    for launch in schedule:
        for ref in launch.writes:
            total[ref.root] = total.get(ref.root, 0) + 1
    known: dict[Any, Ref] = {}
    result: Schedule = []
    for launch in schedule:
        key = _key(launch, writes) if _may_go(launch, total) else None
        if key is not None and key in known:
            own = launch.writes[0]
            own.base, own.offset, own.stride = known[key], 0, None
            continue
        if key is not None:
            known[key] = launch.writes[0]
        for ref in launch.writes:
            writes[ref.root] = writes.get(ref.root, 0) + 1
        result.append(launch)
    return result


def _may_go(launch: Launch, total: dict[Ref, int]) -> bool:
    """Whether a launch does nothing but fill a scratch that nobody else writes."""
    written = [operand for operand in launch.operands if operand.access is not Access.READ]
    if not launch.cheap or launch.side_effect or launch.call is None or len(written) != 1:
        return False
    ref = written[0].ref
    return written[0].access is Access.WRITE and ref.base is None and ref.role is Role.SCRATCH and total[ref] == 1


def _key(launch: Launch, writes: dict[Ref, int]) -> Any:
    """What decides on a launch's result: the kernel, and where it reads which values."""
    reads = tuple((id(ref.root), writes.get(ref.root, 0), ref.root_offset, ref.shape, ref.batch_stride) for ref in launch.reads)
    return launch.phase, launch.call, launch.writes[0].shape, reads
