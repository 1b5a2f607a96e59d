"""Heads of detectors: how the layers of predictions, losses and detections change for other classes, boxes and sizes of images."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from ocaffe.errors import Error
from ocaffe.tools.datasets.anchors import anchors_of
from ocaffe.tools.datasets.stored_boxes import corners_of
from ocaffe.zoo.priors import fitted, prior_maps
from ocaffe.zoo.templates import WEIGHTED, graph_of, image_shape, outputs_of

SEED = 1  # of the search for anchors, as in `ocaffe dataset anchors`


class Task(NamedTuple):
    """Number of classes without the background, the database of the training, and the side of the images in pixels (0: as published)."""

    classes: int
    database: str
    side: int


class Head(Protocol):
    """A kind of head."""

    def __init__(self, task: Task, deploy: Any) -> None:
        """`deploy`: the published deploy net. Raise Error if the task does not fit."""

    def adapt(self, message: Any) -> Iterator[str]:
        """Change the layers of a NetParameter. Predictions with another number of outputs get new names. Yield the changes, for people."""


class SsdHead:
    """The head of SSD: confidences of all classes and the background, and sizes of prior boxes."""

    def __init__(self, task: Task, deploy: Any) -> None:
        self.new = task.classes + 1
        self.priors = fitted(prior_maps(graph_of(deploy)), corners_of(task.database)[0])

    def adapt(self, message: Any) -> Iterator[str]:
        old = next(layer.detection_output_param.num_classes for layer in message.layer if layer.type == "DetectionOutput")
        for layer in message.layer:
            if layer.type == "Reshape" and list(layer.reshape_param.shape.dim) == [0, -1, old]:
                layer.reshape_param.shape.dim[2] = self.new
            if layer.type == "Convolution" and layer.top[0].endswith("_mbox_conf") and old != self.new:
                yield renamed(layer, self.new, outputs_of(layer) // old * self.new)
            if self.priors is not None and layer.name in self.priors.sizes:
                layer.prior_box_param.min_size[:], layer.prior_box_param.max_size[:] = self.priors.sizes[layer.name]
        if self.priors is not None:
            yield f"prior boxes: sizes for these objects; {self.priors.after:.0%} of them overlap one by 0.5, with the published sizes {self.priors.before:.0%}"


class PointHead:
    """The head of a detector without anchors: scores of all classes and the background, for one box of each cell."""

    def __init__(self, task: Task, deploy: Any) -> None:
        self.new, self.side = task.classes + 1, task.side
        largest = max(layer.prior_box_param.step for layer in deploy.layer if layer.type == "PriorBox")
        check_side(task.side, int(largest))

    def adapt(self, message: Any) -> Iterator[str]:
        for layer in message.layer:
            if layer.type == "Convolution" and layer.top[0].endswith("_mbox_conf") and outputs_of(layer) != self.new:
                yield renamed(layer, self.new, self.new)
        if self.side:
            resize(message, self.side)


class YoloHead:
    """The head of YOLOv3: anchors for the boxes of the training, in pixels of the net's images."""

    def __init__(self, task: Task, deploy: Any) -> None:
        output = detections(deploy)
        self.classes, self.side = task.classes, task.side or image_shape(deploy)[1]
        check_side(self.side, max(output.anchors_scale))
        self.anchors, _ = anchors_of(task.database, len(output.biases) // 2, self.side, self.side, SEED)
        self.biases = [round(float(side), 1) for side in self.anchors.sides.flat]

    def adapt(self, message: Any) -> Iterator[str]:
        output, predictions = detections(message), predicted(message)
        outputs = output.num_box * (5 + self.classes)
        for layer in message.layer:
            if layer.top[0] in predictions and outputs_of(layer) != outputs:
                yield renamed(layer, self.classes, outputs)
            if layer.type == "Yolov3":
                layer.yolov3_param.num_class = self.classes
                layer.yolov3_param.biases[:] = self.biases
        resize(message, self.side)
        output.num_classes = self.classes
        output.biases[:] = self.biases
        sides = ", ".join(f"{width:g} x {height:g}" for width, height in zip(self.biases[::2], self.biases[1::2]))
        yield f"anchors: {sides} pixels; a box overlaps its anchor by {self.anchors.overlap:.2f} on average"


def check_side(side: int, cell: int) -> None:
    """Raise Error unless the images have whole cells of the coarsest map."""
    if side % cell:
        near = max(side // cell, 1) * cell
        raise Error(f"--size is {side}, and the net needs multiples of {cell}", place="ocaffe new", fix=f"--size {near} or {near + cell}")


def resize(message: Any, side: int) -> None:
    """Give the images of a net this side."""
    for layer in message.layer:
        for resized in layer.transform_param.resize_param:
            resized.height = resized.width = side
        if layer.type == "Input":
            layer.input_param.shape[0].dim[2:] = [side, side]


def detections(message: Any) -> Any:
    """Return the parameters of the Yolov3DetectionOutput layer."""
    return next(layer.yolov3_detection_output_param for layer in message.layer if layer.type == "Yolov3DetectionOutput")


def predicted(message: Any) -> list[str]:
    """Return the blobs with predictions of YOLO."""
    return [name for layer in message.layer if layer.type == "Yolov3DetectionOutput" for name in layer.bottom]


def renamed(layer: Any, classes: int, outputs: int) -> str:
    """Give a layer with weights this number of outputs, and a name with the number of classes. Return the change, for people."""
    getattr(layer, WEIGHTED[layer.type]).num_output = outputs
    old, layer.name = layer.name, f"{layer.name}_{classes}"
    return f"layer {old} is {layer.name} now, with {outputs} outputs"
