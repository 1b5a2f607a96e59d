"""Resizing of uint8 images with the same results as OpenCV's cv::resize: its arithmetic on x86 without Intel's IPP, its borders, its special cases."""
from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

import numpy as np

from ocaffe.data.decoding.decode import MAX_PIXELS
from ocaffe.errors import Error, Place

BITS = 11  # fraction bits of a weight; a result of both passes has twice as many
_LANES = 8  # values of a row of the result that OpenCV computes at a time for CUBIC (VResizeCubicVec_32s8u)
_CUBIC = -0.75  # slope of the cubic kernel at 1
_LANCZOS = 8  # taps
_CACHED = 1 << 16  # values of the lines that are resized at a time
_PIXEL = 1e-3  # a smaller fraction of a pixel is ignored (computeResizeAreaTab)


class Interpolation(Enum):
    """The values of ResizeParameter.interp_mode."""

    LINEAR = 1
    AREA = 2
    NEAREST = 3
    CUBIC = 4
    LANCZOS4 = 5


class Taps(NamedTuple):
    """The taps along one axis, outputs x taps: the input positions that each output reads, and their weights (integers or floats)."""

    places: np.ndarray
    weight: np.ndarray


def check_pixels(what: str, height: int, width: int, fix: str, place: Place | str | None = None) -> None:
    """Raise Error if an image of this size has too many pixels. Sizes in flags, nets and files have the limit of image files.

    `what` names the image by the setting, such as 'images of --resize'.
    """
    if height * width > MAX_PIXELS:
        raise Error(f"{what} would be {height} x {width} = {height * width:,} pixels, and the limit is {MAX_PIXELS:,}", place=place, fix=fix)


def resize(image: np.ndarray, height: int, width: int, method: Interpolation = Interpolation.LINEAR) -> np.ndarray:
    """Return `image` (channels x height x width, uint8) resized to height x width. Raise Error without a place for a size of too many pixels."""
    before = image.shape[1:]
    if before == (height, width):
        return image
    check_pixels(f"an image of {before[0]} x {before[1]}, resized,", height, width, "set a smaller size, or cut the image off at its longer sides")
    scale = before[0] / height, before[1] / width
    halves = scale == (2, 2)
    if method is Interpolation.NEAREST:
        rows, columns = (np.minimum(np.floor(np.arange(n) * (1 / (n / m))).astype(np.intp), m - 1) for n, m in zip((height, width), before))
        return image[:, rows][:, :, columns]
    if (method is Interpolation.AREA and min(scale) >= 1) or (method is Interpolation.LINEAR and halves):
        if scale[0].is_integer() and scale[1].is_integer():
            return _mean(image, int(scale[0]), int(scale[1]))
        taps = [_area_taps(old, new) for old, new in zip(before, (height, width))]
        return _to_bytes(np.rint(_vertical(_horizontal(image, taps[1]), taps[0])))
    make, finish = _METHODS[method]
    taps = [make(old, new) for old, new in zip(before, (height, width))]
    if finish is _two_rows:
        taps[1] = _inside(taps[1])
    used, rows = _used(taps[0])
    return finish(_horizontal(image[:, used], taps[1]), rows)


