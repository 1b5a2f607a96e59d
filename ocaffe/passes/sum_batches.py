"""Batches of sums: one launch adds up the partial sums of several filter gradients (kernels/convolution/blocks_gpu/conv_blocks_sum.cl).

Adding up few partial sums takes less time than its launch. Those of a batch need memory until its last sum, so that they are limited.
"""
from __future__ import annotations

from ocaffe.ir.launch import Launch, Schedule
from ocaffe.kernels.convolution.blocks_gpu.conv_blocks import SUM_PARTS
from ocaffe.passes.jobs import MOST_JOBS, joined

MOST_EACH = 16 << 20  # bytes of the partial sums of a job: more take longer than a launch
MOST_BYTES = 96 << 20  # of all partial sums of a launch


def batch_sums(schedule: Schedule) -> Schedule:
    """Join additions of partial sums to the last one of a batch. A batch ends before a launch that uses one of its gradients."""
    batches: list[list[Launch]] = []
    batch: list[Launch] = []
    for launch in schedule:
        if any(job.writes[0].overlaps(operand.ref) for job in batch for operand in launch.operands):
            batch = []
        if launch.kernel != SUM_PARTS or launch.reads[0].nbytes > MOST_EACH:
            continue
        if not batch or len(batch) == MOST_JOBS or sum(job.reads[0].nbytes for job in (*batch, launch)) > MOST_BYTES:
            batch = []
            batches.append(batch)
        batch.append(launch)
    of_last = {batch[-1]: batch for batch in batches}
    waiting = {job for batch in batches for job in batch[:-1]}
    return [joined(of_last[launch], launch) if launch in of_last else launch for launch in schedule if launch not in waiting]
