"""Cross-layer equalisation: scale the channels between two products so that they are of like size.

A channel of a value may be divided by s if the weights of the next product that read it are multiplied by s: layers between them must pass positive factors.
The net computes the same, and its rounding costs less where channels differ much.

With one scale for all weights of a layer, both products get weights of like size (Nagel et al., 2019, arXiv 1906.04721). With a scale for each output, the
size of the first one's weights has no effect. Then half of the difference between the channels of the value goes to the weights that read them, as Xiao et
al. do (2022, arXiv 2211.10438).

An activation with an upper bound, as ReLU6, passes factors of channels that stay below the bound on the images, before and after. So a channel that reaches
the bound stays as it is.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocaffe.convert.caffe.net import Net
from ocaffe.convert.caffe.products import before, behind, give, is_product
from ocaffe.layers.base import layer_type
from ocaffe.quantize.scheme import FUSED

PASSING = frozenset({"Dropout", "Flatten", "Pooling", "PReLU", "ReLU"})  # layers f with f(s x) = s f(x) for each channel and s > 0
NEAR = 1 - 1e-6  # of the bound, from which on a channel has reached it
ROUNDS, FARTHEST = 20, 1e-3  # the most rounds; the change of a factor in a round below which all are done
LARGEST = 1e3  # a factor is at most this, and at least its inverse


@dataclass(frozen=True)
class Pair:
    """A product and the one that reads its output. `value`: the output behind the activation. `bound`: the activation's."""

    first: Any
    second: Any
    value: str
    bound: float


def equalise(net: Net, pairs: Sequence[Pair], ranges: Mapping[str, np.ndarray], per_channel: bool) -> None:
    """Scale the channels of pairs, in place. `ranges`: the largest magnitude of each channel, by value. `per_channel`: weights have a scale by output."""
    left = dict(ranges)
    for _ in range(ROUNDS):
        moved = [_scale(net, pair, left, per_channel) for pair in pairs]
        if not any(moved):
            break


def find_pairs(net: Net) -> list[Pair]:
    """Return the products whose channels can be scaled."""
    return list(_pairs(net))


def _pairs(net: Net) -> Iterator[Pair]:
    for first in net.layers:
        if not _is_alone(net, first):
            continue
        value = activated = first.top[0]
        bound = np.inf
        while net.is_free(value):
            (reader,) = net.readers(value)
            if _is_alone(net, reader):
                yield Pair(first, reader, activated, bound)
            upper = _bound(reader)
            if upper is None or len(reader.top) != 1:
                break
            bound = min(bound, upper)
            if layer_type(reader) in FUSED and activated == value:
                activated = reader.top[0]
            value = reader.top[0]


def _bound(layer: Any) -> float | None:
    """Return the upper bound of a layer that passes factors, infinity without one. None: it passes none."""
    kind = layer_type(layer)
    if kind == "ReLU6":
        return 6.0
    if kind == "Clip":
        return float(layer.clip_param.max) if layer.clip_param.min == 0 < layer.clip_param.max else None
    return np.inf if kind in PASSING else None


def _is_alone(net: Net, layer: Any) -> bool:
    """Whether a layer is a product of one bottom, with weights of its own and channels at axis 1."""
    if not (is_product(net, layer) and len(layer.bottom) == len(layer.top) == 1 and len(net.sharers(layer)) == 1):
        return False
    made: Any = net.computed(layer)
    return made.first == 1 if layer.type == "InnerProduct" else made.channel_axis == 1


def _scale(net: Net, pair: Pair, ranges: dict[str, np.ndarray], per_channel: bool) -> bool:
    """Scale the channels between two products, and their ranges. Return whether a factor was far from 1."""
    first, second, largest = pair.first, pair.second, ranges[pair.value]
    out = largest if per_channel else _output_sizes(net, first)
    taken = _input_sizes(net, second, net.shapes[first.top[0]][1], relative=per_channel)
    used, bounded = (out > 0) & (taken > 0), largest >= NEAR * pair.bound
    factor = np.where(used, np.sqrt(out / np.where(used, taken, 1)), 1.0)
    fixed = used & bounded if (used & bounded).any() else used
    factor = np.clip(factor / np.exp(np.log(factor[fixed]).mean()) if used.any() else factor, 1 / LARGEST, LARGEST)  # the whole layer keeps its size
    factor = np.where(used & ~bounded, np.maximum(factor, largest / pair.bound), 1.0)
    shape, bottom = net.shapes[first.top[0]], net.shapes[second.bottom[0]]
    zero = np.zeros(())
    divided = behind(net, first, (_along(1 / factor, len(shape)), zero))
    spread = factor if len(bottom) == len(shape) else np.repeat(factor, int(np.prod(bottom[1:])) // len(factor))
    multiplied = before(net, second, (_along(spread, len(bottom)), zero))
    if divided is None or multiplied is None:
        return False
    give(net, first, divided)
    give(net, second, multiplied)
    ranges[pair.value] = largest / factor
    return bool(np.abs(np.log(factor)).max() > FARTHEST)


def _along(factors: np.ndarray, rank: int) -> np.ndarray:
    return factors.reshape(1, -1, *[1] * (rank - 2))


def _output_sizes(net: Net, layer: Any) -> np.ndarray:
    """Return the largest magnitude of the weights of each output."""
    weights, others = _by_outputs(net, layer)
    return np.asarray(weights.max(axis=others).reshape(-1))


def _by_outputs(net: Net, layer: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the magnitudes of weights, in a shape with axes of outputs, and its other axes."""
    form = net.computed(layer).weight_outputs()
    assert form is not None
    weights = np.abs(np.asarray(net.arrays[layer.name][0], np.float64)).reshape(form.shape)
    return weights, tuple(axis for axis in range(weights.ndim) if axis not in form.kept)


def _input_sizes(net: Net, layer: Any, channels: int, relative: bool) -> np.ndarray:
    """Return the largest magnitude of the weights that read each channel. `relative`: as shares of the largest weight of the same output."""
    shape = np.shape(net.arrays[layer.name][0])
    made: Any = net.computed(layer)
    weights, others = _by_outputs(net, layer)
    if relative:
        weights = weights / np.maximum(weights.max(axis=others, keepdims=True), np.finfo(np.float64).tiny)
    weights = weights.reshape(shape)
    if layer.type == "InnerProduct":
        by_input = weights.max(axis=1 if made.own().transpose else 0)
        return np.asarray(by_input.reshape(channels, -1).max(axis=1))
    if layer.type == "Convolution":
        grouped = weights.reshape(made.geometry.group, -1, shape[1], int(np.prod(shape[2:])))
        return np.asarray(grouped.max(axis=(1, 3)).reshape(-1))
    return np.asarray(weights.reshape(len(weights), -1).max(axis=1))
