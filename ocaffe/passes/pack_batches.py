"""Batches of packs: one launch packs the filters of several convolutions (kernels/convolution/blocks_gpu/conv_blocks_pack.cl).

Packing one layer's filters takes less time than its launch. The results of a batch need memory from its first layer on, so that batches are limited.
"""
from __future__ import annotations

from ocaffe.ir.launch import Launch, Schedule
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution.blocks_gpu.conv_blocks import PACK
from ocaffe.passes.jobs import MOST_JOBS, joined

MOST_BYTES = 32 << 20  # of the results of a launch


def batch_packs(schedule: Schedule) -> Schedule:
    """Join packs to the first one of their phase, if no launch between them writes the filters."""
    batches: dict[str, list[Launch]] = {}
    of_first: dict[Launch, list[Launch]] = {}
    written: dict[str, list[Ref]] = {}  # by phase, since the first pack of its batch
    for launch in schedule:
        if not _is_pack(launch):
            for refs in written.values():
                refs += [ref for ref in launch.writes if ref.root.role is Role.PARAMETER]
            continue
        batch = batches.get(launch.phase, [])
        nbytes = sum(ref.nbytes for each in (*batch, launch) for ref in each.writes)
        if not batch or len(batch) == MOST_JOBS or nbytes > MOST_BYTES or any(launch.reads[0].overlaps(ref) for ref in written[launch.phase]):
            batch = batches[launch.phase] = of_first[launch] = []
            written[launch.phase] = []
        batch.append(launch)
    result = Schedule()
    for launch in schedule:
        if not _is_pack(launch):
            result.append(launch)
        elif launch in of_first:
            result.append(joined(of_first[launch], launch))
    return result


def _is_pack(launch: Launch) -> bool:
    return launch.kernel == PACK and launch.reads[0].root.role is Role.PARAMETER
