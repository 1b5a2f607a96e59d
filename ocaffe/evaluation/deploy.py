"""A net for single images from the net of a training: without data layers, labels and losses, with probabilities at its end."""
from __future__ import annotations

from typing import Any

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.evaluation.preprocessing import DATA
from ocaffe.model.filter import filter_net
from ocaffe.model.upgrade import upgrade_net


def data_layer(net: Any) -> Any | None:
    """Return the data layer of images of a TEST net, else of the TRAIN net; None if there is none."""
    for phase in (proto.TEST, proto.TRAIN):
        found = [layer for layer in filter_net(upgrade_net(net), proto.NetState(phase=phase)).layer if layer.type in DATA]
        if found:
            return found[0]
    return None


def deploy_net(net: Any, shape: tuple[int, int, int], place: str) -> Any:
    """Return a NetParameter with an Input for one image. A net that has an Input already is returned as it is. Raises Error.

    `shape`: channels, height, width.
    """
    message = filter_net(upgrade_net(net), proto.NetState(phase=proto.TEST))
    if any(layer.type == "Input" for layer in message.layer):
        return message
    data = data_layer(net)
    if data is None:
        raise Error("the net has neither an Input nor a layer of images", place=place, fix="give a deploy.prototxt with an Input layer")
    made = proto.NetParameter(name=message.name)
    entry = made.layer.add(name="data", type="Input", top=[data.top[0]])
    entry.input_param.shape.add(dim=(1, *shape))
    labels, scores = set(data.top[1:]), ""
    for layer in message.layer:
        if layer.type in DATA:
            continue
        if labels & set(layer.bottom):  # an accuracy or a loss
            labels |= set(layer.top)
            if layer.type in ("SoftmaxWithLoss", "Accuracy"):
                scores = layer.bottom[0]
            continue
        made.layer.append(layer)
    if scores:
        made.layer.add(name="prob", type="Softmax", bottom=[scores], top=["prob"])
    return made
