"""Interp: cases beyond Caffe's. The reference is a product with the matrices of both axes."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe.errors import Error
from tests.layers.single import KINDS, close, layer_of, run


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def matrix(size: int, begin: int, part: int, outs: int) -> np.ndarray:
    """Return outs x size weights of the pixels in each output, with positions in float32 as in Caffe."""
    ratio = np.float32(part - 1) / np.float32(outs - 1) if outs > 1 else np.float32(0)
    weights = np.zeros((outs, size))
    for o in range(outs):
        at = ratio * np.float32(o)
        first = int(at)
        weights[o, begin + first] += 1 - (at - first)
        weights[o, begin + min(first + 1, part - 1)] += at - first
    return weights


@pytest.mark.parametrize(
    "image, text, part, outputs",
    [
        ((5, 4), "zoom_factor: 8", (5, 4), (33, 25)),
        ((33, 20), "height: 7 width: 61", (33, 20), (7, 61)),
        ((23, 18), "shrink_factor: 2 pad_beg: -1 pad_end: -2", (20, 15), (10, 8)),
        ((1, 6), "height: 9 width: 1", (1, 6), (9, 1)),
        ((9, 7), "shrink_factor: 2 zoom_factor: 3", (9, 7), (13, 10)),
        ((6, 6), "zoom_factor: 2 pad_beg: -2 pad_end: 0", (4, 4), (7, 7)),
        ((5, 5), "height: 5 width: 5 pad_end: -1", (4, 4), (5, 5)),
        ((4, 5), "height: 473 width: 473", (4, 5), (473, 473)),
    ],
    ids=str,
)
def test_interp(device: Any, kind: str, image: tuple[int, int], text: str, part: tuple[int, int], outputs: tuple[int, int]) -> None:
    """Forward and backward, strided, adding to a diff. Backward applies the transposed matrices of forward."""
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((2, 3, *size)).astype(np.float32) for size in (image, outputs))
    begin = 2 if "pad_beg: -2" in text else 1 if "pad_beg: -1" in text else 0
    rows, columns = (matrix(size, begin, inside, outs) for size, inside, outs in zip(image, part, outputs))
    result = run(device, kind, f"type: 'Interp' interp_param {{ {text} }}", [x], [dy], strided=True, held=2.0)
    close(result.tops[0], rows @ x @ columns.T, 1e-5)
    close(result.diffs[0], 2 + rows.T @ dy @ columns, 1e-5)


def test_same_size_moves_nothing(device: Any) -> None:
    x = np.ones((1, 2, 4, 5), np.float32)
    result = run(device, "cpu", "type: 'Interp' interp_param { height: 4 width: 5 }", [x], [x])
    assert not result.rec.launches and not result.layer.moves_data
    result.layer.infer((1, 2, 4, 6))
    assert result.layer.moves_data, "another size of the bottom"


@pytest.mark.parametrize(
    "text, fact",
    [
        ("", "interp_param gives no size"),
        ("height: 4", "interp_param gives no size"),
        ("height: 0 width: 3", "height is 0, width is 3"),
        ("zoom_factor: 0", "zoom_factor is 0"),
        ("zoom_factor: 2 pad_beg: 1", "pad_beg is 1"),
        ("zoom_factor: 2 pad_beg: -2 pad_end: -2", "pad_beg -2 and pad_end -2 leave nothing of the 4 x 5 image"),
    ],
)
def test_mistakes(text: str, fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(f"name: 'l' type: 'Interp' interp_param {{ {text} }}").infer((1, 2, 4, 5))


def test_needs_four_axes() -> None:
    with pytest.raises(Error, match="bottom 0 is 3 x 4, it must be N x C x H x W"):
        layer_of("name: 'l' type: 'Interp' interp_param { zoom_factor: 2 }").infer((3, 4))
