"""Views instead of copies: what Concat copies into its top is made there in the first place, the tops of a Slice are parts of its bottom; so are the diffs,
the other way round.

A tensor becomes a view only if everybody who touches it steps from sample to sample (docs/kernels.md): a Ref of other samples needs dense memory.
"""
from __future__ import annotations

import math
from collections import defaultdict

from ocaffe.graph.ir import Access, Launch, Ref, Role, Schedule

RECYCLED = frozenset({Role.ACTIVATION, Role.DIFF})


def use_views(schedule: Schedule) -> Schedule:
    """The schedule without the copies that views make needless."""
    views = _Views(schedule)
    copies = [launch for launch in schedule if launch.copies is not None]
    # Outer tensors first, so that strides are final: later gatherings, earlier partings.
    needless = {id(launch) for launch in reversed(copies) if views.may_go(launch, gathers=True)}
    needless |= {id(launch) for launch in copies if id(launch) not in needless and views.may_go(launch, gathers=False)}
    return [launch for launch in schedule if id(launch) not in needless]


class _Views:
    """Who touches what, while copies turn into views."""

    def __init__(self, schedule: Schedule) -> None:
        self.uses: dict[Ref, list[Ref]] = defaultdict(list)
        self.writers: dict[Ref, list[int]] = defaultdict(list)
        self.step = {id(launch): step for step, launch in enumerate(schedule)}
        for step, launch in enumerate(schedule):
            for operand in launch.operands:
                self.uses[operand.ref.root].append(operand.ref)
            for root in {ref.root for ref in launch.writes}:
                self.writers[root].append(step)

    def may_go(self, launch: Launch, gathers: bool) -> bool:
        """Make one side of a copy a view of the other, if that is right: the source is made in the target (`gathers`), or the target stays in the source."""
        assert launch.copies is not None
        axis, x_start, y_start, size = launch.copies
        x, y = (operand.ref for operand in launch.operands)
        if launch.operands[1].access is not Access.WRITE or (x.shape[axis] == size and y.shape[axis] != size) is not gathers:
            return False
        part, whole, start = (x, y, y_start) if gathers else (y, x, x_start)
        root = part.root
        inner = math.prod(whole.shape[axis + 1 :])
        if (
            part.count != root.count or not part.is_dense or part.shape[axis] != size or whole.root is root or root.slots != 1
            or root.persist or whole.root.persist or root.role not in RECYCLED or whole.root.role not in RECYCLED
            or (axis > 0 and math.prod(whole.shape[1:axis]) != 1) or (axis == 0 and not whole.is_dense)
            or any(ref.shape[:1] != root.shape[:1] or ref.stride is not None for ref in self.uses[root])
            or root.shape[:1] != part.shape[:1]
            or not (gathers or self._stays(root, whole.root, self.step[id(launch)], launch.phase))
        ):  # fmt: skip
            return False
        self.uses[whole.root] += self.uses.pop(root)
        root.base, root.offset = whole, start * inner
        root.stride = None if axis == 0 else whole.batch_stride
        return True

    def _stays(self, part: Ref, whole: Ref, step: int, phase: str) -> bool:
        """Whether nobody writes `whole` once the copy was made, nor `part` before; what is later added to a diff is added to its part of the other."""
        return min(self.writers[part]) == step and (phase == "backward" or len(self.writers[part]) == 1) and max(self.writers[whole], default=-1) < step
