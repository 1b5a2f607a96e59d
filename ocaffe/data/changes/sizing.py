"""Resizing of images of Data, ImageData and DenseImageData by fields of forks, on the host, with the results of OpenCV's cv::resize.

A sizing gives each image a part of it and the size to which that is resized. The crop, the mirror and all other changes follow. In TRAIN sizes are
random; in TEST they are the middle of their range, where the forks draw them too.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.resample import Interpolation, resize
from ocaffe.data.changes.resizing import Resizing, check_sides
from ocaffe.data.dice import Dice
from ocaffe.errors import Error

F = np.float32
Size = tuple[int, int]  # height, width
INTEL = ("random_resize_param", "random_aspect_ratio_param")
NVCAFFE = (
    "img_rand_resize_lower", "img_rand_resize_upper", "rand_resize_ratio_lower", "rand_resize_ratio_upper", "vertical_stretch_lower",
    "vertical_stretch_upper", "horizontal_stretch_lower", "horizontal_stretch_upper", "interpolation_algo_down", "interpolation_algo_up", "allow_upscale",
)  # fmt: skip
FIELDS = frozenset({*INTEL, *NVCAFFE, "resize_param"})
_MODES = proto.ResizeParameter
_ALGORITHMS = (Interpolation.NEAREST, Interpolation.LINEAR, Interpolation.CUBIC, Interpolation.AREA)  # by the values of InterpolationAlgo
_GRAIN = 1000  # Intel's random ratios are thousandths


class Sized(NamedTuple):
    """The part of an image (y, x, height, width), and the size to which it is resized. `fit`: resize into the size, and pad it."""

    part: tuple[int, int, int, int]
    size: Size
    method: Interpolation
    fit: Resizing | None = None

    def apply(self, image: np.ndarray, nearest: bool = False) -> np.ndarray:
        """Return the resized part of `image` (channels x height x width, uint8). `nearest`: without mixing pixels, for labels."""
        y, x, height, width = self.part
        image = image[:, y : y + height, x : x + width]
        method = Interpolation.NEAREST if nearest else self.method
        return resize(image, *self.size, method) if self.fit is None else self.fit.apply(image, self.size, method)


class Sizing(Protocol):
    """A way to resize images."""

    @property
    def fixed(self) -> Size | None:
        """The size of all images, if it is one."""

    @property
    def pads(self) -> bool:
        """Whether pixels that are not of the image are added."""

    def draw(self, dice: Dice | None, height: int, width: int) -> Sized:
        """Return the resizing of an image of this size. Without `dice` nothing is random."""

    def sizes(self, height: int, width: int) -> Sequence[Size]:
        """Return the smallest and the largest size of an image of this size."""


def sizing_of(param: Any, crop: Size | None, train: bool) -> Sizing | None:
    """Return the sizing of a TransformationParameter, or None if the device resizes or nothing does. Raise Error without a place."""
    intel = [name for name in INTEL if param.HasField(name)]
    nvcaffe = [name for name in NVCAFFE if param.HasField(name)]
    others = ["resize_param"] * bool(len(param.resize_param)) + ["random_resized_crop"] * param.HasField("random_resized_crop")
    groups = [*intel, *nvcaffe[:1], *others]
    if (intel or nvcaffe) and len(groups) > 1:
        raise Error(f"{' and '.join(groups)} all set the size", fix=f"keep one, for example {groups[0]}, and remove the others")
    if (intel or nvcaffe) and crop is None:
        raise Error(f"{groups[0]} is set without crop_size", fix="set crop_size in transform_param to the side of the net's input, in pixels")
    if intel:
        assert crop is not None
        own = getattr(param, intel[0])
        methods = _methods(own.resize_param, intel[0])
        if intel[0] == "random_aspect_ratio_param":
            return _aspect_ratio(own, crop, methods)
        if 0 < own.max_size < own.min_size:
            fix = f"random_resize_param {{ min_size: {own.max_size} max_size: {own.min_size} }}"
            raise Error(f"random_resize_param has min_size {own.min_size} above max_size {own.max_size}", fix=fix)
        return ShorterSide(int(own.min_size), int(own.max_size), methods)
    if nvcaffe:
        assert crop is not None
        return _stretched(param, crop)
    if len(param.resize_param) == 1 and on_host(param):
        (one,) = param.resize_param
        boxed = next((name for name in ("height_scale", "width_scale", "center_object", "max_angle") if getattr(one, name)), None)
        if boxed:
            fix = f"remove {boxed} from resize_param, or read a database with boxes by a layer of type AnnotatedData"
            raise Error(f"resize_param has {boxed}, which needs boxes", fix=fix)
        check_sides(one)
        if not 0 <= one.prob <= 1:
            raise Error(f"resize_param has prob {one.prob:g}", fix="set prob in resize_param to a probability from 0 to 1")
        whole = Whole(Resizing(one), float(one.prob), _methods(one, "resize_param", warps=False), train)
        if whole.fixed is None and crop is None:
            what = f"resize_mode {_MODES.Resize_mode.Name(one.resize_mode)}" if whole.fits_small else f"prob {one.prob:g}"
            fix = f"set crop_size in transform_param, or {'resize_mode: WARP' if whole.fits_small else 'prob: 1'} in resize_param"
            raise Error(f"resize_param has {what} without crop_size: samples have different sizes", fix=fix)
        return whole if one.prob else None
    return None


def on_host(param: Any) -> bool:
    """Whether a resize_param needs the host: the device samples between four pixels, without padding, and without a mean image."""
    (one,) = param.resize_param
    return bool(param.mean_file) or one.resize_mode != _MODES.WARP or any(mode != _MODES.LINEAR for mode in one.interp_mode)


def _methods(param: Any, what: str, warps: bool = True) -> tuple[Interpolation, ...]:
    """Return the interpolations of a ResizeParameter, of which each image draws one. Raise Error for a size or mode that has no effect in the fork."""
    if warps and (param.resize_mode != _MODES.WARP or param.height or param.width):
        given = [name for name in ("height", "width", "resize_mode") if param.HasField(name)]
        fact = f"{what} has a resize_param with {' and '.join(given)}: Intel's fork sets the size itself, and distorts to it"
        raise Error(fact, fix=f"remove {' and '.join(given)} from resize_param in {what}: it may have interp_mode only")
    return tuple(Interpolation(mode) for mode in param.interp_mode) or (Interpolation.LINEAR,)


def _one(methods: Sequence[Interpolation], dice: Dice | None) -> Interpolation:
    return methods[dice.below(len(methods)) if dice is not None and len(methods) > 1 else 0]


def _whole(height: int, width: int, shorter: int) -> Size:
    """Return the size with this shorter side, as in Intel's fork: the longer one is truncated."""
    if height < width:
        return shorter, int(F(F(width) / F(height)) * F(shorter))
    return int(F(F(height) / F(width)) * F(shorter)), shorter


