"""The confusion matrix: how often images of each class got each class as their best."""
from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


class Confusion:
    """`counts[i, j]`: the images of class i whose largest score is that of class j."""

    def __init__(self, classes: int) -> None:
        self.counts = np.zeros((classes, classes), np.int64)

    def add(self, labels: np.ndarray, scores: np.ndarray) -> None:
        """Count images. `labels`: N numbers; `scores`: N x classes. The first of equal scores wins."""
        np.add.at(self.counts, (labels.astype(np.int64), scores.argmax(1)), 1)

    @property
    def images(self) -> int:
        return int(self.counts.sum())

    @property
    def right(self) -> int:
        return int(self.counts.trace())

    @property
    def accuracy(self) -> float:
        """The share of right images; 0 without images."""
        return self.right / max(self.images, 1)

    def precision(self) -> np.ndarray:
        """Return, for each class, the share of right ones among the images that got it. NaN if none got it."""
        return _shares(self.counts.diagonal(), self.counts.sum(0))

    def recall(self) -> np.ndarray:
        """Return, for each class, the share of its images that got it. NaN if it has no images."""
        return _shares(self.counts.diagonal(), self.counts.sum(1))

    def table(self, names: Sequence[str]) -> list[str]:
        """Return the lines of a table: images, right ones, precision and recall of each class, and of all."""
        rows = [("class", "images", "right", "precision", "recall")]
        for name, images, right, precision, recall in zip(names, self.counts.sum(1), self.counts.diagonal(), self.precision(), self.recall()):
            rows.append((name, str(images), str(right), percent(precision), percent(recall)))
        rows.append(("all", str(self.images), str(self.right), "", percent(self.accuracy)))
        return lines_of(rows)

    def mistakes(self, names: Sequence[str], most: int = 5) -> Iterator[str]:
        """Yield lines about the most frequent mistakes."""
        wrong = self.counts.copy()
        np.fill_diagonal(wrong, 0)
        for place in np.argsort(-wrong, axis=None, kind="stable")[:most]:
            i, j = np.unravel_index(place, wrong.shape)
            if wrong[i, j]:
                yield f"{wrong[i, j]} of {self.counts[i].sum()} images of {names[i]} are taken for {names[j]}"

    def record(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the figures for JSON. A share of nothing is None."""
        rows = zip(names, self.counts.sum(1).tolist(), self.counts.diagonal().tolist(), self.precision().tolist(), self.recall().tolist())
        return {
            "images": self.images, "right": self.right, "accuracy": self.accuracy,
            "classes": [
                {"name": name, "images": images, "right": right, "precision": _known(precision), "recall": _known(recall)}
                for name, images, right, precision, recall in rows
            ],
            "confusion": self.counts.tolist(),
        }  # fmt: skip


def _known(share: float) -> float | None:
    return None if np.isnan(share) else share


def _shares(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)


def lines_of(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table. The first column is at the left."""
    widths = [max(map(_columns, column)) for column in zip(*rows)]
    return ["  ".join(_padded(text, width, place > 0) for place, (text, width) in enumerate(zip(row, widths))).rstrip() for row in rows]


def percent(share: float) -> str:
    """Return a share as text; NaN, a share of nothing, is '-'."""
    return "-" if np.isnan(share) else f"{100 * share:.1f} %"


def _columns(text: str) -> int:
    """Return the columns of a text on a terminal."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - _columns(text))
    return space + text if right else text + space
