"""Coordinate maps between blobs of a NetSpec, and the offsets of Crop layers that follow from them (fully convolutional nets).

A map is a tuple (axis, scale, shift): the coordinate x of one blob is the coordinate scale * x + shift of the other, along all axes after `axis`.
`axis` is None where the map is the same for all axes. `scale` and `shift` are arrays with one value for all axes or a value for each.
The map between two blobs goes through a common ancestor.
"""
from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from ocaffe import net_spec
from ocaffe.errors import Error, FailedCheck, UnknownName, WrongValue
from ocaffe.net_spec import Function, Top

Map = tuple[int | None, Any, Any]  # axis, scale, shift

# Layers whose tops and bottoms have the same coordinates. Scripts may add types of their own.
PASS_THROUGH_LAYERS = [
    "AbsVal", "BatchNorm", "Bias", "BNLL", "Clip", "Concat", "Dropout", "Eltwise", "ELU", "Exp", "Log", "LRN", "Mish", "MVN", "Power", "PReLU", "ReLU",
    "ReLU6", "Scale", "Sigmoid", "Softmax", "Split", "Swish", "TanH", "Threshold",
]  # fmt: skip
WINDOWS = frozenset(["Convolution", "ConvolutionDepthwise", "Deconvolution", "DepthwiseConvolution", "Im2col", "Pooling"])
IDENTITY: Map = (None, Fraction(1), Fraction(0))


class UndefinedMapException(Error):
    """A layer has no map of coordinates."""


class AxisMismatchException(Error):
    """The maps of the layers between the blobs have different axes."""


def _fields(fn: Function) -> dict[str, Any]:
    """Return the fields of a layer's own message, whether given directly or in a message."""
    fields = dict(fn.params)
    for name in ("convolution_param", "pooling_param", "crop_param", "concat_param"):
        inner = fields.pop(name, {})
        fields.update(inner if isinstance(inner, dict) else {field.name: value for field, value in inner.ListFields()})
    return fields


def _numbers(fields: dict[str, Any], kind: str, name: str, default: int | None = None) -> np.ndarray:
    """Return the values of a field such as `pad` (a number or a list), or of its variants pad_h and pad_w. Without `default` the field is required.

    `kind` is the type of the layer, for errors.
    """
    stem = name.removesuffix("_size")
    pair = [fields.get(f"{stem}_{side}", default) for side in "hw"]
    value = pair if {f"{stem}_h", f"{stem}_w"} & fields.keys() else fields.get(name, default)
    numbers = np.array(value if value is None or np.isscalar(value) else list(value) or default, ndmin=1)
    if None in numbers:
        raise UnknownName(f"a {kind} layer has no {name}", fix=f"give it {name}, or {stem}_h and {stem}_w")
    if numbers.dtype.kind not in "iuf" or (numbers != np.floor(numbers)).any():
        raise WrongValue(f"{name} of a {kind} layer is {value!r}", fix=f"set {name} to a whole number, or to a list with one for each spatial axis")
    return numbers.astype(int)


def conv_params(fn: Function) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Return (axis, strides, extents of the windows with dilation, pads) of a convolution or pooling. Each array has one value, or one per axis.

    Raises Error for a layer without kernel_size, and for a stride of 0.
    """
    fields = _fields(fn)
    kernel, dilation = _numbers(fields, fn.type_name, "kernel_size"), _numbers(fields, fn.type_name, "dilation", 1)
    stride = _numbers(fields, fn.type_name, "stride", 1)
    if (stride < 1).any():
        raise WrongValue(f"a {fn.type_name} layer has the stride {_text(stride)}", fix="set stride to 1 or more")
    return int(fields.get("axis", 1)), stride, (kernel - 1) * dilation + 1, _numbers(fields, fn.type_name, "pad", 0)


def crop_params(fn: Function) -> tuple[int, np.ndarray]:
    """Return (first axis that is cropped, offsets) of a Crop layer."""
    fields = _fields(fn)
    return int(fields.get("axis", 2)), _numbers(fields, fn.type_name, "offset", 0)


def _exact(numbers: np.ndarray) -> np.ndarray:
    """Return the numbers as fractions, so that scales such as 3 * (1 / 3) are exactly 1."""
    return np.array([Fraction(int(number)) for number in numbers], object)


def _exact_map(fn: Function) -> Map:
    """Return `coord_map(fn)` with fractions."""
    kind, fields = fn.type_name, _fields(fn)
    if kind in WINDOWS and not fields.get("global_pooling"):
        axis, *parts = conv_params(fn)
        stride, extent, pad = map(_exact, parts)
        with _as_many_axes():
            down = axis, 1 / stride, (pad - (extent - 1) / 2) / stride
        return inverse(down) if kind == "Deconvolution" else down
    if kind == "Crop":
        axis, offset = crop_params(fn)
        return axis - 1, Fraction(1), -_exact(offset)
    along = fields.get("axis", fields.get("concat_dim", 1)) if kind == "Concat" else 1
    if kind in PASS_THROUGH_LAYERS and along in (0, 1):
        return IDENTITY
    raise UndefinedMapException(f"no map of coordinates through a {kind} layer", fix="crop before this layer, or make the Crop by L.Crop with axis and offset")


def _plain(exact: Map) -> Map:
    axis, *values = exact
    scale, shift = (value.astype(float) if isinstance(value, np.ndarray) else float(value) for value in values)
    return axis, scale, shift


def coord_map(fn: Function) -> Map:
    """Return the map from the coordinates of the layer's bottoms to those of its tops. Raises UndefinedMapException if there is none."""
    return _plain(_exact_map(fn))


