"""Launches of several jobs (kernels/jobs.h). A job that takes less time than its launch shares one with others."""
from __future__ import annotations

from dataclasses import replace

import numpy as np

from ocaffe.ir.launch import Access, Launch

MOST_JOBS = 16  # of a launch: JOBS_16 of kernels/jobs.h


def joined(jobs: list[Launch], place: Launch) -> Launch:
    """Return the launch of all jobs, in the place of one of them. The last scalar of a job is its number of work-items."""
    if len(jobs) == 1:
        return place
    calls = [job.final() for job in jobs]
    count = sum(int(call.scalars[-1]) for call in calls)
    scalars = (*(scalar for call in calls for scalar in call.scalars[:-1]), np.int32(count))
    call = replace(calls[0], defines=(*calls[0].defines, ("JOBS", str(len(jobs)))), scalars=scalars, size=(count,))
    operands = [operand for job in jobs for operand in job.operands if operand.access is Access.READ]
    operands += [operand for job in jobs for operand in job.operands if operand.access is not Access.READ]
    return Launch(place.layer, place.phase, operands, call, what=place.what, origin=place)
