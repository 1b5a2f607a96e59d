"""The labels that a loss accepts. Sources of data check them where they read them; else a kernel does (kernels/loss/labels.cl)."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ocaffe.errors import Error


@dataclass(frozen=True)
class LabelRange:
    """The labels from 0 to `classes` - 1 but `excluded`, and `ignored`. Fractions are cut off, as in Caffe. `reader` names the loss, for messages."""

    reader: str
    classes: int
    ignored: int | None = None
    excluded: int | None = None

    def first_wrong(self, labels: np.ndarray) -> int | None:
        """Return the index of the first label that is not accepted; `labels` is flat."""
        if not labels.size or (self.excluded is None and labels.min() > -1 and labels.max() < self.classes):
            return None
        whole = labels if labels.dtype.kind in "iu" else np.trunc(labels)
        wrong = ~((labels > -1) & (labels < self.classes))
        if self.excluded is not None:
            wrong |= whole == self.excluded
        if self.ignored is not None:
            wrong &= whole != self.ignored
        found = np.flatnonzero(wrong)
        return int(found[0]) if len(found) else None

    def error(self, label: float) -> Error:
        """Return the error for a label that is not accepted. It has no place."""
        accepted = f"0 to {self.classes - 1}" + (f", but not {self.excluded}" if self.excluded is not None and 0 <= self.excluded < self.classes else "")
        accepted += f", and {self.ignored} is ignored" if self.ignored is not None else ""
        fact = f"its label is {label:g}; layer {self.reader} has {self.classes} classes: labels {accepted}"
        fix = "correct the label"
        if label == int(label) and label >= self.classes:
            fix += f", or set num_output to {int(label) + 1} or more in the layer whose scores {self.reader} takes"
            fix += f"; if it marks what is not to be trained: loss_param {{ ignore_label: {int(label)} }}"
        elif label == int(label):
            fix += f"; if it marks what is not to be trained: loss_param {{ ignore_label: {int(label)} }}"
        if self.excluded is not None:
            fix = f"number the classes without {self.excluded}, the background, or raise num_classes and num_output of the layers of confidences"
        return Error(fact, fix=fix)
