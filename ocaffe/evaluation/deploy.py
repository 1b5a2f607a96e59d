"""A net for single images from the net of a training: without data layers, labels and losses, with probabilities at its end."""
from __future__ import annotations

import os
from typing import Any

from ocaffe import proto
from ocaffe.convert.deploy import ACTIVATIONS, deploy
from ocaffe.data.stores.label_names import label_names
from ocaffe.errors import Error
from ocaffe.evaluation.preprocessing import DATA
from ocaffe.evaluation.region_images import is_region_detector, with_detections
from ocaffe.formats.filter import filter_net
from ocaffe.formats.param_str import read_settings
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.layers.base import layer_type
from ocaffe.tools.datasets.annotations import BACKGROUND, shown_names

_SOURCES = {"Data": "data_param", "ImageData": "image_data_param", "DenseImageData": "dense_image_data_param"}


def data_layer(net: Any) -> Any | None:
    """Return the data layer of images of a TEST net, else of the TRAIN net; None if there is none."""
    for phase in (proto.TEST, proto.TRAIN):
        found = [layer for layer in filter_net(upgrade_net(net), proto.NetState(phase=phase)).layer if layer_type(layer) in DATA]
        if found:
            return found[0]
    return None


def class_names(layer: Any | None) -> list[str]:
    """Return the names of the classes beside the images of a data layer, [] if they are not known or the images are not there."""
    if layer is None:
        return []
    if layer.type == "AnnotatedData":
        path = layer.annotated_data_param.label_map_file
        labels = {label: name for label, name in shown_names(path).items() if label >= 0} if os.path.exists(path) else {}
        return [labels.get(label, BACKGROUND[2] if label == 0 else str(label)) for label in range(max(labels, default=-1) + 1)]
    regions = layer_type(layer) == "RoIData"
    source = str(read_settings(layer.python_param.param_str).get("source", "")) if regions else getattr(layer, _SOURCES[layer.type]).source
    return label_names(source) if os.path.exists(source) else []


def deploy_net(net: Any, shape: tuple[int, int, int], place: str) -> Any:
    """Return a NetParameter with an Input for one image. A net that has an Input already is returned as it is; a region detector ends with its detections.

    Raises Error.

    `shape`: channels, height, width.
    """
    message = filter_net(upgrade_net(net), proto.NetState(phase=proto.TEST))
    if any(layer.type == "Input" for layer in message.layer):
        return with_detections(message) if is_region_detector(message) else message
    data = data_layer(net)
    if data is not None and layer_type(data) == "RoIData":
        raise Error("the net is for training and for tests", place=place, fix="give its deploy.prototxt")
    if data is None:
        raise Error("the net has neither an Input nor a layer of images", place=place, fix="give a deploy.prototxt with an Input layer")
    if not any(layer.type in ACTIVATIONS for layer in message.layer):  # the loss may be in TRAIN alone
        scored = [layer.bottom for layer in message.layer if layer.type == "Accuracy"][-1:]
        message = type(message).FromString(message.SerializeToString())
        message.layer.extend(proto.LayerParameter(name="loss", type="SoftmaxWithLoss", bottom=bottom, top=["loss"]) for bottom in scored)
    return deploy(message, shapes={data.top[0]: (1, *shape)}, activate=True).message
