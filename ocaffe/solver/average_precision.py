"""The average precision (AP) of a detector from the rows of DetectionEvaluate, by SSD's rules."""
from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from ocaffe.layers.detection_evaluate import NOTHING

VERSIONS = ("Integral", "MaxIntegral", "11point")  # of the solver's field ap_version
LEVELS = np.arange(11) / 10  # the recalls of 11point


class Points(NamedTuple):
    """The right detections of a class by descending score. `recall` and `precision`: of all detections down to each of them.

    `boxes`: the number of true boxes. `detections`: the number of detections, right or wrong. The average precision needs no points of wrong detections,
    because the recall does not change there.
    """

    boxes: int
    detections: int
    score: np.ndarray
    recall: np.ndarray
    precision: np.ndarray


def points_of(scores: np.ndarray, right: np.ndarray, boxes: int) -> Points:
    """Return the points of one class. `scores`: n detections, of which `right` (n, 1 or 0) are right; `boxes`: the number of true boxes.

    Equal scores keep their order. Without true boxes there are no points.
    """
    order = np.argsort(-scores, kind="stable")
    places = np.flatnonzero(right[order]) if boxes else np.empty(0, int)
    hits = np.arange(1, len(places) + 1, dtype=np.float32)
    precision = (hits / (places + 1).astype(np.float32)).astype(float)
    recall = (hits / np.float32(max(boxes, 1))).astype(float)  # single precision decides whether a recall of 0.7 reaches 0.7, as in SSD
    return Points(boxes, len(scores), scores[order][places], recall, precision)


def precision_at(points: Points, version: str, recalls: np.ndarray) -> np.ndarray:
    """Return the precision that a rule counts at each of `recalls`. 0 beyond the last point.

    Integral: the precision of the first point with this recall or a larger one. MaxIntegral and 11point: the largest precision from this point on.
    """
    counted = points.precision if version == "Integral" else np.maximum.accumulate(points.precision[::-1])[::-1]
    return np.append(counted, 0)[np.searchsorted(points.recall, recalls)]


def average_precision(points: Points, version: str) -> float:
    """Return the AP of one class.

    Integral: the sum of the precision times the step of the recall. MaxIntegral: the same with the largest precision from here on (VOC 2010 and later).
    11point: the mean of this largest precision at the recalls 0, 0.1, ... 1 (VOC 2007).
    """
    if version == "11point":
        return float(precision_at(points, version, LEVELS).mean())
    return float(np.diff(points.recall, prepend=0) @ precision_at(points, version, points.recall))


class Detections:
    """The rows of one top of DetectionEvaluate, over all batches of a test."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.positives: defaultdict[int, int] = defaultdict(int)  # number of true boxes by class
        self._rows: list[np.ndarray] = []
        self._points: dict[int, Points] | None = None  # of `points`, until more rows are added

    def add(self, values: np.ndarray) -> None:
        """Add the rows of a batch."""
        self._points = None
        rows = values.reshape(-1, 5)
        numbers = rows[:, 0] == NOTHING
        for _, label, count, *_ in rows[numbers & (rows[:, 1] != NOTHING)]:
            self.positives[int(label)] += int(count)
        judged = (rows[:, 3] != 0) | (rows[:, 4] != 0)  # others found a difficult box, which does not count
        self._rows.append(rows[~numbers & judged])

    def rows(self) -> np.ndarray:
        """Return the rows that count: image, label, score, 1 if it is right, 1 if it is wrong."""
        return np.concatenate([np.empty((0, 5), np.float32), *self._rows])

    def points(self) -> dict[int, Points]:
        """Return the points of each class."""
        if self._points is None:
            rows, self._points = self.rows(), {}
            for label, positives in sorted(self.positives.items()):
                mine = rows[rows[:, 1].astype(int) == label]
                self._points[label] = points_of(mine[:, 2], mine[:, 3], positives)
        return self._points

    def by_class(self) -> dict[int, tuple[int, int, float]]:
        """Return the number of true boxes, the number of detections and the AP of each class."""
        return {label: (each.boxes, each.detections, average_precision(each, self.version)) for label, each in self.points().items()}

    @property
    def mean(self) -> float:
        """The mean AP over all classes. A class without true boxes or without detections counts as 0, as in SSD."""
        found = [precision for _, _, precision in self.by_class().values()]
        return sum(found) / len(found) if found else 0.0
