"""Losses beyond the golden cases, compared with float64 programs and their central differences."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ocaffe.errors import Error
from tests.layers.single import KINDS, close, layer_of, run

Program = Callable[..., float]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def label_probabilities(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.take_along_axis(softmax(x), labels.astype(int).reshape(len(x), 1, *x.shape[2:]), 1)[:, 0]


def smooth(d: np.ndarray, sigma: float) -> np.ndarray:
    return np.where(abs(d) < 1 / sigma**2, 0.5 * (sigma * d) ** 2, abs(d) - 0.5 / sigma**2)


def contrastive(a: np.ndarray, b: np.ndarray, s: np.ndarray, margin: float, legacy: bool) -> float:
    d2 = ((a - b) ** 2).sum(1)
    apart = np.maximum(margin - d2, 0) if legacy else np.maximum(margin - np.sqrt(d2), 0) ** 2
    return float(np.where(s != 0, d2, apart).sum() / 2 / len(a))


def hinge(x: np.ndarray, labels: np.ndarray, power: int) -> float:
    sign = np.where(np.arange(x.shape[1]) == labels[:, None], -1, 1)
    return float((np.maximum(0, 1 + sign * x) ** power).sum() / len(x))


WEIGHTS = np.array([0.5, 2.0, 1.0, 3.0])
A, B, S = (5, 4), (5, 4), (5,)
CASES: dict[str, tuple[str, list[Any], Program, int]] = {
    # layer: (its message, bottoms: shapes, 'labels' or 'pairs', program, bottoms with gradients)
    "EuclideanLoss": ("", [(3, 4, 2), (3, 4, 2)], lambda a, b: ((a - b) ** 2).sum() / 6, 2),
    "L1Loss": ("", [A, B], lambda a, b: abs(a - b).sum() / 5, 2),
    "SmoothL1Loss": ("smooth_l1_loss_param { sigma: 2 }", [A, B], lambda a, b: smooth(a - b, 2).sum() / 5, 2),
    "SmoothL1Loss with inside weights": ("", [A, A, A], lambda a, b, i: smooth(i * (a - b), 1).sum() / 5, 2),
    "SmoothL1Loss weighted": ("", [A, A, A, A], lambda a, b, i, o: (o * smooth(i * (a - b), 1)).sum() / 5, 2),
    "SigmoidCrossEntropyLoss": (
        "loss_param { normalization: FULL }", [A, "targets"], lambda x, t: (np.logaddexp(0, x) - x * t).sum() / 20, 1),
    "ContrastiveLoss": ("contrastive_loss_param { margin: 3 }", [A, B, "pairs"], lambda a, b, s: contrastive(a, b, s, 3, False), 2),
    "ContrastiveLoss legacy": (
        "contrastive_loss_param { margin: 6 legacy_version: true }", [A, B, "pairs"], lambda a, b, s: contrastive(a, b, s, 6, True), 2),
    "HingeLoss": ("", [A, "labels"], lambda x, t: hinge(x, t, 1), 1),
    "HingeLoss squared": ("hinge_loss_param { norm: L2 }", [A, "labels"], lambda x, t: hinge(x, t, 2), 1),
    "MultinomialLogisticLoss": (
        "", ["probabilities", "labels"], lambda p, t: -np.log(np.take_along_axis(p, t.astype(int)[:, None], 1)).sum() / 5, 1),
    "FocalLoss": ("focal_loss_param { type: LINEAR gamma: 1.5 }", [A, "labels"],
                  lambda x, t: (-((1 - label_probabilities(x, t)) ** 1.5) * np.log(label_probabilities(x, t))).sum() / 5, 1),
    "FocalLoss plus": ("focal_loss_param { type: ONEADDP }", [A, "labels"],
                       lambda x, t: (-((1 + label_probabilities(x, t)) ** 2) * np.log(label_probabilities(x, t))).sum() / 5, 1),
    "FocalLoss of the other fork": ("focal_loss_param { axis: 1 }", [A, "labels"],
                                    lambda x, t: (-0.25 * (1 - label_probabilities(x, t)) ** 2 * np.log(label_probabilities(x, t))).sum() / 5, 1),
    "SoftmaxWithLoss weighted": (
        "loss_param { weight_by_label_freqs: true normalize: true class_weighting: [0.5, 2, 1, 3] }", [A, "labels"],
        lambda x, t: (-WEIGHTS[t.astype(int)] * np.log(label_probabilities(x, t))).sum() / 5, 1),
}  # fmt: skip


def bottoms_of(kinds: list[Any], rng: np.random.Generator) -> list[np.ndarray]:
    made = {
        "labels": lambda: np.array([1, 0, 3, 2, 1], np.float64), "pairs": lambda: np.array([1, 0, 0, 1, 0], np.float64),
        "targets": lambda: rng.uniform(0, 1, A), "probabilities": lambda: rng.uniform(0.1, 1, A),
    }  # fmt: skip
    return [made[kind]() if isinstance(kind, str) else rng.standard_normal(kind) for kind in kinds]


def difference(program: Program, arrays: list[np.ndarray], index: int) -> np.ndarray:
    """Return central differences of a program with respect to one of its arrays."""
    result = np.zeros_like(arrays[index])
    for at in np.ndindex(result.shape):
        values = []
        for step in (1e-5, -1e-5):
            moved = [array.copy() for array in arrays]
            moved[index][at] += step
            values.append(program(*moved))
        result[at] = (values[0] - values[1]) / 2e-5
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(CASES))
def test_value_and_gradient(name: str, kind: str, device: Any) -> None:
    message, kinds, program, learned = CASES[name]
    arrays = [array.astype(np.float32).astype(np.float64) for array in bottoms_of(kinds, np.random.default_rng(4))]
    text = f'name: "l" type: "{name.split()[0]}" top: "loss" {message}'
    propagate = [i < learned for i in range(len(arrays))]
    result = run(device, kind, text, arrays, [np.float32(0.7)], propagate=propagate, held=0.5)
    close(result.tops[0], np.float64(program(*arrays)))
    for index in range(learned):
        close(result.diffs[index], 0.5 + 0.7 * difference(program, arrays, index), 2e-4)


NAN = {  # more losses: their message, and their bottoms
    "InfogainLoss": ("", [A, "labels", (4, 4)]), "TripletLoss": ("triplet_loss_param { margin: 1 }", [A, A, A]), "SoftmaxWithLoss": ("", [A, "labels"]),
    "SoftmaxWithLoss of a norm": ('softmax_param { normalize_type: "L2" }', [A, "labels"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted({*CASES, *NAN} - {"HingeLoss", "HingeLoss squared"}))  # Caffe's std::max(0, margin) makes 0 of NaN
def test_nan_is_not_hidden(name: str, kind: str, device: Any) -> None:
    """fmax(NaN, limit) is the limit, which would show a finite loss for a net that diverged."""
    message, kinds = (CASES.get(name) or NAN[name])[:2]
    arrays = bottoms_of(kinds, np.random.default_rng(4))
    arrays[0][1] = np.nan
    assert np.isnan(run(device, kind, f'name: "l" type: "{name.split()[0]}" top: "loss" {message}', arrays).tops[0])


@pytest.mark.parametrize("kind", KINDS)
def test_infogain_with_a_matrix_from_below(kind: str, device: Any) -> None:
    rng = np.random.default_rng(2)
    x, h = rng.standard_normal((2, 4, 3)), rng.uniform(0, 1, (1, 1, 4, 4)).astype(np.float32).astype(np.float64)
    labels = np.array([[0, 3, 9], [2, 1, 1]], np.float64)

    def program(x: np.ndarray) -> float:
        p = softmax(x)
        return sum(-h[0, 0, int(labels[n, i])] @ np.log(p[n, :, i]) for n in range(2) for i in range(3) if labels[n, i] != 9) / 5

    text = 'name: "l" type: "InfogainLoss" top: "loss" loss_param { ignore_label: 9 }'
    x = x.astype(np.float32).astype(np.float64)
    result = run(device, kind, text, [x, labels, h], [np.float32(1)], propagate=[True, False, False])
    close(result.tops[0], np.float64(program(x)))
    close(result.diffs[0], difference(program, [x], 0), 2e-4)


@pytest.mark.parametrize(
    ("text", "shapes", "told"),
    [
        ('type: "EuclideanLoss"', [(3, 4), (3, 5)], "3 x 4.*3 x 5"),
        ('type: "ContrastiveLoss"', [(3, 4), (3, 4), (4,)], "3 pairs"),
        ('type: "HingeLoss"', [(3, 4), (3, 2)], "number of labels"),
        ('type: "InfogainLoss"', [(3, 4), (3,)], "neither a third bottom"),
        ('type: "InfogainLoss" infogain_loss_param { source: "/nowhere" }', [(3, 4), (3,)], "cannot be read"),
        ('type: "CenterLoss"', [(3, 4), (3,)], "num_output"),
        ('type: "SoftmaxWithLoss" loss_param { weight_by_label_freqs: true class_weighting: 1 }', [(3, 4), (3,)], "1 class_weighting given for 4"),
        ('type: "FocalLoss" loss_param { label_smoothing: 0.1 }', [(3, 4), (3,)], "label_smoothing"),
        ('type: "HingeLoss" loss_param { label_smoothing: 0.1 }', [(3, 4), (3,)], "label_smoothing"),
        ('type: "SigmoidCrossEntropyLoss" loss_param { label_smoothing: 0.1 }', [(3, 4), (3, 4)], "label_smoothing"),
        ('type: "SoftmaxWithLossOHEM" top: "p" top: "each" loss_param { label_smoothing: 0.1 }', [(3, 4), (3,)], "label_smoothing"),
    ],
)
def test_refused(text: str, shapes: list[tuple[int, ...]], told: str) -> None:
    with pytest.raises(Error, match=told):
        layer_of(f'name: "l" top: "loss" {text}').infer(*shapes)


@pytest.mark.parametrize("text", ['type: "HingeLoss"', 'type: "FocalLoss"', 'type: "MultinomialLogisticLoss"'])
def test_a_label_that_is_no_class(text: str, device: Any) -> None:
    x = np.full((2, 3), 0.3)
    kind = "cpu" if device.target.is_cpu else "gpu"
    assert np.isnan(run(device, kind, f'name: "l" top: "loss" {text}', [x, np.array([1.0, 7.0])]).tops[0])
