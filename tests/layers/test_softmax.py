"""Softmax and SoftmaxWithLoss."""
from __future__ import annotations

import numpy as np
import pytest

from ocaffe.errors import Error
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.loss import softmax as ops
from tests.harness import execute, of_kind
from tests.layers.single import KINDS, cases, close, layer_of, run, run_golden

RNG = np.random.default_rng(5)


def softmax(x, axis):
    e = np.exp(x.astype(np.float64) - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def softmax_loss(x, label, axis, ignore=None):
    """Return (prob, sum of losses, number of labels in the loss, d sum / d x)."""
    prob = softmax(x, axis)
    moved = np.moveaxis(prob, axis, -1)
    flat = moved.reshape(-1, prob.shape[axis])
    labels = label.astype(int).ravel()
    counts = np.ones(labels.size, bool) if ignore is None else labels != ignore
    rows = np.flatnonzero(counts)
    losses = -np.log(np.maximum(flat[rows, labels[rows]], np.finfo(np.float32).tiny))
    gradient = np.zeros_like(flat)
    gradient[rows] = flat[rows]
    gradient[rows, labels[rows]] -= 1
    return prob, losses.sum(), counts.sum(), np.moveaxis(gradient.reshape(moved.shape), -1, axis)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", cases("Softmax") + cases("SoftmaxWithLoss"))
def test_golden(device, kind, case):
    run_golden(device, kind, case)


SHAPES = [((3, 10), 1), ((2, 300), 1), ((2, 3, 5, 4), 1), ((2, 5, 20, 3), 2), ((5, 33), 0), ((2, 3, 4, 6), 3), ((1, 2, 70), 1), ((7,), 0)]


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_softmax(device, kind, shape, axis, strided):
    x, dy = RNG.normal(size=(2, *shape)) * 3
    result = run(device, kind, f"type: 'Softmax' softmax_param {{ axis: {axis} }}", [x], [dy], strided=strided, held=2.0)
    y = softmax(x, axis)
    close(result.tops[0], y)
    close(result.diffs[0], y * (dy - (dy * y).sum(axis, keepdims=True)) + 2)


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(70, 10), (9, 1000), (40, 1000), (2, 21, 40, 41), (3, 5, 2, 2)], ids=str)
def test_loss(device, kind, shape, strided):
    x = RNG.normal(size=shape) * 3
    label = RNG.integers(0, shape[1], (shape[0], *shape[2:]))
    text = "type: 'SoftmaxWithLoss' top: 'a' top: 'b' loss_param { ignore_label: 2 }"
    result = run(device, kind, text, [x, label], [0.5, None], strided=strided, propagate=[True, False], held=1e-3)
    prob, loss, count, gradient = softmax_loss(x, label, 1, ignore=2)
    close(result.tops[0], loss / count, 1e-5)
    close(result.tops[1], prob)
    close(result.diffs[0] - np.float32(1e-3), gradient * 0.5 / count)


@pytest.mark.parametrize("share", [0.1, 0.9])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(70, 10), (9, 5000), (2, 21, 40, 41), (3, 5, 2, 2)], ids=str)
def test_label_smoothing(device, kind, shape, share):
    """Compare with float64 cross-entropy whose targets are share / classes for every class, plus 1 - share for the label."""
    x = (RNG.normal(size=shape) * 3).astype(np.float32)
    label = RNG.integers(0, shape[1], (shape[0], *shape[2:]))
    text = f"type: 'SoftmaxWithLoss' top: 'a' loss_param {{ ignore_label: 2 label_smoothing: {share} }}"
    result = run(device, kind, text, [x, label], [0.5], propagate=[True, False], held=1e-3)
    prob = softmax(x, 1)
    target = (1 - share) * (np.moveaxis(np.eye(shape[1])[label], -1, 1)) + share / shape[1]
    counts = np.expand_dims(label != 2, 1)
    close(result.tops[0], -(target * np.log(prob) * counts).sum() / counts.sum(), 1e-5)
    close(result.diffs[0] - np.float32(1e-3), (prob - target) * counts * 0.5 / counts.sum())


@pytest.mark.parametrize("kind", KINDS)
def test_label_that_is_no_class_gives_nan(device, kind):
    for bad in (5, -1, 1e9, np.nan):
        label = np.array([0, 1, bad, 2])
        result = run(device, kind, "type: 'SoftmaxWithLoss' top: 'a'", [RNG.normal(size=(4, 5)), label], [1], propagate=[True, False])
        assert np.isnan(result.tops[0])
        assert np.isfinite(result.diffs[0][[0, 1, 3]]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nan_score_gives_nan(device, kind):
    x = np.zeros((3, 40))
    x[1, 17] = np.nan
    result = run(device, kind, "type: 'SoftmaxWithLoss' top: 'a'", [x, np.zeros(3)])
    assert np.isnan(result.tops[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 40), (2, 7, 3, 20)], ids=str)
