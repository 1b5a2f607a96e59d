"""Cases of the kernels for integers: histograms, and products that compute with integers."""
from __future__ import annotations

import numpy as np

from ocaffe.kernels.quantization.histogram import edges
from ocaffe.selftest.case import Arrays, Case, layer

SCALE, MOST = 0.125, 127.0


def histogram(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the tops of a Histogram layer."""
    finite = x[np.isfinite(x)]
    bounds = edges()
    signs = finite[~np.signbit(finite)], -finite[np.signbit(finite)]
    counts = [np.histogram(np.minimum(values, bounds[-1] * 0.999), bounds)[0] for values in signs]
    extremes = [finite.max(initial=-np.inf), (-finite).max(initial=-np.inf)]
    return np.concatenate([*counts, [x.size - finite.size]]).astype(float), np.array(extremes)


def _counted(x: Arrays, got: Arrays) -> Arrays:
    counts, extremes = histogram(x["x0"].astype(np.float32))
    return {"counts": counts, "extremes": extremes}


def _product(x: Arrays, got: Arrays) -> Arrays:
    """The inputs and the weights are on their grids. The bias is rounded to the grid of the output."""
    weights, bias = x["y/0"], x["y/1"]
    steps = SCALE * np.abs(weights).max(axis=1) / MOST
    return {"y": x["x0"] @ weights.T + np.rint(bias / steps) * steps}


def _on_grids(rng: np.random.Generator) -> Arrays:
    weights = rng.integers(-126, 127, (7, 37)).astype(float)
    weights[:, 0] = MOST
    return {"x0": rng.integers(-128, 128, (5, 37)) * SCALE, "y/0": weights / 64, "y/1": rng.standard_normal(7)}


def cases() -> list[Case]:
    """Return the cases."""
    return [
        Case(
            "histogram", layer("Histogram", "x0", "counts extremes"),
            lambda rng: {"x0": rng.standard_normal((3, 5, 70)) * np.exp(rng.normal(0, 4, (3, 5, 70)))}, _counted, phase="TEST",
        ),
        Case(
            "integers", layer("InnerProduct", "x0", "y", f"inner_product_param {{ num_output: 7 }} weight_quantization_param {{ input_scale: {SCALE} }}"),
            _on_grids, _product, phase="TEST",
        ),
    ]  # fmt: skip
