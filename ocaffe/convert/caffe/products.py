"""Products with constants before or behind them: the weights and the bias that a Convolution, Deconvolution or InnerProduct gets."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe.convert.caffe.affine import Affine, along
from ocaffe.convert.caffe.net import Net

PRODUCTS = {"Convolution": "convolution_param", "Deconvolution": "convolution_param", "InnerProduct": "inner_product_param"}


def is_product(net: Net, layer: Any) -> bool:
    """Whether a layer is a product with weights, and nothing else, as the merged ReLU of a fork would be."""
    if layer.type not in PRODUCTS or not net.arrays.get(layer.name):
        return False
    param = getattr(layer, PRODUCTS[layer.type])
    return layer.type == "InnerProduct" or not (param.relu or param.fuse_type)


def behind(net: Net, layer: Any, affine: Affine) -> list[np.ndarray] | None:
    """Return weights and bias for scale y + shift in place of the first top y. None if they differ within a channel of y."""
    made: Any = net.computed(layer)
    shape, weight = net.shapes[layer.top[0]], np.asarray(net.arrays[layer.name][0], np.float64)
    axis = len(shape) - 1 if layer.type == "InnerProduct" else made.channel_axis
    scale, shift = (along(part, shape, axis) for part in affine)
    if scale is None or shift is None:
        return None
    if layer.type == "Convolution":
        scaled = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
    elif layer.type == "InnerProduct":
        scaled = weight * (scale if made.own().transpose else scale[:, None])
    else:  # (channels, outputs / group, ..): the outputs of a group are contiguous
        groups = weight.reshape(made.geometry.group, -1, *weight.shape[1:])
        scaled = (groups * scale.reshape(made.geometry.group, 1, -1, *[1] * (weight.ndim - 2))).reshape(weight.shape)
    return [scaled, _bias(net, layer, len(scale)) * scale + shift]


def before(net: Net, layer: Any, affine: Affine) -> list[np.ndarray] | None:
    """Return weights and bias for scale x + shift in place of the only bottom x. None if this is not exact: zeros that surround the image get no shift."""
    made: Any = net.computed(layer)
    shape, weight = net.shapes[layer.bottom[0]], np.asarray(net.arrays[layer.name][0], np.float64)
    if layer.type == "InnerProduct":
        rows = [np.broadcast_to(part, shape).reshape(made.rows, made.inputs) for part in affine]
        if any((part != part[0]).any() for part in rows):
            return None
        transpose, first = made.own().transpose, [part[0] for part in rows]
        scaled = weight * (first[0][:, None] if transpose else first[0])
        return [scaled, _bias(net, layer, made.outputs) + first[1] @ (weight if transpose else weight.T)]
    scale, shift = (along(part, shape, made.channel_axis) for part in affine)
    if scale is None or shift is None or (shift.any() and not _is_even(layer, made)):
        return None
    group, ones = made.geometry.group, [1] * (weight.ndim - 2)
    if layer.type == "Convolution":  # (outputs, channels / group, ..)
        groups = weight.reshape(group, -1, *weight.shape[1:])
        scaled = groups * scale.reshape(group, 1, -1, *ones)
        added = (groups * shift.reshape(group, 1, -1, *ones)).sum(axis=tuple(range(2, groups.ndim)))
    else:  # (channels, outputs / group, ..)
        groups = weight.reshape(group, -1, *weight.shape[1:])
        scaled = groups * scale.reshape(group, -1, 1, *ones)
        added = (groups * shift.reshape(group, -1, 1, *ones)).sum(axis=(1, *range(3, groups.ndim)))
    return [scaled.reshape(weight.shape), _bias(net, layer, made.channels_out) + added.reshape(-1)]


def give(net: Net, layer: Any, arrays: list[np.ndarray]) -> None:
    """Give a product its new weights and bias."""
    param = getattr(layer, PRODUCTS[layer.type])
    param.ClearField("bias_term")
    net.arrays[layer.name] = arrays


def _is_even(layer: Any, made: Any) -> bool:
    """Whether a constant that is added to the image adds a constant to the top: each pixel of the top sums all weights of the window."""
    if layer.type == "Convolution":
        return not any(made.window.pad) and not any(made.beyond)
    return not any(made.window.pad) and set(made.window.kernel) | set(made.window.stride) <= {1}


def _bias(net: Net, layer: Any, size: int) -> np.ndarray:
    arrays = net.arrays[layer.name]
    return np.asarray(arrays[1], np.float64) if len(arrays) > 1 else np.zeros(size)
