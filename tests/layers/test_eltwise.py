"""Eltwise with more bottoms than one kernel reads."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe.layers.eltwise import AT_ONCE

COUNTS = (AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE + 5)


def net_of(path: pathlib.Path, count: int, param: str, kind: str = "TRAIN", last: str = "dim: 2 dim: 5") -> caffe.Net:
    shapes = ["dim: 2 dim: 5"] * (count - 1) + [last]
    inputs = [f'layer {{ name: "x{i}" type: "Input" top: "x{i}" input_param {{ shape {{ {shape} }} }} }}' for i, shape in enumerate(shapes)]
    bottoms = " ".join(f'bottom: "x{i}"' for i in range(count))
    layer = f'layer {{ name: "y" type: "Eltwise" {bottoms} top: "y" eltwise_param {{ {param} }} }}'
    path.write_text("\n".join(["force_backward: true", *inputs, layer]))
    return caffe.Net(str(path), caffe.TRAIN if kind == "TRAIN" else caffe.TEST)


def run(net: caffe.Net, values: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the top, and the gradients of the bottoms."""
    for i, value in enumerate(values):
        net.blobs[f"x{i}"].data[...] = value
    top = net.forward()["y"].copy()
    net.blobs["y"].diff[...] = dy
    net.backward()
    return top, [net.blobs[f"x{i}"].diff.copy() for i in range(len(values))]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("operation", ["SUM", "PROD", "PROD unstable", "MAX"])
def test_many_bottoms(operation: str, count: int, tmp_path: pathlib.Path, device: Any) -> None:
    rng = np.random.default_rng(count)
    values = rng.uniform(0.8, 1.3, (count, 2, 5)).astype(np.float32)
    values[:, 0, 0] = 1  # ties
    dy = rng.normal(size=(2, 5)).astype(np.float32)
    coeff = rng.uniform(0.5, 2, count).astype(np.float32)
    param = {
        "SUM": "operation: SUM " + " ".join(f"coeff: {c}" for c in coeff), "PROD": "operation: PROD", "MAX": "operation: MAX",
        "PROD unstable": "operation: PROD stable_prod_grad: false",
    }[operation]  # fmt: skip
    top, gradients = run(net_of(tmp_path / "net.prototxt", count, param), values, dy)
    exact = values.astype(np.float64)
    if operation == "SUM":
        weights = np.array([float(str(c)) for c in coeff])
        expected, factors = np.tensordot(weights, exact, 1), np.broadcast_to(weights[:, None, None], values.shape)
    elif operation == "MAX":
        winner = np.argmax(values, axis=0)
        winner[0, 0] = 1  # of the first two bottoms the second wins a tie, a later one only if it is larger
        expected, factors = exact.max(0), (np.arange(count)[:, None, None] == winner).astype(float)
    else:
        expected = exact.prod(0)
        factors = expected / exact
    np.testing.assert_allclose(top, expected, rtol=1e-5)
    for gradient, factor in zip(gradients, factors):
        np.testing.assert_allclose(gradient, dy * factor, rtol=1e-5, atol=1e-6)
    if operation == "MAX":
        np.testing.assert_array_equal(run(net_of(tmp_path / "test.prototxt", count, param, "TEST"), values, dy)[0], expected.astype(np.float32))


@pytest.mark.parametrize("count", [AT_ONCE // 2 + 1, 2 * AT_ONCE + 3])
def test_many_weighted_bottoms(count: int, tmp_path: pathlib.Path, device: Any) -> None:
    """LRCN's coeff_blob: the last bottom has a weight for each other bottom and sample."""
    rng = np.random.default_rng(count)
    values, weights = rng.normal(size=(count, 2, 5)).astype(np.float32), rng.normal(size=(count, 2)).astype(np.float32)
    net = net_of(tmp_path / "net.prototxt", count + 1, "operation: SUM coeff_blob: true", last=f"dim: {count} dim: 2")
    dy = rng.normal(size=(2, 5)).astype(np.float32)
    top, gradients = run(net, [*values, weights], dy)  # type: ignore[arg-type]
    np.testing.assert_allclose(top, (values.astype(np.float64) * weights[:, :, None]).sum(0), rtol=1e-4, atol=1e-5)
    for gradient, weight in zip(gradients, weights):
        np.testing.assert_allclose(gradient, dy * weight[:, None], rtol=1e-5, atol=1e-6)
