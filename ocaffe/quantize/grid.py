"""A grid: the integers that stand for the numbers of one value."""
from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ocaffe.quantize.scheme import Scheme

SMALLEST = 1e-12  # a scale: values that are all 0 get one too


@dataclass(frozen=True)
class Grid:
    """x is stood for by the integer q = round(x / scale) + zero_point, from `least` to `most`."""

    scale: float
    zero_point: int = 0
    least: int = -128
    most: int = 127

    @property
    def low(self) -> float:
        """The smallest number that has an integer."""
        return (self.least - self.zero_point) * self.scale

    @property
    def high(self) -> float:
        """The largest number that has an integer."""
        return (self.most - self.zero_point) * self.scale

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """Return the numbers of the grid that stand for x, as FakeQuantize computes them in floats of 32 bits."""
        scale = np.float32(self.scale)
        return np.clip(np.rint(np.asarray(x, np.float32) / scale), self.least - self.zero_point, self.most - self.zero_point) * scale

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def grid(low: float, high: float, scheme: Scheme) -> Grid:
    """Return the grid of a scheme for values from `low` to `high`. Both are finite, and 0 is always on the grid."""
    low, high = min(low, 0.0), max(high, 0.0)
    if scheme.asymmetric and not scheme.power_of_two:
        count = 2**scheme.bits - 1
        scale = float(np.float32(max((high - low) / count, SMALLEST)))
        least = -(2 ** (scheme.bits - 1))
        zero = int(np.clip(round(least - low / scale), least, least + count))
        return Grid(scale, zero, least, least + count)
    unsigned = scheme.unsigned and low >= 0
    most = 2**scheme.bits - 1 if unsigned else scheme.most
    scale = max(high / most, -low / most, SMALLEST)
    if scheme.power_of_two:
        scale = 2.0 ** math.ceil(math.log2(scale))
    return Grid(float(np.float32(scale)), 0, 0 if unsigned else scheme.least, most)
