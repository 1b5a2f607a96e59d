"""Images of digits as files: drawn with Pillow's font, shifted and noisy. They need no download and no other library."""
from __future__ import annotations

import pathlib

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIDE = 28


def digit(label: int, dice: np.random.Generator) -> Image.Image:
    """Return a gray image of the digit."""
    image = Image.new("L", (SIDE, SIDE), 10)
    x, y = dice.integers(5, 11, 2)
    ImageDraw.Draw(image).text((int(x), int(y) - 4), str(label), fill=int(dice.integers(180, 250)), font=ImageFont.load_default(20))
    pixels = np.asarray(image, np.float32) + dice.normal(0, 20, (SIDE, SIDE))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def write_folders(root: pathlib.Path, count: int, classes: int = 10, seed: int = 1) -> None:
    """Write `count` images of each class into class folders."""
    dice = np.random.default_rng(seed)
    for label in range(classes):
        (root / f"digit{label}").mkdir(parents=True)
        for number in range(count):
            digit(label, dice).save(root / f"digit{label}" / f"{number}.png")
