"""Weight fillers: compute the initial value of a parameter blob from its FillerParameter.

The distributions are Caffe's; the random numbers are not. As in Caffe, a filler sees only the blob's shape: fan_in is
count / shape[0] and fan_out is count / shape[1]. For Deconvolution and a transposed InnerProduct the two are therefore swapped.
"""
from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.errors import Error, shape_text
from ocaffe.ir.tensor import Shape
from ocaffe.support.process_memory import PIECE, pieces


def generator(seed: int, layer: str, blob: int) -> np.random.Generator:
    """Return the random generator of parameter `blob` of `layer`.

    Each parameter has a separate stream, so adding a layer does not change the weights of other layers.
    """
    name = hashlib.blake2b(f"{layer}/{blob}".encode(), digest_size=8).digest()
    key = np.array([seed & 0xFFFFFFFFFFFFFFFF, int.from_bytes(name, "little")], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


class Draw(NamedTuple):
    """A distribution: uniform from `start` on over `width`, or normal with the mean `start` and the standard deviation `width`.

    `kept`: the probability with which a value is kept, else it is 0. `normalised`: the values of each output are divided by their sum.
    """

    normal: bool
    start: float
    width: float
    kept: float | None = None
    normalised: bool = False


def _scaled(filler: Any, shape: Shape) -> str:
    """Return the remedy for Intel's `scale`: the filler without it that gives the same values."""
    if filler.type == "constant":
        return f"replace the filler by value: {filler.value * filler.scale:g}"
    draw = None if filler.type not in _DRAWS else _DRAWS[filler.type](filler, tuple(shape))
    if draw is None or draw.normalised:
        return f"remove scale, and multiply the values by {filler.scale:g} in Python"
    least, most = sorted((draw.start * filler.scale, (draw.start + draw.width) * filler.scale))
    if not draw.normal:
        return f'replace the filler by type: "uniform" min: {least:.4g} max: {most:.4g}'
    mean, sparse = (f" mean: {draw.start * filler.scale:.4g}" if draw.start else ""), (f" sparse: {filler.sparse}" if draw.kept is not None else "")
    return f'replace the filler by type: "gaussian" std: {abs(draw.width * filler.scale):.4g}{mean}{sparse}'


def draw_of(filler: Any, shape: Shape) -> Draw | None:
    """Return the distribution of a filler's values, or None if they are not random. Raises Error, as `fill` does."""
    known = sorted((*_DRAWS, *_FIXED))
    if filler.type not in known:
        near = difflib.get_close_matches(filler.type.lower(), known, 1, 0.6)
        raise Error(f"there is no filler '{filler.type}'", fix=(f'type: "{near[0]}", or another of ' if near else "set type to one of ") + ", ".join(known))
    if filler.HasField("scale"):
        raise Error("filler field 'scale' (Intel Caffe) is not supported", fix=_scaled(filler, shape))
    if filler.type == "bilinear" and (len(shape) != 4 or shape[2] != shape[3]):
        fix = "set kernel_size to one number in place of kernel_h and kernel_w, or use another filler, such as type: \"xavier\""
        raise Error(f"bilinear filler needs N x C x K x K, the blob is {shape_text(shape)}", fix=fix)
    return _DRAWS[filler.type](filler, tuple(shape)) if filler.type in _DRAWS else None


def fill(filler: Any, shape: Shape, rng: np.random.Generator, out: np.ndarray | None = None) -> np.ndarray:
    """Return a float32 array of `shape`, filled according to the FillerParameter.

    `out`: the array to fill, float32 and contiguous; None: a new one. Of random values only a piece is held beside it.
    Raises Error, without a place, for an unknown type and for settings that are invalid for the type.
    """
    draw = draw_of(filler, shape)
    result = np.empty(shape, np.float32) if out is None else out.reshape(shape)
    if draw is None:
        result[...] = _FIXED[filler.type](filler, tuple(shape))
    else:
        _draw(draw, result, rng)
    return result


def _draw(draw: Draw, result: np.ndarray, rng: np.random.Generator) -> None:
    """Draw the values piece by piece. The generator yields the same numbers as in one call."""
    if draw.normalised:
        rows = result.reshape(result.shape[0] if result.shape else 1, -1)
        step = max(1, PIECE // (8 * max(rows.shape[1], 1)))
        for start in range(0, len(rows), step):
            values = rng.random(rows[start : start + step].shape)
            rows[start : start + step] = values / values.sum(1, keepdims=True)
        return
    flat = result.reshape(-1)
    for part in pieces(flat):
        values = flat[part]
        draw_into: Any = rng.standard_normal if draw.normal else rng.random
        draw_into(dtype=np.float32, out=values)
        values *= np.float32(draw.width)
        values += np.float32(draw.start)
    if draw.kept is not None:
        for part in pieces(flat):
            flat[part] *= rng.random(flat[part].shape) < draw.kept


def _uniform(filler: Any, shape: Shape) -> Draw:
    if filler.min > filler.max:
        raise Error(f"uniform filler has min {filler.min:g} above max {filler.max:g}", fix=f"min: {filler.max:g} max: {filler.min:g}")
    return Draw(False, filler.min, filler.max - filler.min)


def _gaussian(filler: Any, shape: Shape) -> Draw:
    if filler.std < 0:
        raise Error(f"gaussian filler has std {filler.std:g}", fix="set std of the filler to 0 or more")
    outputs = shape[0] if shape else 1
    if filler.sparse > outputs:
        fact = f"gaussian filler has sparse {filler.sparse}, blob {shape_text(shape)} has {outputs} outputs"
        raise Error(fact, fix=f"set sparse of the filler to at most {outputs}")
    return Draw(True, filler.mean, filler.std, filler.sparse / max(outputs, 1) if filler.sparse >= 0 else None)


def _positive_unitball(filler: Any, shape: Shape) -> Draw:
    return Draw(False, 0.0, 1.0, normalised=True)


def _fan(filler: Any, shape: Shape) -> float:
    """Return the number of terms n by which xavier and msra scale the variance."""
    count = math.prod(shape)
    fan_in = count / (shape[0] if shape else 1)
    fan_out = count / (shape[1] if len(shape) > 1 else 1)
    norm = proto.FillerParameter
    return {norm.FAN_IN: fan_in, norm.FAN_OUT: fan_out, norm.AVERAGE: (fan_in + fan_out) / 2}[filler.variance_norm]


def _xavier(filler: Any, shape: Shape) -> Draw:
    limit = math.sqrt(3 / _fan(filler, shape))
    return Draw(False, -limit, 2 * limit)


def _msra(filler: Any, shape: Shape) -> Draw:
    return Draw(True, 0.0, math.sqrt(2 / _fan(filler, shape)))


def _constant(filler: Any, shape: Shape) -> Any:
    return np.float32(filler.value)


def _bilinear(filler: Any, shape: Shape) -> np.ndarray:
    """Return the kernel of bilinear interpolation for a Deconvolution with stride s, kernel 2s - s % 2 and group = channels."""
    factor = (shape[3] + 1) // 2
    centre = (shape[3] - 1) / (2 * factor)
    tent = 1 - np.abs(np.arange(shape[3]) / factor - centre)
    return np.broadcast_to(np.outer(tent, tent), shape)


_DRAWS: dict[str, Callable[[Any, Shape], Draw]] = {
    "uniform": _uniform,
    "gaussian": _gaussian,
    "positive_unitball": _positive_unitball,
    "xavier": _xavier,
    "msra": _msra,
}
_FIXED: dict[str, Callable[[Any, Shape], Any]] = {"constant": _constant, "bilinear": _bilinear}
