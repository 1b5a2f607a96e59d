"""Soft labels: probabilities of the classes in the label bottom of SoftmaxWithLoss and Accuracy."""
from __future__ import annotations

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.selftest.case import Arrays, Case, layer

SHAPES = {"rows": (5, 7), "maps": (2, 5, 3, 11)}


def probabilities(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    raw = rng.random(shape) ** 4
    return (raw / raw.sum(1, keepdims=True)).astype(np.float32)


def reference(x: Arrays, smoothing: float) -> dict[str, np.ndarray]:
    scores = x["x0"].astype(float)
    q = np.exp(scores - scores.max(1, keepdims=True))
    q /= q.sum(1, keepdims=True)
    target = (1 - smoothing) * x["x1"] + smoothing / scores.shape[1]
    return {"loss": np.asarray(-(target * np.log(q)).sum() / (scores.size / scores.shape[1]))}


@pytest.mark.parametrize("smoothing", [0, 0.2])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_loss(device: Device, shape: tuple[int, ...], smoothing: float) -> None:
    net = layer("SoftmaxWithLoss", "x0 x1", "loss", f"loss_param {{ label_smoothing: {smoothing} }}")
    make = lambda rng: {"x0": rng.normal(size=shape).astype(np.float32), "x1": probabilities(shape, rng)}  # noqa: E731
    Case("soft", net, make, lambda x, got: reference(x, smoothing), ["x0"]).check(device)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_accuracy(device: Device, shape: tuple[int, ...]) -> None:
    make = lambda rng: {"x0": rng.normal(size=shape).astype(np.float32), "x1": probabilities(shape, rng)}  # noqa: E731
    values = lambda x, got: {"hits": np.asarray((x["x0"].argmax(1) == x["x1"].argmax(1)).mean())}  # noqa: E731
    Case("soft accuracy", layer("Accuracy", "x0 x1", "hits"), make, values, []).check(device)


def test_one_hot_labels_give_the_loss_of_whole_labels(device: Device) -> None:
    text = "".join(
        layer("Input", "", name, f"input_param {{ shape {{ {' '.join(f'dim: {n}' for n in shape)} }} }}")
        for name, shape in {"x": (4, 3), "soft": (4, 3), "whole": (4,)}.items()
    )
    text += layer("SoftmaxWithLoss", "x soft", "a", "loss_weight: 1") + layer("SoftmaxWithLoss", "x whole", "b", "loss_weight: 1")
    with Net(parse(text, proto.NetParameter, "net"), phase=proto.TRAIN, device=device) as net:
        labels = np.array([2, 0, 1, 1])
        net.blobs["x"].data[...] = np.random.default_rng(1).normal(size=(4, 3))
        net.blobs["soft"].data[...] = np.eye(3)[labels]
        net.blobs["whole"].data[...] = labels
        out = net.forward()
        assert out["a"] == pytest.approx(float(out["b"]), rel=1e-6)


def test_errors(device: Device) -> None:
    text = "".join(layer("Input", "", name, "input_param { shape { dim: 4 dim: 3 } }") for name in ("x", "t"))

    def made(loss: str, more: str = "") -> None:
        Net(parse(text + layer(loss, "x t", "loss", more), proto.NetParameter, "net"), phase=proto.TRAIN, device=device)

    with pytest.raises(Error, match="ignore_label is 2, and bottom 1 is 4 x 3") as failure:
        made("SoftmaxWithLoss", "loss_param { ignore_label: 2 }")
    assert "remove ignore_label" in str(failure.value)
    with pytest.raises(Error, match=r"number of labels must match number of predictions \(12 and 4\)(.|\n)*as many scores as label_classes"):
        made("MultinomialLogisticLoss")
