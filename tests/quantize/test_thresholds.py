"""Ranges: each method against a plain search over the values themselves, or a known optimum."""
from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ocaffe.quantize.counts import EDGES, Counts
from ocaffe.quantize.grid import grid
from ocaffe.quantize.scheme import Scheme, read_scheme
from ocaffe.quantize.thresholds import KL_BINS, METHODS, SHARE, squared_error

pytestmark = pytest.mark.quick
INT8 = read_scheme("int8")
UNSIGNED = replace(INT8, unsigned=True)
ASYMMETRIC = replace(INT8, asymmetric=True)


def counts_of(x: np.ndarray) -> Counts:
    sizes = np.minimum(np.abs(x), EDGES[-2] * 1.001)
    parts = [np.histogram(sizes[chosen], EDGES)[0] for chosen in (np.signbit(x) == 0, np.signbit(x))]
    counts = Counts()
    counts.add(np.concatenate([*parts, [0]]).astype(np.float64), np.array([x.max(), -x.min()]))
    return counts


def error_of(x: np.ndarray, ends: tuple[float, float], scheme: Scheme) -> float:
    on = grid(*ends, scheme)
    return float(((x - np.clip(np.rint(x / on.scale), on.least - on.zero_point, on.most - on.zero_point) * on.scale) ** 2).mean())


def values(kind: str, count: int = 40000) -> np.ndarray:
    rng = np.random.default_rng(3)
    x = {
        "normal": rng.standard_normal(count),
        "laplace": rng.laplace(size=count),
        "relu": np.maximum(rng.standard_normal(count), 0),
        "outliers": np.concatenate([rng.standard_normal(count), [90.0, -70.0]]),
        "skewed": np.exp(rng.standard_normal(count)) - 0.4,
        "two": rng.choice([-1.5, 4.0], count),
        "tiny": rng.standard_normal(count) * 1e-3,
    }[kind]
    return np.asarray(x, np.float32).astype(np.float64)


KINDS = ["normal", "laplace", "relu", "outliers", "skewed", "two", "tiny"]


@pytest.mark.parametrize("kind", KINDS)
def test_max_keeps_all_values(kind: str) -> None:
    x = values(kind)
    assert METHODS["max"](counts_of(x), INT8) == (x.min(), x.max())


@pytest.mark.parametrize("kind", KINDS)
def test_percentile_keeps_its_share(kind: str) -> None:
    x = values(kind)
    low, high = METHODS["percentile"](counts_of(x), INT8)
    wanted = np.sort(np.abs(x))[math.ceil(SHARE * len(x)) - 1]
    assert wanted * 0.98 <= max(high, -low) <= wanted * 1.04


@pytest.mark.parametrize("scheme", [INT8, UNSIGNED, ASYMMETRIC, replace(INT8, bits=4)], ids=["int8", "unsigned", "asymmetric", "4 bits"])
@pytest.mark.parametrize("kind", KINDS)
def test_mse_is_as_good_as_a_search_over_the_values(kind: str, scheme: Scheme) -> None:
    x = values(kind)
    counts = counts_of(x)
    found = error_of(x, METHODS["mse"](counts, scheme), scheme)
    shares = np.linspace(0.02, 1, 200)
    best = min(error_of(x, (x.min() * share, x.max() * share), scheme) for share in shares)
    assert found <= best * 1.08 + 1e-12 * x.var()


@pytest.mark.parametrize("scheme", [INT8, UNSIGNED, ASYMMETRIC], ids=["int8", "unsigned", "asymmetric"])
@pytest.mark.parametrize("kind", ["normal", "laplace", "relu", "outliers", "skewed"])
def test_the_error_by_counts_is_that_of_the_values(kind: str, scheme: Scheme) -> None:
    x = values(kind)
    for share in (1, 0.3):
        ends = x.min() * share, x.max() * share
        assert squared_error(counts_of(x), grid(*ends, scheme)) == pytest.approx(error_of(x, ends, scheme), rel=0.06)