def shrunk(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return an image of floats (height x width x channels) that is resized by AREA to a smaller size, as OpenCV does without rounding."""
    for axis, size in enumerate((height, width)):
        taps = _area_taps(image.shape[axis], size)
        shape = [-1 if k == axis else 1 for k in range(3)]
        image = sum((image.take(taps.places[:, k], axis) * taps.weight[:, k].reshape(shape) for k in range(taps.places.shape[1])), np.float32(0))
    return image


def _used(taps: Taps) -> tuple[np.ndarray, Taps]:
    """Return the input positions that outputs read, and taps whose places are numbers of these. If the image shrinks much, most are never read."""
    used, place = np.unique(taps.places, return_inverse=True)
    return used, Taps(place.reshape(taps.places.shape), taps.weight)


def _to_bytes(values: np.ndarray) -> np.ndarray:
    """Return `values` limited to 0 to 255. `values` is overwritten."""
    return np.clip(values, 0, 255, out=values).astype(np.uint8)


def _mean(image: np.ndarray, down: int, across: int) -> np.ndarray:
    """Return the means of areas of `down` x `across` pixels.

    As in OpenCV, halves round up in areas of 2 x 2 pixels of 1, 3 or 4 channels. All other halves round to even.
    """
    channels, height, width = image.shape
    sums = image.reshape(channels, height // down, down, width // across, across).sum((2, 4), dtype=np.int32)
    if (down, across) == (2, 2) and channels in (1, 3, 4):
        return (sums + 2 >> 2).astype(np.uint8)
    return _to_bytes(np.rint(sums.astype(np.float32) * np.float32(1 / (down * across))))


def _weighted(rows: np.ndarray, taps: Taps) -> np.ndarray:
    """Return sums of rows: one for each output."""
    total = rows.take(taps.places[:, 0], 0)
    total *= taps.weight[:, 0, None]
    row = np.empty_like(total)
    for k in range(1, taps.places.shape[1]):
        rows.take(taps.places[:, k], 0, out=row, mode="clip")  # the default mode copies `out`
        row *= taps.weight[:, k, None]
        total += row
    return total


def _horizontal(image: np.ndarray, taps: Taps) -> np.ndarray:
    """Return channels x height x outputs. Some lines at a time are turned, because numpy copies a row faster than single pixels."""
    channels, height, width = image.shape
    lines, outputs = image.reshape(-1, width), len(taps.places)
    if taps.places.size < width:
        used, taps = _used(taps)
        lines = lines[:, used]
    result = np.empty((len(lines), outputs), taps.weight.dtype)
    some = max(1, _CACHED // max(lines.shape[1], outputs))
    for at in range(0, len(lines), some):
        result[at : at + some] = _weighted(lines[at : at + some].T.astype(result.dtype, "C"), taps).T
    return result.reshape(channels, height, outputs)


def _vertical(lines: np.ndarray, taps: Taps) -> np.ndarray:
    return np.stack([_weighted(plane, taps) for plane in lines])


def _two_rows(lines: np.ndarray, taps: Taps) -> np.ndarray:
    """OpenCV truncates each product to 16 bits here, but not in the other methods."""
    lines = lines >> 4
    result = np.empty((len(lines), len(taps.places), lines.shape[2]), np.uint8)
    for plane, out in zip(lines, result):
        first, second = (plane.take(taps.places[:, k], 0) for k in (0, 1))
        for k, row in enumerate((first, second)):
            row *= taps.weight[:, k, None]
            row >>= 16
        first += second
        first += 2
        first >>= 2
        np.clip(first, 0, 255, out=out, casting="unsafe")
    return result


def _four_rows(lines: np.ndarray, taps: Taps) -> np.ndarray:
    """OpenCV computes groups of `_LANES` values in float32, from the last tap to the first, and rounds halves to even.

    A row there holds the channels of each pixel in turn. The values after its last whole group are computed in integers.
    """
    channels, _, width = lines.shape
    total = _vertical(lines, Taps(taps.places[:, ::-1], taps.weight[:, ::-1] / np.float32(1 << 2 * BITS)))
    result = _to_bytes(np.rint(total, out=total))
    grouped = channels * width // _LANES * _LANES
    start = grouped // channels
    alone = np.arange(start, width) * channels + np.arange(channels)[:, None] >= grouped
    rest = _many_rows(lines[:, :, start:].astype(np.int32), Taps(taps.places, taps.weight.astype(np.int32)))
    np.copyto(result[:, :, start:], rest, where=alone[:, None])
    return result


def _many_rows(lines: np.ndarray, taps: Taps) -> np.ndarray:
    return _to_bytes(_vertical(lines, taps) + (1 << 2 * BITS - 1) >> 2 * BITS)


def _fixed(weights: np.ndarray) -> np.ndarray:
    return np.rint(weights.astype(np.float32) * np.float32(1 << BITS)).astype(np.int32)


def _centres(old: int, new: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of the centres of output pixels: the input pixel to the left, and the distance from it (float32)."""
    at = ((np.arange(new) + 0.5) * (1 / (new / old)) - 0.5).astype(np.float32)
    left = np.floor(at)
    return left.astype(np.intp), at - left


def _linear_taps(old: int, new: int) -> Taps:
    return _two_taps(old, *_centres(old, new))


def _enlarging_area_taps(old: int, new: int) -> Taps:
    """Taps of AREA along an axis that grows: linear interpolation, but around an input pixel's centre its value is constant."""
    inverse = new / old
    out = np.arange(new)
    left = np.floor(out * (1 / inverse)).astype(np.intp)
    way = ((out + 1) - (left + 1) * inverse).astype(np.float32)
    return _two_taps(old, left, np.where(way <= 0, np.float32(0), way - np.floor(way)))


def _two_taps(old: int, left: np.ndarray, way: np.ndarray) -> Taps:
    return _many_taps(old, left, np.stack([np.float32(1) - way, way], 1))


def _inside(taps: Taps) -> Taps:
    """Merge two taps of the same pixel, as occur at the edges, into one.

    OpenCV does so for columns. It does not for rows, where each of the two products is truncated.
    """
    single = taps.places[:, 0] == taps.places[:, 1]
    return Taps(taps.places, np.where(single[:, None], np.array([1 << BITS, 0], np.int32), taps.weight))


def _cubic_taps(old: int, new: int) -> Taps:
    left, x = _centres(old, new)
    a, one = np.float32(_CUBIC), np.float32(1)
    outer = ((a * (x + one) - 5 * a) * (x + one) + 8 * a) * (x + one) - 4 * a
    inner = ((a + 2) * x - (a + 3)) * x * x + one
    y = one - x
    opposite = ((a + 2) * y - (a + 3)) * y * y + one
    taps = _many_taps(old, left - 1, np.stack([outer, inner, opposite, one - outer - inner - opposite], 1))
    return Taps(taps.places, taps.weight.astype(np.float32))  # sums of products with pixels are below 2^24, thus exact


def _lanczos_taps(old: int, new: int) -> Taps:
    left, x = _centres(old, new)
    exact = x < np.finfo(np.float32).eps
    way = np.where(exact, np.float32(0.5), x)
    # sin(pi (x + 3 - k) / 4) of all taps follows from the sine and cosine of one tap, in double precision
    start = -(way + 3).astype(np.float64) * (math.pi / 4)
    half = math.sqrt(0.5)
    turns = [(1, 0), (-half, -half), (0, 1), (half, -half), (-1, 0), (half, half), (0, -1), (-half, half)]
    weights = np.empty((new, _LANCZOS), np.float32)
    for k, (sine, cosine) in enumerate(turns):
        distance = -(way + 3 - k).astype(np.float64) * (math.pi / 4)
        weights[:, k] = (sine * np.sin(start) + cosine * np.cos(start)) / (distance * distance)
    total = np.zeros(new, np.float32)
    for k in range(_LANCZOS):
        total += weights[:, k]
    weights *= (np.float32(1) / total)[:, None]
    weights[exact] = np.eye(_LANCZOS, dtype=np.float32)[3]
    return _many_taps(old, left - 3, weights)


def _many_taps(old: int, first: np.ndarray, weights: np.ndarray) -> Taps:
    return Taps(np.clip(first[:, None] + np.arange(weights.shape[1]), 0, old - 1), _fixed(weights))


def _area_taps(old: int, new: int) -> Taps:
    """Return taps weighted by the fraction of each input pixel that an output pixel covers (float32)."""
    scale = 1 / (new / old)
    begin = np.arange(new) * scale
    end = begin + scale
    cell = np.minimum(scale, old - begin)
    last = np.minimum(np.floor(end), old - 1)
    first = np.minimum(np.ceil(begin), last)
    places = (first - 1)[:, None] + np.arange(int((last - first).max()) + 2)
    whole = (places >= first[:, None]) & (places < last[:, None])
    head, tail = first - begin, end - last
    weights = np.where(whole, (1 / cell)[:, None], 0.0)
    weights[:, 0] = np.where(head > _PIXEL, head / cell, 0)
    rows = np.arange(new)
    tails = np.where(tail > _PIXEL, np.minimum(np.minimum(tail, 1), cell) / cell, 0)
    weights[rows, (last - first).astype(np.intp) + 1] = tails
    return Taps(np.clip(places, 0, old - 1).astype(np.intp), weights.astype(np.float32))


# The taps along an axis, and the pass over the rows.
_METHODS: dict[Interpolation, tuple[Callable[[int, int], Taps], Callable[[np.ndarray, Taps], np.ndarray]]] = {
    Interpolation.LINEAR: (_linear_taps, _two_rows),
    Interpolation.AREA: (_enlarging_area_taps, _two_rows),
    Interpolation.CUBIC: (_cubic_taps, _four_rows),
    Interpolation.LANCZOS4: (_lanczos_taps, _many_rows),
}
