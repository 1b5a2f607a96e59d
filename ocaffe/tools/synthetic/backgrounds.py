"""Procedural backgrounds of synthetic scenes: noise, stripes, checks and gradients between two similar colors."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image

from ocaffe.data.dice import Dice

_SPREAD = 70  # levels by which the second color of a background may differ from the first
_GRAIN = 14  # most levels of fine noise


class Background(NamedTuple):
    """`pixels` is height x width x 3, float32, in levels of 0 to 255. `colors` (n x 3) are the main colors in it."""

    pixels: np.ndarray
    colors: np.ndarray


def background(dice: Dice, height: int, width: int) -> Background:
    """Return a random background."""
    first = dice.uniforms(3) * 255
    second = np.clip(first + (2 * dice.uniforms(3) - 1) * _SPREAD, 0, 255)
    share = _KINDS[dice.below(len(_KINDS))](dice, height, width)
    pixels = share[..., None] * (second - first).astype(np.float32) + first.astype(np.float32)
    grain = dice.words(-(-height * width // 8)).view(np.uint8)[: height * width].reshape(height, width, 1)
    pixels += grain * np.float32(dice.uniform(0, _GRAIN) / 255) - np.float32(_GRAIN / 4)
    return Background(pixels, np.stack([first, (first + second) / 2, second]))


# Each kind returns the share of the second color at each pixel: height x width, float32, 0 to 1.


def _noise(dice: Dice, height: int, width: int) -> np.ndarray:
    """Smooth noise: a random grid of 3 to 24 cells a side, enlarged."""
    cells = 3 + dice.below(22)
    grid = Image.fromarray((dice.uniforms(cells, cells) * 255).astype(np.uint8))
    return np.asarray(grid.resize((width, height), Image.Resampling.BILINEAR), np.float32) / 255


def _stripes(dice: Dice, height: int, width: int) -> np.ndarray:
    """Parallel stripes, sharp or smooth."""
    wave = np.sin(_slope(dice, height, width, 2 * math.pi / dice.uniform(0.04, 0.25)))
    return np.clip(wave * np.float32(dice.uniform(0.5, 6)) + np.float32(0.5), 0, 1)


def _checks(dice: Dice, height: int, width: int) -> np.ndarray:
    """Crossed stripes."""
    return np.abs(_stripes(dice, height, width) - _stripes(dice, height, width))


def _gradient(dice: Dice, height: int, width: int) -> np.ndarray:
    """A linear gradient across the whole image."""
    slope = _slope(dice, height, width, 1)
    low, high = float(slope.min()), float(slope.max())
    return (slope - np.float32(low)) / np.float32(high - low)


def _slope(dice: Dice, height: int, width: int, factor: float) -> np.ndarray:
    """Return the distance of each pixel along a random direction, in multiples of the shorter side, times `factor`."""
    angle, scale = dice.uniform(0, 2 * math.pi), factor / min(height, width)
    rows = np.arange(height, dtype=np.float32) * np.float32(math.sin(angle) * scale)
    columns = np.arange(width, dtype=np.float32) * np.float32(math.cos(angle) * scale)
    return rows[:, None] + columns


_KINDS: tuple[Callable[[Dice, int, int], np.ndarray], ...] = (_noise, _stripes, _checks, _gradient)
