"""Labels and indices that are no whole numbers: each layer reads them as static_cast<int> does, towards zero (docs/quirks.md)."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.layers.base import registry
from tests.layers.single import KINDS, run

GIVEN = np.array([1.5, -0.5, 2.99, 0.25, -0.999, 1, 3.5], np.float32)  # for 4 classes
WHOLE = np.trunc(GIVEN)
N, CLASSES = len(GIVEN), 4
SCORES, PLANES = (N, CLASSES), (1, CLASSES, 1, N)
IGNORE = "loss_param { ignore_label: 1 }"
OWN_H = "{H}"
CASES = {  # the layer, the shapes of its bottoms, None for the labels, and those of its parameters
    "SoftmaxWithLoss": ('type: "SoftmaxWithLoss" top: "p" top: "each"', [SCORES, None]),
    "SoftmaxWithLoss of pixels": (f'type: "SoftmaxWithLoss" {IGNORE}', [PLANES, (1, 1, N)]),
    "SoftmaxWithLoss, ignored": (f'type: "SoftmaxWithLoss" top: "p" top: "each" {IGNORE}', [SCORES, None]),
    "SoftmaxWithLoss, smoothed": ('type: "SoftmaxWithLoss" loss_param { label_smoothing: 0.1 }', [SCORES, None]),
    "SoftmaxWithLoss, weighted": ('type: "SoftmaxWithLoss" loss_param { weight_by_label_freqs: true class_weighting: [0.5, 2, 1, 3] }', [SCORES, None]),
    "SoftmaxWithLoss, normalized": ('type: "SoftmaxWithLoss" softmax_param { normalize_type: "L2" }', [SCORES, None]),
    "SoftmaxWithLossOHEM": (f'type: "SoftmaxWithLossOHEM" top: "p" top: "each" {IGNORE}', [SCORES, None]),
    "Accuracy": ('type: "Accuracy" top: "each"', [SCORES, None]),
    "Accuracy, ignored": ('type: "Accuracy" accuracy_param { ignore_label: 1 top_k: 2 }', [SCORES, None]),
    "HingeLoss": ('type: "HingeLoss"', [SCORES, None]),
    "HingeLoss L2": ('type: "HingeLoss" hinge_loss_param { norm: L2 }', [SCORES, None]),
    "MultinomialLogisticLoss": ('type: "MultinomialLogisticLoss"', [SCORES, None]),
    "InfogainLoss": ('type: "InfogainLoss"', [SCORES, None, (1, 1, CLASSES, CLASSES)]),
    "InfogainLoss, ignored": (f'type: "InfogainLoss" {IGNORE} infogain_loss_param {{ source: "{OWN_H}" }}', [SCORES, None]),
    "FocalLoss": ('type: "FocalLoss" focal_loss_param { type: LINEAR }', [SCORES, None]),
    "FocalLoss of the other fork": (f'type: "FocalLoss" {IGNORE} focal_loss_param {{ axis: 1 }}', [SCORES, None]),
    "MTCNNEuclideanLoss": (f'type: "MTCNNEuclideanLoss" {IGNORE}', [(N, 3), (N, 3), None]),
    "ContrastiveLoss": ('type: "ContrastiveLoss"', [(N, 3), (N, 3), None]),
    "CenterLoss": (f'type: "CenterLoss" center_loss_param {{ num_output: {CLASSES} }}', [(N, 3), None], [(CLASSES, 3)]),
    "CosinAddm": ('type: "CosinAddm"', [SCORES, None]),
    "AdaCosAddmScale": (f'type: "AdaCosAddmScale" adacos_add_m_scale_param {{ num_classes: {CLASSES} }}', [SCORES, None]),
    "WarpCTCLoss": ('type: "WarpCTCLoss"', [(5, N, CLASSES), (N, 1)]),
    "LabelSpecificAdd": ('type: "LabelSpecificAdd" label_specific_add_param { bias: -0.3 }', [SCORES, None]),
    "CombinedMargin": ('type: "CombinedMargin" combined_margin_param { m2: 0.3 }', [SCORES, None]),
    "MarginInnerProduct": (
        f'type: "MarginInnerProduct" top: "lambda" margin_inner_product_param {{ num_output: {CLASSES} type: DOUBLE base: 5 gamma: 0.1 power: 1 }}',
        [(N, 3), None], [(CLASSES, 3)]),
    "LargeMarginInnerProduct": (
        f'type: "LargeMarginInnerProduct" top: "lambda" largemargin_inner_product_param {{ num_output: {CLASSES} type: DOUBLE base: 5 gamma: 0.1 power: 1 }}',
        [(N, 3), None], [(CLASSES, 3)]),
    "Embed": (f'type: "Embed" embed_param {{ input_dim: {CLASSES} num_output: 3 bias_term: false }}', [None], [(CLASSES, 3)]),
    "BatchReindex": ('type: "BatchReindex"', [(CLASSES, 3), None]),
    "Gather": ('type: "Gather"', [(CLASSES, 3), None]),
}  # fmt: skip
OTHERS = {  # layers whose documentation has the words label or index, and why the table lacks them
    "LiftedStructSimilaritySoftmaxLoss": "its fork compares the labels of two samples as floats",
    "SigmoidCrossEntropyLoss": "its targets are real numbers; a test of its own has ignore_label",
    "GatherElements": "the kernel of Gather", "GatherND": "the kernel of Gather", "GlobalLSEMargin": "trunc in each text, tests/layers/public_cases.py",
    "CtcLoss": "the kernel of WarpCTCLoss", "CTCGreedyDecoder": "the kernel of WarpCTCLoss", "DetectionLoss": "trunc, tests/layers/public_cases.py",
    "SegAccuracy": "its labels become int64", "DetectionEvaluate": "rows of boxes become int64", "EvalDetection": "rows of boxes, as RegionLoss",
    "TagEvaluate": "only 0 and 1 count", "MultiBoxLoss": "rows of boxes, below", "RegionLoss": "rows of boxes, below", "Yolov3": "the kernel of RegionLoss",
    **dict.fromkeys(("AnchorTarget", "ProposalTarget", "BoxAnnotatorOHEM"), "copies labels, or makes them"),
    **dict.fromkeys(("ArgMax", "DetectionOutput", "YoloDetectionOutput", "Yolov3DetectionOutput", "HDF5Output", "Eltwise", "Reverse"), "reads no labels"),
}  # fmt: skip


def outputs(device: Any, kind: str, name: str, labels: np.ndarray, folder: pathlib.Path, held: float = 0.5) -> list[np.ndarray]:
    text, shapes, *learned = CASES[name]
    rng = np.random.default_rng(3)
    matrix = folder / "h.binaryproto"
    matrix.write_bytes(proto.BlobProto(num=1, channels=1, height=CLASSES, width=CLASSES, data=rng.uniform(0, 1, CLASSES**2).tolist()).SerializeToString())
    labelled = shapes.index(None) if None in shapes else 1
    bottoms = [labels.reshape(shape or (N,)) if place == labelled else rng.uniform(0.05, 0.95, shape) for place, shape in enumerate(shapes)]
    names = " ".join(f'bottom: "b{place}"' for place in range(len(shapes)))
    layer = f'name: "l" {names} top: "y" {text.replace(OWN_H, str(matrix))}'
    params = [rng.uniform(0.1, 1, shape).astype(np.float32) for shape in (learned[0] if learned else [])]
    forward = run(device, kind, layer, bottoms, params=params)
    found = [np.asarray(top) for top in forward.tops]
    if text.startswith('type: "Accuracy"'):
        return found
    diffs = [np.asarray(rng.uniform(0.5, 1, top.shape), np.float32) for top in found]
    propagate = [place == 0 and shape is not None for place, shape in enumerate(shapes)]
    result = run(device, kind, layer, bottoms, diffs, params=params, propagate=propagate, held=held)
    return [*found, *(diff for diff in result.diffs if diff is not None), *result.param_diffs]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(CASES))
def test_fractions_are_cut_off(name: str, kind: str, device: Any, tmp_path: pathlib.Path) -> None:
    """Values and gradients have the same bits as with the whole numbers."""
    given, whole = (outputs(device, kind, name, labels, tmp_path) for labels in (GIVEN, WHOLE))
    assert len(given) == len(whole) > 0 and all(np.isfinite(value).all() for value in whole)
    for value, wanted in zip(given, whole):
        np.testing.assert_array_equal(value, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(CASES))
def test_the_test_sees_labels(name: str, kind: str, device: Any, tmp_path: pathlib.Path) -> None:
    """With other whole labels the results differ, so each case depends on its labels."""
    if kind != "cpu":
        pytest.skip("once is enough")
    other = outputs(device, kind, name, (WHOLE + 1) % CLASSES, tmp_path)
    assert any(not np.array_equal(value, wanted) for value, wanted in zip(other, outputs(device, kind, name, WHOLE, tmp_path)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("label", [-1.0, -1.5, float(CLASSES), 1e9, np.nan, -np.inf])
@pytest.mark.parametrize("name", ["SoftmaxWithLoss", "HingeLoss", "MultinomialLogisticLoss", "InfogainLoss", "FocalLoss"])
def test_a_label_outside_the_classes_is_none(name: str, label: float, kind: str, device: Any, tmp_path: pathlib.Path) -> None:
    labels = WHOLE.copy()
    labels[2] = label
    assert np.isnan(outputs(device, kind, name, labels, tmp_path)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_an_ignored_target_of_sigmoid_cross_entropy(kind: str, device: Any) -> None:
    """Targets are real numbers, but whether one is ignored depends on its whole part."""
    rng = np.random.default_rng(3)
    x, targets = rng.standard_normal(4), np.array([0.25, 1.0, 2.0, -0.5])
    text = f'name: "l" type: "SigmoidCrossEntropyLoss" top: "y" {IGNORE.replace("1", "2")}'
    given, whole = (run(device, kind, text, [x, np.where(targets == 2, label, targets)], [1], propagate=[True, False]) for label in (2.75, 2.0))
    assert given.tops[0] == whole.tops[0] and given.diffs[0] is not None
    np.testing.assert_array_equal(given.diffs[0], whole.diffs[0])
    assert given.diffs[0][2] == 0 and np.count_nonzero(given.diffs[0]) == 3


def test_the_table_has_all_layers_with_labels() -> None:
    words = ("label", " index", "indices")
    found = {name for name, layer in registry().items() if layer.bottoms != 0 and any(word in (layer.__doc__ or "").lower() for word in words)}
    known = {name.split(",")[0].split(" ")[0] for name in CASES} | OTHERS.keys()
    assert found - known == set() and OTHERS.keys() <= registry().keys()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["MultiBoxLoss", "RegionLoss"])
def test_rows_of_boxes(name: str, kind: str, device: Any) -> None:
    """Image and label of a true box."""
    rng = np.random.default_rng(5)
    rows = np.array([[0, 1, 0, 0.1, 0.1, 0.4, 0.5, 0], [0, 2, 0, 0.5, 0.5, 0.9, 0.9, 0], [1, 1, 0, 0.2, 0.3, 0.6, 0.7, 0]], np.float32)
    if name == "MultiBoxLoss":
        text = 'name: "l" type: "MultiBoxLoss" top: "y" multibox_loss_param { num_classes: 3 }'
        corners = np.array([[0.1, 0.1, 0.4, 0.5], [0.5, 0.5, 0.9, 0.9], [0.2, 0.3, 0.6, 0.7], [0.0, 0.0, 0.3, 0.3]])
        before = [rng.standard_normal((2, 16)), rng.standard_normal((2, 12)), np.stack([corners.ravel(), np.full(16, 0.1)])[None]]
        flags = [True, True, False, False]
    else:
        text = 'name: "l" type: "RegionLoss" top: "y" region_loss_param { num_class: 2 num: 1 biases: 1 biases: 1 }'
        before, flags = [rng.standard_normal((2, 7, 3, 3))], [True, False]

    def found(rows: np.ndarray) -> list[np.ndarray]:
        result = run(device, kind, text, [*before, rows[None, None]], [np.float32(1)], propagate=flags)
        return [np.asarray(value) for value in (result.tops[0], *(diff for diff in result.diffs if diff is not None))]

    moved, other = rows.copy(), rows.copy()
    moved[:, :2] += [[-0.5, 0.5], [0.9, 0.25], [0.999, 0.75]]
    other[:, 1] = 3 - other[:, 1]
    for value, wanted in zip(found(moved), found(rows)):
        np.testing.assert_array_equal(value, wanted)
    assert any(not np.array_equal(value, wanted) for value, wanted in zip(found(other), found(rows)))
