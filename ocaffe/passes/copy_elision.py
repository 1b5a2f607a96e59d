"""Copy elision: a diff that is a copy of another diff shares its memory.

Residual sums copy diffs so. It is right if no launch reads one of them after a launch changed the other.
"""
from __future__ import annotations

from collections import defaultdict

from ocaffe.ir.launch import Access, Launch, Schedule
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.expression.expression import Pointwise


def elide_copies(schedule: Schedule) -> Schedule:
    """The schedule without these copies. Their results become views."""
    uses: dict[Ref, list[tuple[int, Access]]] = defaultdict(list)
    for step, launch in enumerate(schedule):
        for operand in launch.operands:
            uses[operand.ref.root].append((step, operand.access))
    gone: set[int] = set()
    for step, launch in reversed(list(enumerate(schedule))):  # the last copy first: uses of its result count as uses of its source
        if _is_copy(launch) and _may_share(launch["x0"], launch["y0"], uses, step):
            source, result = launch["x0"].root, launch["y0"].root
            result.base, result.offset, result.stride, result.reuses_storage = source, 0, None, True
            uses[source] += uses.pop(result)
            gone.add(step)
    return [launch for step, launch in enumerate(schedule) if step not in gone]


def _is_copy(launch: Launch) -> bool:
    return isinstance(launch.lower, Pointwise) and launch.lower.is_plain_copy and [op.access for op in launch.operands] == [Access.READ, Access.WRITE]


def _may_share(x: Ref, y: Ref, uses: dict[Ref, list[tuple[int, Access]]], step: int) -> bool:
    source, result = x.root, y.root
    whole = all(
        ref.is_dense and ref.count == root.count and root.role is Role.DIFF and not root.persist and root.slots == 1
        for ref, root in ((x, source), (y, result))
    )
    if not whole or source is result or source.dtype != result.dtype or x.count != y.count:
        return False
    read = [at for at, access in uses[source] if at > step]
    changed = [at for at, access in uses[result] if at > step and access is not Access.READ]
    fresh = all(at >= step for at, _ in uses[result])
    return fresh and not any(at > step and access is not Access.READ for at, access in uses[source]) and max(read, default=step) < min(changed, default=1 << 62)
