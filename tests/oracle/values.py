"""Values of inputs, parameters and diffs, drawn from a text key. Both Pythons draw them, so only numpy's frozen RandomState is used."""
from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Spec = Sequence[Any]  # the name of a distribution and its arguments, as JSON stores them
NORMAL: Spec = ("normal", 1.0)
WEIGHTS: Spec = ("normal", 0.5)
ROUNDING = 1e-7  # about the relative error of a float


def draw(spec: Spec, shape: Sequence[int], *key: object) -> np.ndarray:
    """Return float32 values of `shape`. Equal arguments give equal values in every version of numpy."""
    name, *arguments = spec
    rng = np.random.RandomState(zlib.crc32(repr(key).encode()))
    values = DISTRIBUTIONS[name](rng, int(np.prod(shape)), tuple(shape), *arguments)
    return np.asarray(values, np.float32).reshape(tuple(shape))


def _mixed(rng: Any, count: int, shape: Any, low: int, high: int, other: float) -> np.ndarray:
    return np.where(rng.rand(count) < 0.3, other, rng.randint(low, high, count))


def _probabilities(rng: Any, count: int, shape: Any) -> np.ndarray:
    values = rng.rand(*shape) + 0.05
    return values / values.sum(axis=1, keepdims=True)


def _corners(rng: Any, rows: int) -> np.ndarray:
    """Boxes x1, y1, x2, y2 in the unit square."""
    corner, size = rng.rand(rows, 2) * 0.6, rng.rand(rows, 2) * 0.4
    return np.concatenate([corner, corner + 0.1 + size], 1)


def _selector(rng: Any, count: int, shape: Any) -> np.ndarray:
    """What Filter keeps: at least one sample."""
    chosen = rng.choice([0, 1, 1, -1], count)
    chosen[rng.randint(count)] = 1
    return chosen


def _priors(rng: Any, count: int, shape: Any, *variances: float) -> np.ndarray:
    return np.concatenate([_corners(rng, count // 8).ravel(), np.tile(variances, count // 8)])


def _rois(rng: Any, count: int, shape: Any, images: int, size: int) -> np.ndarray:
    points = np.sort(rng.randint(0, size, (count // 5, 2, 2)), 1).reshape(-1, 4)
    return np.concatenate([rng.randint(0, images, (count // 5, 1)), points], 1)


def _truths(rng: Any, count: int, shape: Any, images: int, classes: int) -> np.ndarray:
    """Rows of SSD: image, label, 0, box, difficult; ordered by image, as data layers write them."""
    rows = count // 8
    image = np.sort(rng.randint(0, images, (rows, 1)), 0)
    return np.concatenate([image, rng.randint(1, classes, (rows, 1)), np.zeros((rows, 1)), _corners(rng, rows), rng.randint(0, 2, (rows, 1))], 1)


def _detections(rng: Any, count: int, shape: Any, images: int, classes: int) -> np.ndarray:
    """Rows of DetectionOutput with scores that are all different."""
    rows = count // 7
    score = rng.permutation(rows).reshape(-1, 1) * 0.9 / rows + 0.05
    return np.concatenate([rng.randint(0, images, (rows, 1)), rng.randint(1, classes, (rows, 1)), score, _corners(rng, rows)], 1)


def _region(rng: Any, count: int, shape: Any, classes: int) -> np.ndarray:
    """Rows of YOLO: label, centre and size in the unit square."""
    rows = count // 5
    return np.concatenate([rng.randint(0, classes, (rows, 1)), rng.rand(rows, 2) * 0.9 + 0.05, rng.rand(rows, 2) * 0.5 + 0.1], 1)


DISTRIBUTIONS: dict[str, Callable[..., Any]] = {
    "normal": lambda rng, count, shape, scale: rng.standard_normal(count) * scale,
    "ties": lambda rng, count, shape, step: rng.randint(-2, 3, count) * step,
    "sparse": lambda rng, count, shape: rng.standard_normal(count) * (rng.rand(count) < 0.4),
    "positive": lambda rng, count, shape, scale: rng.rand(count) * scale + 0.05,
    "constant": lambda rng, count, shape, value: np.full(count, value),
    "unit": lambda rng, count, shape: rng.rand(count),
    "distinct": lambda rng, count, shape: (rng.permutation(count) + 0.5) / count,
    "integers": lambda rng, count, shape, low, high: rng.randint(low, high, count),
    "labels": _mixed,
    "probabilities": _probabilities,
    "bits": lambda rng, count, shape, share: rng.rand(count) < share,
    "listed": lambda rng, count, shape, *listed: np.resize(listed, count),
    "selector": _selector,
    "priors": _priors,
    "rois": _rois,
    "truths": _truths,
    "detections": _detections,
    "region": _region,
}
CONTINUOUS = ("normal", "ties", "sparse", "positive", "constant", "unit", "probabilities")  # values whose diff is compared
