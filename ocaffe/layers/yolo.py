"""Common parts of the layers of YOLO: checks of their bottoms, and the base classes of losses and detections."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.labels import LabelRange
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.detection.yolo.yolo_detection import YoloDetection
from ocaffe.kernels.detection.yolo.yolo_loss import CHANNELS, Differences, YoloLoss
from ocaffe.layers.base import Layer, times
from ocaffe.onnx.detection import detect_yolo
from ocaffe.onnx.graph import OnnxGraph

ROW = 8  # columns of AnnotatedData's rows: image, label, instance, xmin, ymin, xmax, ymax, difficult
BOX = 5  # columns of a box of an image: class, centre x, centre y, width, height


def check_grid(layer: Layer, index: int, x: Shape, boxes: int, classes: int, fields: str) -> None:
    """Raise the layer's error unless bottom `index` has predictions of so many boxes and classes in each cell. `fields` names the fields with these."""
    for name, value, what in zip(fields.split(" and "), (boxes, classes), ("boxes of a cell", "classes, without a background")):
        layer.check(value > 0, f"{name} is {value}", f"set {name} to the number of {what}")
    wanted = boxes * (CHANNELS + classes)
    layer.check(
        len(x) == 4 and x[1] == wanted,
        f"bottom {index} is {shape_text(x)}; {fields} are {boxes} and {classes}, so it must be N x {wanted} x H x W",
        f"set num_output of the layer before bottom {index} to {wanted}: {boxes} boxes x (4 + 1 + {classes} classes)",
    )


def check_labels(layer: Layer, x: Shape, label: Shape, classes: int) -> tuple[bool, int]:
    """Return whether bottom 1 has rows of AnnotatedData, and the largest number of boxes of an image. Set the labels that are accepted."""
    if len(label) == 4 and label[:2] == (1, 1) and label[3] == ROW:
        layer.labels = {1: LabelRange(layer.title, classes + 1, excluded=0)}
        return True, label[2]
    boxes = math.prod(label[1:])
    fits = len(label) > 1 and label[0] == x[0] and boxes % BOX == 0 and (len(label) == 2 or label[-1] in (boxes, BOX))
    layer.check(
        fits,
        f"bottom 1 is {shape_text(label)}, bottom 0 is {shape_text(x)}",
        f"give the second top of AnnotatedData (1 x 1 x G x 8) as bottom 1, or boxes {x[0]} x 1 x G x 5: class, centre x, centre y, width, height",
    )
    return False, boxes // BOX


def check_biases(layer: Layer, biases: Sequence[float], anchors: int, source: str) -> None:
    """Raise the layer's error unless there are sides of at least so many anchors. `source` says where their number is from."""
    fact = f"there are {len(biases)} biases"
    layer.check(len(biases) >= 2 * anchors, f"{fact}, {source} needs {2 * anchors}", f"write biases {times(2 * anchors)}: a width and a height for each anchor")
    layer.check(len(biases) % 2 == 0, f"{fact}, an odd number", "write biases twice for each anchor: its width and its height")
    layer.check(
        min(biases, default=1) > 0,
        f"a number in biases is {min(biases, default=1):g}",
        "set each number in biases above 0: widths and heights of anchors",
    )


def pairs(biases: Sequence[float], width: float, height: float) -> tuple[tuple[float, float], ...]:
    """Return the sides of the anchors, divided by the size of the image in their unit."""
    return tuple((biases[i] / width, biases[i + 1] / height) for i in range(0, len(biases), 2))


class YoloOutputLayer(Layer):
    """A list of detections: 1 x 1 x n x 7 (image, label from 1 on, score, xmin, ymin, xmax, ymax). `infer` sets `detection`."""

    origin = "MobileNet-YOLO"
    has_backward = False
    inplace_top = False
    extent_axis = 2
    detection: YoloDetection

    def check_thresholds(self, nms_threshold: float) -> None:
        self.check(0 < nms_threshold <= 1, f"nms_threshold is {nms_threshold:g}", "set nms_threshold to an overlap above 0 and at most 1")

    def listed(self, images: int) -> Sequence[Shape]:
        """Return the shape of the top."""
        (rows,) = self.extent or (images * self.detection.slots,)
        return [(1, 1, rows, 7)]

    def measures(self, tops: Sequence[Blob]) -> bool:
        return True

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        found = self.detection.find(rec, [bottom.data for bottom in bottoms])
        offsets, extent = found.offsets(rec)
        rec.measure(self, extent)
        found.rows(rec, offsets, tops[0].data.view((tops[0].shape[2], 7)))

    def onnx(self, graph: OnnxGraph, bottoms: list[Blob], tops: list[Blob]) -> None:
        detect_yolo(graph, self.detection, bottoms, tops[0])


class YoloLossLayer(Layer):
    """A loss of YOLO. `infer` sets `loss`."""

    bottoms = 2
    is_loss = True
    loss: YoloLoss
    differences: Differences

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        self.differences = self.loss.forward(rec, bottoms[0].data, bottoms[1].data, tops[0].data)

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        self.no_gradient(propagate, {1: "true boxes"})
        if propagate[0]:
            weight = tops[0].diff
            assert weight is not None and bottoms[0].diff is not None
            self.differences.backward(rec, bottoms[0].data, weight, bottoms[0].diff)
