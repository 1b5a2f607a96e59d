"""Batches of packs: one launch packs the filters of several convolutions (kernels/conv_blocks_pack.cl).

Packing one layer's filters takes less time than its launch. The results of a batch need memory from its first layer on, so that batches are limited.
"""
from __future__ import annotations

from dataclasses import replace

import numpy as np

from ocaffe.ir.launch import Access, Launch, Operand, Schedule
from ocaffe.ir.tensor import Ref, Role

PACK = "conv_blocks_pack.pack"
MOST = 16  # packs of a launch: JOBS_16 of the kernel
MOST_BYTES = 32 << 20  # of the results of a launch


def batch_packs(schedule: Schedule) -> Schedule:
    """Join packs to the first one of their phase, if no launch between them writes the filters."""
    batches: dict[str, list[Launch]] = {}
    joined: dict[Launch, list[Launch]] = {}
    written: dict[str, list[Ref]] = {}  # by phase, since the first pack of its batch
    for launch in schedule:
        if not _is_pack(launch):
            for refs in written.values():
                refs += [ref for ref in launch.writes if ref.root.role is Role.PARAMETER]
            continue
        batch = batches.get(launch.phase, [])
        nbytes = sum(ref.nbytes for each in (*batch, launch) for ref in each.writes)
        if not batch or len(batch) == MOST or nbytes > MOST_BYTES or any(launch.reads[0].overlaps(ref) for ref in written[launch.phase]):
            batch = batches[launch.phase] = joined[launch] = []
            written[launch.phase] = []
        batch.append(launch)
    result = Schedule()
    for launch in schedule:
        if not _is_pack(launch):
            result.append(launch)
        elif launch in joined:
            result.append(_joined(joined[launch]))
    return result


def _is_pack(launch: Launch) -> bool:
    return launch.what == PACK and launch.reads[0].root.role is Role.PARAMETER


def _joined(packs: list[Launch]) -> Launch:
    first = packs[0]
    if len(packs) == 1:
        return first
    calls = [pack.final() for pack in packs]
    count = sum(int(call.scalars[-1]) for call in calls)
    scalars = (*(scalar for call in calls for scalar in call.scalars[:-1]), np.int32(count))
    call = replace(calls[0], defines=(*calls[0].defines, ("JOBS", str(len(packs)))), scalars=scalars, size=(count,))
    operands = [Operand(ref, access) for access in (Access.READ, Access.WRITE) for pack in packs for ref in pack.refs(access)]
    return Launch(first.layer, first.phase, operands, call, what=PACK, origin=first)
