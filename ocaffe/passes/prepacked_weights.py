"""What a net without backward makes of its weights alone, packed or transformed filters, offsets and factors: made once, and again after they change."""
from __future__ import annotations

from collections import Counter
from typing import Any

from ocaffe.ir.launch import Access, Launch, Schedule
from ocaffe.ir.tensor import Ref, Role

STEADY = (Role.PARAMETER, Role.CONSTANT)


# Bytes made of the weights for each FLOP of a pass, from which on keeping them is worth their memory. Two cores make 10 GB/s of them and 200 GFLOP/s:
# below, making them again takes less than a fiftieth of the pass (ResNet-50, 200 MB: kept for 1 to 16 images, not for 64).
MIN_BYTES_PER_FLOP = 1e-3


def keep_prepacked_weights(schedule: Schedule, kept: dict[Any, Ref]) -> None:
    """Give such results memory of their own and mark their launches, which the commands then leaves out while the weights are the same, if that is MIN_BYTES_PER_FLOP its
    memory. `kept`: the results by what they are made of, which all shapes of a net share; it grows."""
    found = _preparing(schedule)
    if sum(root.nbytes for made in found.values() for root in made) < MIN_BYTES_PER_FLOP * sum(launch.flops for launch in schedule if type(launch) is Launch):
        return
    for launch, made in found.items():
        source = launch.final(), *((ref.root, ref.root_offset, ref.batch_stride) for ref in launch.reads)
        for index, root in enumerate(made):
            root.base = kept.setdefault((source, index), Ref(root.name, root.shape, Role.SCRATCH, root.dtype, persist=True))
            root.offset, root.stride = 0, None
        launch.prepacks_weights = True


def _preparing(schedule: Schedule) -> dict[Launch, list[Ref]]:
    """The launches that read only weights, or what is made of them, with what they make; none in a schedule that changes weights."""
    writers = Counter(root for launch in schedule for root in {ref.root for ref in launch.writes})
    if any(launch.phase != "forward" for launch in schedule) or any(root.role is Role.PARAMETER for root in writers):
        return {}
    found: dict[Launch, list[Ref]] = {}
    steady: set[Ref] = set()
    for launch in schedule:
        if type(launch) is not Launch or launch.side_effect or not all(ref.root.role in STEADY or ref.root in steady for ref in launch.reads):
            continue
        made = list(dict.fromkeys(ref.root for ref in launch.writes))
        if any(operand.access is Access.MODIFY for operand in launch.operands) or any(root.role is not Role.SCRATCH or writers[root] > 1 for root in made):
            continue
        found[launch] = made
        steady.update(made)
    return found
