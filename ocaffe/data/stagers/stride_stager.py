"""Stages images with label images as TSN's SegData does: scaled at random, and cut to sides that are multiples of a stride."""
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ocaffe.data.changes.resample import Interpolation, resize
from ocaffe.data.decoding.decode import Color, decoded
from ocaffe.data.dice import Dice
from ocaffe.data.stagers.dense_stager import Frame, Names, Pair, Shape3, named
from ocaffe.data.stagers.seg_stager import Cut, SegStager

STEPS = 1000  # scales between the smallest and the largest one, in each 1 of their difference
REDRAWS = 10  # of a sample that shows too little variety
MOST = 0.8  # share of the pixels that one label may have


class Drawn(NamedTuple):
    """The random choices for an image: the part of it that the sample shows, and the height and width of the sample."""

    cut: Cut
    shown: tuple[int, int]


@dataclass
class StrideStager(SegStager):
    """As SegStager, with batches of one image. The size of a sample follows from the size of its image and its scale.

    `scales`: the smallest and the largest scale. `stride`: of the sides of samples. `upper`: the largest height and width of samples.
    """

    scales: tuple[float, float] = (1.0, 1.0)
    stride: int = 1
    upper: tuple[int, int] | None = None

    def shown(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of the sample of a scaled image."""
        sides = height // self.stride * self.stride, width // self.stride * self.stride
        return sides if self.upper is None else (min(sides[0], self.upper[0]), min(sides[1], self.upper[1]))

    def draw(self, dice: Dice, shape: Shape3) -> Drawn:
        """Draw mirror, scale and corner for an image of `shape`, in the order of the fork."""
        mirror = self.transform.mirror and dice.below(2) > 0
        low, high = map(np.float32, self.scales)
        scale = np.float32(dice.below(int(float(high - low) * STEPS) + 1) / STEPS + float(low))
        height, width = (int(float(side * scale) + 0.5) for side in shape[1:])
        shown = self.shown(height, width)
        return Drawn(Cut((height, width), dice.below(height - shown[0] + 1), dice.below(width - shown[1] + 1), mirror), shown)

    def drawn(self, key: tuple[int, int], position: int, shape: Shape3, draws: int) -> Drawn:
        """Return the choices for the image at a position of the endless sequence of records, after `draws` others."""
        dice = Dice(key, position)
        for _ in range(draws):
            self.draw(dice, shape)
        return self.draw(dice, shape)

    def balanced(self, key: tuple[int, int], position: int, names: Names) -> int:
        """Return how many draws of an image to leave out until no label has more than `MOST` of the sample. Raise Error with the name of a file."""
        pair = self.open(names)
        with named(names[1]), decoded(pair.files[1], Color.GRAY) as image:
            labels = image.transpose(2, 0, 1)
            for draws in range(REDRAWS):
                (size, y, x, _), shown = self.drawn(key, position, pair.shape, draws)
                seen = resize(labels, *size, Interpolation.NEAREST)[0, y : y + shown[0], x : x + shown[1]]
                if np.bincount(seen.reshape(-1), minlength=1).max() <= MOST * seen.size:
                    return draws
        return REDRAWS

    def check_fit(self, names: Names, pair: Pair, frame: Frame) -> None:
        """A batch has one image, from which its shape follows."""

    def cut(self, frame: Frame, n: int, shape: Shape3) -> Cut:
        return self.drawn(frame.key, frame.positions[n], shape, frame.draws).cut
