"""Anchors of a detector: the sizes of boxes in groups, found by k-means with 1 - intersection over union as the distance.

Source of the distance: Redmon and Farhadi, "YOLO9000: Better, Faster, Stronger", 2017, section 2.
"""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ocaffe.errors import Error
from ocaffe.tools.datasets.stored_boxes import corners_of

RESTARTS = 8  # the best result of so many first choices is taken
MOST_STEPS = 300  # of one search; usually it ends after a few dozen


class Anchors(NamedTuple):
    """sides: k x 2, sorted by area; counts: the boxes of each; overlap: the mean overlap of a box with its anchor."""

    sides: np.ndarray
    counts: np.ndarray
    overlap: float


def overlaps(boxes: np.ndarray, sides: np.ndarray) -> np.ndarray:
    """Return the intersection over union (n x k) of boxes (n x 2: width, height) with boxes of the same centre (k x 2)."""
    shared = np.minimum(boxes[:, None], sides[None]).prod(2)
    return shared / (boxes.prod(1)[:, None] + sides.prod(1)[None] - shared)


def anchors_of(database: str, count: int, width: float, height: float, seed: int) -> tuple[Anchors, int]:
    """Return anchors in pixels for images of `width` x `height`, and the number of images. Raise Error if the boxes have fewer different sizes."""
    corners, images = corners_of(database)
    boxes = corners[:, 2:].astype(np.float64) - corners[:, :2]
    different = len(np.unique(boxes, axis=0))
    if different < count:
        fact = f"the {len(boxes)} boxes have {different} different sizes, and {count} anchors need as many"
        raise Error(fact, place=database, fix=f"--count {different} or fewer, or add boxes" if different else "give a database with boxes")
    return find_anchors(boxes * [width, height], count, seed), images


def find_anchors(boxes: np.ndarray, count: int, seed: int) -> Anchors:
    """Return `count` anchors for boxes (n x 2: width, height, positive). The boxes have at least `count` different sizes. The seed decides the result."""
    rng = np.random.default_rng(seed)
    results = [_search(boxes, count, rng) for _ in range(RESTARTS)]
    sides = max(results, key=lambda sides: overlaps(boxes, sides).max(1).mean())
    sides = sides[np.lexsort((sides[:, 0], sides.prod(1)))]
    table = overlaps(boxes, sides)
    return Anchors(sides, np.bincount(table.argmax(1), minlength=count), float(table.max(1).mean()))


def _search(boxes: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    sides = _first(boxes, count, rng)
    nearest = np.full(len(boxes), -1)
    for _ in range(MOST_STEPS):
        table = overlaps(boxes, sides)
        before, nearest = nearest, table.argmax(1)
        if (before == nearest).all():
            break
        sizes = np.bincount(nearest, minlength=count)
        means = np.stack([np.bincount(nearest, boxes[:, axis], count) for axis in range(2)], 1) / np.maximum(sizes, 1)[:, None]
        sides = np.where(sizes[:, None] > 0, means, sides)
        for empty in np.flatnonzero(sizes == 0):  # the box with the smallest overlap begins a group of its own
            sides[empty] = boxes[table.max(1).argmin()]
    return sides


def _first(boxes: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return boxes of different sizes. A box is drawn with a probability proportional to its squared distance from those before (k-means++)."""
    chosen = [boxes[rng.integers(len(boxes))]]
    while len(chosen) < count:
        distance = np.maximum(1 - overlaps(boxes, np.stack(chosen)).max(1), 0) ** 2
        same = (boxes[:, None] == np.stack(chosen)[None]).all(2).any(1)
        distance[same] = 0
        chosen.append(boxes[rng.choice(len(boxes), p=distance / distance.sum())])
    return np.stack(chosen)
