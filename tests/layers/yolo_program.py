"""YOLO's losses as a sequential program in float64: one true box after the other, as the forks of Caffe compute them."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Return the intersection over union of two boxes: centre x, centre y, width, height."""
    sides = np.minimum(a[:2] + a[2:] / 2, b[:2] + b[2:] / 2) - np.maximum(a[:2] - a[2:] / 2, b[:2] - b[2:] / 2)
    shared = sides.prod() if (sides >= 0).all() else 0.0
    return float(shared / (a[2] * a[3] + b[2] * b[3] - shared))


def overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of a box with each of several."""
    sides = np.minimum(box[:2] + box[2:] / 2, (others[:, :2] + others[:, 2:] / 2)) - np.maximum(box[:2] - box[2:] / 2, others[:, :2] - others[:, 2:] / 2)
    shared = np.maximum(sides, 0).prod(1)
    return shared / (box[2:].prod() + others[:, 2:].prod(1) - shared)


def generalised(a: np.ndarray, b: np.ndarray) -> float:
    """Return the generalised intersection over union."""
    hull = np.maximum(a[:2] + a[2:] / 2, b[:2] + b[2:] / 2) - np.minimum(a[:2] - a[2:] / 2, b[:2] - b[2:] / 2)
    sides = np.maximum(np.minimum(a[:2] + a[2:] / 2, b[:2] + b[2:] / 2) - np.maximum(a[:2] - a[2:] / 2, b[:2] - b[2:] / 2), 0)
    union = a[2] * a[3] + b[2] * b[3] - sides.prod()
    return float(sides.prod() / union - (hull.prod() - union) / hull.prod())


def lists(label: np.ndarray, images: int) -> list[list[tuple[int, np.ndarray]]]:
    """Return class and box of the true boxes of each image, of either form of the labels."""
    found: list[list[tuple[int, np.ndarray]]] = [[] for _ in range(images)]
    if label.shape[-1] == 8:
        for row in label.reshape(-1, 8):
            if row[0] >= 0:
                found[int(row[0])].append((int(row[1]) - 1, np.concatenate([(row[3:5] + row[5:7]) / 2, row[5:7] - row[3:5]])))
        return found
    for n, rows in enumerate(label.reshape(images, -1, 5)):
        for row in rows:
            if row[1] == 0:
                break
            found[n].append((int(row[0]), row[1:]))
    return found


@dataclass
class Program:
    """A loss. `anchors`: sides of all anchors relative to the image; `mask`: those of the bottom."""

    form: str  # "region", "yolo9000" or "yolov3"
    classes: int
    anchors: np.ndarray
    mask: list[int]
    thresh: float
    object_scale: float = 1
    noobject_scale: float = 0.5
    class_scale: float = 1
    coord_scale: float = 5
    bias_match: bool = True
    rescore: bool = True
    warm: bool = False
    logic: bool = False
    focal: bool = False
    iou_loss: str = "MSE"
    iou_scale: float = 0.25

    def box(self, x: np.ndarray, a: int, j: int, i: int) -> np.ndarray:
        """Return the box that anchor a of cell (j, i) predicts."""
        p, (height, width) = x[a, :, j, i], x.shape[2:]
        return np.array([(i + sigmoid(p[0])) / width, (j + sigmoid(p[1])) / height, *(np.exp(p[2:4]) * self.anchors[self.mask[a]])])

    def location(self, x: np.ndarray, a: int, j: int, i: int, truth: np.ndarray, scale: float) -> np.ndarray:
        p, (height, width) = x[a, :, j, i], x.shape[2:]
        centre = sigmoid(p[:2])
        target = np.concatenate([truth[:2] * [width, height] - [i, j], np.log(truth[2:] / self.anchors[self.mask[a]])])
        d = np.concatenate([centre, p[2:4]]) - target
        if self.form == "yolo9000":
            d = np.clip(d, -1, 1)
        if self.form != "yolov3":
            d[:2] *= centre * (1 - centre)
        return scale * d

    def overlap_slope(self, x: np.ndarray, a: int, j: int, i: int, truth: np.ndarray) -> np.ndarray:
        """Return the differences of an IOU loss, by central differences of the overlap: d / d centre, and d / d sides times exp of the logarithm."""
        box, measure = self.box(x, a, j, i), generalised if self.iou_loss == "GIOU" else overlap
        slope = np.array([(measure(box + step, truth) - measure(box - step, truth)) / 2e-6 for step in 1e-6 * np.eye(4)])
        return -self.iou_scale * slope * [1, 1, *np.exp(x[a, 2:4, j, i])]

    def run(self, x: np.ndarray, label: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss and the gradient for a loss weight of 1, both in float64."""
        images, _, height, width = x.shape
        x = x.astype(np.float64).reshape(images, len(self.mask), 5 + self.classes, height, width)
        delta, missed = np.zeros(x.shape), 0.0
        for n, boxes in enumerate(lists(label.astype(np.float64), images)):
            for a, j, i in np.ndindex(len(self.mask), height, width):
                o, own = sigmoid(x[n, a, 4, j, i]), self.box(x[n], a, j, i)
                best = max([overlap(own, truth) for _, truth in boxes], default=0)
                delta[n, a, 4, j, i] = 0 if best > self.thresh else o if self.form == "yolov3" else self.noobject_scale * o * o * (1 - o)
                if self.warm:
                    centre = np.array([(i + 0.5) / width, (j + 0.5) / height, *self.anchors[self.mask[a]]])
                    delta[n, a, :4, j, i] = self.location(x[n], a, j, i, centre, 0.01)
            for kind, truth in boxes:
                missed += self.train(x[n], delta[n], kind, truth)
        squares = delta.copy()
        if self.iou_loss != "MSE":
            squares[:, :, :4] = 0
        loss = (squares**2).sum() + self.iou_scale * missed
        gradient = delta
        if self.logic:
            gradient = delta * sigmoid(x) * (1 - sigmoid(x))
            gradient[:, :, 2:4] = delta[:, :, 2:4]
        return loss / (1 if self.form == "yolo9000" else images), gradient.reshape(images, -1, height, width) / images

    def train(self, x: np.ndarray, delta: np.ndarray, kind: int, truth: np.ndarray) -> float:
        """Set the differences of the prediction that a true box trains. Return 1 - GIOU, or 0 without an IOU loss."""
        height, width = x.shape[2:]
        i, j = int(truth[0] * width), int(truth[1] * height)
        best, chosen = 0.0, -1
        for number, sides in enumerate(self.anchors):
            if not self.bias_match:
                sides = sides * np.exp(x[number, 2:4, j, i])
            similar = overlap(np.array([0, 0, *sides]), np.array([0, 0, *truth[2:]]))
            if similar > best:
                best, chosen = similar, number
        if chosen not in self.mask:
            return 0.0
        a = self.mask.index(chosen)
        box = self.box(x, a, j, i)
        p, d = x[a, :, j, i], delta[a, :, j, i]
        o, missed = sigmoid(p[4]), 0.0
        if self.form == "yolov3" and self.iou_loss != "MSE":
            d[:4], missed = self.overlap_slope(x, a, j, i, truth), 1 - generalised(box, truth)
        else:
            weighs = self.form == "yolov3" or (self.form == "region" and not self.rescore)
            d[:4] = self.location(x, a, j, i, truth, self.coord_scale * (2 - truth[2] * truth[3] if weighs else 1))
        if self.form == "yolov3":
            d[4] = (o - 1) * (self.object_scale if self.logic else 1)
            p_class, first = sigmoid(p[5:]), d[5] == 0
            if not first:
                d[5 + kind] = p_class[kind] - 1
                return missed
        else:
            target = overlap(box, truth) if self.form == "region" and self.rescore else 1
            d[4] = self.object_scale * (o - target) * o * (1 - o) * (2 * (1 - o) ** 2 if self.form == "yolo9000" else 1)
            p_class = np.exp(p[5:]) / np.exp(p[5:]).sum()
        d[5:] = self.class_scale * (p_class - (np.arange(self.classes) == kind))
        if self.focal:
            d[5:] *= -0.5 * (1 - p_class[kind]) * (2 * p_class[kind] * np.log(p_class[kind]) + p_class[kind] - 1)
        return missed


