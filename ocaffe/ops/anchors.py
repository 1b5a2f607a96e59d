"""Launches over boxes: kernels/proposal.cl, kernels/anchor_target.cl, kernels/proposal_target.cl."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ocaffe.ir.recorder import STEP, Recorder
from ocaffe.ir.tensor import Ref

GROUP = 64
THIN_GROUP = 256  # work-items of the one group that goes through all anchors again and again
WORDS = {f"STEP_{name}": STEP[name] for name in ("ITERATION", "PASS", "SAMPLE")}


def over(rec: Recorder, kernel: str, size: tuple[int, ...], reads: Sequence[Ref], writes: Sequence[Ref], *args: Any, **more: Any) -> None:
    """One work-item for each element of `size`."""
    first = 1 if rec.target.is_cpu else min(GROUP, rec.target.max_work_group)
    rec.launch(kernel, reads=reads, writes=writes, args=args, size=size, local=(first, *[1] * (len(size) - 1)), defines=WORDS, **more)


def thin(rec: Recorder, tickets: Ref, counts: Ref, labels: Ref, positives: int, most: int) -> None:
    """Make surplus labels -1: at most `positives` of 1, and `most` of 1 and 0. A random choice; counts (2) = how many of 1 and of 0 are left."""
    group = 1 if rec.target.is_cpu else min(THIN_GROUP, rec.target.max_work_group)
    rec.launch(
        "anchor_target.thin",
        reads=[tickets],
        writes=[counts],
        modifies=[labels],
        args=[labels.count, positives, most],
        size=(group,),
        local=(group,),
        defines={**WORDS, "GROUP": group},
    )
