"""Coordinate maps between blobs of a NetSpec, and the offsets of Crop layers that follow from them (fully convolutional nets).

Along each spatial axis a layer maps a coordinate x of its top to the coordinate scale * x + shift of its bottom. The maps of consecutive layers are
composed. The map between two blobs goes through a common ancestor.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ocaffe import net_spec
from ocaffe.errors import Error
from ocaffe.net_spec import Function, Top

# Layers whose top and bottom coordinates are equal.
POINTWISE = frozenset([
    "Concat", "Split", "Eltwise", "BatchNorm", "Scale", "Bias", "LRN", "MVN", "Dropout", "Softmax", "AbsVal", "BNLL", "ELU", "Exp", "Log", "Power", "PReLU",
    "ReLU", "ReLU6", "Sigmoid", "Swish", "Mish", "TanH", "Threshold",
])  # fmt: skip
WINDOWS = frozenset(["Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "Pooling", "Im2col"])
ANY = None  # as an axis: the map is the same for all axes


class UndefinedMapException(Error):
    """A layer between the blobs has no map, or the blobs have no common ancestor."""


class AxisMismatchException(Error):
    """The maps of the layers between the blobs start at different axes."""


@dataclass(frozen=True)
class Map:
    """Maps the top coordinate x to scale * x + shift along the axes from `axis` on. `scale` and `shift` have one value for all axes, or one per axis."""

    axis: int | None
    scale: tuple[Fraction, ...]
    shift: tuple[Fraction, ...]

    def after(self, inner: Map) -> Map:
        """Return the composition: first `inner`, then this map."""
        axis = self.axis if inner.axis is ANY else inner.axis
        if self.axis is not ANY and self.axis != axis:
            raise AxisMismatchException(f"maps of axes {self.axis} and {axis} between the blobs", fix="crop along the axes that all layers share")
        size = max(len(self.scale), len(inner.scale))
        a, b, c, d = (part * size if len(part) == 1 else part for part in (self.scale, self.shift, inner.scale, inner.shift))
        if not len(a) == len(c):
            raise AxisMismatchException(f"maps of {len(a)} and {len(c)} axes between the blobs", fix="give windows of as many axes")
        return Map(axis, tuple(x * y for x, y in zip(a, c)), tuple(x * y + z for x, y, z in zip(a, d, b)))

    def inverse(self) -> Map:
        return Map(self.axis, tuple(1 / x for x in self.scale), tuple(-y / x for x, y in zip(self.scale, self.shift)))


IDENTITY = Map(ANY, (Fraction(1),), (Fraction(0),))


def _own(function: Function) -> dict[str, Any]:
    """Return the fields of a layer's own message, whether given directly or in a message."""
    fields = dict(function.params)
    for name in [name for name in fields if name.endswith("_param")]:
        inner = fields.pop(name)
        if name in ("convolution_param", "pooling_param", "crop_param"):
            fields.update(inner if isinstance(inner, dict) else {field.name: value for field, value in inner.ListFields()})
    return fields


def _sizes(fields: dict[str, Any], name: str, default: int) -> list[int]:
    """Return the values of a field such as `kernel_size` (a number or a list), or of its variants kernel_h and kernel_w."""
    stem = name.removesuffix("_size")
    if f"{stem}_h" in fields or f"{stem}_w" in fields:
        return [int(fields.get(f"{stem}_h", default)), int(fields.get(f"{stem}_w", default))]
    value = fields.get(name, default)
    return [int(value)] if not hasattr(value, "__iter__") else [int(n) for n in value] or [default]


def _window(function: Function) -> tuple[int, list[tuple[int, int, int]]]:
    """Return the first axis, and (stride, extent of the window, padding) for each axis, or once for all axes."""
    fields = _own(function)
    if fields.get("global_pooling"):
        raise UndefinedMapException(f"a {function.type_name} over the whole image has no map", fix="crop elsewhere")
    stride, kernel, pad, dilation = (_sizes(fields, name, default) for name, default in (("stride", 1), ("kernel_size", 1), ("pad", 0), ("dilation", 1)))
    size = max(map(len, (stride, kernel, pad, dilation)))
    parts = [part * size if len(part) == 1 else part for part in (stride, kernel, pad, dilation)]
    return int(fields.get("axis", 1)) + 1, [(s, d * (k - 1) + 1, p) for s, k, p, d in zip(*parts)]