def bottoms(rng: np.random.Generator, images: int, channels: int, size: tuple[int, int], classes: int, has_rows: bool, most: int = 9) -> list[np.ndarray]:
    """Return predictions and labels. Boxes are few sizes at few places, so that several share an anchor of a cell. Image 1 of several has no box."""
    x = rng.standard_normal((images, channels, *size))
    kinds, centres = rng.integers(0, classes, (images, most)), rng.uniform(0.02, 0.98, (4, 2))[rng.integers(0, 4, (images, most))]
    centres = np.clip(centres + rng.uniform(-0.01, 0.01, centres.shape), 0.01, 0.99)
    sides = rng.uniform(0.1, 0.6, (3, 2))[rng.integers(0, 3, (images, most))] * rng.uniform(0.9, 1.1, (images, most, 2))
    if not has_rows:
        label = np.zeros((images, 1, most + 3, 5))
        label[:, 0, :most] = np.concatenate([kinds[..., None], centres, sides], 2)
        label[1:2] = 0
        return [x.astype(np.float32), label.astype(np.float32)]
    rows = np.zeros((images, most, 8))
    rows[..., 0], rows[..., 1] = np.arange(images)[:, None], kinds + 1
    rows[..., 3:5], rows[..., 5:7] = centres - sides / 2, centres + sides / 2
    rows[1:2, :, 0] = -1
    mixed = rows.reshape(-1, 8)[rng.permutation(images * most)]
    return [x.astype(np.float32), mixed[None, None].astype(np.float32)]