@dataclass(frozen=True)
class Whole:
    """resize_param of SSD, Intel and ParseNet for whole images."""

    resizing: Resizing
    prob: float
    methods: tuple[Interpolation, ...]
    train: bool

    @property
    def fixed(self) -> Size | None:
        always = self.prob >= 1 or not self.train
        return (int(self.resizing.param.height), int(self.resizing.param.width)) if always and not self.fits_small else None

    @property
    def fits_small(self) -> bool:
        return bool(self.resizing.param.resize_mode == _MODES.FIT_SMALL_SIZE)

    @property
    def pads(self) -> bool:
        return self.resizing.keeps_aspect

    def draw(self, dice: Dice | None, height: int, width: int) -> Sized:
        part = (0, 0, height, width)
        if dice is not None and dice.uniform() >= self.prob:
            return Sized(part, (height, width), self.methods[0])
        return Sized(part, self.resizing.new_size((height, width)), _one(self.methods, dice), self.resizing)

    def sizes(self, height: int, width: int) -> Sequence[Size]:
        always = self.prob >= 1 or not self.train
        return [self.resizing.new_size((height, width)), *([] if always else [(height, width)])]


@dataclass(frozen=True)
class ShorterSide:
    """Intel's random_resize_param: the shorter side gets a random length. 0 stands for the image's shorter side in `least`, its longer one in `most`."""

    least: int
    most: int
    methods: tuple[Interpolation, ...]
    fixed = None
    pads = False

    def limits(self, height: int, width: int) -> tuple[int, int]:
        return self.least or min(height, width), self.most or max(height, width)

    def draw(self, dice: Dice | None, height: int, width: int) -> Sized:
        least, most = self.limits(height, width)
        shorter = (least + most) // 2 if dice is None else least + dice.below(max(most - least, 0) + 1)
        return Sized((0, 0, height, width), _whole(height, width, shorter), _one(self.methods, dice))

    def sizes(self, height: int, width: int) -> Sequence[Size]:
        return [_whole(height, width, side) for side in self.limits(height, width)]


