"""Weight fillers: compute the initial value of a parameter blob from its FillerParameter.

The distributions are Caffe's; the random numbers are not. As in Caffe, a filler sees only the blob's shape: fan_in is
count / shape[0] and fan_out is count / shape[1]. For Deconvolution and a transposed InnerProduct the two are therefore swapped.
"""
from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.errors import Error, shape_text
from ocaffe.ir.tensor import Shape

Fill = Callable[[Any, Shape, np.random.Generator], np.ndarray]


def generator(seed: int, layer: str, blob: int) -> np.random.Generator:
    """Return the random generator of parameter `blob` of `layer`.

    Each parameter has a separate stream, so adding a layer does not change the weights of other layers.
    """
    name = hashlib.blake2b(f"{layer}/{blob}".encode(), digest_size=8).digest()
    key = np.array([seed & 0xFFFFFFFFFFFFFFFF, int.from_bytes(name, "little")], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def fill(filler: Any, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Return a float32 array of `shape`, filled according to the FillerParameter.

    Raises Error, without a place, for an unknown type and for settings that are invalid for the type.
    """
    if filler.type not in _FILLERS:
        raise Error(f"there is no filler '{filler.type}'", fix=f"one of {', '.join(sorted(_FILLERS))}")
    if filler.HasField("scale"):
        raise Error("filler field 'scale' (Intel Caffe) is not supported", fix="multiply std, min and max by it")
    return np.ascontiguousarray(_FILLERS[filler.type](filler, tuple(shape), rng), np.float32).reshape(shape)


def _constant(filler: Any, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    return np.full(shape, filler.value, np.float32)


def _uniform_in(low: float, high: float, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    values = np.asarray(rng.random(shape, np.float32))
    values *= np.float32(high - low)
    values += np.float32(low)
    return values


def _uniform(filler: Any, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    if filler.min > filler.max:
        raise Error(f"uniform filler has min {filler.min:g} above max {filler.max:g}", fix="swap them")
    return _uniform_in(filler.min, filler.max, shape, rng)


def _normal(std: float, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    values = np.asarray(rng.standard_normal(shape, np.float32))
    values *= np.float32(std)
    return values


def _gaussian(filler: Any, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    if filler.std < 0:
        raise Error(f"gaussian filler has std {filler.std:g}", fix="std is at least 0")
    values = _normal(filler.std, shape, rng)
    values += np.float32(filler.mean)
    if filler.sparse < 0:
        return values
    outputs = shape[0] if shape else 1
    if filler.sparse > outputs:
        raise Error(f"gaussian filler has sparse {filler.sparse}, blob {shape_text(shape)} has {outputs} outputs", fix="sparse is at most that")
    return values * (rng.random(shape) < filler.sparse / outputs)


def _positive_unitball(filler: Any, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    values = rng.random((shape[0] if shape else 1, math.prod(shape[1:])))
    return values / values.sum(1, keepdims=True)


def _fan(filler: Any, shape: Shape) -> float:
    """Return the number of terms n by which xavier and msra scale the variance."""
    count = math.prod(shape)
    fan_in = count / (shape[0] if shape else 1)
    fan_out = count / (shape[1] if len(shape) > 1 else 1)
    norm = proto.FillerParameter
    return {norm.FAN_IN: fan_in, norm.FAN_OUT: fan_out, norm.AVERAGE: (fan_in + fan_out) / 2}[filler.variance_norm]


def _xavier(filler: Any, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    limit = math.sqrt(3 / _fan(filler, shape))
    return _uniform_in(-limit, limit, shape, rng)


def _msra(filler: Any, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    return _normal(math.sqrt(2 / _fan(filler, shape)), shape, rng)


def _bilinear(filler: Any, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """Return the kernel of bilinear interpolation for a Deconvolution with stride s, kernel 2s - s % 2 and group = channels."""
    if len(shape) != 4 or shape[2] != shape[3]:
        raise Error(f"bilinear filler needs N x C x K x K, the blob is {shape_text(shape)}", fix="a square 2-D kernel, or another filler")
    factor = (shape[3] + 1) // 2
    centre = (shape[3] - 1) / (2 * factor)
    tent = 1 - np.abs(np.arange(shape[3]) / factor - centre)
    return np.broadcast_to(np.outer(tent, tent), shape)


_FILLERS: dict[str, Fill] = {
    "constant": _constant,
    "uniform": _uniform,
    "gaussian": _gaussian,
    "positive_unitball": _positive_unitball,
    "xavier": _xavier,
    "msra": _msra,
    "bilinear": _bilinear,
}
