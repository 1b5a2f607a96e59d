"""SPP: golden cases on the kernels of the other device class, then further cases."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.errors import Error
from tests.layers.single import KINDS, cases, close, layer_of, run, run_golden


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_golden(device: Any) -> None:
    for case in cases("SPP"):
        run_golden(device, "gpu" if device.target.is_cpu else "cpu", case)


def windows(size: int, bins: int) -> list[slice]:
    kernel = -(-size // bins)
    pad = (kernel * bins - size + 1) // 2
    return [slice(max(0, b * kernel - pad), min(size, (b + 1) * kernel - pad)) for b in range(bins)]


@pytest.mark.parametrize("height", [1, 3])
def test_levels(device: Any, kind: str, height: int) -> None:
    """MAX: the gradients of the levels are added to each other and to the diff."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 11, 9)).astype(np.float32)
    dy = rng.standard_normal((3, 4 * (21 if height == 3 else 1), *([1, 1] if height == 1 else []))).astype(np.float32)
    parts, gradient, at = [], np.full(x.shape, 2.0), 0
    for bins in (1, 2, 4)[:height]:
        for plane in np.ndindex(3, 4):
            for i, rows in enumerate(windows(11, bins)):
                for j, columns in enumerate(windows(9, bins)):
                    window = x[plane][rows, columns]
                    r, c = np.unravel_index(window.argmax(), window.shape)
                    place = at + plane[1] * bins * bins + i * bins + j
                    gradient[plane][rows.start + r, columns.start + c] += dy.reshape(3, -1)[plane[0], place]
        level = [[x[:, :, rows, columns].max((2, 3)) for columns in windows(9, bins)] for rows in windows(11, bins)]
        parts.append(np.moveaxis(np.array(level), (0, 1), (2, 3)).reshape(3, -1))
        at += parts[-1].shape[1]
    result = run(device, kind, f"type: 'SPP' spp_param {{ pyramid_height: {height} }}", [x], [dy], strided=True, held=2.0)
    close(result.tops[0], np.concatenate(parts, axis=1).reshape(dy.shape), 1e-6)
    close(result.diffs[0], gradient, 1e-6)
    other = layer_of(f"type: 'SPP' spp_param {{ pyramid_height: {height} }}")
    assert [other.infer((2, 4, *size))[0][:2] for size in ((11, 9), (30, 32))] == [(2, dy.shape[1])] * 2, "the size of the image does not matter"


def test_stochastic(device: Any, kind: str) -> None:
    """Every level draws independently. If levels shared draws, levels with equal numbers of bins would agree on equal pixels."""
    x = np.abs(np.random.default_rng(0).standard_normal((6, 5, 8, 8))).astype(np.float32)
    layer = layer_of("type: 'SPP' spp_param { pyramid_height: 2 pool: STOCHASTIC }", proto.TRAIN)
    dy = np.ones((6, 25), np.float32)
    result = run(device, kind, layer, [x], [dy])
    y = result.tops[0]
    assert np.isin(y, x).all() and result.diffs[0] is not None
    close(result.diffs[0].sum(), dy.sum(), 1e-6)
    keys = [launch.call.scalars[-2:] for launch in result.rec.launches if launch.phase == "forward" and launch.call is not None]
    assert len(keys) == len(set(keys)) == 2
    expected = run(device, kind, layer_of("type: 'SPP' spp_param { pool: STOCHASTIC pyramid_height: 1 }", proto.TEST), [x]).tops[0]
    close(expected[:, :, 0, 0], (x * x).sum((2, 3)) / x.sum((2, 3)), 1e-5)


@pytest.mark.parametrize(
    "text, shape, fact",
    [
        ("pyramid_height: 4", (1, 2, 17, 19), "the level of 8 x 8 bins needs windows of 3 with pad 4 x 3"),
        ("pyramid_height: 2 pool: STOCHASTIC", (1, 2, 4, 5), "STOCHASTIC pooling takes no padding"),
        ("", (1, 2, 4, 4), "pyramid_height is missing"),
        ("pyramid_height: 1", (2, 4), "bottom 0 is 2 x 4, it must be"),
    ],
)
def test_mistakes(text: str, shape: tuple[int, ...], fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(f"name: 'l' type: 'SPP' spp_param {{ {text} }}").infer(*[shape])
