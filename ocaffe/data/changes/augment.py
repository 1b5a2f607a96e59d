"""Random changes of images for training: the host draws them for each record, the device computes the pixels (augment.cl).

An image becomes a sample in this order: it is resized, a part of it is taken, and that is moved, turned and mirrored, all in one sampling. Then come
colors, light, erasing, mixing with another sample of the batch, mean and scale.
"""
from __future__ import annotations

import copy
import math
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import Message

from ocaffe import proto
from ocaffe.data.changes.distort import check_distortion, in_ssds_form
from ocaffe.data.changes.resizing import check_sides
from ocaffe.data.changes.sizing import FIELDS as SIZES
from ocaffe.data.changes.sizing import on_host
from ocaffe.data.changes.transform import GPU_PIXELS, NO_PIXELS, Layout, Row, Transform, Window, as_values
from ocaffe.data.source import CHANGES, PARTNERS, SAMPLE, bit_generator, draws
from ocaffe.errors import Error, shape_text
from ocaffe.ir.kernel import Can, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

AUGMENT = Kernel("augment.augment", read("block"), read("mean", optional=True), write("y"), write("label", optional=True), can=Can(recompute=True))

FIELDS = frozenset({
    "random_resized_crop", "affine", "lighting", "erase", "mixup", "cutmix", "label_classes", "distort_param", "vertical_mirror", "random_90_deg_rot",
    *SIZES,
})  # fmt: skip
_SIZING = ("random_resized_crop", "resize_param")  # these change the images of both phases

# The words of a row of the table, in the order of augment.cl.
_ROW = struct.Struct("<8i 6f 4f 3f i 5i f 4i")
COLUMNS = _ROW.size // 4
_MIRROR, _FLIP, _EARLY, _BRIGHTEN, _STRETCH, _SATURATE, _TURN, _REORDER, _MIXED, _CUT = (1 << bit for bit in range(10))

# The random words of an image, by use. A field has its own words, so that a further field does not change what the others draw.
_DOWN, _ACROSS, _MIRRORED = 1, 2, 0  # as Transform's
_RESIZED, _FLIPPED, _QUARTER, _MOVED, _COLORS, _LIGHT, _ERASED, _MIXES, _CUTS, _PARTS, _BETA, _WORDS = 4, 6, 7, 8, 14, 28, 32, 38, 44, 52, 68, 84
_TRIES = 8  # of random_resized_crop, before the middle is taken
_ROOM = 4  # a sample of n pixels may be computed from so many times n staged pixels; larger windows are reduced before
_TEST_SHARE = 0.875  # of the image's shorter side that random_resized_crop takes in TEST
_MOST_ALPHA = 100.0
# Eigenvalues and eigenvectors of the colors of ImageNet (Krizhevsky et al. 2012, section 4.1), for pixels from 0 to 1, rows red, green, blue.
_EIGENVALUES = np.array([0.2175, 0.0188, 0.0045])
_EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
_LIGHTING = (_EIGENVECTORS[::-1] * _EIGENVALUES * 255).tolist()

Box = tuple[float, float, float, float]  # y, x, height, width


def wants_augmentation(param: Any, train: bool) -> bool:
    """Return whether a TransformationParameter changes images beyond crop, mirror, mean and scale. In TEST only their sizes are changed."""
    names = {*(FIELDS - SIZES - {"label_classes"} if train else ()), *_SIZING}
    if len(param.resize_param) == 1 and on_host(param):
        names.discard("resize_param")
    return any(field.name in names and (field.message_type is not None or value != field.default_value) for field, value in param.ListFields())


@dataclass(frozen=True)
class Step:
    """A change of colors: its flag in the table, its probability, and the range of its amount."""

    flag: int
    prob: float
    low: float
    high: float


