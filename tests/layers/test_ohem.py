"""Online hard example mining, compared with numpy."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe.errors import Error
from tests.layers.single import KINDS, close, layer_of, run


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 5, 2)], ids=str)
def test_softmax(device: Any, kind: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 3, shape).astype(np.float32)
    labels = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    labels.reshape(-1)[2] = 1
    text = "top: 'l' top: 'p' top: 'single' type: 'SoftmaxWithLossOHEM' loss_param { ignore_label: 1 normalization: NONE }"
    result = run(device, kind, text, [scores, labels], [2.0, None, None], propagate=[True, False], strided=True)
    prob = np.exp(scores.astype(float))
    prob /= prob.sum(1, keepdims=True)
    counts = labels != 1
    losses = -np.log(np.take_along_axis(prob, labels[:, None], 1)[:, 0]) * counts
    close(result.tops[2], losses.reshape(losses.shape if losses.ndim > 1 else (*losses.shape, 1, 1, 1)))
    close(result.tops[0], losses.sum())
    expected = prob.copy()
    np.put_along_axis(expected, labels[:, None], np.take_along_axis(prob, labels[:, None], 1) - 1, 1)
    close(result.diffs[0], 2 * expected * counts[:, None])


@pytest.mark.parametrize("shape, weighted", [((6, 8), True), ((2, 3, 4, 5), False)], ids=str)
@pytest.mark.parametrize("mode, divisor", [("", None), ("normalization: PRE_FIXED pre_fixed_normalizer: 128", 128)], ids=["valid", "fixed"])
def test_smooth_l1(device: Any, kind: str, shape: tuple[int, ...], weighted: bool, mode: str, divisor: float | None) -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.normal(0, 1.5, shape) for _ in range(2)] + ([rng.uniform(0, 2, shape)] if weighted else [])
    arrays = [array.astype(np.float32).astype(float) for array in arrays]
    n = divisor or shape[0] * np.prod(shape[2:])

    def losses(a: np.ndarray, b: np.ndarray, w: Any = 1.0) -> np.ndarray:
        d = np.abs(w * (a - b))
        return np.where(d < 1, d * d / 2, d - 0.5)

    text = f"top: 'l' top: 'single' type: 'SmoothL1LossOHEM' loss_param {{ {mode} }}"
    wanted = [True, True, False][: len(arrays)]
    result = run(device, kind, text, arrays, [3.0, None], propagate=wanted, strided=True, held=1.0)
    close(result.tops[0], losses(*arrays).sum() / n)
    close(result.tops[1].reshape(-1), losses(*arrays).sum(1).reshape(-1))
    assert result.tops[1].shape == (shape[0], 1, *(shape[2:] or (1, 1)))
    for i in range(2):
        slope = []
        for step in (1e-6, -1e-6):
            moved = list(arrays)
            moved[i] = arrays[i] + step
            slope.append(losses(*moved))
        close(result.diffs[i], 1 + 3 * (slope[0] - slope[1]) / 2e-6 / n, 1e-5)


def test_annotator(device: Any, kind: str) -> None:
    rng = np.random.default_rng(2)
    rois = np.column_stack([rng.integers(0, 3, 40), rng.uniform(0, 9, (40, 4))])
    rois[rois[:, 0] == 2, 0] = np.where(np.arange((rois[:, 0] == 2).sum()) < 3, 2, 0)  # image 2 has fewer regions than requested
    first, second = rng.integers(0, 4, 40), rng.integers(0, 4, 40)  # many are equal
    labels, weights = rng.integers(0, 5, 40), rng.uniform(1, 2, (40, 8))
    rois[:, 3] += 9
    padding = rng.uniform(size=40) < 0.2
    rois[padding, 1:] = 0, 0, -1, -1
    chosen = np.zeros(40, bool)
    for image in range(3):
        own = np.flatnonzero((rois[:, 0] == image) & ~padding)
        chosen[own[np.argsort(-(first + second)[own], kind="stable")][:6]] = True
    assert 12 < chosen.sum() <= 15 and padding.sum() > 3
    text = "type: 'BoxAnnotatorOHEM' box_annotator_ohem_param { roi_per_img: 6 ignore_label: -7 }"
    result = run(device, kind, text, [rois, first, second.reshape(40, 1, 1, 1), labels, weights], strided=True)
    assert (result.tops[0] == np.where(chosen, labels, -7).reshape(40, 1, 1, 1)).all()
    close(result.tops[1], (weights * chosen[:, None]).reshape(40, 8, 1, 1), 1e-6)


@pytest.mark.parametrize(
    "text, shapes, fact",
    [
        ("type: 'SmoothL1LossOHEM'", [(3,), (3,)], "bottom 0 is 3, it must be R x C"),
        ("type: 'SmoothL1LossOHEM'", [(3, 4), (3, 5)], "bottom 0 is 3 x 4, bottom 1 is 3 x 5"),
        ("type: 'SmoothL1LossOHEM'", [(3, 4), (3, 4), (3, 1)], "bottom 0 is 3 x 4, bottom 2 is 3 x 1"),
        ("type: 'BoxAnnotatorOHEM' box_annotator_ohem_param { roi_per_img: 0 }", [(3, 5), (3,), (3,), (3,), (3, 8)], "roi_per_img is 0"),
        ("type: 'BoxAnnotatorOHEM' box_annotator_ohem_param { roi_per_img: 2 }", [(3, 4), (3,), (3,), (3,), (3, 8)], "bottom 0 is 3 x 4, it must be"),
        ("type: 'BoxAnnotatorOHEM' box_annotator_ohem_param { roi_per_img: 2 }", [(3, 5), (3,), (3, 2), (3,), (3, 8)], "bottom 2 is 3 x 2"),
        ("type: 'BoxAnnotatorOHEM' box_annotator_ohem_param { roi_per_img: 2 }", [(3, 5), (3,), (3,), (3,), (4, 8)], "the last bottom is 4 x 8"),
    ],
)
def test_mistakes(text: str, shapes: list[tuple[int, ...]], fact: str) -> None:
    with pytest.raises(Error, match=fact):
        layer_of(f"name: 'l' {text}").infer(*shapes)


def test_weights_have_no_gradient(device: Any) -> None:
    with pytest.raises(Error, match="no gradient for weights"):
        run(device, "cpu", "type: 'SmoothL1LossOHEM'", [np.ones((2, 3))] * 3, [1.0])