@contextlib.contextmanager
def _as_many_axes() -> Iterator[None]:
    try:
        yield
    except ValueError as problem:
        raise AxisMismatchException(
            f"kernel_size, stride, pad or offset have different numbers of values; NumPy says: {problem}",
            fix="give each of them one value, or one for each spatial axis",
        ) from None


def compose(base_map: Map, next_map: Map) -> Map:
    """Return the map that applies `next_map` first, then `base_map`. Raises AxisMismatchException."""
    (outer, a1, b1), (inner, a2, b2) = base_map, next_map
    if None not in (outer, inner) and outer != inner:
        fix = "give all layers and the Crop the same axis"
        raise AxisMismatchException(f"the maps begin after axis {outer} and after axis {inner}", fix=fix)
    with _as_many_axes():
        return inner if outer is None else outer, a1 * a2, a1 * b2 + b1


def inverse(coord_map: Map) -> Map:
    """Return the map in the other direction."""
    axis, scale, shift = coord_map
    return axis, 1 / scale, -shift / scale


def _ancestors(top: Top) -> Iterator[tuple[Top, Map]]:
    """Yield `top` and its ancestors, the nearest first, each with the map from its coordinates to those of `top`."""
    maps = {top: IDENTITY}
    waiting = deque([top])
    while waiting:
        current = waiting.popleft()
        yield current, maps[current]
        try:
            step = _exact_map(current.fn)
        except UndefinedMapException:
            continue
        # the second bottom of a Crop sets only the size
        for bottom in current.fn.inputs[: 1 if current.fn.type_name == "Crop" else None]:
            if bottom not in maps:
                maps[bottom] = compose(maps[current], step)
                waiting.append(bottom)


def _exact_from_to(top_from: Top, top_to: Top) -> Map:
    maps = dict(_ancestors(top_from))
    for ancestor, onwards in _ancestors(top_to):
        if ancestor in maps:
            return compose(onwards, inverse(maps[ancestor]))
    raise Error(
        "the two blobs have no common ancestor through layers of images",
        fix="crop to a blob that Convolution, Pooling, Deconvolution and the like make of one image",
    )


def coord_map_from_to(top_from: Top, top_to: Top) -> Map:
    """Return (axis, scale, shift): the coordinate x of `top_from` is the coordinate scale * x + shift of `top_to`.

    Raises AxisMismatchException, or Error if the blobs have no common ancestor.
    """
    return _plain(_exact_from_to(top_from, top_to))


def crop(top_from: Top, top_to: Top) -> Any:
    """Return a Crop of `top_from` to the size and position of `top_to`. The offsets are computed from the layers between them.

    Raises Error, which is an AssertionError too, if the blobs differ in scale, if an offset would be negative, or if it is not a whole number.
    """
    axis, scale, shift = _exact_from_to(top_from, top_to)
    scales, offsets = np.ravel(scale), -np.ravel(shift)
    if (scales != 1).any():
        raise FailedCheck(
            f"the pixels of the two blobs differ in size by the factor {_text(scales)}",
            fix="give the Deconvolution before the crop a stride that undoes the strides of the layers before",
        )
    if (offsets < 0).any():
        raise FailedCheck(f"the crop would begin at pixel {_text(offsets)}, outside the blob", fix="set a larger pad in the first convolution")
    if any(offset.denominator != 1 for offset in offsets):
        raise FailedCheck(
            f"the blobs are {_text(offsets)} pixels apart, not a whole number",
            fix="change pad by 1 or kernel_size by 1 in the Deconvolution before the crop",
        )
    first = 2 if axis is None else axis + 1
    return net_spec.layer_maker("Crop")(top_from, top_to, crop_param={"axis": first, "offset": [int(offset) for offset in offsets]})


def _text(values: np.ndarray) -> str:
    return ", ".join(f"{float(value):g}" for value in values)
