"""The values that a pass carries over when a measured extent changes the shapes, so that another compiled net continues it (CompiledNets.run)."""
from __future__ import annotations

from collections.abc import Hashable

from ocaffe.ir.launch import Access, Empty, Launch, Schedule, roots
from ocaffe.ir.tensor import PERSISTENT, Ref, Role


def carried(old: Schedule, new: Schedule, step: int) -> list[tuple[Ref | None, Ref]] | None:
    """Return (source, target) for every place of `new` that needs its value, in the order in which to write them. Both have run up to a Measure, `step`.

    Both schedules were recorded from the same layers, so up to `step` they have the same launches, and their operands hold the same values. But a value may
    be at another place: behind the Measure shapes differ, and a Concat of other sizes has its bottoms elsewhere. So values are matched by operand, not by
    root. The source is None if `old` has dropped the value. Return None if the launches up to `step` differ.
    """
    if list(map(_what, old[: step + 1])) != list(map(_what, new[: step + 1])):
        return None
    found: dict[Hashable, tuple[Ref | None, Ref]] = {}
    for source, target in zip(_held(old, step), _held(new, step)):
        if target is not None:
            found.setdefault(_place(target), (source, target))
    return list(found.values())[::-1]


def _what(launch: Launch) -> tuple[object, ...]:
    return type(launch), launch.layer, launch.what, [(operand.access, operand.ref.count) for operand in launch.operands]


def _held(schedule: Schedule, step: int) -> list[Ref | None]:
    """Return the operands of the launches up to `step`, the last one first; None for those whose value is overwritten, or that nothing reads later."""
    last = roots(schedule)
    overwritten: set[Hashable] = set()
    result: list[Ref | None] = []
    for launch in reversed(schedule[: step + 1]):
        written = set() if isinstance(launch, Empty) else {_place(ref) for ref in launch.writes}
        for operand in reversed(launch.operands):
            root, place = operand.ref.root, _place(operand.ref)
            gone = place in overwritten or (operand.access is Access.READ and place in written)
            result.append(operand.ref if not gone and (last[root][1] > step or _is_kept(root)) else None)
        overwritten |= written
    return result


def _is_kept(root: Ref) -> bool:
    """Whether a value is needed after its last launch: by a script or a later run. Prepacked weights are not, because a run that lacks them packs them."""
    return root.role in PERSISTENT or (root.persist and root.role is not Role.SCRATCH)


def _place(ref: Ref) -> Hashable:
    """Return a key of the memory of a Ref. Views of the same elements have the same one."""
    return ref.root, ref.root_offset, ref.count, None if ref.is_dense else (ref.dense_stride, ref.batch_stride)
