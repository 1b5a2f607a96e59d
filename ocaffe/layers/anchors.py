"""Anchors and settings, which the layers of region proposal networks share, and a base class of layers without gradient."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ocaffe.errors import Error, shape_text
from ocaffe.formats.param_str import read_settings
from ocaffe.ir.graph import Blob, Node
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.layers.base import Layer

ANCHORS: dict[str, Any] = {"feat_stride": 16, "base_size": 16, "ratios": [0.5, 1.0, 2.0], "scales": [8.0, 16.0, 32.0]}
ROIS = "rois", "R x 5: image, x1, y1, x2, y2"
TRUE_BOXES = "gt_boxes", "G x 5: x1, y1, x2, y2, label"
FIELDS = {"ratios": "ratio", "scales": "scale"}  # the names in ProposalParameter that differ


class WithoutGradient(Layer):
    """Base of layers that select boxes. The diffs of their bottoms are zero."""

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        for bottom, wanted in zip(bottoms, propagate):
            if wanted:
                assert bottom.diff is not None
                pointwise(rec, "y0 = 0", writes=[bottom.diff])


class Configured(WithoutGradient):
    """Base of the layers of a region proposal network, which have settings."""

    def read_settings(self, defaults: Mapping[str, Any]) -> Any:
        """Return the settings as attributes. `defaults` has the known ones."""
        return settings(self, defaults)

    def cell_anchors(self, p: Any) -> np.ndarray:
        """Return the anchors of the first cell: x1, y1, x2, y2."""
        return base_anchors(p.base_size, p.ratios, p.scales)


def settings(layer: Layer, defaults: Mapping[str, Any]) -> Any:
    """Return the layer's settings as attributes, read from proposal_param or from python_param { param_str }.

    `defaults` has the known keys and their defaults. An unknown key, and a list in place of a number or the reverse, raise the layer's error.
    """
    values = dict(defaults)
    if layer.param.HasField("python_param") or layer.message == "":
        try:
            given = read_settings(layer.param.python_param.param_str)
        except Error as problem:
            raise layer.error(problem.fact, problem.fix or "") from None
        for key, value in given.items():
            layer.check(
                key in defaults,
                f"param_str has '{key}', which is no setting of {layer.type}",
                f"remove '{key}', or correct it to one of {', '.join(defaults)}",
            )
            many = isinstance(defaults[key], list)
            numbers = value if many and isinstance(value, list) else [value]
            kind: Any = str if isinstance(defaults[key], str) else (int, float)
            fits = isinstance(value, list) == many and all(isinstance(number, kind) for number in numbers)
            wanted = "a text in quotes" if kind is str else "a list of numbers" if many else "a number"
            layer.check(fits, f"param_str has '{key}': {value!r}", f"give '{key}' {wanted}, in the form of '{key}': {defaults[key]!r}")
            values[key] = value
    else:
        message = layer.param.proposal_param
        for key, default in defaults.items():
            field = getattr(message, FIELDS.get(key, key))
            values[key] = (list(field) or default) if isinstance(default, list) else field
    return SimpleNamespace(**values)


def readers(blob: Blob) -> Iterator[Node]:
    """Yield the nodes that read a blob, also those behind Split."""
    if blob.consumer is None:
        return
    if blob.consumer.type != "Split":
        yield blob.consumer
        return
    for top in blob.consumer.tops:
        yield from readers(top)


def check_anchors(layer: Layer, p: Any) -> None:
    """Raise the layer's error for settings that give no anchors."""
    for name in ("ratios", "scales"):
        given = getattr(p, name)
        layer.check(given, f"{name} has no numbers", f"give {name} the numbers with which the net was trained")
        layer.check(min(given) > 0, f"a number in {name} is {min(given):g}", f"set each number of {name} above 0")
    layer.check(p.feat_stride > 0, f"feat_stride is {p.feat_stride:g}", "set feat_stride to the pixels between two cells of the feature map (16 for VGG16)")
    layer.check(
        p.base_size > 0,
        f"base_size is {p.base_size:g}",
        "set base_size to the side of the anchors in pixels that scales multiply (16 in Faster R-CNN)",
    )


def check_rows(layer: Layer, bottom: int, shape: Shape, rows: tuple[str, str]) -> None:
    """Raise the layer's error unless the bottom has rows of five values. `rows` are the name and the form that they must have."""
    values = shape[1:2] if set(shape[2:]) <= {1} else shape[1:]
    layer.check(values == (5,), f"bottom {bottom} is {shape_text(shape)}, it must be {rows[1]}", f"give {rows[0]} as bottom {bottom}")


def check_one_image(layer: Layer, shape: Shape, info: int, info_shape: Shape) -> None:
    """Raise the layer's error unless bottom 0 is the map of one image and bottom `info` its im_info."""
    layer.check(len(shape) == 4, f"bottom 0 is {shape_text(shape)}, it must be 1 x C x H x W", "give the scores of the anchors as bottom 0")
    layer.check(shape[0] == 1, f"bottom 0 is {shape_text(shape)}: {shape[0]} images, the layer takes 1", "set the batch size of the data layer to 1")
    size = int(np.prod(info_shape))
    layer.check(
        size >= 3,
        f"bottom {info} is {shape_text(info_shape)}, it must be 1 x 3: height, width and scale of the image",
        f"give im_info as bottom {info}",
    )


def base_anchors(base: float, ratios: Sequence[float], scales: Sequence[float]) -> np.ndarray:
    """Return the anchors of the first cell (x1, y1, x2, y2), ordered by ratio, then by scale, rounded as in Faster R-CNN.

    A box of base x base pixels is reshaped to every ratio (height : width) at about the same area. Its sides are rounded to whole pixels,
    halves to even. Every scale then enlarges it about its centre.
    """
    widths = np.round(np.sqrt(base * base / np.asarray(ratios, np.float64)))
    heights = np.round(widths * ratios)
    sides = np.stack([widths, heights], 1)[:, None] * np.asarray(scales, np.float64)[:, None]
    centre, reach = (base - 1) / 2, (sides.reshape(-1, 2) - 1) / 2
    return np.concatenate([centre - reach, centre + reach], 1).astype(np.float32)
