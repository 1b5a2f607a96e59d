"""Launches of several jobs (kernels/common/jobs.h). A job that takes less time than its launch shares one with others."""
from __future__ import annotations

from dataclasses import replace

import numpy as np

from ocaffe.ir.kernel import Kernel
from ocaffe.ir.launch import Launch

MOST_JOBS = 16  # of a launch: JOBS_16 of kernels/common/jobs.h


def joined(jobs: list[Launch], place: Launch) -> Launch:
    """Return the launch of all jobs, in the place of one of them. The last scalar of a job is its number of work-items."""
    if len(jobs) == 1:
        return place
    calls = [job.final() for job in jobs]
    count = sum(int(call.scalars[-1]) for call in calls)
    scalars = (*(scalar for call in calls for scalar in call.scalars[:-1]), np.int32(count))
    call = replace(calls[0], defines=(*calls[0].defines, ("JOBS", str(len(jobs)))), scalars=scalars, size=(count,))
    slots = [replace(slot, name=f"{slot.name[:-1]}{number}") for slot in place.kernel.slots for number in range(len(jobs))]
    operands = [replace(job.operand(operand.name), name=f"{operand.name[:-1]}{number}") for operand in place.operands for number, job in enumerate(jobs)]
    return Launch(place.layer, place.phase, operands, Kernel(place.kernel.name, *slots, can=place.kernel.can), call, origin=place)
