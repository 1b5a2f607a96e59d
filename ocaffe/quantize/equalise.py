"""Cross-layer equalisation: scale the channels between two products so that both have weights of like size (Nagel et al., 2019, arXiv 1906.04721).

A channel of a value may be divided by s if the weights of the next product that read it are multiplied by s: layers between them must pass positive factors.
The net computes the same, and its rounding costs less where channels differ much.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ocaffe.convert.caffe.net import Net
from ocaffe.convert.caffe.products import before, behind, give, is_product
from ocaffe.layers.base import layer_type

PASSING = frozenset({"Dropout", "Flatten", "Pooling", "PReLU", "ReLU"})  # layers f with f(s x) = s f(x) for each channel and s > 0
ROUNDS, FARTHEST = 20, 1e-3  # the most rounds; the change of a factor in a round below which all are done
LARGEST = 1e3  # a factor is at most this, and at least its inverse


def equalise(net: Net) -> int:
    """Scale all channels that can be scaled, in place. Return the number of pairs of products."""
    pairs = list(_pairs(net))
    for _ in range(ROUNDS):
        moved = [_scale(net, *pair) for pair in pairs]
        if not any(moved):
            break
    return len(pairs)


def _pairs(net: Net) -> Iterator[tuple[Any, Any]]:
    """Yield products and the one product that reads their output."""
    for first in net.layers:
        if not _is_alone(net, first):
            continue
        value = first.top[0]
        while net.is_free(value):
            (reader,) = net.readers(value)
            if _is_alone(net, reader):
                yield first, reader
            if layer_type(reader) not in PASSING or len(reader.top) != 1:
                break
            value = reader.top[0]


def _is_alone(net: Net, layer: Any) -> bool:
    """Whether a layer is a product of one bottom, with weights of its own and channels at axis 1."""
    if not (is_product(net, layer) and len(layer.bottom) == len(layer.top) == 1 and len(net.sharers(layer)) == 1):
        return False
    made: Any = net.computed(layer)
    return made.first == 1 if layer.type == "InnerProduct" else made.channel_axis == 1


def _scale(net: Net, first: Any, second: Any) -> bool:
    """Scale the channels between two products. Return whether a factor was far from 1."""
    out, taken = _output_sizes(net, first), _input_sizes(net, second, net.shapes[first.top[0]][1])
    used = (out > 0) & (taken > 0)
    factor = np.where(used, np.sqrt(out / np.where(used, taken, 1)), 1.0)
    factor = np.clip(factor / np.exp(np.log(factor[used]).mean()) if used.any() else factor, 1 / LARGEST, LARGEST)  # the whole layer keeps its size
    factor = np.where(used, factor, 1.0)
    shape, bottom = net.shapes[first.top[0]], net.shapes[second.bottom[0]]
    zero = np.zeros(())
    divided = behind(net, first, (_along(1 / factor, len(shape)), zero))
    spread = factor if len(bottom) == len(shape) else np.repeat(factor, int(np.prod(bottom[1:])) // len(factor))
    multiplied = before(net, second, (_along(spread, len(bottom)), zero))
    if divided is None or multiplied is None:
        return False
    give(net, first, divided)
    give(net, second, multiplied)
    return bool(np.abs(np.log(factor)).max() > FARTHEST)


def _along(factors: np.ndarray, rank: int) -> np.ndarray:
    return factors.reshape(1, -1, *[1] * (rank - 2))


def _output_sizes(net: Net, layer: Any) -> np.ndarray:
    """Return the largest magnitude of the weights of each output."""
    form = net.computed(layer).weight_outputs()
    assert form is not None
    weights = np.abs(np.asarray(net.arrays[layer.name][0], np.float64)).reshape(form.shape)
    return np.asarray(weights.max(axis=tuple(axis for axis in range(weights.ndim) if axis not in form.kept)).reshape(-1))


def _input_sizes(net: Net, layer: Any, channels: int) -> np.ndarray:
    """Return the largest magnitude of the weights that read each channel."""
    weights, made = np.abs(np.asarray(net.arrays[layer.name][0], np.float64)), net.computed(layer)
    own: Any = made
    if layer.type == "InnerProduct":
        by_input = weights.max(axis=1 if own.own().transpose else 0)
        return np.asarray(by_input.reshape(channels, -1).max(axis=1))
    if layer.type == "Convolution":
        grouped = weights.reshape(own.geometry.group, -1, weights.shape[1], int(np.prod(weights.shape[2:])))
        return np.asarray(grouped.max(axis=(1, 3)).reshape(-1))
    return np.asarray(weights.reshape(len(weights), -1).max(axis=1))
