"""Pad, compared with numpy: forward and backward, borders of different widths, several axes, a diff that is added to."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe.errors import Error
from ocaffe.ir.tensor import Shape
from tests.layers.single import KINDS, close, layer_of, run


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["CONSTANT", "REFLECT", "EDGE"])
@pytest.mark.parametrize(
    "shape, text, pads",
    [
        ((2, 3, 5, 4), "begin: 0 begin: 1 end: 1 end: 2", [(0, 0), (0, 0), (0, 1), (1, 2)]),
        ((2, 3, 5, 4), "axis: 1 begin: 2 begin: 0 begin: 3 end: 1 end: 4 end: 0", [(0, 0), (2, 1), (0, 4), (3, 0)]),
        ((1, 2, 4), "end: 2", [(0, 0), (0, 0), (0, 2)]),
        ((1, 2, 3), "begin: 0 end: 0", [(0, 0)] * 3),
    ],
    ids=str,
)
def test_pad(device: Any, kind: str, mode: str, shape: Shape, text: str, pads: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    options = {"constant_values": -2.5} if mode == "CONSTANT" else {}
    expected = np.pad(x, pads, mode.lower(), **options)  # type: ignore[call-overload]
    dy = rng.standard_normal(expected.shape).astype(np.float32)
    moves = any(map(any, pads))
    value = "value: -2.5" if mode == "CONSTANT" else ""
    result = run(device, kind, f"type: 'Pad' pad_param {{ mode: {mode} {text} {value} }}", [x], [dy], strided=moves, held=2.0 if moves else None)
    close(result.tops[0], expected)
    where = np.pad(np.arange(1, x.size + 1).reshape(shape), pads, mode.lower())  # type: ignore[call-overload]
    sums = np.bincount(where.ravel(), dy.ravel().astype(np.float64), x.size + 1)[1:].reshape(shape)
    close(result.diffs[0], sums + (2.0 if moves else 0.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-0.0", "1e-38", "3.4e38", "-1e-7"])
def test_values_of_the_border(device: Any, kind: str, value: str) -> None:
    """The program has them in its text."""
    x = np.ones((1, 1, 2, 2), np.float32)
    dy = np.ones((1, 1, 3, 2), np.float32)
    result = run(device, kind, f"type: 'Pad' pad_param {{ begin: 1 begin: 0 end: 0 end: 0 value: {value} }}", [x], [dy])
    expected = np.pad(x, [(0, 0), (0, 0), (1, 0), (0, 0)], constant_values=np.float32(value))
    np.testing.assert_array_equal(result.tops[0], expected)


@pytest.mark.parametrize(
    "text, message",
    [
        ("axis: 0 begin: 1", "axis 0 is the batch"),
        ("begin: 1", "begin is given once for the 2 axes from axis 2 on of bottom 2 x 3 x 5 x 4"),
        ("end: 0 end: 4 mode: REFLECT", "axis 3 of bottom 2 x 3 x 5 x 4 has 4 values, 4 cannot be mirrored"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(Error, match=message):
        layer_of(f"type: 'Pad' pad_param {{ {text} }}").infer((2, 3, 5, 4))