# -- detections ----------------------------------------------------------------------------------------------------------


@dataclass
class Decoder:
    """Detections of one or several grids; `anchors` of each, relative to the image."""

    anchors: list[np.ndarray]
    classes: int
    independent: bool
    threshold: float  # scores are above it
    nms: float

    def boxes(self, xs: list[np.ndarray], score: str = "MULTIPLY") -> list[list[tuple[float, int, np.ndarray]]]:
        """Return score, class and box (centre, sides) of the detections of each image, by descending score."""
        result = []
        for n in range(len(xs[0])):
            found = []
            for x, anchors in zip(xs, self.anchors):
                height, width = x.shape[2:]
                values = x[n].astype(np.float64).reshape(len(anchors), 5 + self.classes, height, width)
                for a, j, i in np.ndindex(len(anchors), height, width):
                    p = values[a, :, j, i]
                    shares = sigmoid(p[5:]) if self.independent else np.exp(p[5:]) / np.exp(p[5:]).sum()
                    value = {"OBJ": sigmoid(p[4]), "PROB": shares.max(), "MULTIPLY": sigmoid(p[4]) * shares.max()}[score]
                    if value > self.threshold:
                        box = np.array([(i + sigmoid(p[0])) / width, (j + sigmoid(p[1])) / height, *(np.exp(p[2:4]) * anchors[a])])
                        found.append((float(value), int(shares.argmax()), box))
            kept: list[tuple[float, int, np.ndarray]] = []
            for candidate in sorted(found, key=lambda each: -each[0]):
                if not kept or overlaps(candidate[2], np.stack([better[2] for better in kept])).max() < self.nms:
                    kept.append(candidate)
            result.append(kept)
        return result

    def rows(self, xs: list[np.ndarray]) -> np.ndarray:
        """Return the top of a detection layer."""
        rows = [[n, kind + 1, score, *(box[:2] - box[2:] / 2), *(box[:2] + box[2:] / 2)] for n, kept in enumerate(self.boxes(xs)) for score, kind, box in kept]
        return np.array(rows or [[n, *[-1] * 6] for n in range(len(xs[0]))])[None, None]

    def evaluated(self, x: np.ndarray, label: np.ndarray, threshold: float, score: str) -> np.ndarray:
        """Return the top of EvalDetection."""
        tops = []
        for kept, boxes in zip(self.boxes([x], score), lists(label.astype(np.float64), len(x))):
            top = [sum(kind == c for kind, _ in boxes) for c in range(self.classes)]
            for c in range(self.classes):
                own, used = [box for kind, box in boxes if kind == c], set()
                for value, _, box in (each for each in kept if each[1] == c):
                    shared = [overlap(box, truth) for truth in own]
                    match = int(np.argmax(shared)) if own else -1
                    hit = bool(own) and shared[match] >= threshold
                    top += [c, value, int(hit and match not in used), int(not own or (hit and match in used))]
                    used |= {match} if hit else set()
            tops.append(top + [0] * (self.classes + 4 * len(self.anchors[0]) * x.shape[2] * x.shape[3] - len(top)))
        return np.array(tops)


def scored(rng: np.random.Generator, images: int, anchors: int, classes: int, size: tuple[int, int]) -> np.ndarray:
    """Return predictions with few confident boxes, some of which overlap."""
    x = rng.standard_normal((images, anchors, 5 + classes, *size))
    x[:, :, 2:4] *= 0.5
    x[:, :, 4] = 2.5 * x[:, :, 4] - 1
    x[:, :, 5:] *= 2
    return x.reshape(images, anchors * (5 + classes), *size).astype(np.float32)
