"""Accuracy."""
from __future__ import annotations

import numpy as np
import pytest

from ocaffe.errors import Error
from tests.layers.single import KINDS, cases, close, layer_of, run, run_golden


def accuracy(x, label, axis, top_k, ignore=None):
    """Return (share of hits, share for each class)."""
    scores = np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])
    labels = label.astype(int).ravel()
    own = scores[np.arange(len(labels)), labels]
    hit = (scores >= own[:, None]).sum(1) - 1 < top_k
    counts = np.ones(len(labels), bool) if ignore is None else labels != ignore
    share = hit[counts].mean() if counts.any() else 0.0
    chosen = [hit[counts & (labels == c)] for c in range(scores.shape[1])]
    return share, np.array([c.mean() if len(c) else 0.0 for c in chosen])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", cases("Accuracy"))
def test_golden(device, kind, case):
    run_golden(device, kind, case)


@pytest.mark.parametrize("strided", [False, True], ids=["dense", "strided"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "axis", "top_k"), [((100, 10), 1, 1), ((60, 1000), 1, 5), ((3, 21, 30, 31), 1, 2), ((4, 6, 7, 2), 2, 3)], ids=str)
def test_accuracy(device, kind, shape, axis, top_k, strided):
    rng = np.random.default_rng(6)
    x = rng.integers(0, 6 * shape[axis], shape)  # with ties
    label = rng.integers(0, shape[axis] - 1, np.delete(shape, axis))  # the last class has no label
    own = np.expand_dims(label, axis)
    np.put_along_axis(x, own, np.take_along_axis(x, own, axis) + 3 * shape[axis], axis)
    text = f"type: 'Accuracy' top: 'a' top: 'c' accuracy_param {{ axis: {axis} top_k: {top_k} ignore_label: 3 }}"
    result = run(device, kind, text, [x, label], strided=strided)
    share, per_class = accuracy(x, label, axis, top_k, ignore=3)
    close(result.tops[0], share, 1e-6)
    close(result.tops[1], per_class, 1e-6)
    assert 0.1 < share < 0.9 and per_class[-1] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_labels_with_axes_of_their_own(device, kind):
    rng = np.random.default_rng(7)
    x, label = rng.normal(size=(2, 3, 4)), rng.integers(0, 3, 8)
    result = run(device, kind, "type: 'Accuracy' top: 'a'", [x, label], strided=True)
    close(result.tops[0], accuracy(x, label, 1, 1)[0], 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_label_that_is_no_class_gives_nan(device, kind):
    for bad in (5, -1, 1e9, np.nan):
        result = run(device, kind, "type: 'Accuracy' top: 'a' top: 'c'", [np.eye(5)[:4], np.array([0, 1, bad, 2])])
        assert np.isnan(result.tops[0])
        close(result.tops[1], [1, 1, 0, 0, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_nan_scores_are_no_hit(device, kind):
    result = run(device, kind, "type: 'Accuracy' top: 'a'", [np.full((4, 5), np.nan), np.zeros(4)])
    assert result.tops[0] == 0


def test_has_no_backward():
    assert not layer_of("type: 'Accuracy' top: 'a'").has_backward


@pytest.mark.parametrize(
    ("text", "shapes", "fact"),
    [
        ("accuracy_param { top_k: 6 }", ((4, 5), (4,)), "top_k is 6, there are 5 classes"),
        ("accuracy_param { top_k: 0 }", ((4, 5), (4,)), "top_k is 0"),
        ("", ((4, 5), (3,)), r"\(3 and 4\)"),
        ("accuracy_param { axis: -3 }", ((4, 5), (4,)), "axis -3"),
    ],
)
def test_errors(text, shapes, fact):
    with pytest.raises(Error, match=fact):
        layer_of(f"name: 'accuracy' type: 'Accuracy' top: 'a' {text}").infer(*shapes)
