"""The average precision (AP) of a detector from the rows of DetectionEvaluate, by SSD's rules."""
from __future__ import annotations

from collections import defaultdict

import numpy as np

from ocaffe.layers.detection_evaluate import NOTHING

VERSIONS = ("Integral", "MaxIntegral", "11point")  # of the solver's field ap_version


def average_precision(scores: np.ndarray, right: np.ndarray, positives: int, version: str) -> float:
    """Return the AP of one class. `scores`: n detections, of which `right` (n, 1 or 0) are right; `positives`: the number of true boxes.

    Equal scores keep their order. The three rules, with p the precision and r the recall after each detection by descending score:
    Integral: the sum of p times the step of r. MaxIntegral: the same with the largest p from here on (VOC 2010 and later).
    11point: the mean, over 0, 0.1, ... 1, of the largest p where r is at least this number (VOC 2007).
    """
    if not len(scores) or not positives:
        return 0.0
    hits = right[np.argsort(-scores, kind="stable")].cumsum().astype(np.float32)
    precision = (hits / np.arange(1, len(hits) + 1, dtype=np.float32)).astype(float)
    recall = (hits / np.float32(positives)).astype(float)  # single precision decides whether a recall of 0.7 reaches 0.7, as in SSD
    best = np.maximum.accumulate(precision[::-1])[::-1]
    if version == "11point":
        first = np.searchsorted(recall, np.arange(11) / 10)
        return float(np.append(best, 0)[first].mean())
    steps = np.diff(recall, prepend=0)
    return float(steps @ (precision if version == "Integral" else best))


class Detections:
    """The rows of one top of DetectionEvaluate, over all batches of a test."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.positives: defaultdict[int, int] = defaultdict(int)  # number of true boxes by class
        self._rows: list[np.ndarray] = []
        self._found: dict[int, tuple[int, int, float]] | None = None  # of by_class, until more rows are added

    def add(self, values: np.ndarray) -> None:
        """Add the rows of a batch."""
        self._found = None
        rows = values.reshape(-1, 5)
        numbers = rows[:, 0] == NOTHING
        for _, label, count, *_ in rows[numbers]:
            self.positives[int(label)] += int(count)
        judged = (rows[:, 3] != 0) | (rows[:, 4] != 0)  # others found a difficult box, which does not count
        self._rows.append(rows[~numbers & judged])

    def by_class(self) -> dict[int, tuple[int, int, float]]:
        """Return the number of true boxes, the number of detections and the AP of each class."""
        if self._found is None:
            rows, self._found = np.concatenate([np.empty((0, 5), np.float32), *self._rows]), {}
            for label, positives in sorted(self.positives.items()):
                mine = rows[rows[:, 1].astype(int) == label]
                self._found[label] = positives, len(mine), average_precision(mine[:, 2], mine[:, 3], positives, self.version)
        return self._found

    @property
    def mean(self) -> float:
        """The mean AP over all classes. A class without true boxes or without detections counts as 0, as in SSD."""
        found = [precision for _, _, precision in self.by_class().values()]
        return sum(found) / len(found) if found else 0.0
