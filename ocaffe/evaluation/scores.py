"""The class scores of a TEST net, over the images that its data layer reads."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.errors import Error, shape_text
from ocaffe.evaluation.confusion import Confusion
from ocaffe.formats.filter import filter_net
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net


def accuracies(net: str) -> dict[str, Any]:
    """Return the Accuracy layers of the TEST net in a prototxt, which compare the best class alone, by their tops."""
    message = filter_net(upgrade_net(read_net(net)), proto.NetState(phase=proto.TEST))
    return {layer.top[0]: layer for layer in message.layer if layer.type == "Accuracy" and layer.accuracy_param.top_k == 1}


def evaluate(
    net: str, weights: str, accuracy: str, device: Device, *, images: int = 0, batches: int = 0, tell: Callable[[np.ndarray, np.ndarray], None] | None = None
) -> Confusion:  # fmt: skip
    """Return the confusion matrix of the first `images` images, or of `batches` batches. `accuracy`: the top of the Accuracy layer in the prototxt `net`.

    `tell`: is called with the labels and the scores of each batch, N numbers and N x classes.
    Raises Error if the net has no such layer, or if it has several scores per image.
    """
    layer = accuracies(net).get(accuracy)
    if layer is None:
        raise Error(f"no Accuracy layer has the top '{accuracy}'", place=net, fix="name the top of an Accuracy layer of the TEST net")
    scores, labels = layer.bottom[:2]
    result: Confusion | None = None
    with Net(net, phase=proto.TEST, weights=weights, keep=[scores, labels], device=device) as made:
        while result is None or (result.images < images if images else batches > 0):
            made.forward()
            batches -= 1
            found, true = made.blobs[scores].data, made.blobs[labels].data.reshape(-1)
            if found.size != len(true) * found.shape[1]:
                fact = f"blob '{scores}' is {shape_text(found.shape)}, and there are {len(true)} labels"
                raise Error(fact, place=net, fix="give a net with one label and one vector of scores for each image")
            result = result or Confusion(found.shape[1])
            count = min(len(true), images - result.images) if images else len(true)
            batch = true[:count], found.reshape(len(true), -1)[:count]
            result.add(*batch)
            if tell is not None:
                tell(*batch)
    return result