@dataclass(frozen=True)
class AspectRatio:
    """Intel's random_aspect_ratio_param: a random part of another aspect is resized to the crop.

    If no attempt fits into the image, and in TEST, the whole image is resized so that its shorter side is the crop's.
    """

    crop: Size
    area: tuple[float, float]
    change: float
    attempts: int
    methods: tuple[Interpolation, ...]
    fixed = None
    pads = False

    def draw(self, dice: Dice | None, height: int, width: int) -> Sized:
        for _ in range(self.attempts if dice is not None else 0):
            assert dice is not None
            area, change = _ratio(dice, *self.area), _ratio(dice, self.change, float(F(1) / F(self.change)))
            root = np.sqrt(F(area) * F(height * width))
            sides = int(root * F(change)), int(root / F(change))
            if _ratio(dice, 0, 1) < 0.5:
                sides = sides[1], sides[0]
            if 0 < sides[0] <= height and 0 < sides[1] <= width:
                y, x = dice.below(height - sides[0] + 1), dice.below(width - sides[1] + 1)
                return Sized((y, x, *sides), self.crop, _one(self.methods, dice))
        return Sized((0, 0, height, width), _whole(height, width, self.crop[0]), _one(self.methods, dice))

    def sizes(self, height: int, width: int) -> Sequence[Size]:
        return [self.crop, _whole(height, width, self.crop[0])]


def _ratio(dice: Dice, low: float, high: float) -> float:
    """Return a random number of thousandths from `low` to `high`, as in Intel's fork."""
    return float((F(dice.below(int((high - low) * _GRAIN + 1))) + F(low) * F(_GRAIN)) / F(_GRAIN))


def _aspect_ratio(own: Any, crop: Size, methods: tuple[Interpolation, ...]) -> AspectRatio:
    if crop[0] != crop[1]:
        fix = f"crop_size: {min(crop)} in place of crop_h and crop_w: Intel's fork takes squares"
        raise Error(f"random_aspect_ratio_param is set, and the crop is {crop[0]} x {crop[1]}", fix=fix)
    if not 0 < own.min_area_ratio <= own.max_area_ratio:
        fact = f"random_aspect_ratio_param has min_area_ratio {own.min_area_ratio:g}, max_area_ratio {own.max_area_ratio:g}"
        raise Error(fact, fix="set both in random_aspect_ratio_param so that 0 < min_area_ratio <= max_area_ratio")
    if not 0 < own.aspect_ratio_change <= 1:
        fact = f"random_aspect_ratio_param has aspect_ratio_change {own.aspect_ratio_change:g}"
        raise Error(fact, fix="set aspect_ratio_change in random_aspect_ratio_param to a number above 0 and at most 1")
    return AspectRatio(crop, (own.min_area_ratio, own.max_area_ratio), own.aspect_ratio_change, int(own.max_attempt), methods)


