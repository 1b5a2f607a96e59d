"""Common subexpressions: drop a launch if an earlier one computed the same value.

The branches of a residual block, for example, both begin with every second pixel of its input.
"""
from __future__ import annotations

from typing import Any

from ocaffe.ir.launch import Access, Launch, Schedule
from ocaffe.ir.tensor import Ref, Role


def eliminate_common_subexpressions(schedule: Schedule) -> Schedule:
    """The schedule without cheap launches that repeat an earlier launch on unchanged operands."""
    writes: dict[Ref, int] = {}  # by root: the number of writes so far
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
    """Whether the only effect of a launch is to fill a scratch Ref that no other launch writes."""
    written = [operand for operand in launch.operands if operand.access is not Access.READ]
    if not launch.kernel.can.recompute or launch.kernel.can.side_effect or launch.call is None or len(written) != 1:
        return False
    ref = written[0].ref
    return written[0].access is Access.WRITE and ref.base is None and ref.role is Role.SCRATCH and total[ref] == 1


def _key(launch: Launch, writes: dict[Ref, int]) -> Any:
    """The key of a launch's result: its kernel, and the places and versions of its operands."""
    reads = tuple((id(ref.root), writes.get(ref.root, 0), ref.root_offset, ref.shape, ref.batch_stride) for ref in launch.reads)
    return launch.phase, launch.call, launch.writes[0].shape, reads
