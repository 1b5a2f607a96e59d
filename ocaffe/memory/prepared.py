"""What a net without backward makes of its weights alone, packed or transformed filters, offsets and factors: made once, and again after they change."""
from __future__ import annotations

from collections import Counter
from typing import Any

from ocaffe.graph.ir import Access, Launch, Ref, Role, Schedule

STEADY = (Role.PARAMETER, Role.CONSTANT)


def keep_prepared(schedule: Schedule, kept: dict[Any, Ref]) -> None:
    """Give such results memory of their own and mark their launches, which the tape then leaves out while the weights are the same. `kept`: the results
    by what they are made of, which all shapes of a net share; it grows."""
    writers = Counter(root for launch in schedule for root in {ref.root for ref in launch.writes})
    if any(launch.phase != "forward" for launch in schedule) or any(root.role is Role.PARAMETER for root in writers):
        return
    steady: set[Ref] = set()
    for launch in schedule:
        if type(launch) is not Launch or launch.side_effect or not all(ref.root.role in STEADY or ref.root in steady for ref in launch.reads):
            continue
        made = list(dict.fromkeys(ref.root for ref in launch.writes))
        if any(operand.access is Access.MODIFY for operand in launch.operands) or any(root.role is not Role.SCRATCH or writers[root] > 1 for root in made):
            continue
        source = launch.final(), *((ref.root, ref.root_offset, ref.batch_stride) for ref in launch.reads)
        for index, root in enumerate(made):
            root.base = kept.setdefault((source, index), Ref(root.name, root.shape, Role.SCRATCH, root.dtype, persist=True))
            root.offset, root.stride = 0, None
            steady.add(root.base)
        launch.prepares = True
