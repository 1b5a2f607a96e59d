"""The methods that choose a range from counts. Each returns the smallest and the largest number that keep an integer of their own."""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ocaffe.quantize.counts import Counts
from ocaffe.quantize.grid import Grid, grid
from ocaffe.quantize.scheme import Scheme

Range = tuple[float, float]
SHARE = 0.9999  # of the values, which percentile keeps
STEPS = 96  # ranges that mse tries
NARROWEST = 0.05  # the smallest range that mse tries, as a share of the largest magnitude
KL_BINS = 2048


def maximum(counts: Counts, scheme: Scheme) -> Range:
    """All values."""
    return counts.low, counts.high


def percentile(counts: Counts, scheme: Scheme) -> Range:
    """SHARE of the magnitudes; with a zero point, of each sign in proportion to its values."""
    cumulative = np.cumsum(counts.magnitudes)
    place = int(np.searchsorted(cumulative, SHARE * cumulative[-1]))
    bound = float(counts.bounds()[min(place + 1, len(cumulative))])
    return max(counts.low, -bound), min(counts.high, bound)


def mse(counts: Counts, scheme: Scheme) -> Range:
    """The range with the smallest mean of squared rounding errors."""
    shares = np.geomspace(NARROWEST, 1, STEPS)
    if not scheme.asymmetric:
        return min(((counts.low * share, counts.high * share) for share in shares), key=lambda ends: squared_error(counts, grid(ends[0], ends[1], scheme)))
    low, high = counts.low, counts.high
    for _ in range(2):  # one end after the other
        high = min((counts.high * share for share in shares), key=lambda end: squared_error(counts, grid(low, end, scheme)))
        low = min((counts.low * share for share in shares), key=lambda end: squared_error(counts, grid(end, high, scheme)))
    return low, high


def entropy(counts: Counts, scheme: Scheme) -> Range:
    """The range with the smallest Kullback-Leibler divergence of the counts from those of the grid, as NVIDIA's calibration (Migacz, GTC 2017)."""
    histogram = counts.uniform(KL_BINS)
    histogram[0] = 0  # zeros and the smallest values are exact at any scale
    levels = 2 ** (scheme.bits - (not (scheme.unsigned and counts.low >= 0)))
    best, found = math.inf, KL_BINS
    for bins in range(levels, KL_BINS + 1, 8):
        kept = histogram[:bins].copy()
        outside = histogram[bins:].sum()
        there = kept > 0
        place = np.arange(bins) * levels // bins
        sums, sizes = np.bincount(place, kept, levels), np.bincount(place, there, levels)
        spread = np.where(there, (sums / np.maximum(sizes, 1))[place], 0.0)
        kept[-1] += outside
        if not spread.sum():
            continue
        divergence = _divergence(kept / kept.sum(), spread / spread.sum())
        if divergence < best:
            best, found = divergence, bins
    bound = counts.largest * found / KL_BINS
    return max(counts.low, -bound), min(counts.high, bound)


def analytic(counts: Counts, scheme: Scheme) -> Range:
    """The best range for a Laplace or a normal distribution of the same mean magnitude, whichever is nearer (ACIQ, Banner et al., 2019, arXiv 1810.05723)."""
    b, deviation = counts.moment(1), math.sqrt(counts.moment(2))
    if not b:
        return counts.low, counts.high
    laplace = abs(b / deviation - math.sqrt(0.5)) < abs(b / deviation - math.sqrt(2 / math.pi))
    ends = np.geomspace(0.5, 20, 400)
    step = 2.0 ** (1 - scheme.bits) if not (scheme.unsigned and counts.low >= 0) else 2.0**-scheme.bits
    rounding = (ends * step) ** 2 / 12
    if laplace:
        cost, unit = 2 * np.exp(-ends) + rounding, b
    else:
        tail = np.array([math.erfc(end / math.sqrt(2)) for end in ends])
        cost, unit = (1 + ends**2) * tail - math.sqrt(2 / math.pi) * ends * np.exp(-(ends**2) / 2) + rounding, deviation
    bound = min(counts.largest, unit * float(ends[int(np.argmin(cost))]))
    return max(counts.low, -bound), min(counts.high, bound)


METHODS: dict[str, Callable[[Counts, Scheme], Range]] = {"max": maximum, "percentile": percentile, "mse": mse, "kl": entropy, "aciq": analytic}


def squared_error(counts: Counts, on: Grid) -> float:
    """Return the mean of the squared differences between the values and their numbers on a grid. Values are spread evenly over a bin."""
    bounds = counts.bounds()
    widths = np.maximum(np.diff(bounds), 1e-300)
    total = 0.0
    for numbers, end in ((counts.positive, on.high), (counts.negative, -on.low)):
        numbers = numbers.copy()
        numbers[0] = 0  # zeros
        inside = np.minimum(bounds, end)
        rounding = on.scale**3 * np.diff(_rounding(inside / on.scale))
        outside = np.diff((np.maximum(bounds, end) - end) ** 3 / 3)
        total += float((numbers * (rounding + outside) / widths).sum())
    return total / counts.total if counts.total else 0.0


def _rounding(u: np.ndarray) -> np.ndarray:
    """Return the integral of (t - round(t))^2 from 0 to u."""
    whole = np.rint(u)
    return np.asarray(whole / 12 + (u - whole) ** 3 / 3)


def _divergence(p: np.ndarray, q: np.ndarray) -> float:
    there = p > 0
    return float((p[there] * np.log(p[there] / np.maximum(q[there], 1e-12))).sum())