@dataclass(frozen=True)
class Patch:
    """A random rectangle: its share of the area and its aspect, width / height."""

    area: tuple[float, float]
    log_aspect: tuple[float, float]

    def size(self, area: float, aspect: float, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the rectangle for two random numbers in [0, 1)."""
        pixels = _between(self.area, area) * height * width
        ratio = math.exp(_between(self.log_aspect, aspect))
        return round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))


class Augmentation(Transform):
    """The settings of `transform_param` with augmentation. In TEST there are no random choices: images are resized, and the central crop is taken."""

    nearest = False  # the sampling takes the nearest pixel

    def __init__(self, param: Any, train: bool) -> None:
        """`param` is the TransformationParameter. Raise Error for settings that contradict each other."""
        super().__init__(param, train, FIELDS)
        if param.mean_file:
            raise Error("mean_file and augmentation are both set: the mean image does not follow a moved image", fix=as_values(param.mean_file))
        _check_numbers(param)
        self._read_sizes(param)
        self._read_moves(param, train)
        self._read_colors(param, train)
        self._read_mixing(param, train)
        self.sampled = bool(self.patch or self.resized or self.moved or self.quarters)

    @property
    def crops_alike(self) -> bool:
        return False

    # -- settings ----------------------------------------------------------------------------------------------------

    def _read_sizes(self, param: Any) -> None:
        self.patch: Patch | None = None
        if param.HasField("random_resized_crop"):
            self.patch = _patch(param.random_resized_crop, "random_resized_crop")
            if self.crop is None:
                raise Error("random_resized_crop is set without crop_size", fix="set crop_size in transform_param to the side of the net's input, in pixels")
        if len(param.resize_param) > 1:
            raise Error(f"{len(param.resize_param)} resize_param are given", fix="keep one resize_param in transform_param")
        self.resized: tuple[int, int] | None = None
        self.resize_prob = 0.0
        for resize in param.resize_param if self.sizing is None else ():
            _check_resize(resize)
            self.resize_prob = _prob(resize, "resize_param")
            if self.resize_prob:
                self.resized = (int(resize.height), int(resize.width))
            if 0 < self.resize_prob < 1 and self.crop is None:
                fact = f"resize_param has prob {self.resize_prob:g} without crop_size: samples have different sizes"
                raise Error(fact, fix="set crop_size in transform_param, or prob: 1 in resize_param")
        if self.patch and self.resized:
            raise Error("random_resized_crop and resize_param both set the size", fix="remove random_resized_crop, or resize_param")

    def _read_moves(self, param: Any, train: bool) -> None:
        move = param.affine
        self.move_prob = _prob(move, "affine")
        for name in ("rotation", "translation", "shear"):
            fix = f"affine {{ {name}: {-getattr(move, name):g} }}: it is the most to either side"
            _check(getattr(move, name) >= 0, f"affine has {name} {getattr(move, name):g}", fix)
        _check(move.shear < 90, f"affine has shear {move.shear:g}", "set shear in affine to less than 90 degrees, for example affine { shear: 10 }")
        fact = f"affine has min_zoom {move.min_zoom:g}, max_zoom {move.max_zoom:g}"
        _check(0 < move.min_zoom <= move.max_zoom, fact, _ORDER.format("min_zoom", "max_zoom", "affine"))
        self.moved = train and param.HasField("affine") and self.move_prob > 0
        self.rotation, self.shear, self.translation = math.radians(move.rotation), math.radians(move.shear), float(move.translation)
        self.log_zoom = (math.log(move.min_zoom), math.log(move.max_zoom))
        self.border = int(move.border) if self.moved else int(proto.AffineParameter.REPLICATE)
        self.border_value = float(move.value)
        self.label_outside = int(move.label) if self.moved and self.border == proto.AffineParameter.CONSTANT else None
        self.flips = train and bool(param.vertical_mirror)
        self.mirror = self.mirror and train
        self.quarters = train and bool(param.random_90_deg_rot)

    def _read_colors(self, param: Any, train: bool) -> None:
        colors = in_ssds_form(param.distort_param)
        check_distortion(colors)
        self.order_prob = _prob(colors, "distort_param", "random_order_prob")
        self.steps = [
            Step(flag, _prob(colors, "distort_param", f"{name}_prob"), float(low), float(high))
            for flag, name, low, high in (
                (_BRIGHTEN, "brightness", -colors.brightness_delta, colors.brightness_delta),
                (_STRETCH, "contrast", colors.contrast_lower, colors.contrast_upper),
                (_SATURATE, "saturation", colors.saturation_lower, colors.saturation_upper),
                (_TURN, "hue", -colors.hue_delta, colors.hue_delta),
            )
        ]
        self.distorts = train and (self.order_prob > 0 or any(step.prob > 0 for step in self.steps))
        std = float(param.lighting.std)
        _check(std >= 0, f"lighting has std {std:g}", "set std in lighting to 0 or more, for example lighting { std: 0.1 }")
        self.light = std if train and param.HasField("lighting") else 0.0
        self.erase_prob, self.erased, self.noise = _prob(param.erase, "erase"), float(param.erase.value), bool(param.erase.random)
        rectangle = _patch(param.erase, "erase")
        self.erased_patch = rectangle if train and param.HasField("erase") and self.erase_prob else None

    def _read_mixing(self, param: Any, train: bool) -> None:
        self.mixing: list[tuple[int, float, float]] = []  # flag, probability, alpha
        for name, flag in (("mixup", _MIXED), ("cutmix", _CUT)):
            mix = getattr(param, name)
            prob = _prob(mix, name)
            fix = f"{name} {{ alpha: 0.2 }}, or another alpha above 0 and up to {_MOST_ALPHA:g}"
            _check(0 < mix.alpha <= _MOST_ALPHA, f"{name} has alpha {mix.alpha:g}", fix)
            if train and param.HasField(name) and prob:
                self.mixing.append((flag, prob, float(mix.alpha)))
        if self.mixing and param.label_classes < 2:
            given = f"label_classes is {param.label_classes}" if param.HasField("label_classes") else "label_classes is missing"
            fact = f"mixup and cutmix need the number of classes, and {given}"
            raise Error(fact, fix="set label_classes in transform_param to num_output of the last layer, at least 2")
        self.soft_classes = int(param.label_classes) if self.mixing else 0

    # -- shapes ------------------------------------------------------------------------------------------------------

    @property
    def fixed(self) -> bool:
        return super().fixed or self.resized is not None

    def output(self, channels: int, height: int, width: int) -> tuple[int, int, int]:
        return (channels, *self.resized) if self.crop is None and self.resized else super().output(channels, height, width)

    def layout(self, batch: int, shape: tuple[int, int, int], dtype: np.dtype, interleaved: bool, label_count: int) -> Layout:
        fix = "remove the augmentation from transform_param, or write the database with bytes in data in place of float_data"
        _check(dtype == np.uint8, "augmentation is set, and the first record has float_data", fix)
        fact = f"mixup and cutmix need one label per image, and there are {label_count}"
        _check(not self.mixing or label_count == 1, fact, "remove mixup and cutmix from transform_param")
        return Layout(batch, *self.output(*shape), dtype, interleaved, label_count, _ROOM if self.sampled else 1, COLUMNS)

    def check(self, channels: int, height: int, width: int) -> None:
        sizes = {(height, width)}
        _check(min(channels, height, width) > 0, f"the image is {shape_text((channels, height, width))}", NO_PIXELS)
        if self.patch:
            sizes = {self.crop or (height, width)}
        elif self.resized:
            sizes = {self.resized} | (sizes if self.resize_prob < 1 else set())
        for size in sizes:
            super().check(channels, *size)
        colored = "distort_param" if self.distorts else "lighting" if self.light else ""
        fix = f"remove {colored}, or use color images (force_color: true gives gray files three channels)"
        _check(not colored or channels == 3, f"{colored} is set, and the image has {channels} channels", fix)
        _, *sides = self.output(channels, height, width)
        fix = f"set crop_size: {min(sides)} in transform_param, so that samples are squares"
        _check(not self.quarters or sides[0] == sides[1], f"random_90_deg_rot is set, and samples are {shape_text(sides)}", fix)

    # -- choices -----------------------------------------------------------------------------------------------------

    def samples(self, key: tuple[int, int], positions: range) -> Changes:  # type: ignore[override]
        return Changes(self, key, positions)

    def bare(self) -> Augmentation:
        """Return an Augmentation that moves label images alike: without colors, erasing, mean and scale, to the nearest pixel."""
        other = copy.copy(self)
        other.mean, other.scale, other.distorts, other.light, other.erased_patch, other.nearest = None, 1.0, False, 0.0, None, True
        other.border_value = float(self.label_outside or 0)
        return other

    def record(self, rec: Recorder, staging: Ref, layout: Layout, data: Ref, label: Ref | None, kernel: Kernel | None = None) -> None:
        samples, channels, height, width = data.shape
        mean = None if self.mean is None else rec.constant("mean", np.broadcast_to(self.mean, channels).copy())
        group = 32 if width <= 32 else 64
        cpu = rec.target.is_cpu
        columns = 1 if cpu else group * math.ceil(width / (group * GPU_PIXELS))
        rec.launch(
            (kernel or AUGMENT)(block=staging, mean=mean, y=data, label=label),
            args=[
                *map(np.uint64, (layout.table_at, layout.label_at, layout.image)),
                height, width, self.soft_classes, self.scale, self.border_value, self.erased,
            ],
            size=(columns, height, samples),
            local=None if cpu else (group, 64 // group, 1),
            defines={
                "CHANNELS": channels,
                "INTERLEAVED": int(layout.interleaved),
                "SAMPLE": 2 if self.sampled and self.nearest else int(self.sampled),
                "BORDER": self.border,
                "DISTORT": int(self.distorts),
                "LIGHT": int(self.light > 0),
                "ERASE": 0 if self.erased_patch is None else 2 if self.noise else 1,
                "MIX": int(bool(self.mixing)),
                "MEAN": int(mean is not None),
                "LABEL": layout.label_count if label is not None else 0,
                "SOFT": int(self.soft_classes > 0),
            },
        )


class Changes:
    """The random choices for the images of a batch."""

    def __init__(self, to: Augmentation, key: tuple[int, int], positions: range) -> None:
        """`positions`: of the images in the endless sequence of records."""
        self._to = to
        self._partner: list[int] = []
        if to.mixing:
            self._partner = np.argsort(bit_generator(key, PARTNERS, 0, positions.start).random_raw(len(positions)), kind="stable").tolist()
        counters = (_WORDS - 4) // 4
        if to.train:
            every = range(positions.start * counters, positions.stop * counters)
            more = draws(key, CHANGES, every).reshape(-1, 4 * counters)[:: positions.step]
            words = np.concatenate([draws(key, SAMPLE, positions), more], 1)
            self._numbers = (words >> np.uint64(32)) * 2.0**-32  # in [0, 1)

    def at(self, n: int, shape: tuple[int, int, int]) -> tuple[Window, Row]:
        """Return the window of image `n` that is staged, and its row of the table. `shape`: channels, height, width of the image."""
        to = self._to
        dice = self._numbers[n].tolist() if to.train else [0.0] * _WORDS
        _, height, width = to.output(*shape)
        flags = (_MIRROR if to.mirror and dice[_MIRRORED] >= 0.5 else 0) | (_FLIP if to.flips and dice[_FLIPPED] >= 0.5 else 0)
        box = self._box(dice, shape[1], shape[2], height, width)
        if to.sampled:
            window, place, matrix = self._sampling(dice, flags, box, shape, height, width)
        else:
            window, place, matrix = Window(*map(int, box)), (height, width, 0, 0, height, width), _NO_MATRIX
        colors: tuple[float, ...] = _NO_COLORS
        shift: tuple[float, ...] = _NO_SHIFT
        cut: tuple[int, ...] = _NO_BOX
        order, partner, share = 0, n, 1.0
        if to.distorts:
            more, colors, order = self._colors(dice)
            flags |= more
        if to.light:
            shift = self._light(dice)
        erased = self._erased(dice, height, width) if to.erased_patch is not None else _NOTHING
        if to.mixing:
            more, share, cut = self._mixed(dice, height, width)
            flags, partner = flags | more, self._partner[n]
        row = _ROW.pack(*place, flags, partner, *matrix, *colors, *shift, order, *erased, share, *cut)
        return window, np.frombuffer(row, np.int32)

    def _box(self, dice: list[float], rows: int, columns: int, height: int, width: int) -> Box:
        """Return the part of an image of rows x columns pixels that the sample shows."""
        to = self._to
        if to.patch is not None:
            if to.train:
                return _random_part(to.patch, dice, rows, columns)
            scale = max(height / rows, width / columns) / _TEST_SHARE
            return (rows - height / scale) / 2, (columns - width / scale) / 2, height / scale, width / scale
        size = (rows, columns)  # after resizing
        if to.resized and (not to.train or dice[_RESIZED] < to.resize_prob):
            size = to.resized
        free = size[0] - height, size[1] - width
        y, x = (int(dice[_DOWN] * (free[0] + 1)), int(dice[_ACROSS] * (free[1] + 1))) if to.train else (free[0] // 2, free[1] // 2)
        if size == (rows, columns):
            return y, x, height, width
        down, across = rows / size[0], columns / size[1]
        return y * down, x * across, height * down, width * across

    def _sampling(
        self, dice: list[float], flags: int, box: Box, shape: tuple[int, int, int], height: int, width: int
    ) -> tuple[Window, tuple[int, ...], tuple[float, ...]]:
        """Return the window to stage, its place in the image as in the table, and the matrix from a pixel of the sample to one of the image."""
        to = self._to
        a, b, c, d, e, f = -1.0 if flags & _MIRROR else 1.0, 0.0, 0.0, 0.0, -1.0 if flags & _FLIP else 1.0, 0.0  # from and to the distance from the middle
        if to.quarters:
            for _ in range(int(dice[_QUARTER] * 4)):
                a, b, d, e = -d, -e, a, b
        if to.moved and dice[_MOVED] < to.move_prob:
            m0, m1, m2, m3, m4, m5 = self._move(dice, height, width)
            a, b, c, d, e, f = m0 * a + m1 * d, m0 * b + m1 * e, m2, m3 * a + m4 * d, m3 * b + m4 * e, m5
        y, x, box_height, box_width = box
        across, down = box_width / width, box_height / height
        middle = 0.5 - width / 2, 0.5 - height / 2
        c += a * middle[0] + b * middle[1] + width / 2
        f += d * middle[0] + e * middle[1] + height / 2
        a, b, c, d, e, f = a * across, b * across, c * across + x, d * down, e * down, f * down + y  # c and f from the corner of the image
        shrink = 1
        while True:
            size = max(1, shape[1] // shrink), max(1, shape[2] // shrink)
            top, rows = _span(e / shrink, d / shrink, f / shrink - 0.5, height, width, size[0], to.border)
            left, columns = _span(b / shrink, a / shrink, c / shrink - 0.5, height, width, size[1], to.border)
            if rows * columns <= _ROOM * height * width:
                break
            shrink += 1
        matrix = (a / shrink, b / shrink, c / shrink - 0.5, d / shrink, e / shrink, f / shrink - 0.5)
        window = Window(top * shrink, left * shrink, rows * shrink, columns * shrink, shrink)
        return window, (rows, columns, top, left, *size), matrix

    def _move(self, dice: list[float], height: int, width: int) -> tuple[float, ...]:
        """Return the matrix that leads back from a place in the moved sample, both from the middle. The sample is sheared, turned, zoomed, moved."""
        to = self._to
        angle, across, down, zoom, slant = dice[_MOVED + 1 : _MOVED + 6]
        angle = to.rotation * (2 * angle - 1)
        slant = math.tan(to.shear * (2 * slant - 1))
        zoom = math.exp(-_between(to.log_zoom, zoom))
        x, y = to.translation * width * (2 * across - 1), to.translation * height * (2 * down - 1)
        cos, sin = math.cos(angle), math.sin(angle)
        a, b, d, e = zoom * (cos + slant * sin), zoom * (sin - slant * cos), -zoom * sin, zoom * cos
        return a, b, -(a * x + b * y), d, e, -(d * x + e * y)

    def _colors(self, dice: list[float]) -> tuple[int, tuple[float, ...], int]:
        """Return flags, amounts of the four steps, and the sources of the channels."""
        at, flags, amounts, order = _COLORS, _EARLY if dice[_COLORS] > 0.5 else 0, [], 0
        for step in self._to.steps:
            if dice[at + 1] < step.prob:
                flags |= step.flag
            amounts.append(step.low + (step.high - step.low) * dice[at + 2])
            at += 2
        if dice[at + 1] < self._to.order_prob:
            flags |= _REORDER
            sources = sorted(range(3), key=lambda channel: dice[at + 2 + channel])
            order = sources[0] | sources[1] << 2 | sources[2] << 4
        return flags, tuple(amounts), order

    def _light(self, dice: list[float]) -> tuple[float, ...]:
        """Return the numbers that are added to blue, green and red."""
        normal = []
        for at in (_LIGHT, _LIGHT + 2):
            radius, angle = self._to.light * math.sqrt(-2 * math.log(1 - dice[at])), 2 * math.pi * dice[at + 1]
            normal += [radius * math.cos(angle), radius * math.sin(angle)]
        return tuple(sum(part * factor for part, factor in zip(row, normal)) for row in _LIGHTING)

    def _erased(self, dice: list[float], height: int, width: int) -> tuple[int, ...]:
        """Return the rectangle, cut off at the sides of the sample, and the seed of its pixels."""
        patch = self._to.erased_patch
        assert patch is not None
        happens, area, aspect, down, across, seed = dice[_ERASED : _ERASED + 6]
        if happens >= self._to.erase_prob:
            return _NOTHING
        rows, columns = patch.size(area, aspect, height, width)
        rows, columns = min(rows, height), min(columns, width)
        return int(down * (height - rows + 1)), int(across * (width - columns + 1)), rows, columns, int(seed * 2**31)

    def _mixed(self, dice: list[float], height: int, width: int) -> tuple[int, float, tuple[int, ...]]:
        """Return the flag of the way of mixing, the share of the sample, and the partner's rectangle."""
        for flag, prob, alpha in self._to.mixing:
            at = _MIXES if flag == _MIXED else _CUTS
            if dice[at] >= prob:
                continue
            share = beta(alpha, dice[at + 1 : at + 3] + dice[_BETA:])
            if flag == _MIXED:
                return flag, share, _NO_BOX
            side = math.sqrt(1 - share)
            rows, columns = round(height * side), round(width * side)
            y, x = int(dice[at + 3] * (height - rows + 1)), int(dice[at + 4] * (width - columns + 1))
            return flag, 1 - rows * columns / (height * width), (y, x, rows, columns)
        return 0, 1.0, _NO_BOX


_NO_MATRIX, _NO_COLORS, _NO_SHIFT, _NO_BOX, _NOTHING = (0.0,) * 6, (0.0,) * 4, (0.0,) * 3, (0,) * 4, (0,) * 5


def beta(alpha: float, numbers: list[float]) -> float:
    """Return a number with the distribution Beta(alpha, alpha), made of uniform numbers in [0, 1).

    Above 1/2 two numbers are enough (Ulrich 1984). Else pairs are rejected until one fits (Joehnk 1964); the last pair is taken as it is.
    """
    if alpha > 0.5:
        return 0.5 + 0.5 * math.cos(2 * math.pi * numbers[0]) * math.sqrt(1 - numbers[1] ** (2 / (2 * alpha - 1)))
    x = y = 1.0
    for u, v in zip(numbers[::2], numbers[1::2]):
        x, y = u ** (1 / alpha), v ** (1 / alpha)
        if 0 < x + y <= 1:
            break
    return x / (x + y) if x + y else 0.5


def _between(limits: tuple[float, float], share: float) -> float:
    return limits[0] + (limits[1] - limits[0]) * share


def _random_part(patch: Patch, dice: list[float], rows: int, columns: int) -> Box:
    """Return a random part of an image. If none of the tries fits, return the largest middle part whose aspect is allowed."""
    for at in range(_PARTS, _PARTS + 2 * _TRIES, 2):
        height, width = patch.size(dice[at], dice[at + 1], rows, columns)
        if 0 < height <= rows and 0 < width <= columns:
            return int(dice[_DOWN] * (rows - height + 1)), int(dice[_ACROSS] * (columns - width + 1)), height, width
    aspect = min(max(columns / rows, math.exp(patch.log_aspect[0])), math.exp(patch.log_aspect[1]))
    height, width = max(1, min(rows, round(columns / aspect))), max(1, min(columns, round(rows * aspect)))
    return (rows - height) // 2, (columns - width) // 2, height, width


def _span(by_row: float, by_column: float, start: float, height: int, width: int, size: int, border: int) -> tuple[int, int]:
    """Return the first pixel of an axis of `size` pixels that a sample of height x width reads, and their number. Pixel (h, w) reads at
    by_row h + by_column w + start and at the next place.
    """
    last = size - 1
    ends = by_row * (height - 1), by_column * (width - 1)
    low, high = math.floor(start + min(0.0, ends[0]) + min(0.0, ends[1])), math.floor(start + max(0.0, ends[0]) + max(0.0, ends[1])) + 1
    if border == proto.AffineParameter.REFLECT:
        low, high = (min(low, 2 * last - high) if high > last else low), (max(high, -low) if low < 0 else high)
    low, high = min(max(low, 0), last), min(max(high, 0), last)
    return low, high - low + 1


_ORDER = "set both in {2} so that 0 < {0} <= {1}"


def _check(condition: bool, fact: str, fix: str) -> None:
    if not condition:
        raise Error(fact, fix=fix)


def _check_numbers(param: Any) -> None:
    """Raise Error unless the numbers of the fields are finite, and pixels are from 0 to 255."""
    for what, message in param.ListFields():
        if what.name in FIELDS and isinstance(message, Message):
            for field, number in message.ListFields():
                if field.name == "value":
                    _check(0 <= number <= 255, f"{what.name} has value {number:g}", f"set value in {what.name} to a gray level from 0 to 255")
                elif isinstance(number, float):
                    _check(math.isfinite(number), f"{what.name} has {field.name} {number:g}", f"set {field.name} in {what.name} to a finite number")


def _prob(message: Any, what: str, field: str = "prob") -> float:
    prob = float(getattr(message, field))
    _check(0 <= prob <= 1, f"{what} has {field} {prob:g}", f"set {field} in {what} to a probability from 0 to 1")
    return prob


def _patch(message: Any, what: str) -> Patch:
    area, aspect = (message.min_area, message.max_area), (message.min_aspect, message.max_aspect)
    _check(0 < area[0] <= area[1] <= 1, f"{what} has min_area {area[0]:g}, max_area {area[1]:g}", f"set both in {what} so that 0 < min_area <= max_area <= 1")
    _check(0 < aspect[0] <= aspect[1], f"{what} has min_aspect {aspect[0]:g}, max_aspect {aspect[1]:g}", _ORDER.format("min_aspect", "max_aspect", what))
    return Patch(area, (math.log(aspect[0]), math.log(aspect[1])))


def _check_resize(resize: Any) -> None:
    """Raise Error unless a ResizeParameter is one that a sampling of the device computes."""
    kind = proto.ResizeParameter
    mode = kind.Resize_mode.Name(resize.resize_mode)
    fact = f"resize_param has resize_mode {mode}, and images with augmentation are resized by WARP alone"
    _check(mode == "WARP", fact, "set resize_mode: WARP in resize_param, or resize the images before and remove resize_param")
    others = [kind.Interp_mode.Name(mode) for mode in resize.interp_mode if mode != kind.LINEAR]
    fix = "set interp_mode: LINEAR in resize_param"
    _check(not others, f"resize_param has interp_mode {', '.join(others)}, and images with augmentation are resized by LINEAR alone", fix)
    check_sides(resize)
    more = [name for name in ("height_scale", "width_scale", "center_object", "max_angle") if getattr(resize, name)]
    name = more[0] if more else ""
    _check(not more, f"resize_param field '{name}' is not supported with augmentation", f"remove {name} from resize_param")
