"""Synthetic scenes for detection and segmentation: colored digits on procedural backgrounds, with known boxes and masks.

Digits lie over each other in the order in which they are drawn. A place is taken only if
* at least half of the pixels of every earlier digit stay visible,
* the boxes of two digits have an intersection over union of at most 0.3.
A digit of which less than three quarters are visible is difficult. All digits are whole inside the image.
"""
from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from ocaffe.data.dice import Dice
from ocaffe.errors import Error
from ocaffe.tools.datasets.sets import Part
from ocaffe.tools.synthetic.backgrounds import background

CLASSES = tuple("0123456789")
MIN_SCALE, MAX_SCALE = 0.1, 0.8  # of the shorter side of the image: the longer side of a digit
MIN_PIXELS = 12  # of the longer side of a digit; smaller ones cannot be read
VISIBLE = 0.5  # least visible share of a digit
CLEAR = 0.75  # least visible share of a digit that is not difficult
MAX_IOU = 0.3  # of the boxes of two digits
_TRIES = 60  # places for each digit
_ASPECTS = 0.3, 1.3  # width / height
_STRETCH = 0.8, 1.25  # factor of the aspect ratio
_EDGE = 0.4  # the gray level at the edge of a digit, as a share of the brightest one
_SHARPNESS = 5  # contrast at the edge of a digit that is not enlarged
_CANDIDATES = 12  # colors, of which the one with the highest contrast is used
_INK = 64  # least gray level of a digit's pixels


class Thing(NamedTuple):
    """An object: its class, its box in pixels (xmin <= x < xmax), of the visible pixels, and whether it is difficult."""

    label: int
    xmin: int
    ymin: int
    xmax: int
    ymax: int
    difficult: bool


class Scene(NamedTuple):
    """An image and its objects.

    `pixels` is height x width x 3, uint8, red green blue. `instances` (height x width, uint8) has at each pixel the number of its object from 1 on, or 0.
    """

    pixels: np.ndarray
    instances: np.ndarray
    things: list[Thing]

    def classes(self) -> np.ndarray:
        """Return the class of each pixel plus 1; 0 is the background. Height x width, uint8."""
        return np.array([0, *(thing.label + 1 for thing in self.things)], np.uint8)[self.instances]


class Glyphs:
    """Gray images of digits, each cut to its ink, by class."""

    def __init__(self, part: Part) -> None:
        self.images: list[list[Image.Image]] = [[] for _ in CLASSES]
        for image, label in zip(part.images[:, 0], part.labels.tolist()):
            ink = image >= _INK
            rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
            if label < len(CLASSES) and len(rows):
                self.images[label].append(Image.fromarray(image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]))
        for label, images in enumerate(self.images):
            if not images:
                raise Error(f"no image has the label {label}", fix=f"digits need images of the classes 0 to {len(CLASSES) - 1}")

    def opacity(
        self, dice: Dice, label: int, longest: float, most: tuple[int, int], edge: float = _EDGE, sharpness: float = _SHARPNESS
    ) -> np.ndarray:
        """Return the opacity of a random digit whose longer side has `longest` pixels, at most `most` (height, width): height x width, float32, 0 to 1.

        `edge`: the gray level at the edge, as a share of the brightest one. `sharpness`: contrast at the edge of a digit that is not enlarged.
        """
        images = self.images[label]
        glyph = images[dice.below(len(images))]
        aspect = min(max(glyph.width / glyph.height * dice.uniform(*_STRETCH), _ASPECTS[0]), _ASPECTS[1])
        width, height = (longest, longest / aspect) if aspect > 1 else (longest * aspect, longest)
        size = max(1, min(round(width), most[1])), max(1, min(round(height), most[0]))
        gray = np.asarray(glyph.resize(size, Image.Resampling.BICUBIC), np.float32)
        contrast = np.float32(sharpness * max(1, size[1] / glyph.height))
        return np.clip((gray / np.float32(gray.max()) - np.float32(edge)) * contrast + np.float32(0.5), 0, 1)


