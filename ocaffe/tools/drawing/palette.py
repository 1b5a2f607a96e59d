"""Colors of classes: those of the Pascal VOC masks, which spread the bits of a number over red, green and blue."""
from __future__ import annotations

import numpy as np

COLORS = 256


def palette() -> np.ndarray:
    """Return the colors of the classes 0 to 255, 256 x 3 of uint8. Bits 0, 3, 6 of a number are the highest bits of red, 1, 4, 7 of green, 2, 5 of blue.

    Source: VOCcode, VOClabelcolormap.m.
    """
    numbers = np.arange(COLORS)
    made = np.zeros((COLORS, 3), np.uint8)
    for bit in range(8):
        made[:, bit % 3] |= ((numbers >> bit & 1) << (7 - bit // 3)).astype(np.uint8)
    return made


def color_of(number: int) -> tuple[int, int, int]:
    """Return the color of a class."""
    red, green, blue = palette()[number % COLORS].tolist()
    return red, green, blue
