"""InnerProduct: the layer's parameters. tests/kernels tests the products, tests/test_golden.py tests Caffe's cases."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe.errors import Error
from tests.layers.single import KINDS, close, layer_of, run


def text(settings: str) -> str:
    return f"name: 'ip' type: 'InnerProduct' bottom: 'x' top: 'y' inner_product_param {{ {settings} }}"


@pytest.mark.parametrize(
    ("settings", "top", "weight"),
    [
        ("num_output: 7", (2, 7), (7, 60)),
        ("num_output: 7 axis: 2", (2, 3, 7), (7, 20)),
        ("num_output: 7 axis: -1", (2, 3, 4, 7), (7, 5)),
        ("num_output: 7 axis: 0", (7,), (7, 120)),
        ("num_output: 7 transpose: true", (2, 7), (60, 7)),
    ],
)
def test_shapes(settings: str, top: tuple[int, ...], weight: tuple[int, ...]) -> None:
    for bias in (True, False):
        layer = layer_of(text(settings + ("" if bias else " bias_term: false")))
        assert [tuple(shape) for shape in layer.infer((2, 3, 4, 5))] == [top]
        assert [spec.shape for spec in layer.parameters()] == [weight, (7,)][: 1 + bias]


@pytest.mark.parametrize(
    ("settings", "fact"), [("", "num_output is missing"), ("num_output: 0", "num_output"), ("num_output: 7 axis: 4", "axis 4 is outside")]
)
def test_refused(settings: str, fact: str) -> None:
    with pytest.raises(Error) as caught:
        layer_of(text(settings)).infer((2, 3, 4, 5))
    assert fact in str(caught.value) and "'ip' (InnerProduct)" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("axis", "strided"), [(1, True), (1, False), (2, False)])
def test_forward_and_backward(device: Any, kind: str, transpose: bool, axis: int, strided: bool) -> None:
    rng = np.random.default_rng(axis)
    x = rng.normal(size=(5, 3, 9))
    rows = x.reshape(-1, 9 if axis == 2 else 27)
    w, b, dy = rng.normal(size=(7, rows.shape[1])), rng.normal(size=7), rng.normal(size=(*x.shape[:axis], 7))
    flat = dy.reshape(-1, 7)
    settings = f"num_output: 7 axis: {axis} transpose: {str(transpose).lower()}"
    params = [w.T if transpose else w, b]
    result = run(device, kind, text(settings), [x], [dy], params=params, strided=strided, held=0.5)
    close(result.tops[0], (rows @ w.T + b).reshape(dy.shape), 1e-5)
    close(result.diffs[0], (flat @ w).reshape(x.shape) + 0.5, 1e-5)
    close(result.param_diffs[0], rows.T @ flat if transpose else flat.T @ rows, 1e-5)
    close(result.param_diffs[1], flat.sum(0), 1e-5)


def test_backward_does_what_is_asked_for(device: Any) -> None:
    rng = np.random.default_rng(0)
    x, dy, w, b = rng.normal(size=(5, 9)), rng.normal(size=(5, 7)), rng.normal(size=(7, 9)), rng.normal(size=7)
    whole = run(device, "cpu", text("num_output: 7"), [x], [dy], params=[w, b])
    part = run(device, "cpu", text("num_output: 7"), [x], [dy], params=[w, b], propagate=[False])
    assert part.diffs == [None]
    gemms = [sum(launch.what in ("gemm_cpu.gemm", "gemm_few_cpu.few") for launch in result.rec.launches) for result in (whole, part)]
    assert gemms == [3, 2]
