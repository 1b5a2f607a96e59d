"""Cases with a numpy reference of the layers that `ocaffe quantize` inserts."""
from __future__ import annotations

import numpy as np

from ocaffe.selftest.case import Case, layer


def fake_quantize(x: np.ndarray, scale: float, zero: int = 0, least: int = -128, most: int = 127) -> np.ndarray:
    return np.clip(np.rint(x / scale), least - zero, most - zero) * scale


def _between(rng: np.random.Generator, shape: tuple[int, ...], scale: float, most: int) -> np.ndarray:
    """Return numbers that are not near the middle between two numbers of a grid."""
    return np.asarray((rng.integers(-most, most, shape) + rng.uniform(-0.4, 0.4, shape)) * scale)


CASES = [
    *(Case(
        f"FakeQuantize{name}", layer("FakeQuantize", "x0", "y", f"fake_quantize_param {{ {fields} }}"),
        lambda rng: {"x0": _between(rng, (3, 5, 7), 0.125, 200), "y/0": np.array([0.125])},
        lambda x, got, bounds=bounds: {"y": fake_quantize(x["x0"], 0.125, *bounds)},
    ) for name, fields, bounds in (
        ("", "", ()), (" with a zero point", "zero_point: -20", (-20,)), (" unsigned", "least: 0 most: 255", (0, 0, 255)),
        (" of 4 bits", "least: -8 most: 7", (0, -8, 7)),
    )),
]  # fmt: skip