def coord_map(function: Function) -> Map:
    """Return the map from coordinates of the layer's top to its (first) bottom. Raises UndefinedMapException."""
    kind = function.type_name
    if kind in POINTWISE:
        return IDENTITY
    if kind in WINDOWS:
        axis, windows = _window(function)
        return Map(axis, tuple(Fraction(s) for s, _, _ in windows), tuple(Fraction(k - 1, 2) - p for _, k, p in windows))
    if kind == "Deconvolution":
        axis, windows = _window(function)
        return Map(axis, tuple(Fraction(s) for s, _, _ in windows), tuple(Fraction(k - 1, 2) - p for _, k, p in windows)).inverse()
    if kind == "Crop":
        fields = _own(function)
        offset = fields.get("offset", 0)
        offsets = list(offset) if hasattr(offset, "__iter__") else [offset]
        return Map(int(fields.get("axis", 2)), tuple(Fraction(1) for _ in offsets), tuple(Fraction(int(n)) for n in offsets))
    raise UndefinedMapException(f"no map of coordinates through a {kind}", fix="crop before it, or set the offsets of the Crop by hand")


def _ancestors(top: Top) -> dict[Top, Map]:
    """Return each ancestor of `top` with the map from coordinates of `top`. Of a Crop only the first bottom counts, because it sets the coordinates."""
    found = {top: IDENTITY}
    waiting = [top]
    while waiting:
        current = waiting.pop()
        bottoms: Sequence[Top] = current.fn.inputs[:1] if current.fn.type_name == "Crop" else current.fn.inputs
        for bottom in bottoms:
            if bottom in found:
                continue
            try:
                found[bottom] = coord_map(current.fn).after(found[current])
            except UndefinedMapException:
                continue
            waiting.append(bottom)
    return found


def coord_map_from_to(top_from: Top, top_to: Top) -> tuple[int | None, list[float], list[float]]:
    """Return (axis, scale, shift): coordinate x of `top_from` is coordinate scale * x + shift of `top_to`.

    Raises UndefinedMapException or AxisMismatchException.
    """
    here, there = _ancestors(top_from), _ancestors(top_to)
    common = next((top for top in here if top in there), None)
    if common is None:
        raise UndefinedMapException("no blob is an ancestor of both by layers with a map", fix="crop between blobs of one image")
    # there() maps top_to to the ancestor, so its inverse maps the ancestor to top_to
    found = there[common].inverse().after(here[common])
    return found.axis, [float(a) for a in found.scale], [float(b) for b in found.shift]


def crop(top_from: Top, top_to: Top) -> Any:
    """Return a Crop of `top_from` to the size and position of `top_to`. The offsets are computed from the layers between them.

    Raises Error if the blobs differ in scale, if an offset would be negative, or if it is not a whole number.
    """
    axis, scale, shift = coord_map_from_to(top_from, top_to)
    if any(a != 1 for a in scale):
        raise Error(f"scales of the two blobs differ, by {', '.join(f'{a:g}' for a in scale)}", fix="upsample with as large a stride as was lost")
    offsets = [round(-b) for b in shift]
    if any(offset < 0 for offset in offsets):
        raise Error(f"a crop would begin at {', '.join(map(str, offsets))}, outside of the blob", fix="pad the image more")
    if any(abs(offset + b) > 1e-6 for offset, b in zip(offsets, shift)):
        raise Error(f"the blobs are {', '.join(f'{-b:g}' for b in shift)} pixels apart, not a whole number", fix="another padding or kernel size")
    return net_spec.layer_maker("Crop")(top_from, top_to, crop_param={"axis": axis if axis is not None else 2, "offset": offsets})
