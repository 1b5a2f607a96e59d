"""The true boxes of each image, from the rows of AnnotatedData (true_boxes.cl)."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ocaffe.ir.kernel import Kernel, reads, writes
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.detection.boxes import over

LISTS = Kernel("true_boxes.lists", *reads("truth"), *writes("lists", "numbers", "bad"))


class TrueBoxes(NamedTuple):
    """lists (N x G): the rows of each image, in order. numbers (N x 1): their number. bad (N x 1): the number of those whose label is not that of an object."""

    lists: Ref
    numbers: Ref
    bad: Ref


def true_boxes(rec: Recorder, truth: Ref, images: int, classes: int, background: int, difficult_counts: bool, agnostic: bool = False) -> TrueBoxes:
    """List the rows of `truth` (G x 8). With `agnostic`, every label but the background is that of an object."""
    rows = truth.shape[0]
    lists = rec.scratch("lists", (images, max(1, rows)), np.int32)
    numbers, bad = (rec.scratch(name, (images, 1), np.int32) for name in ("numbers", "bad"))
    over(rec, LISTS(truth=truth, lists=lists, numbers=numbers, bad=bad), (images,), rows, classes, background, difficult_counts, agnostic)
    return TrueBoxes(lists, numbers, bad)