@dataclass(frozen=True)
class Stretched:
    """NVCaffe's random sizes: of the shorter side, then of the longer one relative to it, then of both sides by themselves.

    Unless `upscales`, no side grows beyond the image's; no side shrinks below the crop's. `down` is the interpolation where no side grows, else `up`.
    """

    crop: Size
    shorter: tuple[int, int] | None
    ratio: tuple[float, float] | None
    vertical: tuple[float, float]
    horizontal: tuple[float, float]
    upscales: bool
    down: Interpolation
    up: Interpolation
    fixed = None
    pads = False

    def draw(self, dice: Dice | None, height: int, width: int) -> Sized:
        def between(low: float, high: float) -> np.float32:
            return F(low + (high - low) * (dice.uniform() if dice is not None else 0.5))

        shorter = min(height, width)
        if self.shorter is not None:
            least, most = self.shorter
            shorter = (least + most) // 2 if dice is None else least + dice.below(most - least + 1)
        return self.sized(
            height, width, shorter, None if self.ratio is None else between(*self.ratio), between(*self.vertical), between(*self.horizontal),
            dice is None or dice.below(2) > 0,
        )  # fmt: skip

    def sized(self, height: int, width: int, shorter: int, ratio: np.float32 | None, vertical: np.float32, horizontal: np.float32, wider: bool) -> Sized:
        scale = F(shorter) / F(height if width >= height else width)
        rows, columns = scale * F(height), scale * F(width)
        if ratio is not None:
            if columns > rows or (columns == rows and wider):
                columns = rows * ratio
            else:
                rows = columns * ratio
        new = [max(least, math.floor(float(side) + 0.5)) for least, side in zip(self.crop, (rows * vertical, columns * horizontal))]
        if not self.upscales:
            new = [min(side, most) for side, most in zip(new, (height, width))]
        method = self.down if new[0] <= height and new[1] <= width else self.up
        return Sized((0, 0, height, width), (new[0], new[1]), method)

    def sizes(self, height: int, width: int) -> Sequence[Size]:
        ends = self.shorter or (min(height, width),) * 2
        ratios = self.ratio or (None, None)
        return [
            self.sized(height, width, ends[i], None if ratios[i] is None else F(ratios[i]), F(self.vertical[i]), F(self.horizontal[i]), True).size
            for i in (0, 1)
        ]


def _stretched(param: Any, crop: Size) -> Stretched:
    lower, upper = int(param.img_rand_resize_lower), int(param.img_rand_resize_upper)
    if bool(lower) != bool(upper) or lower > upper:
        fix = "set both in transform_param so that 1 <= img_rand_resize_lower <= img_rand_resize_upper, or remove both"
        raise Error(f"img_rand_resize_lower is {lower}, img_rand_resize_upper {upper}", fix=fix)
    ranges = []
    for name in ("rand_resize_ratio", "vertical_stretch", "horizontal_stretch"):
        low, high = float(getattr(param, f"{name}_lower")), float(getattr(param, f"{name}_upper"))
        if not (math.isfinite(low) and math.isfinite(high) and (0 < low <= high or (low, high) == (0, 0))):
            fix = f"set both in transform_param so that 0 < {name}_lower <= {name}_upper, or remove both"
            raise Error(f"{name}_lower is {low:g}, {name}_upper {high:g}", fix=fix)
        ranges.append((low, high))
    ratio, vertical, horizontal = ranges
    if ratio[0] < 1 and ratio != (0, 0):
        fix = "set rand_resize_ratio_lower to 1 or more, or remove rand_resize_ratio_lower and rand_resize_ratio_upper"
        raise Error(f"rand_resize_ratio_lower is {ratio[0]:g}: NVCaffe uses ratios from 1 on", fix=fix)
    still = (1.0, 1.0)
    return Stretched(
        crop, (lower, upper) if lower else None, ratio if ratio[1] > 1 else None, vertical if vertical[0] else still, horizontal if horizontal[0] else still,
        bool(param.allow_upscale), _ALGORITHMS[param.interpolation_algo_down], _ALGORITHMS[param.interpolation_algo_up],
    )  # fmt: skip
