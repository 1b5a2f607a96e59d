"""Launches over boxes: proposal.cl, anchor_target.cl, proposal_target.cl."""
from __future__ import annotations

from typing import Any

from ocaffe.ir.kernel import Given, Kernel, modify, read, write
from ocaffe.ir.recorder import STEP, Recorder
from ocaffe.ir.tensor import Ref

THIN = Kernel("anchor_target.thin", read("tickets"), write("counts"), modify("labels"))

GROUP = 64
THIN_GROUP = 256  # work-items of the single group that iterates over all anchors several times
WORDS = {f"STEP_{name}": STEP[name] for name in ("ITERATION", "PASS", "SAMPLE")}


def over(rec: Recorder, given: Given, size: tuple[int, ...], *args: Any) -> None:
    """Record a launch with one work-item per element of `size`."""
    first = 1 if rec.target.is_cpu else rec.target.group(GROUP)
    rec.launch(given, args=args, size=size, local=(first, *[1] * (len(size) - 1)), defines=WORDS)


def thin(rec: Recorder, tickets: Ref, counts: Ref, labels: Ref, positives: int, most: int) -> None:
    """Set random surplus labels to -1, so that at most `positives` are 1 and at most `most` are 1 or 0.

    counts (2) = the remaining numbers of labels 1 and 0.
    """
    group = 1 if rec.target.is_cpu else rec.target.group(THIN_GROUP)
    rec.launch(
        THIN(tickets=tickets, counts=counts, labels=labels),
        args=[labels.count, positives, most],
        size=(group,),
        local=(group,),
        defines={**WORDS, "GROUP": group},
    )