def plain_kl(x: np.ndarray, levels: int) -> dict[int, float]:
    """Return the divergence of each number of bins, as NVIDIA's slides describe the search."""
    histogram, _ = np.histogram(np.abs(x), KL_BINS, (0, np.abs(x).max()))
    histogram = histogram.astype(np.float64)
    histogram[0] = 0
    found = {}
    for bins in range(levels, KL_BINS + 1, 8):
        p, q = histogram[:bins].copy(), np.zeros(bins)
        for level in range(levels):
            mine = [place for place in range(bins) if place * levels // bins == level and histogram[place]]
            for place in mine:
                q[place] = sum(histogram[each] for each in mine) / len(mine)
        p[-1] += histogram[bins:].sum()
        p, q = p / p.sum(), q / max(q.sum(), 1e-300)
        found[bins] = sum(a * math.log(a / max(b, 1e-12)) for a, b in zip(p, q) if a)
    return found


@pytest.mark.parametrize("kind", ["normal", "laplace", "outliers"])
def test_kl_is_near_the_smallest_divergence_of_a_plain_search(kind: str) -> None:
    x = values(kind, 8000)
    low, high = METHODS["kl"](counts_of(x), INT8)
    divergences = plain_kl(x, 128)
    bins = min(divergences, key=lambda each: abs(each - max(high, -low) / np.abs(x).max() * KL_BINS))
    assert divergences[bins] <= min(divergences.values()) * 1.25 + 1e-4
    if kind == "outliers":
        assert max(high, -low) < 30


LAPLACE = {4: 5.03, 8: 9.89}  # the best bounds in units of b and of the standard deviation (Banner et al., 2019, and its code)
NORMAL = {4: 2.55, 8: 3.92}


@pytest.mark.parametrize("bits", [4, 8])
def test_aciq_finds_the_published_optimum(bits: int) -> None:
    scheme = replace(INT8, bits=bits)
    for kind, published, unit in (("laplace", LAPLACE, 1.0), ("normal", NORMAL, 1.0)):
        x = values(kind)
        low, high = METHODS["aciq"](counts_of(x), scheme)
        assert max(high, -low) == pytest.approx(min(published[bits] * unit, np.abs(x).max()), rel=0.03), kind


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scheme", [INT8, UNSIGNED, ASYMMETRIC, replace(INT8, power_of_two=True)], ids=["int8", "unsigned", "asymmetric", "power of two"])
def test_values_that_are_all_equal_have_a_range(method: str, scheme: Scheme) -> None:
    for constant in (0.0, 0.25, -3.0):
        x = np.full(100, constant)
        on = grid(*METHODS[method](counts_of(x), scheme), scheme)
        assert on.scale > 0
        assert abs(float(on.rounded(x)[0]) - constant) <= 0.02 * abs(constant) + (0.5 * on.scale if scheme.power_of_two else 0), (method, constant, on)


def test_counts_add_up() -> None:
    x = values("skewed")
    both, parts = counts_of(x), Counts()
    for part in np.split(x, 4):
        own = counts_of(part)
        parts.add(np.concatenate([own.positive, own.negative, [0]]), np.array([own.high, -own.low]))
    assert (parts.positive == both.positive).all()
    assert (parts.negative == both.negative).all()
    assert (parts.low, parts.high, parts.total, parts.largest) == (x.min(), x.max(), len(x), np.abs(x).max())


@pytest.mark.parametrize("kind", KINDS)
def test_counts_have_the_moments_of_the_values(kind: str) -> None:
    x = values(kind)
    for order in (1, 2):
        assert counts_of(x).moment(order) == pytest.approx((np.abs(x) ** order).mean(), rel=0.01)


@pytest.mark.parametrize("kind", ["normal", "relu", "outliers"])
def test_uniform_bins_have_the_counts_of_numpy(kind: str) -> None:
    x = values(kind)
    numpy, _ = np.histogram(np.abs(x), 256, (0, np.abs(x).max()))
    found = counts_of(x).uniform(256)
    assert found.sum() == pytest.approx(len(x))
    assert np.abs(np.cumsum(found) - np.cumsum(numpy)).max() <= 0.01 * len(x)
