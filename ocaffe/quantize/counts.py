"""Counts of the values of one blob by magnitude, added up over the calibration images."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ocaffe.kernels.quantization.histogram import BINS, edges

EDGES = edges()
NARROW = 1e-6  # the least width of the last bin, as a share: the largest magnitude may be its lower bound, as the 6 of ReLU6 is


@dataclass
class Counts:
    """`positive`, `negative`: numbers of values by magnitude, in the bins of EDGES. `high`, `low`: the largest and the smallest value.

    `unknown`: the number of infinities and NaN.
    """

    positive: np.ndarray = field(default_factory=lambda: np.zeros(BINS))
    negative: np.ndarray = field(default_factory=lambda: np.zeros(BINS))
    high: float = -np.inf
    low: float = np.inf
    unknown: int = 0

    def add(self, counts: np.ndarray, extremes: np.ndarray) -> None:
        """Add the two tops of a Histogram layer."""
        self.positive += counts[:BINS]
        self.negative += counts[BINS : 2 * BINS]
        self.unknown += int(counts[2 * BINS])
        self.high, self.low = max(self.high, float(extremes[0])), min(self.low, 0.0 - float(extremes[1]))  # 0, not -0

    @property
    def total(self) -> float:
        return float(self.positive.sum() + self.negative.sum())

    @property
    def magnitudes(self) -> np.ndarray:
        """Counts by magnitude, without the sign."""
        return self.positive + self.negative

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(self.high, -self.low, 0.0)

    def bounds(self) -> np.ndarray:
        """Return the bounds of the bins. The last bin with values ends at the largest magnitude."""
        bounds = EDGES.copy()
        filled = np.flatnonzero(self.magnitudes)
        if len(filled):
            last = filled[-1] + 1
            bounds[last] = max(self.largest, bounds[last - 1] * (1 + NARROW), np.nextafter(0, 1))
            bounds[last + 1 :] = np.maximum(bounds[last + 1 :], bounds[last])
        return bounds

    def moment(self, order: int) -> float:
        """Return the mean of |x|^order."""
        bounds, total = self.bounds(), self.total
        integrals = (bounds[1:] ** (order + 1) - bounds[:-1] ** (order + 1)) / ((order + 1) * np.maximum(np.diff(bounds), 1e-300))
        return float((self.magnitudes * np.where(np.diff(bounds) > 0, integrals, bounds[1:] ** order)).sum() / total) if total else 0.0

    def uniform(self, bins: int) -> np.ndarray:
        """Return counts by magnitude in bins of equal width, from 0 to the largest magnitude. Values are spread evenly over a bin."""
        bounds = self.bounds()
        cumulative = np.concatenate([[0.0], np.cumsum(self.magnitudes)])
        end = bounds[int(np.searchsorted(cumulative, cumulative[-1]))]
        keep = np.concatenate([[True], np.diff(bounds) > 0])
        return np.diff(np.interp(np.linspace(0, end, bins + 1), bounds[keep], cumulative[keep]))
