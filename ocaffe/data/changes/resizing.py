"""Resizing of images with boxes by a resize_param of SSD: the new size, the new boxes, the pixels.

All values, also before truncation to whole pixels, are float32, as in SSD.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.resample import Interpolation, check_pixels, resize
from ocaffe.data.source import CHANGES, draws
from ocaffe.errors import Error

_FIT_SMALL, _FIT_LARGE = (getattr(proto.ResizeParameter, name) for name in ("FIT_SMALL_SIZE", "FIT_LARGE_SIZE_AND_PAD"))
_PAD = {proto.ResizeParameter.CONSTANT: "constant", proto.ResizeParameter.MIRRORED: "reflect", proto.ResizeParameter.REPEAT_NEAREST: "edge"}
_PROB_ERROR = 0.01  # of the sum of the probabilities, as in MobileNet-YOLO
Size = tuple[int, int]  # height, width


def check_sides(param: Any) -> None:
    """Raise Error unless a ResizeParameter has a height and a width, of not too many pixels."""
    missing = " and ".join(name for name in ("height", "width") if not getattr(param, name))
    if missing:
        fact = f"resize_param has height {param.height} and width {param.width}"
        raise Error(fact, fix=f"set {missing} in resize_param to the size of the resized images, in pixels")
    check_pixels("images of resize_param", int(param.height), int(param.width), "set height and width in resize_param to about the size of the images")


@dataclass(frozen=True)
class Resizing:
    """One resize_param (a ResizeParameter)."""

    param: Any

    @property
    def keeps_aspect(self) -> bool:
        """Whether images are resized to fit into the size, and padded."""
        return bool(self.param.resize_mode == _FIT_LARGE)

    def check(self, batch: int) -> None:
        """Raise Error for settings that are wrong for batches of this size."""
        check_sides(self.param)
        if self.param.resize_mode == _FIT_SMALL and batch > 1:
            fix = "set batch_size: 1, or resize_mode: WARP in resize_param"
            raise Error(f"resize_mode FIT_SMALL_SIZE with batch_size {batch}: images differ in size", fix=fix)

    def new_size(self, before: Size) -> Size:
        height, width = int(self.param.height), int(self.param.width)
        return self._fitted(before, False) if self.param.resize_mode == _FIT_SMALL else (height, width)

    def resized(self, corners: np.ndarray, before: Size) -> np.ndarray:
        """Return the corners after resizing. They stay the same fractions of the image unless it is padded."""
        old, new = self._aspects(before)
        size = np.array([self.param.width, self.param.height], np.float32)
        whole = np.array(before[::-1], np.float32)
        padding = np.zeros(2, np.float32)
        if self.param.resize_mode == _FIT_LARGE:
            axis = int(old > new)  # the padded axis: 1 is y
            padding[axis] = (size[axis] - (size[0] / old if axis else old * size[1])) / 2
        elif self.param.resize_mode == _FIT_SMALL:
            size = np.array([size[0], size[0] / old] if old < new else [old * size[1], size[1]], np.float32)
        places = corners.reshape(-1, 2, 2) * whole * (size - 2 * padding) / whole
        places = padding + np.stack([np.maximum(places[:, 0], np.float32(0)), np.minimum(places[:, 1], size)], 1)
        return (places / size).reshape(-1, 4)

    def extrapolated(self, corners: np.ndarray, before: Size, part: np.ndarray) -> np.ndarray:
        """Convert the corners to fractions of height_scale x width_scale, which may be smaller than the image. Only FIT_SMALL_SIZE uses these fields."""
        r = self.param
        if r.resize_mode != _FIT_SMALL or not (r.height_scale and r.width_scale):
            return corners
        old, new = self._aspects(before)
        width, height = np.float32(r.width), np.float32(r.height)
        width, height = (width, width / old) if old < new else (height * old, height)
        size = np.array([width, height], np.float32) * (part[2:] - part[:2])
        scale = np.array([r.width_scale, r.height_scale], np.float32)
        if (size < scale).any():
            fact = f"the image is {size[1]:g} x {size[0]:g}, height_scale x width_scale {scale[1]:g} x {scale[0]:g}"
            raise Error(fact, fix=f"set height_scale to at most {size[1]:g} and width_scale to at most {size[0]:g} in resize_param")
        return corners * np.tile(size, 2) / np.tile(scale, 2)

    def apply(self, image: np.ndarray, resized: Size, method: Interpolation) -> np.ndarray:
        """Return the image (channels x height x width) in the new size."""
        if self.param.resize_mode != _FIT_LARGE:
            return resize(image, *resized, method)
        height, width = resized
        inner = self._fitted((image.shape[1], image.shape[2]), True)
        image = resize(image, max(inner[0], 1), max(inner[1], 1), method)
        down, across = height - image.shape[1], width - image.shape[2]
        borders = (down // 2, down - down // 2), (across // 2, across - across // 2)
        mode = _PAD[self.param.pad_mode]
        if mode != "constant":
            return np.pad(image, ((0, 0), *borders), mode=mode if min(image.shape[1:]) > 1 else "edge")  # type: ignore[call-overload,no-any-return]
        result = np.empty((len(image), height, width), np.uint8)
        result[...] = self._pad_values(len(image))
        (top, _), (left, _) = borders
        result[:, top : top + image.shape[1], left : left + image.shape[2]] = image
        return result

    def _aspects(self, before: Size) -> tuple[np.float32, np.float32]:
        """Return width / height of the image before resizing, and of the size in resize_param."""
        return np.float32(before[1]) / np.float32(before[0]), np.float32(self.param.width) / np.float32(self.param.height)

    def _fitted(self, before: Size, inside: bool) -> Size:
        """Return the size in resize_param with one side changed, so that the image keeps its aspect ratio.

        It is the largest such size inside resize_param's if `inside`, else the smallest that covers it.
        """
        old, new = self._aspects(before)
        height, width = int(self.param.height), int(self.param.width)
        return (int(np.float32(width) / old), width) if (old > new) == inside and old != new else (height, int(old * np.float32(height)))

    def _pad_values(self, channels: int) -> np.ndarray:
        values = list(self.param.pad_value) or [0]
        if len(values) not in (1, channels):
            often = f"once, or {channels} times" if channels > 1 else "once"
            raise Error(f"{len(values)} pad_value given for images of {channels} channels", fix=f"give pad_value in resize_param {often}")
        return np.clip(np.rint(np.broadcast_to(values, channels)), 0, 255).astype(np.uint8)[:, None, None]


def without_padding(boxes: np.ndarray, image: Size, resized: Size) -> np.ndarray:
    """Return boxes relative to the image, from boxes relative to a net's input into which the image fits with padding on two sides.

    As in SSD, a box entirely in the padding stays as it is.
    """
    height, width = map(np.float32, resized)
    aspect = np.float32(image[1]) / np.float32(image[0])
    begin = np.zeros(2, np.float32)  # of the image, x and y
    if aspect > width / height:
        begin[1] = (height - width / aspect) / 2 / height
    else:
        begin[0] = (width - height * aspect) / 2 / width
    end = 1 - begin
    outside = ((boxes[:, :2] >= end) | (boxes[:, 2:] <= begin)).any(1, keepdims=True)
    return np.where(outside, boxes, (boxes - np.tile(begin, 2)) / np.tile(end - begin, 2))


class Resizings:
    """The resize_params of a layer. Of several, each batch draws one by their `prob` (MobileNet-YOLO); the first one gives the shape at the start."""

    def __init__(self, params: Sequence[Any], batch: int) -> None:
        """`batch`: the number of images of a batch. Raises Error."""
        self.all = [Resizing(param) for param in params]
        self.shares = np.array([param.prob for param in params])
        for each in self.all:
            each.check(batch)
        if len(self.all) > 1 and not (abs(self.shares.sum() - 1) <= _PROB_ERROR and (self.shares >= 0).all()):
            fact = f"transform_param has {len(self.all)} resize_param, the sum of their prob is {self.shares.sum():g}"
            raise Error(fact, fix="keep one resize_param, or set prob in each so that their sum is 1")

    @property
    def first(self) -> Resizing | None:
        return self.all[0] if self.all else None

    def of_batch(self, key: tuple[int, int], position: int) -> Resizing | None:
        """Return the one of the batch that begins with the record at `position`."""
        if len(self.all) < 2:
            return self.first
        share = float(draws(key, CHANGES, range(position, position + 1))[0, 0] >> np.uint64(11)) * 2.0**-53 * self.shares.sum()
        return self.all[min(int(np.searchsorted(self.shares.cumsum(), share, "right")), len(self.all) - 1)]
