"""Expressions over tensors with channels in blocks of 8, compared with numpy, on every device, with the kernels of both device classes."""
from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BFLOAT, BLOCKS_GPU, PLANES, Ref, Role, Shape, widened
from ocaffe.kernels.expression.expression import pointwise, reduce
from tests.harness import blocks, execute, narrowed, of_kind

SHAPES: list[Shape] = [(2, 16, 5, 7), (3, 8, 1, 9), (2, 24, 33, 31), (1, 16, 4), (70, 8, 3, 3), (2, 64, 40, 40), (4, 8, 80, 80)]


@pytest.fixture(params=["cpu", "gpu"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def draw(shape: Shape, seed: int = 0) -> np.ndarray:
    """Return random values that bfloat16 represents exactly."""
    return widened(narrowed(np.random.default_rng([seed, *shape]).standard_normal(shape)))


def recorder(device: Any, kind: str) -> Recorder:
    target = of_kind(device.target, kind)
    rec = Recorder(replace(target, compute_units=132) if kind == "gpu" else target, train=True)  # so that sums are divided into chunks
    rec.enter("layer", "forward")
    return rec


def ref(name: str, shape: Shape, blocked: bool, kind: str) -> Ref:
    """Return a tensor. Kernels of the CPU class have no bfloat16."""
    return Ref(name, shape, Role.ACTIVATION, BFLOAT if blocked and kind == "gpu" else np.dtype(np.float32), layout=BLOCKS_GPU if blocked else PLANES)


def stored(ref: Ref, values: np.ndarray) -> np.ndarray:
    ordered = blocks(values) if ref.blocked else values
    return narrowed(ordered) if ref.dtype == BFLOAT else ordered


def loaded(ref: Ref, values: np.ndarray) -> np.ndarray:
    wide = widened(values) if ref.dtype == BFLOAT else values
    return (BLOCKS_GPU.to_planes(wide) if ref.blocked else wide).astype(np.float64)


def close(ref: Ref, got: np.ndarray, expected: np.ndarray) -> None:
    scale = float(np.abs(expected).max())
    assert float(np.abs(loaded(ref, got) - expected).max()) <= (0.004 if ref.dtype == BFLOAT else 2e-6) * scale, ref


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pointwise(device: Any, kind: str, shape: Shape) -> None:
    """A sum with a factor per channel, and both conversions of the order."""
    rec, channels = recorder(device, kind), shape[1]
    x, z, y = (ref(name, shape, True, kind) for name in "xzy")
    plain, back, factor = ref("plain", shape, False, kind), ref("back", shape, False, kind), ref("factor", (channels,), False, kind)
    a, b, c, f = draw(shape), draw(shape, 1), draw(shape, 2), draw((channels,), 3)
    pointwise(rec, "y0 = x0 * x2 + x1", reads=[x, z, (factor, 1)], writes=[y])
    pointwise(rec, "y0 = x0", reads=[x], writes=[back])
    mixed = ref("mixed", shape, True, kind)
    pointwise(rec, "y0 = x0 - x1", reads=[plain, x], writes=[mixed])
    pointwise(rec, "y0 = x0 + 1", reads=[x], writes=[z])
    feeds = {x: stored(x, a), z: stored(z, b), plain: c, factor: f}
    got = dict(zip((y, back, mixed, z), execute(rec, device.context, feeds, [y, back, mixed, z])))
    wide = f.astype(np.float64).reshape(channels, *[1] * (len(shape) - 2))
    close(y, got[y], a * wide + b)
    close(back, got[back], a)
    close(mixed, got[mixed], c.astype(np.float64) - a)
    close(z, got[z], a.astype(np.float64) + 1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_per_channel(device: Any, kind: str, shape: Shape) -> None:
    rec, channels = recorder(device, kind), shape[1]
    x, dy, factor = ref("x", shape, True, kind), ref("dy", shape, True, kind), ref("factor", (channels,), False, kind)
    total, product, largest = (ref(name, (channels,), False, kind) for name in ("total", "product", "largest"))
    a, b, f = draw(shape), draw(shape, 1), draw((channels,), 2)
    axes = tuple(d for d in range(len(shape)) if d != 1)
    reduce(rec, "v0 = x1 * x2; v1 = x0 * x1", reads=[x, dy, (factor, 1)], writes=[total, product], axes=axes, finish="y0 = v0; y1 = v1 + x2")
    reduce(rec, "v0 = x0", reads=[x], writes=[largest], axes=axes, op="max")
    got = execute(rec, device.context, {x: stored(x, a), dy: stored(dy, b), factor: f}, [total, product, largest])
    wide = f.astype(np.float64).reshape(channels, *[1] * (len(shape) - 2))
    size = math.prod(shape) / channels
    for values, expected in zip(got, ((b * wide).sum(axes), (a.astype(np.float64) * b).sum(axes) + f, a.max(axes))):
        assert np.abs(values - expected).max() <= 2e-6 * max(1.0, math.sqrt(size)) * max(1.0, float(np.abs(expected).max()))


def test_sums_of_pixels(device: Any, kind: str) -> None:
    """The channels may be reduced too."""
    shape: Shape = (3, 16, 5, 6)
    rec = recorder(device, kind)
    x, y = ref("x", shape, True, kind), ref("y", (3, 5, 6), False, kind)
    a = draw(shape)
    reduce(rec, "v0 = x0", reads=[x], writes=[y], axes=(1,))
    [got] = execute(rec, device.context, {x: stored(x, a)}, [y])
    assert np.abs(got - a.astype(np.float64).sum(1)).max() <= 1e-5