@dataclass(frozen=True)
class Composer:
    """Makes scenes of one size and one part of a set. A scene depends on `seed`, `part` and its number only."""

    glyphs: Glyphs
    height: int
    width: int
    seed: int
    part: str

    def scene(self, number: int, least: int, most: int) -> Scene:
        """Return scene `number` with `least` to `most` digits. Raise Error if `least` digits find no place."""
        dice = self._dice(number)
        canvas = _Canvas(dice, self.height, self.width)
        count = least + dice.below(most - least + 1)
        side = min(self.height, self.width)
        low, high = max(MIN_SCALE * side, MIN_PIXELS), max(MAX_SCALE * side, MIN_PIXELS)
        for index in range(count):
            label, longest = dice.below(len(CLASSES)), high
            for _ in range(_TRIES):
                longest = low * (longest / low) ** dice.uniform()  # the logarithm of the size is uniform; a second try is not larger than the first
                alpha = self._shape(dice, label, longest)
                if canvas.place(alpha, label, dice):
                    break
            else:
                if index < least:
                    fact = f"scene {number} of {self.part} has room for {index} digits, and --objects has at least {least}"
                    raise Error(fact, fix="--objects with a smaller number, or a larger --size")
                break
        return canvas.scene()

    def crop(self, number: int) -> Scene:
        """Return an image that one digit of class `number` % 10 nearly fills."""
        dice = self._dice(number)
        canvas = _Canvas(dice, self.height, self.width)
        label = number % len(CLASSES)
        canvas.place(self._shape(dice, label, min(self.height, self.width) * dice.uniform(0.55, 0.95)), label, dice)
        return canvas.scene()

    def _dice(self, number: int) -> Dice:
        return Dice((self.seed & 0xFFFFFFFFFFFFFFFF, zlib.crc32(f"scenes {self.part}".encode())), number)

    def _shape(self, dice: Dice, label: int, longest: float) -> np.ndarray:
        """Return the opacity of a digit whose longer side has `longest` pixels."""
        return self.glyphs.opacity(dice, label, longest, (self.height, self.width))


class _Canvas:
    """A scene that is being drawn."""

    def __init__(self, dice: Dice, height: int, width: int) -> None:
        self.pixels, colors = background(dice, height, width)
        self.colors = list(colors)
        self.instances = np.zeros((height, width), np.uint8)
        self.labels: list[int] = []
        self.boxes = np.empty((0, 4))
        self.areas = np.zeros(1, np.int64)  # pixels of each instance as drawn; the first is the background
        self.visible = np.zeros(1, np.int64)

    def place(self, alpha: np.ndarray, label: int, dice: Dice) -> bool:
        """Draw a digit at a random place. Return False, with nothing drawn, if the rules of this module forbid the place."""
        height, width = alpha.shape
        y, x = dice.below(self.instances.shape[0] - height + 1), dice.below(self.instances.shape[1] - width + 1)
        box = np.array([x, y, x + width, y + height], float)
        if len(self.boxes) and _iou(self.boxes, box).max() > MAX_IOU:
            return False
        room, mask = self.instances[y : y + height, x : x + width], alpha >= 0.5
        left = self.visible - np.bincount(room[mask], minlength=len(self.visible))
        if (left[1:] < VISIBLE * self.areas[1:]).any():
            return False
        color = self._contrast(dice)
        ground = self.pixels[y : y + height, x : x + width]
        ground += alpha[..., None] * (color.astype(np.float32) - ground)
        area = int(mask.sum())
        self.labels.append(label)
        room[mask] = len(self.labels)
        self.colors.append(color)
        self.boxes = np.concatenate([self.boxes, box[None]])
        self.areas, self.visible = np.append(self.areas, area), np.append(left, area)
        return True

    def _contrast(self, dice: Dice) -> np.ndarray:
        """Return the one of some random colors that differs most from the colors in the scene."""
        candidates = dice.uniforms(_CANDIDATES, 3) * 255
        distances = np.abs(candidates[:, None] - np.stack(self.colors)).sum(2).min(1)
        return np.asarray(candidates[distances.argmax()])

    def scene(self) -> Scene:
        things = []
        for number, (label, box) in enumerate(zip(self.labels, self.boxes.astype(int).tolist()), 1):
            mine = self.instances[box[1] : box[3], box[0] : box[2]] == number
            rows, columns = np.flatnonzero(mine.any(1)).tolist(), np.flatnonzero(mine.any(0)).tolist()
            corners = box[0] + columns[0], box[1] + rows[0], box[0] + columns[-1] + 1, box[1] + rows[-1] + 1
            things.append(Thing(label, *corners, bool(self.visible[number] < CLEAR * self.areas[number])))
        return Scene(np.clip(self.pixels, 0, 255).astype(np.uint8), self.instances, things)


def _iou(boxes: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Return the intersection over union of each of the boxes (n x 4: xmin, ymin, xmax, ymax) and one box."""
    sides = np.maximum(np.minimum(boxes[:, 2:], box[2:]) - np.maximum(boxes[:, :2], box[:2]), 0)
    common = sides.prod(1)
    return np.asarray(common / ((boxes[:, 2:] - boxes[:, :2]).prod(1) + (box[2:] - box[:2]).prod() - common))
