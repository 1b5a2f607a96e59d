"""YOLO's losses: list the true boxes, assign them to anchors, compute the loss and its gradient (yolo_loss.cl)."""
from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from ocaffe.ir.kernel import Given, Kernel, reads, write, writes
from ocaffe.ir.recorder import STEP, Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.detection.boxes import over
from ocaffe.kernels.expression.expression import reduce

INPUTS = reads("settings", "anchors", "mask", "x", "truth", "counts")
LIST_BOXES = Kernel("yolo_loss.list_boxes", *reads("label"), *writes("truth", "counts", "bad"))
ASSIGN = Kernel("yolo_loss.assign", *INPUTS, write("slots"))
DIFFERENCES = Kernel("yolo_loss.differences", *INPUTS, *reads("bad", "slots", "step"), *writes("delta", "losses"))
GRADIENTS = Kernel("yolo_loss.gradients", *reads("settings", "x", "delta", "weight"), write("dx"))

CHANNELS = 5  # of a prediction before the scores of classes: x, y, width, height, objectness
IOU, GIOU, MSE = 0, 1, 2  # Yolov3Parameter.IOU_LOSS


class Form(IntEnum):
    """The definitions of the loss."""

    REGION = 0  # RegionLoss of MobileNet-YOLO
    YOLO9000 = 1  # RegionLoss of caffe-yolo9000
    YOLOV3 = 2


class Settings(NamedTuple):
    """Settings that do not depend on shapes, in the order of yolo_loss.cl."""

    form: Form
    classes: int
    thresh: float  # predictions with a larger overlap with a true box are not trained as background
    object_scale: float
    noobject_scale: float
    class_scale: float
    coord_scale: float
    matches_predictions: bool = False  # boxes are assigned by the predicted sides, not by those of the anchors
    rescores: bool = False  # the target of the objectness is the overlap, not 1
    logic_gradient: bool = False  # the gradient includes the derivative of the sigmoid
    focal: bool = False
    iou_loss: int = MSE
    iou_scale: float = 0
    warm: int = 0  # in so many iterations all predictions are drawn to their anchors


@dataclass(frozen=True)
class YoloLoss:
    """The loss on N x (len(mask) (CHANNELS + classes)) x H x W predictions.

    anchors: sides of the candidates, relative to the image (A x 2). mask: the candidates that the bottom predicts. has_rows: the labels are rows of
    AnnotatedData; else each image has rows of class, centre x, centre y, width, height. most: the largest number of true boxes of an image. divisor:
    of the loss.
    """

    settings: Settings
    anchors: tuple[tuple[float, float], ...]
    mask: tuple[int, ...]
    has_rows: bool
    most: int
    divisor: int

    def forward(self, rec: Recorder, x: Ref, label: Ref, loss: Ref) -> Differences:
        """loss = the loss. Return the operands of backward."""
        images, _, height, width = x.shape
        slots = len(self.mask) * height * width
        settings = rec.constant("settings", np.array(self.settings, np.float32))
        anchors, mask = rec.constant("anchors", np.array(self.anchors, np.float32)), rec.constant("mask", np.array(self.mask, np.int32))
        truth, counts, bad = list_boxes(rec, label, images, self.has_rows, self.most, self.settings.classes)
        places = rec.scratch("slots", truth.shape[:2], np.int32)
        inputs = {"settings": settings, "anchors": anchors, "mask": mask, "x": x, "truth": truth, "counts": counts}
        _over(rec, ASSIGN(**inputs, slots=places), (truth.shape[1], images), len(self.anchors), len(self.mask), width, height)
        delta = (rec.saved if rec.train else rec.scratch)("delta", x.shape)
        losses = rec.scratch("losses", (images, slots))
        _over(rec, DIFFERENCES(**inputs, bad=bad, slots=places, step=rec.step, delta=delta, losses=losses), (slots, images), width, height)
        reduce(rec, "v0 = x0", reads=[losses], writes=[loss], axes=[0, 1], scalars={"divisor": float(self.divisor)}, finish="y0 = v0 / divisor")
        return Differences(settings, delta)


@dataclass(frozen=True)
class Differences:
    """The results of the forward pass that backward reads."""

    settings: Ref
    delta: Ref

    def backward(self, rec: Recorder, x: Ref, weight: Ref, dx: Ref) -> None:
        """dx = the differences times the loss weight / N."""
        images, channels, height, width = x.shape
        args = height * width, 1 / images, rec.accumulates(dx)
        _over(rec, GRADIENTS(settings=self.settings, x=x, delta=self.delta, weight=weight, dx=dx), (channels * height * width, images), *args)


def list_boxes(rec: Recorder, label: Ref, images: int, has_rows: bool, most: int, classes: int) -> tuple[Ref, Ref, Ref]:
    """Return the true boxes (N x most x 5: class, box), their numbers (N x 1), and whether one has a class that does not exist (N x 1)."""
    truth = rec.scratch("truth", (images, max(most, 1), CHANNELS))
    counts, bad = (rec.scratch(name, (images, 1), np.int32) for name in ("true_counts", "bad"))
    _over(rec, LIST_BOXES(label=label, truth=truth, counts=counts, bad=bad), (images,), has_rows, most, classes)
    return truth, counts, bad


def _over(rec: Recorder, given: Given, size: tuple[int, ...], *args: Any) -> None:
    over(rec, given, size, *args, defines={"STEP_ITERATION": STEP["ITERATION"]})
