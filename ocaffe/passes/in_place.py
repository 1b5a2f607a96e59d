"""In-place execution: the output of a launch reuses the memory of an input that dies there, if the launch allows it."""
from __future__ import annotations

from ocaffe.ir.launch import Access, Schedule, roots
from ocaffe.ir.tensor import Ref, Role

IN_PLACE_ROLES = frozenset({Role.ACTIVATION, Role.DIFF, Role.SAVED, Role.SCRATCH})


def reuse_dying_inputs(schedule: Schedule) -> Schedule:
    """The same launches; the output of an in-place pair becomes a view of an input that no later launch reads."""
    life = roots(schedule)
    for step, launch in enumerate(schedule):
        for i, j in launch.inplace:
            source, result = launch[i], launch[j]
            if launch.operand(j).access is Access.WRITE and _may_share(source, result, life, step):
                result.base = source.root
                result.offset, result.stride = 0, None
                life[source.root] = (life[source.root][0], life.pop(result)[1])
                break
    return schedule


def _may_share(source: Ref, result: Ref, life: dict[Ref, tuple[int, int]], step: int) -> bool:
    root = source.root
    return (
        result.base is None and result in life and life[result][0] == step and life[root][1] == step
        and result.role in IN_PLACE_ROLES and root.role in IN_PLACE_ROLES
        and not (root.persist or result.persist)
        and root.nbytes == result.nbytes and root.dtype == result.dtype and root.layout == result.layout
        and source.is_dense and source.count == root.count and root.slots == result.slots == 1
    )  # fmt: skip
