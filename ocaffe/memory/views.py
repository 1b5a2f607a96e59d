"""Views instead of copies: what Concat copies into its top is made there in the first place, and the diffs of its bottoms are read from the top's.

A tensor becomes a view only if everybody who touches it steps from sample to sample (docs/kernels.md): a Ref of other samples needs dense memory.
"""
from __future__ import annotations

import math
from collections import defaultdict

from ocaffe.graph.ir import Access, Launch, Ref, Role, Schedule

RECYCLED = frozenset({Role.ACTIVATION, Role.DIFF})


def use_views(schedule: Schedule) -> Schedule:
    """The schedule without the copies that views make needless."""
    uses: dict[Ref, list[Ref]] = defaultdict(list)
    for launch in schedule:
        for operand in launch.operands:
            uses[operand.ref.root].append(operand.ref)
    needless: set[int] = set()
    # Outer tensors first, so that strides are final: later Concats in forward, earlier ones in backward.
    forward = [launch for launch in schedule if launch.phase == "forward"]
    for launch in [*reversed(forward), *(launch for launch in schedule if launch.phase == "backward")]:
        if launch.copies is not None and _becomes_view(launch, uses):
            needless.add(id(launch))
    return [launch for launch in schedule if id(launch) not in needless]


def _becomes_view(launch: Launch, uses: dict[Ref, list[Ref]]) -> bool:
    """Make one side of a copy a view of the other, if that is right."""
    assert launch.copies is not None
    axis, x_start, y_start, size = launch.copies
    (x, y) = launch.operands
    if y.access is not Access.WRITE:
        return False
    if launch.phase == "forward":
        part, whole, start = x.ref, y.ref, y_start
    else:
        part, whole, start = y.ref, x.ref, x_start
    root = part.root
    inner = math.prod(whole.shape[axis + 1 :])
    if (
        part.count != root.count or not part.is_dense or part.shape[axis] != size or whole.root is root or root.slots != 1
        or root.persist or whole.root.persist or root.role not in RECYCLED or whole.root.role not in RECYCLED
        or (axis > 0 and math.prod(whole.shape[1:axis]) != 1) or (axis == 0 and not whole.is_dense)
        or any(ref.shape[:1] != root.shape[:1] or ref.stride is not None for ref in uses[root])
        or root.shape[:1] != part.shape[:1]
    ):  # fmt: skip
        return False
    uses[whole.root] += uses.pop(root)
    root.base, root.offset = whole, start * inner
    root.stride = None if axis == 0 else whole.batch_stride
    return True
