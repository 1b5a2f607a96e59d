"""LayerNorm, compared with float64 and central differences."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe.errors import Error
from ocaffe.ir.tensor import Shape
from tests.layers.single import KINDS, close, layer_of, run


def norm(x: np.ndarray, axis: int, eps: float) -> np.ndarray:
    axes = tuple(range(axis % x.ndim, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + eps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape, axis, eps", [((2, 3, 4, 5), 1, 1e-5), ((2, 3, 4, 5), 2, 0.5), ((2, 7, 33), -1, 1e-3), ((3, 5), 1, 1e-5)], ids=str)
def test_layer_norm(device: Any, kind: str, shape: Shape, axis: int, eps: float) -> None:
    """Values far from zero, strided views, and a diff that is added to."""
    rng = np.random.default_rng(0)
    x, dy = ((10 + rng.standard_normal(shape)).astype(np.float32), rng.standard_normal(shape).astype(np.float32))
    result = run(device, kind, f"type: 'LayerNorm' layer_norm_param {{ axis: {axis} eps: {eps} }}", [x], [dy], strided=True, held=2.0)
    wide, step = x.astype(np.float64), 1e-4
    close(result.tops[0], norm(wide, axis, eps))
    slopes = np.zeros(shape)
    for place in np.ndindex(*shape):
        moved = np.zeros(shape)
        moved[place] = step
        slopes[place] = ((norm(wide + moved, axis, eps) - norm(wide - moved, axis, eps)) * dy).sum() / (2 * step)
    close(result.diffs[0], slopes + 2)


def test_refused() -> None:
    with pytest.raises(Error, match="axis 3 is outside the 2 axes of bottom 2 x 3"):
        layer_of("type: 'LayerNorm' layer_norm_param { axis: 3 }").infer((2, 3))
