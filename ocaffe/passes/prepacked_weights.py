"""Prepacked weights: packed or transformed filters, offsets and factors that a net without backward computes from its weights alone.

They are computed once, and again after the weights change.
"""
from __future__ import annotations

from collections import Counter
from typing import Any

from ocaffe.ir.launch import Access, Launch, Schedule
from ocaffe.ir.tensor import Ref, Role

STEADY = (Role.PARAMETER, Role.CONSTANT)

# Prepacked bytes per FLOP of a pass, from which on they are worth their memory. Two cores pack 10 GB/s and compute 200 GFLOP/s: below this bound
# packing takes less than a fiftieth of the pass. Of ResNet-50 it keeps 200 MB for batches of 1 to 16 images, and nothing for 64.
MIN_BYTES_PER_FLOP = 1e-3


def keep_prepacked_weights(schedule: Schedule, kept: dict[Any, Ref]) -> Schedule:
    """The same launches; results that depend on weights alone get persistent memory, if there are at least MIN_BYTES_PER_FLOP of them.

    The command list skips their launches while the weights are the same. `kept` holds the results by their sources for all shapes of a net; it grows.
    """
    found = _prepacking(schedule)
    if sum(root.nbytes for made in found.values() for root in made) < MIN_BYTES_PER_FLOP * sum(launch.flops for launch in schedule if type(launch) is Launch):
        return schedule
    for launch, made in found.items():
        source = launch.final(), *((ref.root, ref.root_offset, ref.batch_stride) for ref in launch.reads)
        for index, root in enumerate(made):
            own = Ref(root.name, root.shape, Role.SCRATCH, root.dtype, persist=True, layout=root.layout)
            root.base = kept.setdefault((source, index), own)
            root.offset, root.stride = 0, None
        launch.prepacks_weights = True
    return schedule


def _prepacking(schedule: Schedule) -> dict[Launch, list[Ref]]:
    """Launches that depend on weights alone, with the roots that they write. None in a schedule that changes weights."""
    writers = Counter(root for launch in schedule for root in {ref.root for ref in launch.writes})
    if any(launch.phase != "forward" for launch in schedule) or any(root.role is Role.PARAMETER for root in writers):
        return {}
    found: dict[Launch, list[Ref]] = {}
    steady: set[Ref] = set()
    for launch in schedule:
        if type(launch) is not Launch or launch.kernel.can.side_effect or not all(ref.root.role in STEADY or ref.root in steady for ref in launch.reads):
            continue
        made = list(dict.fromkeys(ref.root for ref in launch.writes))
        if any(operand.access is Access.MODIFY for operand in launch.operands) or any(root.role is not Role.SCRATCH or writers[root] > 1 for root in made):
            continue
        found[launch] = made
        steady.update(made)
    return found
