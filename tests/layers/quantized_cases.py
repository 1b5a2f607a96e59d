"""Cases with a numpy reference of the layers that `ocaffe quantize` inserts."""
from __future__ import annotations

import numpy as np

from ocaffe.kernels.quantization.histogram import BINS, edges
from ocaffe.selftest.case import Arrays, Case, layer


def fake_quantize(x: np.ndarray, scale: float, zero: int = 0, least: int = -128, most: int = 127) -> np.ndarray:
    return np.clip(np.rint(x / scale), least - zero, most - zero) * scale


def histogram(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tops of a Histogram layer."""
    finite = x[np.isfinite(x)]
    bounds = edges()
    counts = [np.histogram(np.minimum(values, bounds[-1] * 0.999), bounds)[0] for values in (finite[~np.signbit(finite)], -finite[np.signbit(finite)])]
    extremes = [finite.max(initial=-np.inf), (-finite).max(initial=-np.inf)]
    return np.concatenate([*counts, [x.size - finite.size]]).astype(float), np.array(extremes)


def _between(rng: np.random.Generator, shape: tuple[int, ...], scale: float, most: int) -> np.ndarray:
    """Return numbers that are not near the middle between two numbers of a grid."""
    return np.asarray((rng.integers(-most, most, shape) + rng.uniform(-0.4, 0.4, shape)) * scale)


def _values(x: Arrays, got: Arrays) -> Arrays:
    counts, extremes = histogram(x["x0"].astype(np.float32))
    assert len(counts) == 2 * BINS + 1
    return {"counts": counts, "extremes": extremes}


CASES = [
    *(Case(
        f"FakeQuantize{name}", layer("FakeQuantize", "x0", "y", f"fake_quantize_param {{ {fields} }}"),
        lambda rng: {"x0": _between(rng, (3, 5, 7), 0.125, 200), "y/0": np.array([0.125])},
        lambda x, got, bounds=bounds: {"y": fake_quantize(x["x0"], 0.125, *bounds)},
    ) for name, fields, bounds in (
        ("", "", ()), (" with a zero point", "zero_point: -20", (-20,)), (" unsigned", "least: 0 most: 255", (0, 0, 255)),
        (" of 4 bits", "least: -8 most: 7", (0, -8, 7)),
    )),
    Case(
        "Histogram", layer("Histogram", "x0", "counts extremes"), lambda rng: {"x0": rng.standard_normal((3, 5, 70)) * np.exp(rng.normal(0, 4, (3, 5, 70)))},
        _values,
    ),
]  # fmt: skip
