"""The segmentation of an image: the best class of each pixel, the share of each class, and the classes drawn over the image."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from ocaffe.tools.drawing.palette import COLORS, palette

OPACITY = 0.55  # of the colors over the image


def regions(scores: np.ndarray, labels: Sequence[str]) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return the number of the best class of each pixel, and the classes that occur with their shares of the pixels, the largest first.

    `scores`: classes x height x width. `labels`: names by number, [] if they are not known.
    """
    best = scores.argmax(0)
    counts = np.bincount(best.ravel(), minlength=len(scores))
    order = [index for index in np.argsort(-counts, kind="stable").tolist() if counts[index]]
    return best, [
        {"label": labels[index] if index < len(labels) else str(index), "index": index, "share": float(counts[index] / best.size)} for index in order
    ]


def draw_regions(picture: Image.Image, best: np.ndarray) -> Image.Image:
    """Return the RGB image with the color of each pixel's class over it. Class 0, the background, is left as it is."""
    mask = Image.fromarray((best % COLORS).astype(np.uint8)).resize(picture.size, Image.Resampling.NEAREST)
    numbers = np.asarray(mask)
    pixels = np.asarray(picture, np.float32)
    mixed = pixels + OPACITY * (palette()[numbers] - pixels)
    return Image.fromarray(np.where(numbers[..., None] > 0, mixed, pixels).round().astype(np.uint8))
