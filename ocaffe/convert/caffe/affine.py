"""Layers that multiply and add constants, as numbers: y = scale x + shift."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.convert.caffe.net import Net
from ocaffe.ir.tensor import Shape

Affine = tuple[np.ndarray, np.ndarray]  # scale and shift in double precision, each with as many axes as the bottom, broadcast to it


def affine_of(net: Net, layer: Any) -> Affine | None:
    """Return what a layer multiplies by and adds to its only bottom, None if it does something else, or its numbers are not finite."""
    if layer.type not in READ or not len(layer.bottom) == len(layer.top) == 1:
        return None
    made, rank = net.computed(layer), len(net.shapes[layer.bottom[0]])
    with np.errstate(all="ignore"):
        found = READ[layer.type](made, [np.asarray(array, np.float64) for array in net.arrays.get(layer.name, ())])
    if found is None or not all(np.isfinite(part).all() for part in found):
        return None
    scale, shift = (np.asarray(part, np.float64) for part in found)
    return (scale.reshape((1,) * (rank - scale.ndim) + scale.shape), shift.reshape((1,) * (rank - shift.ndim) + shift.shape))


def along(values: np.ndarray, shape: Shape, axis: int) -> np.ndarray | None:
    """Return the values for each index of an axis of a blob, None if they differ along another axis. `values` are broadcast to the shape."""
    first = values[tuple(slice(None) if each == axis else slice(1) for each in range(values.ndim))]
    return np.broadcast_to(first.reshape(-1), (shape[axis],)) if (values == first).all() else None


def scale_layer(name: str, bottom: str, top: str, affine: Affine) -> tuple[Any, list[np.ndarray]] | None:
    """Return the layer that computes scale x + shift, a Power or a Scale, and its arrays. None if a Scale cannot broadcast the numbers."""
    scale, shift = affine
    sizes = np.broadcast_shapes(scale.shape, shift.shape)
    axes = [axis for axis, size in enumerate(sizes) if size > 1]
    made = proto.LayerParameter(name=name, bottom=[bottom], top=[top])
    if not axes:
        made.type, made.power_param.scale, made.power_param.shift = "Power", scale.item(), shift.item()
        return made, []
    if axes[0] == 0:  # the batch
        return None
    made.type, first, end = "Scale", axes[0], axes[-1] + 1
    made.scale_param.bias_term = True
    if first != 1:
        made.scale_param.axis = first
    if end - first > 1:
        made.scale_param.num_axes = end - first
    return made, [np.broadcast_to(part, sizes).reshape(sizes[first:end]).astype(np.float32) for part in (scale, shift)]


def _batch_norm(made: Any, arrays: list[np.ndarray]) -> Affine | None:
    if made.of_batch or made.learned != (None, None) or made.relu or made.own().update_global_stats:
        return None
    mean, variance, weight = arrays
    rate = 0.0 if weight.item() == 0 else 1 / weight.item()
    shape = (made.channels, *(1,) * sum(axis > made.channel_axis for axis in made.axes))
    scale = 1 / np.sqrt(variance * rate + made.eps)
    return scale.reshape(shape), (-mean * rate * scale).reshape(shape)


def _scale(made: Any, arrays: list[np.ndarray]) -> Affine | None:
    if not made.learned:
        return None
    scale = np.clip(arrays[0], *made.bounds).reshape(made.spread)
    return scale, arrays[1].reshape(made.spread) if made.biased else np.zeros(())


def _bias(made: Any, arrays: list[np.ndarray]) -> Affine | None:
    return (np.ones(()), arrays[0].reshape(made.spread)) if made.learned else None


def _power(made: Any, arrays: list[np.ndarray]) -> Affine | None:
    given = made.scalars
    return (np.array(given["scale"]), np.array(given["shift"])) if given["power"] == 1 else None


def _dropout(made: Any, arrays: list[np.ndarray]) -> Affine | None:
    return (np.array(made.scale), np.zeros(())) if made.moves_data and not made.training else None


READ: dict[str, Callable[[Any, list[np.ndarray]], Affine | None]] = {
    "BatchNorm": _batch_norm, "Bias": _bias, "Dropout": _dropout, "Power": _power, "Scale": _scale, "SpatialDropout": _dropout,
}  # fmt: skip
