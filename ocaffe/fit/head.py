"""The first phase of a training from weights: the new layer of class scores alone, on features that the rest of the net computes once.

The features are those of the images for training without random changes. The layer is a logistic regression on them, which takes seconds on a CPU. Then
all layers learn together, and the new layer's first gradients do not spoil the given weights.
"""
from __future__ import annotations

import math
import os
import shutil
import tempfile
import time
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.formats.filter import filter_net
from ocaffe.formats.weights import read_weights
from ocaffe.support.files import atomic_write, open_plain
from ocaffe.zoo.efficientnet import caffemodel, is_of_package
from ocaffe.zoo.project import Project
from ocaffe.zoo.templates import CLASSIFIED, scores, upgraded

START = "start.caffemodel"  # the file of this phase in OUT
MOST = 5000  # images
DECAY = 0.05  # of the weights for features of unit variance: a few images for each class and a thousand features are separable
STEPS, WORK = 300, 2e12  # of Nesterov's method, at most; floating point operations of all steps, about 20 s
ENOUGH = 1e-3  # the largest gradient at the end


def train_head(project: Project, device: Device) -> str:
    """Write START: the given weights, and a first state of the layer of class scores if they lack it. Return a sentence about it. Raise Error."""
    started = time.monotonic()
    message = filter_net(upgraded(project.path("train_val.prototxt")), proto.NetState(phase=proto.TEST))
    head = scores([*(layer for layer in message.layer if layer.type != "Accuracy")])
    with tempfile.TemporaryDirectory() as folder:
        weights = project.begins
        if is_of_package(project.net, weights):
            weights = os.path.join(folder, "given.caffemodel")
            with open(weights, "wb") as stream:
                stream.write(caffemodel(project.net, project.begins, device))
        known = any(layer.name == head.name and layer.blobs for layer in read_weights(weights).layers)
        images = project.images.train.images if known else _all_for_training(message, project, folder)
        with Net(message, phase=proto.TEST, weights=weights, keep=[head.bottom[0], "label"], device=device) as net:
            params = net.params[head.name]
            learns = not known and len(params) == 2 and np.prod(net.blobs[head.bottom[0]].shape[2:]) == 1
            if learns:
                features, labels = _features(net, head.bottom[0], images)
                weight, bias = regression(features, labels, project.classes)
                params[0].data[...] = weight.reshape(params[0].shape)
                params[1].data[...] = bias
            made = os.path.join(folder, START)
            net.save(made)
        with open_plain(made) as source, atomic_write(project.path(START)) as out:
            shutil.copyfileobj(source, out)
    if not learns:
        return f"layer {head.name} begins {'from the weights' if known else 'with its filler'}"
    return f"layer {head.name} learned first, from the features of {images} images, in {time.monotonic() - started:.0f} s"


def _all_for_training(message: Any, project: Project, folder: str) -> int:
    """Let the data layer of a TEST net read images for training. Return their number, at most about MOST of a list."""
    part = project.images.train
    layer = next(layer for layer in message.layer if layer.type in CLASSIFIED)
    param = getattr(layer, CLASSIFIED[layer.type])
    param.source = part.source
    lines = project.images.files[part.source].splitlines(keepends=True) if part.source in project.images.files else []
    some = lines[:: math.ceil(len(lines) / MOST)] if lines else []
    if len(some) == len(lines):
        return part.images
    param.source = os.path.join(folder, "some.txt")
    with open(param.source, "wb") as stream:
        stream.writelines(some)
    return len(some)


def _features(net: Net, blob: str, images: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of `blob` and the labels of the first `images` images."""
    rows: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    while (left := images - sum(map(len, labels))) > 0:
        net.forward()
        found = net.blobs["label"].data.reshape(-1)[:left]
        labels.append(found.astype(np.int64))
        rows.append(np.array(net.blobs[blob].data.reshape(len(net.blobs["label"].data), -1)[:left]))
    return np.concatenate(rows), np.concatenate(labels)


def regression(features: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights and the bias of a logistic regression: classes x features, and classes."""
    mean, scale = features.mean(0), features.std(0) + 1e-3 * features.std() + 1e-12
    x = ((features - mean) / scale).astype(np.float32)
    truth = np.eye(classes, dtype=np.float32)[labels]
    step = 1 / (0.5 * _largest_square(x) / len(x) + DECAY)
    weight, bias = np.zeros((classes, x.shape[1]), np.float32), np.log(truth.mean(0) + 1 / len(x))
    before, ahead, pace = weight, weight, 1.0
    for _ in range(min(STEPS, 1 + int(WORK / (4 * x.size * classes)))):
        scores = x @ ahead.T + bias
        errors = np.exp(scores - scores.max(1, keepdims=True))
        errors = errors / errors.sum(1, keepdims=True) - truth
        slope = errors.T @ x / len(x) + DECAY * ahead
        weight, bias = ahead - step * slope, bias - errors.mean(0)
        faster = (1 + (1 + 4 * pace * pace) ** 0.5) / 2
        ahead, before, pace = weight + (pace - 1) / faster * (weight - before), weight, faster
        if np.abs(slope).max() < ENOUGH:
            break
    weight = weight / scale
    return weight, bias - weight @ mean


def _largest_square(x: np.ndarray) -> float:
    """Return the largest eigenvalue of x'x, by the power method."""
    vector = np.ones(x.shape[1], np.float32)
    size = 1.0
    for _ in range(20):
        vector = x.T @ (x @ (vector / size))
        size = float(np.linalg.norm(vector)) or 1.0
    return size
