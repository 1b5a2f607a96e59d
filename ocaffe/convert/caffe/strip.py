"""Remove fields that only a training reads, and fields without effect: fillers, rates, loss weights, choices of kernels."""
from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from ocaffe.convert.caffe.net import Net
from ocaffe.formats.fork_fields import IGNORED, key_of
from ocaffe.proto import is_repeated

OF_TRAINING = ("loss_weight", "propagate_down")  # of each layer
RATES = ("lr_mult", "decay_mult")  # of each param
FILLERS = ("weight_filler", "bias_filler", "filler", "scale_filler", "shift_filler", "slope_filler")  # of the blobs in the weights
CONSTANT = ("DummyData", "Parameter")  # types whose values may come from fillers


def strip(net: Net) -> int:
    """Remove these fields from all layers. Return the number of layers that had some. A param with a name stays, because layers share blobs by it."""
    count = 0
    for layer in net.layers:
        before = layer.ByteSize()
        for name in OF_TRAINING:
            layer.ClearField(name)
        for spec in layer.param:
            for name in RATES:
                spec.ClearField(name)
        while layer.param and not layer.param[-1].name:
            del layer.param[-1]
        if layer.type not in CONSTANT:
            _clear(layer)
        count += layer.ByteSize() != before
    return count


def _clear(message: Any) -> None:
    for field, value in message.ListFields():
        if key_of(message, field.name) in IGNORED or field.name == "engine" or field.name in FILLERS:
            message.ClearField(field.name)
        elif isinstance(value, Message) and not is_repeated(field):
            _clear(value)
