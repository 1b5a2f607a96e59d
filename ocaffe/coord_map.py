"""Coordinate maps between blobs of a NetSpec, and the offsets of Crop layers that follow from them (fully convolutional nets).

A map is a tuple (axis, scale, shift), as in pycaffe: coordinate x of a layer's bottom is coordinate scale * x + shift of its top. `axis` is the last axis
that is no coordinate: 1 for images, None for layers that keep all coordinates. `scale` and `shift` are numbers, or arrays with one value per axis where
a layer gives its windows per axis.

Inside, maps have exact fractions. With floats a scale such as 49 * (1 / 49) would differ from 1.
"""
from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from ocaffe import layers as L
from ocaffe.errors import Error, FailedCheck
from ocaffe.net_spec import Function, Top

# Layers whose top and bottom coordinates are equal.
PASS_THROUGH_LAYERS = [
    "AbsVal", "BatchNorm", "Bias", "BNLL", "Concat", "Dropout", "Eltwise", "ELU", "Exp", "Log", "LRN", "Mish", "MVN", "Power", "PReLU", "ReLU", "ReLU6",
    "Scale", "Sigmoid", "Softmax", "Split", "Swish", "TanH", "Threshold",
]  # fmt: skip
WINDOWS = ("Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "Pooling", "Im2col")

CoordMap = tuple[int | None, Any, Any]
IDENTITY: CoordMap = (None, 1, 0)


class UndefinedMapException(Error):
    """A layer between the blobs has no map, or the blobs have no common ancestor."""


class AxisMismatchException(Error):
    """The maps of the layers between the blobs start at different axes."""


def _own(function: Function) -> dict[str, Any]:
    """Return the fields of a layer's own message, whether given directly or in a message."""
    fields = dict(function.params)
    for name in [name for name in fields if name.endswith("_param")]:
        inner = fields.pop(name)
        if name in ("convolution_param", "pooling_param", "crop_param"):
            fields.update(inner if isinstance(inner, dict) else {field.name: value for field, value in inner.ListFields()})
    return fields


def _sizes(fields: dict[str, Any], name: str, default: int) -> np.ndarray:
    """Return the values of a field such as `kernel_size` (a number or a list), or of its variants kernel_h and kernel_w."""
    stem = name.removesuffix("_size")
    if f"{stem}_h" in fields or f"{stem}_w" in fields:
        return np.array([fields.get(f"{stem}_h", default), fields.get(f"{stem}_w", default)])
    values = np.array(fields.get(name, default), ndmin=1)
    return values if len(values) else np.array([default])


def conv_params(fn: Function) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Return (axis, stride, extent, pad) of a layer with windows: the channel axis, and arrays of one value, or one per axis.

    `extent` is the number of pixels that a window spans. Raises UndefinedMapException for global pooling.
    """
    fields = _own(fn)
    if fields.get("global_pooling"):
        raise UndefinedMapException(f"a {fn.type_name} over the whole image has no map", fix="crop elsewhere")
    stride, kernel, pad, dilation = (_sizes(fields, name, default) for name, default in (("stride", 1), ("kernel_size", 1), ("pad", 0), ("dilation", 1)))
    return int(fields.get("axis", 1)), stride, (kernel - 1) * dilation + 1, pad


def crop_params(fn: Function) -> tuple[int, np.ndarray]:
    """Return (axis, offset) of a Crop. Its field `axis` (default 2) is the first axis that it crops, so the axis of its map is one less."""
    fields = _own(fn)
    return int(fields.get("axis", 2)) - 1, _sizes(fields, "offset", 0)


def coord_map(fn: Function) -> CoordMap:
    """Return the map from coordinates of the layer's bottoms to its tops. Raises UndefinedMapException."""
    return _plain(_exact(fn))


def _exact(fn: Function) -> CoordMap:
    kind = fn.type_name
    if kind in PASS_THROUGH_LAYERS:
        return IDENTITY
    if kind in WINDOWS or kind == "Deconvolution":
        axis, stride, extent, pad = (_fractions(value) if isinstance(value, np.ndarray) else value for value in conv_params(fn))
        up = axis, stride, (extent - 1) / 2 - pad
        return up if kind == "Deconvolution" else inverse(up)
    if kind == "Crop":
        axis, offset = crop_params(fn)
        return axis, Fraction(1), -_fractions(offset)
    raise UndefinedMapException(f"no map of coordinates through a {kind}", fix="crop before it, or set the offsets of the Crop by hand")


def _fractions(values: np.ndarray) -> Any:
    """Return a Fraction for one value, else an array of them."""
    exact = np.array([Fraction(int(value)) for value in values], object)
    return exact if len(exact) > 1 else exact[0]


def _plain(found: CoordMap) -> CoordMap:
    """Return a map with floats in place of fractions."""
    axis, scale, shift = found
    if axis is None:
        return found
    scale, shift = (np.asarray(part, np.float64) for part in (scale, shift))
    scale, shift = np.broadcast_arrays(scale, shift)
    return axis, scale[()].copy(), shift[()].copy()


def compose(base_map: CoordMap, next_map: CoordMap) -> CoordMap:
    """Return the map that applies `next_map` first, then `base_map`. Raises AxisMismatchException."""
    (axis, scale, shift), (other, inner_scale, inner_shift) = base_map, next_map
    if axis is not None and other is not None and axis != other:
        raise AxisMismatchException(f"maps of axes {axis} and {other} between the blobs", fix="crop along the axes that all layers share")
    here, there = np.size(shift), np.size(inner_shift)
    if here != there and min(here, there) > 1:
        raise AxisMismatchException(f"maps of {here} and {there} axes between the blobs", fix="give windows of as many axes")
    return other if axis is None else axis, scale * inner_scale, scale * inner_shift + shift


def inverse(coord_map: CoordMap) -> CoordMap:
    """Return the map in the other direction."""
    axis, scale, shift = coord_map
    return axis, 1 / scale if axis is not None else 1, -shift / scale if axis is not None else 0


def _ancestors(top: Top) -> dict[Top, CoordMap]:
    """Return each ancestor of `top` with the map to coordinates of `top`. Of a Crop only the first bottom counts, because it sets the coordinates."""
    found = {top: IDENTITY}
    waiting = [top]
    while waiting:
        current = waiting.pop()
        bottoms: Sequence[Top] = current.fn.inputs[:1] if current.fn.type_name == "Crop" else current.fn.inputs
        for bottom in bottoms:
            if bottom in found:
                continue
            try:
                found[bottom] = compose(found[current], _exact(current.fn))
            except UndefinedMapException:
                continue
            waiting.append(bottom)
    return found


def coord_map_from_to(top_from: Top, top_to: Top) -> CoordMap:
    """Return (axis, scale, shift): coordinate x of `top_from` is coordinate scale * x + shift of `top_to`, as pycaffe defines it.

    Raises UndefinedMapException or AxisMismatchException.
    """
    return _plain(_from_to(top_from, top_to))


def _from_to(top_from: Top, top_to: Top) -> CoordMap:
    here, there = _ancestors(top_from), _ancestors(top_to)
    common = next((top for top in here if top in there), None)
    if common is None:
        raise UndefinedMapException("no blob is an ancestor of both by layers with a map", fix="crop between blobs of one image")
    return compose(there[common], inverse(here[common]))


def crop(top_from: Top, top_to: Top) -> Any:
    """Return a Crop of `top_from` to the size and position of `top_to`. The offsets are computed from the layers between them.

    Raises Error, which is an AssertionError too, if the blobs differ in scale, if an offset would be negative, or if it is not a whole number.
    """
    axis, scale, shift = _from_to(top_from, top_to)
    scales, offsets = np.atleast_1d(scale), -np.atleast_1d(shift)
    if (scales != 1).any():
        raise FailedCheck(f"scales of the two blobs differ, by {_text(scales)}", fix="upsample with as large a stride as was lost")
    if (offsets < 0).any():
        raise FailedCheck(f"a crop would begin at {_text(offsets)}, outside of the blob", fix="pad the image more")
    if any(offset != int(offset) for offset in offsets):
        raise FailedCheck(f"the blobs are {_text(offsets)} pixels apart, not a whole number", fix="another padding or kernel size")
    first = 2 if axis is None else axis + 1
    return L.Crop(top_from, top_to, crop_param={"axis": first, "offset": [int(offset) for offset in offsets]})


def _text(values: np.ndarray) -> str:
    return ", ".join(f"{float(value):g}" for value in values)