def test_in_place_gives_the_same(device, kind, shape):
    """The launches' `inplace` holds: y in x's memory, dx in dy's, prob in the scores', the loss's gradient in prob's."""
    x, dy = RNG.normal(size=(2, *shape)).astype(np.float32)
    label = RNG.integers(0, shape[1], (shape[0], *shape[2:]))
    rec = Recorder(of_kind(device.target, kind), train=True)
    refs = {name: Ref(name, shape, Role.ACTIVATION) for name in ("x", "y", "dy", "scores")}
    labels, sums, loss, weight = Ref("label", label.shape, Role.ACTIVATION), rec.saved("sums", (2,)), rec.saved("loss", ()), rec.saved("w", ())
    ignore = {"ignore": (0, 0), "normalizer": 1.0}
    rec.enter("softmax", "backward")
    ops.softmax(rec, refs["x"], refs["x"].view(shape), 1)
    ops.softmax_backward(rec, refs["y"], refs["dy"], refs["dy"].view(shape), 1)
    ops.softmax_loss(rec, refs["scores"], labels, refs["scores"].view(shape), sums, loss, 1, **ignore)
    ops.softmax_loss_backward(rec, refs["scores"], labels, sums, weight, refs["scores"].view(shape), 1, **ignore)
    y = softmax(x, 1)
    feeds = {refs["x"]: x, refs["y"]: y, refs["dy"]: dy, refs["scores"]: x, labels: label, weight: np.float32(1)}
    results = execute(rec, device.context, feeds, [refs["x"], refs["dy"], loss, refs["scores"]])
    _, total, _, gradient = softmax_loss(x, label, 1)
    for actual, expected in zip(results, (y, y * (dy - (dy * y).sum(1, keepdims=True)), total, gradient)):
        close(actual, expected)


def test_test_phase_saves_nothing(device):
    result = run(device, "cpu", "type: 'SoftmaxWithLoss' top: 'a'", [np.zeros((3, 4)), np.zeros(3)], train=False)
    close(result.tops[0], np.log(4))
    roles = {operand.ref.role.value for launch in result.rec.launches for operand in launch.operands}
    assert "saved" not in roles


def test_small_loss_is_one_launch_and_backward_reads_neither_scores_nor_top(device):
    result = run(device, "gpu", "type: 'SoftmaxWithLoss' top: 'a'", [np.zeros((64, 10)), np.zeros(64)], [1], propagate=[True, False])
    forward, backward = result.rec.launches
    assert {ref.name for ref in backward.reads} == {"layer.prob", "x1", "layer.sums", "y0.diff"}
    assert [(forward[source].name, forward[result].name) for source, result in forward.inplace] == [("x0", "layer.prob")]


MODES = {"FULL": 24.0, "VALID": 24.0, "BATCH_SIZE": 2.0, "NONE": 1.0, "PRE_FIXED": 7.0}


@pytest.mark.parametrize(("mode", "divisor"), MODES.items())
def test_normalization(mode, divisor):
    layer = layer_of(f"type: 'SoftmaxWithLoss' top: 'l' loss_param {{ normalization: {mode} pre_fixed_normalizer: 7 }}")
    assert list(layer.infer((2, 5, 3, 4), (2, 3, 4))) == [()]
    assert layer.normalizer == divisor


def test_legacy_normalize_and_counted():
    shapes = (2, 5, 3, 4), (2, 3, 4)
    for text, divisor in {"normalize: false": 2, "normalize: true": 24, "normalize: false normalization: FULL": 24, "ignore_label: 3": 0}.items():
        layer = layer_of(f"type: 'SoftmaxWithLoss' top: 'l' loss_param {{ {text} }}")
        layer.infer(*shapes)
        assert layer.normalizer == divisor


@pytest.mark.parametrize(
    ("text", "shapes", "fact"),
    [
        ("", ((4, 5), (3,)), "same first dimension: bottom 0 is 4 x 5, bottom 1 is 3"),
        ("", ((4, 5), (4, 2)), r"\(8 and 4\): bottom 0 is 4 x 5, bottom 1 is 4 x 2"),
        ("softmax_param { axis: 2 }", ((4, 5), (4,)), "axis 2"),
        ("loss_param { label_smoothing: 1 }", ((4, 5), (4,)), "label_smoothing is 1"),
        ("loss_param { label_smoothing: -0.1 }", ((4, 5), (4,)), "label_smoothing is -0.1"),
        ("loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 0 }", ((4, 5), (4,)), "pre_fixed_normalizer is 0"),
    ],
)
def test_errors(text, shapes, fact):
    with pytest.raises(Error, match=fact) as caught:
        layer_of(f"name: 'loss' type: 'SoftmaxWithLoss' top: 'a' {text}").infer(*shapes)
    assert "'loss' (SoftmaxWithLoss)" in str(caught.value)


def test_labels_have_no_gradient(device):
    with pytest.raises(Error, match="no gradient for labels"):
        run(device, "cpu", "type: 'SoftmaxWithLoss' top: 'a'", [np.zeros((3, 4)), np.zeros(3)], [1])
