"""The three nets of MTCNN for faces. Names are those of the authors' det1, det2 and det3.

A sample has a label: 1 for a face, 0 for none, -1 for a part of a face. Its box, and for the last net its five points, are
relative to the sample.
"""
from __future__ import annotations

from typing import Any

from ocaffe.zoo.net import XAVIER, Fields, Net

NEITHER = -1  # the label of parts of faces: no class, but a box
NO_FACE = 0  # has no box and no points
SOURCE = "examples/mtcnn/mtcnn"


def samples(net: Net, side: int, batch: int, points: bool = False) -> str:
    """Data layers of samples of side x side pixels. With `points`, the last top has them."""
    if net.deploy:
        net.layers.append({"name": "data", "type": "Input", "top": "data", "input_param": {"shape": {"dim": [1, 3, side, side]}}})
        return "data"
    for phase, part, size in (("TRAIN", "train", batch), ("TEST", "val", 100)):
        source = {"source": f"{SOURCE}{side}_{part}_lmdb", "batch_size": size, "backend": "LMDB"}
        data = {"name": "data", "type": "MTCNNData", "top": ["data", "label", "roi", *(["pts"] if points else [])], "include": {"phase": phase}}
        net.layers.append({**data, "transform_param": {"mean_value": 127.5, "scale": 0.0078125}, "data_param": source})
    return "data"


def unit(net: Net, name: str, prelu: str, x: str, channels: int, **window: Any) -> str:
    x = net.conv(name, x, channels, **window, weight=XAVIER, bias=0)
    return net.layer("PReLU", prelu, x, x)


def heads(net: Net, scores: str, box: str, points: str = "") -> None:
    """Probabilities to deploy; losses with the paper's weights, and the accuracy, to train."""
    if net.deploy:
        net.layer("Softmax", "prob1", scores)
        return
    ignored: Fields = {"ignore_label": NEITHER}
    net.layer("Accuracy", "accuracy", [scores, "label"], include={"phase": "TEST"}, accuracy_param=ignored)
    net.layer("SoftmaxWithLoss", "cls_loss", [scores, "label"], loss_weight=1, loss_param=ignored)
    for name, given, target, weight in (("roi_loss", box, "roi", 0.5), ("pts_loss", points, "pts", 1)):
        if given:
            net.layer("MTCNNEuclideanLoss", name, [given, target, "label"], loss_weight=weight, loss_param={"ignore_label": NO_FACE})


def pnet(net: Net) -> None:
    """P-Net, which proposes boxes. It is convolutional: to deploy, images have any size."""
    x = unit(net, "conv1", "PReLU1", samples(net, 12, 384), 10, kernel_size=3)
    x = net.pool("pool1", x, "MAX", kernel_size=2, stride=2)
    for i, channels in ((2, 16), (3, 32)):
        x = unit(net, f"conv{i}", f"PReLU{i}", x, channels, kernel_size=3)
    scores, box = (net.conv(f"conv4-{i}", x, outputs, kernel_size=1, weight=XAVIER, bias=0) for i, outputs in ((1, 2), (2, 4)))
    heads(net, scores, box)


RNET = [(28, 3, 3), (48, 3, 3), (64, 2, 0)]  # channels, side of the window, side of the pooling behind it
ONET = [(32, 3, 3), (64, 3, 3), (64, 3, 2), (128, 2, 0)]


def refine(net: Net, x: str, convolutions: list[tuple[int, int, int]], width: int, dropout: float = 0) -> str:
    """The layers before the heads of R-Net and O-Net."""
    for i, (channels, side, pooled) in enumerate(convolutions, 1):
        x = unit(net, f"conv{i}", f"prelu{i}", x, channels, kernel_size=side)
        if pooled:
            x = net.pool(f"pool{i}", x, "MAX", kernel_size=pooled, stride=2)
    last = len(convolutions) + 1
    x = net.fc(f"conv{last}", x, width, weight=XAVIER, bias=0)
    if dropout:
        x = net.dropout(f"drop{last}", x, dropout)
    return net.layer("PReLU", f"prelu{last}", x, x)


def rnet(net: Net) -> None:
    """R-Net, which refines the boxes of P-Net."""
    x = refine(net, samples(net, 24, 384), RNET, 128)
    scores, box = (net.fc(f"conv5-{i}", x, outputs, weight=XAVIER, bias=0) for i, outputs in ((1, 2), (2, 4)))
    heads(net, scores, box)


def onet(net: Net) -> None:
    """O-Net, which finds the points too: eyes, nose and corners of the mouth."""
    x = refine(net, samples(net, 48, 384, points=True), ONET, 256, 0.25)
    scores, box, points = (net.fc(f"conv6-{i}", x, outputs, weight=XAVIER, bias=0) for i, outputs in ((1, 2), (2, 4), (3, 10)))
    heads(net, scores, box, points)
