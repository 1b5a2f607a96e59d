"""Check labels on the device, for losses whose labels no data layer checks (labels.cl)."""
from __future__ import annotations

import numpy as np

from ocaffe.ir.kernel import Can, Kernel, modify, read, write
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role

CHECK = Kernel("labels.check", read("label"), write("found"), modify("guard"), can=Can(side_effect=True))

_LANES = 256  # of a GPU


def label_guard() -> Ref:
    """Return the memory of the check. Updates do nothing once its first value is not 0."""
    return Ref("label_guard", (4,), Role.STATE, np.dtype(np.int32), value=0)


def check_labels(rec: Recorder, labels: Ref, limit: LabelRange, guard: Ref, number: int) -> Ref:
    """Record the check of the labels of loss `number`. Return an output with the values of `guard` after it."""
    found = Ref(f"{rec.layer}.wrong_label", guard.shape, Role.OUTPUT, guard.dtype)
    lanes = 1 if rec.target.is_cpu else rec.target.group(_LANES)
    args = [labels.count, labels.dense_stride, limit.classes, int(limit.ignored is not None), limit.ignored or 0, number]
    rec.launch(CHECK(label=labels, found=found, guard=guard), args=args, size=(lanes,), local=(lanes,), defines={"LANES": lanes})
    return found
