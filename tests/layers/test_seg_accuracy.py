"""SegAccuracy: random maps compared with a program that counts pixels, batches together with `reset: false`, equal scores, mistakes."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from tests.layers.fork_cases import segmentation
from tests.layers.single import layer_of

NET = """layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: {channels} dim: 4 dim: 5 }} }} }}
    layer {{ name: "t" type: "Input" top: "t" input_param {{ shape {{ dim: 2 dim: 1 dim: 4 dim: 5 }} }} }}
    layer {{ name: "seg" type: "SegAccuracy" bottom: "x" bottom: "t" top: "seg" seg_accuracy_param {{ ignore_label: 255 {fields} }} }}"""


def net_of(device: Any, channels: int, fields: str = "") -> Net:
    return Net(text_format.Parse(NET.format(channels=channels, fields=fields), proto.NetParameter()), proto.TEST, device=device)


@pytest.mark.parametrize("reset", [True, False])
def test_batches(device: Any, reset: bool) -> None:
    """With reset each batch has its own figures, else those of all batches so far. Some batches have no pixel that counts."""
    net, rng, seen = net_of(device, 4, f"reset: {str(reset).lower()}"), np.random.default_rng(0), []
    try:
        for number in range(20):
            labels = rng.choice([0, 1, 2, 3, 255][number % 5 :], (2, 1, 4, 5)).astype(np.float32)
            scores = rng.normal(0, 1, (2, 4, 4, 5)).astype(np.float32)
            seen = [(scores.argmax(1), labels)] if reset else [*seen, (scores.argmax(1), labels)]
            best, true = (np.concatenate([each.ravel() for each in part]) for part in zip(*seen))
            np.testing.assert_allclose(net.forward(x=scores, t=labels)["seg"], segmentation(best, true, 4, (255,)), rtol=1e-6)
    finally:
        net.close()


def test_equal_scores(device: Any) -> None:
    """The last class wins, as in DeepLab. Fractions of labels are cut off."""
    net = net_of(device, 3)
    try:
        assert net.forward(x=np.zeros((2, 3, 4, 5)), t=np.full((2, 1, 4, 5), 2.7))["seg"].ravel().tolist() == [1, 1, 1]
    finally:
        net.close()


@pytest.mark.parametrize("label", [4, -1])
def test_labels(device: Any, label: int) -> None:
    net = net_of(device, 4)
    try:
        with pytest.raises(Error, match=f"a label is {label}, the scores have 4 classes"):
            net.forward(x=np.zeros((2, 4, 4, 5)), t=np.full((2, 1, 4, 5), label))
    finally:
        net.close()


@pytest.mark.parametrize(
    ("scores", "labels"),
    [((2, 3, 4, 5), (2, 1, 4, 6)), ((2, 3, 4, 5), (2, 3, 4, 5)), ((2, 3, 4, 5), (1, 1, 4, 5)), ((2, 3, 4, 5, 6), (2, 1, 4, 5))],
)
def test_shapes(scores: tuple[int, ...], labels: tuple[int, ...]) -> None:
    with pytest.raises(Error, match=r"the scores are 2 x 3 x 4 x 5.*, the labels"):
        layer_of("name: 'l' type: 'SegAccuracy'").infer(scores, labels)


def test_one_score_per_sample(device: Any) -> None:
    assert list(layer_of("name: 'l' type: 'SegAccuracy'").infer((2, 3), (2, 1))) == [(1, 1, 1, 3)]


def test_scores_that_are_not_numbers(device: Any) -> None:
    """A training may diverge. Its pixels count as wrong."""
    net = net_of(device, 3)
    try:
        scores = np.zeros((2, 3, 4, 5), np.float32)
        scores[:, 1] = 1
        scores[0] = np.nan
        assert net.forward(x=scores, t=np.ones((2, 1, 4, 5)))["seg"].ravel().tolist() == [0.5, 0.5, pytest.approx((0.5 + 0 + 1) / 3)]
    finally:
        net.close()
