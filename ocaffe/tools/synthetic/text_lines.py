"""Synthetic lines of text for OCR: strings of digits in gray images on procedural backgrounds.

The height of the digits, their distances, the offset and the rotation of the line are random. A line that is too long for the image is made smaller.
"""
from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image

from ocaffe.data.dice import Dice
from ocaffe.errors import Error
from ocaffe.tools.synthetic.backgrounds import background
from ocaffe.tools.synthetic.scenes import CLASSES, Glyphs

MIN_PIXELS = 8  # of the height of a line's digits; smaller ones cannot be read
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)  # of red, green and blue
_DIGIT = 0.75  # of the image's height: the height of a digit before the line is scaled
_JITTER = 0.85, 1.15  # factor of the height of each digit
_GAP = 0.0, 0.3  # mean distance of two digits, as a share of a digit's height
_UNEVEN = 0.5, 1.5  # factor of each distance
_EDGE, _SHARPNESS = 0.3, 2.0  # of the digits: softer than in scenes, because the thin strokes of small digits would break
_SHIFT = 0.06  # most vertical offset of each digit, as a share of the image's height
_SCALE = 0.75, 1.1  # factor of the size of the line
_MARGIN = 2  # pixels at each side of the image without text
_DEGREES = 5.0  # most rotation
_CANDIDATES = 12  # gray levels, of which the one with the highest contrast is used


class Line(NamedTuple):
    """`pixels` is height x width, uint8, gray. `text` is what they show."""

    pixels: np.ndarray
    text: str


@dataclass(frozen=True)
class LineComposer:
    """Makes lines of one size and one part of a set. A line depends on `seed`, `part` and its number only."""

    glyphs: Glyphs
    height: int
    width: int
    seed: int
    part: str

    def line(self, number: int, least: int, most: int) -> Line:
        """Return line `number` with `least` to `most` digits. Raise Error if the image is too narrow for them."""
        dice = Dice((self.seed & 0xFFFFFFFFFFFFFFFF, zlib.crc32(f"lines {self.part}".encode())), number)
        ground, colors = background(dice, self.height, self.width)
        pixels, levels = ground @ _LUMA, colors @ _LUMA
        labels = [dice.below(len(CLASSES)) for _ in range(least + dice.below(most - least + 1))]
        opacity = self._placed(dice, self._strip(dice, labels), number)
        candidates = dice.uniforms(_CANDIDATES) * 255
        ink = candidates[np.abs(candidates[:, None] - levels).min(1).argmax()]
        pixels += opacity * (np.float32(ink) - pixels)
        return Line(np.clip(pixels, 0, 255).astype(np.uint8), "".join(CLASSES[label] for label in labels))

    def _strip(self, dice: Dice, labels: list[int]) -> np.ndarray:
        """Return the opacity of a horizontal line of digits: the image's height x the line's width, float32, 0 to 1."""
        gap = dice.uniform(*_GAP) * _DIGIT * self.height
        parts: list[np.ndarray] = []
        for label in labels:
            shape = self.glyphs.opacity(dice, label, _DIGIT * self.height * dice.uniform(*_JITTER), (self.height, self.height), _EDGE, _SHARPNESS)
            free = self.height - shape.shape[0]
            top = min(max(round(free / 2 + dice.uniform(-_SHIFT, _SHIFT) * self.height), 0), free)
            left = round(gap * dice.uniform(*_UNEVEN)) if parts else 0
            parts.append(np.pad(shape, ((top, free - top), (left, 0))))
        return np.concatenate(parts, 1)

    def _placed(self, dice: Dice, strip: np.ndarray, number: int) -> np.ndarray:
        """Return the opacity of the image, height x width: the line scaled, rotated, and moved to a random place."""
        angle = math.radians(dice.uniform(-_DEGREES, _DEGREES))
        rows = np.flatnonzero(strip.any(1))
        strip = strip[rows[0] : rows[-1] + 1]
        cosine, sine = math.cos(angle), math.sin(angle)
        extents = strip.shape[0] * cosine + strip.shape[1] * abs(sine), strip.shape[0] * abs(sine) + strip.shape[1] * cosine  # height, width
        sides = self.height - 2 * _MARGIN, self.width - 2 * _MARGIN
        scale = min(dice.uniform(*_SCALE), *(side / extent for side, extent in zip(sides, extents)))
        if scale * _DIGIT * self.height < MIN_PIXELS:
            fact = f"line {number} of {self.part} has digits of less than {MIN_PIXELS} pixels in an image of {self.width} x {self.height}"
            raise Error(fact, fix="a larger --width, or shorter strings by smaller numbers in --length")
        centre = [_MARGIN + side / 2 + (side - scale * extent) * dice.uniform(-0.5, 0.5) for side, extent in zip(sides, extents)]
        # from a pixel of the image to one of the strip
        a, b = cosine / scale, sine / scale
        matrix = (
            a, b, strip.shape[1] / 2 - a * centre[1] - b * centre[0],
            -b, a, strip.shape[0] / 2 + b * centre[1] - a * centre[0],
        )  # fmt: skip
        drawn = Image.fromarray(np.rint(strip * 255).astype(np.uint8))
        moved = drawn.transform((self.width, self.height), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
        return np.asarray(moved, np.float32) / 255
