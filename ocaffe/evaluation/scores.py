"""The class scores of a TEST net, over the images that its data layer reads."""
from __future__ import annotations

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.errors import Error
from ocaffe.evaluation.confusion import Confusion
from ocaffe.model.filter import filter_net
from ocaffe.model.text import read_net
from ocaffe.model.upgrade import upgrade_net


def evaluate(net: str, weights: str, accuracy: str, images: int, classes: int, device: Device) -> Confusion:
    """Return the confusion matrix of the first `images` images. `net`: a train_val prototxt; `accuracy`: the top of its Accuracy layer.

    Raises Error if the net has no such layer.
    """
    message = filter_net(upgrade_net(read_net(net)), proto.NetState(phase=proto.TEST))
    layer = next((layer for layer in message.layer if layer.type == "Accuracy" and layer.top[0] == accuracy), None)
    if layer is None:
        raise Error(f"no Accuracy layer has the top '{accuracy}'", place=net, fix="name the top of an Accuracy layer of the TEST net")
    scores, labels = layer.bottom[:2]
    result = Confusion(classes)
    with Net(net, phase=proto.TEST, weights=weights, keep=[scores, labels], device=device) as made:
        while result.images < images:
            made.forward()
            found, true = made.blobs[scores].data, made.blobs[labels].data.reshape(-1)
            count = min(len(true), images - result.images)
            result.add(true[:count], found.reshape(len(true), -1)[:count])
    return result
