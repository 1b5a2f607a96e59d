"""AlignedBoxLoss on the kernels of both device classes, compared with a plain numpy program (ocaffe/selftest/aligned.py)."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe.errors import Error
from ocaffe.selftest.aligned import AlignedModel, problem
from tests.layers.single import KINDS, Result, close, layer_of, run

BOTH = [True, True, False, False]
STEP = 1e-5


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def compared(device: Any, kind: str, model: AlignedModel, bottoms: list[np.ndarray], *, held: float = 0, strided: bool = False) -> Result:
    """Compare the loss with that of the model, and gradients with central differences of the model."""
    fields = (
        f"num_classes: {model.classes} background_label_id: {model.background} code_type: {model.code} top_k: {model.top_k} gamma: {model.gamma} "
        f"score_power: {model.score_power} overlap_power: {model.overlap_power} loc_weight: {model.loc_weight} "
        f"use_difficult_gt: {str(model.use_difficult).lower()}"
    )
    text = f"type: 'AlignedBoxLoss' aligned_box_loss_param {{ {fields} }}"
    arrays = [array.astype(np.float32) for array in bottoms]
    result = run(device, kind, text, arrays, [np.array(3.0)], propagate=BOTH, held=held or None, strided=strided)
    exact = [array.astype(np.float64) for array in arrays]

    def value(*changed: np.ndarray) -> float:
        return float(model({f"x{i}": array for i, array in enumerate([*changed, *exact[2:]])}, {})["y"])

    close(result.tops[0], value(*exact[:2]), 1e-5)
    rng = np.random.default_rng(7)
    for _ in range(3):
        aims = [rng.standard_normal(array.shape) for array in exact[:2]]
        for i in range(2):
            ends = [value(*(array + sign * STEP * aims[j] * (i == j) for j, array in enumerate(exact[:2]))) for sign in (1, -1)]
            diff = result.diffs[i]
            assert diff is not None
            gradient = diff.astype(np.float64) - held
            assert abs((gradient * aims[i]).sum() / 3 - (ends[0] - ends[1]) / (2 * STEP)) <= 1e-4 * max(np.linalg.norm(gradient), 1e-3)
    return result


def drawn(images: int = 3, classes: int = 5, truths: int = 18, seed: int = 3) -> list[np.ndarray]:
    return list(problem(np.random.default_rng(seed), images, classes, truths).values())


@pytest.mark.parametrize("settings", [
    {}, {"code": "CORNER_SIZE"}, {"code": "CORNER"}, {"gamma": 0}, {"gamma": 0.5}, {"top_k": 1}, {"top_k": 1000},
    {"score_power": 0.5, "overlap_power": 2}, {"overlap_power": 0}, {"use_difficult": False}, {"loc_weight": 0},
])  # fmt: skip
def test_settings(device: Any, kind: str, settings: dict[str, Any]) -> None:
    """Bottoms are strided, and gradients are added to existing diffs."""
    bottoms = drawn()
    if settings.get("code") != "CENTER_SIZE":
        bottoms[0] *= 0.5
    compared(device, kind, AlignedModel(5, **settings), bottoms, held=2, strided=True)


@pytest.mark.parametrize("images, classes, truths", [(1, 2, 1), (2, 2, 200), (7, 21, 40)])
def test_numbers(device: Any, kind: str, images: int, classes: int, truths: int) -> None:
    """One box, many boxes for few priors, many classes. Images without boxes are among them."""
    result = compared(device, kind, AlignedModel(classes), drawn(images, classes, truths))
    assert result.diffs[1] is not None and not result.diffs[1].reshape(-1, classes)[:, 0].any()  # the background has no gradient


def test_one_class_without_background(device: Any, kind: str) -> None:
    bottoms = drawn(classes=2)
    bottoms[1] = bottoms[1].reshape(3, -1, 2)[:, :, 0]
    bottoms[3][0, 0, :, 1] = 0
    compared(device, kind, AlignedModel(1, background=-1), bottoms)


def test_no_boxes(device: Any, kind: str) -> None:
    """All scores are then trained to 0, and no box is."""
    bottoms = drawn()
    bottoms[3] = np.full((1, 1, 1, 8), -1.0)
    result = compared(device, kind, AlignedModel(5), bottoms)
    assert not np.any(result.diffs[0]) and np.any(result.diffs[1])


def test_degenerate_boxes(device: Any, kind: str) -> None:
    """A point, a line, an inverted box, and a box that no prediction overlaps train nothing. A tiny box, and one larger than the image, do."""
    bottoms = drawn(truths=6)
    bottoms[3][0, 0, :, 0], bottoms[3][0, 0, :, 7] = 0, 0
    bottoms[3][0, 0, :, 3:7] = [
        [0.3, 0.3, 0.3, 0.3], [0.2, 0.5, 0.6, 0.5], [0.7, 0.7, 0.5, 0.5], [3, 3, 4, 4], [0.501, 0.501, 0.505, 0.506], [-0.5, -0.5, 1.5, 1.4],
    ]  # fmt: skip
    compared(device, kind, AlignedModel(5), bottoms)
    only = [*bottoms[:3], bottoms[3][:, :, :4]]
    assert not np.any(compared(device, kind, AlignedModel(5), only).diffs[0])


def test_inverted_predictions(device: Any, kind: str) -> None:
    """CORNER_SIZE can predict boxes with negative sides. They are no candidates."""
    bottoms = drawn()
    bottoms[0] *= 4
    compared(device, kind, AlignedModel(5, code="CORNER_SIZE"), bottoms)


def test_far_predictions(device: Any, kind: str) -> None:
    """Scores far from 0 and boxes that fit exactly have finite losses and gradients."""
    bottoms = drawn(truths=4)
    bottoms[1] *= 60
    bottoms[0][:] = 0
    bottoms[3][0, 0, :, 3:7] = bottoms[2][0, 0].reshape(-1, 4)[[9, 20, 40, 70]]
    bottoms[3][0, 0, :, 0] = 0
    text = "type: 'AlignedBoxLoss' aligned_box_loss_param { num_classes: 5 }"
    result = run(device, kind, text, bottoms, [np.array(1.0)], propagate=BOTH)
    assert np.isfinite(result.tops[0]).all() and all(np.isfinite(diff).all() for diff in result.diffs[:2] if diff is not None)


@pytest.mark.parametrize("label", [0, 5, -2])
def test_no_class(device: Any, kind: str, label: int) -> None:
    bottoms = drawn()
    bottoms[3][0, 0, 2, 1] = label
    result = run(device, kind, "type: 'AlignedBoxLoss' aligned_box_loss_param { num_classes: 5 }", bottoms)
    assert np.isnan(result.tops[0])


@pytest.mark.parametrize("fields, shapes, message", [
    ("num_classes: 5", [(3, 320), (3, 401), (1, 2, 320), (1, 1, 9, 8)], "401 confidences of an image, 80 priors need 80 x 5"),
    ("num_classes: 5", [(3, 300), (3, 400), (1, 2, 320), (1, 1, 9, 8)], "because a box is 4 numbers"),
    ("num_classes: 5", [(3, 320), (3, 400), (1, 2, 320), (9, 8)], "bottom 3 is 9 x 8, it must be 1 x 1 x G x 8"),
    ("", [(3, 320), (3, 400), (1, 2, 320), (1, 1, 9, 8)], "num_classes is missing"),
    ("num_classes: 5 top_k: 0", [(3, 320), (3, 400), (1, 2, 320), (1, 1, 9, 8)], "top_k is 0"),
    ("num_classes: 5 gamma: -1", [(3, 320), (3, 400), (1, 2, 320), (1, 1, 9, 8)], "gamma is -1"),
])  # fmt: skip
def test_errors(fields: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(Error) as raised:
        layer_of(f"type: 'AlignedBoxLoss' aligned_box_loss_param {{ {fields} }}").infer(*shapes)
    assert message in str(raised.value)


def test_other_divisors() -> None:
    with pytest.raises(Error, match="divided by the sum of its targets"):
        text = "type: 'AlignedBoxLoss' loss_param { normalization: FULL } aligned_box_loss_param { num_classes: 5 }"
        layer_of(text).infer((3, 320), (3, 400), (1, 2, 320), (1, 1, 9, 8))
