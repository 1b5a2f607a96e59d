"""Images are decoded as by OpenCV, or refused: `python -m tests.abuse.images --count 1000`. Needs the package opencv-python-headless.

A case is an image file of Pillow, of OpenCV or of tests/data/decoding/image_kinds.py, of a random format, mode and size. ocaffe's values must be those of
cv2.imdecode with the flags that Caffe uses. Files that only one of both reads have no values to compare.
"""
from __future__ import annotations

import io
import random
import sys
from typing import Any

import numpy as np
from PIL import Image

from ocaffe.data.decoding.decode import Color, open_image, open_pillow, planes
from ocaffe.errors import Error
from tests.abuse.campaign import Options, Tally, options
from tests.abuse.harness import Limits, Wrong, isolated
from tests.abuse.workplace import FORMATS, image_file, workplace
from tests.data.decoding.image_kinds import KINDS

BY_OPENCV = (".bmp", ".dib", ".jpg", ".jpe", ".jp2", ".png", ".webp", ".avif", ".pbm", ".pgm", ".ppm", ".pxm", ".pnm", ".sr", ".ras", ".tiff", ".tif", ".gif")


def image(seed: int, number: int) -> bytes:
    """The file of a case; empty if it cannot be made here."""
    rng = random.Random(f"image {seed} {number}")
    size = rng.randint(1, 40), rng.randint(1, 40)
    source = rng.random()
    if source < 0.5:
        return KINDS[rng.choice(tuple(KINDS))](rng, max(size[0], 2), size[1])
    if source < 0.8:
        kind, mode = rng.choice(FORMATS)
        data = image_file(kind, mode, size, rng.randrange(100)) or b""
        return _turned(rng, data) if kind == "JPEG" and rng.random() < 0.5 else data
    import cv2

    shape = (size[1], size[0], *rng.choice(((), (3,), (4,))))
    pixels = np.random.default_rng(rng.randrange(10**6)).integers(0, 256, shape).astype(rng.choice((np.uint8, np.uint8, np.uint16)))
    try:
        done, made = cv2.imencode(rng.choice(BY_OPENCV), pixels)
    except cv2.error:
        return b""
    return made.tobytes() if done else b""


def _turned(rng: random.Random, data: bytes) -> bytes:
    """The file with an EXIF orientation, also with one that does not exist."""
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 99))
    picture = Image.open(io.BytesIO(data))
    picture.save(buffer, "JPEG", exif=exif)
    return buffer.getvalue()


def _format(data: bytes) -> str:
    image = open_pillow(data)
    return f"{image.format} {image.mode}"


def compare(data: bytes) -> None:
    """Raise Wrong unless ocaffe decodes as OpenCV, with every flag. An Error, for a file that ocaffe refuses, passes."""
    import cv2

    problem: Error | None = None
    for color, flag in ((Color.COLOR, cv2.IMREAD_COLOR), (Color.GRAY, cv2.IMREAD_GRAYSCALE), (Color.UNCHANGED, cv2.IMREAD_UNCHANGED)):
        theirs: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
        try:
            file = open_image(data)
            kind = _format(data)
            shape = file.shape(color)
            ours = np.stack(planes(file, color))
        except Error as found:
            problem = found
            continue
        if ours.shape != shape:
            raise Wrong(f"{kind}, {color.name}: the header says another shape than the pixels have")
        if theirs is None:
            continue
        theirs = theirs[None] if theirs.ndim == 2 else theirs.transpose(2, 0, 1)
        if ours.shape != theirs.shape or theirs.dtype != np.uint8:
            raise Wrong(f"{kind}, {color.name}: {ours.shape[0]} channels, OpenCV has {theirs.shape[0]} of {theirs.dtype}, or another size")
        away = int(np.abs(ours.astype(int) - theirs).max())
        if away:
            raise Wrong(f"{kind}, {color.name}: other values than OpenCV's")
    if problem is not None:
        raise problem


def images(chosen: Options, tally: Tally) -> None:
    numbers = [number for number in range(chosen.first, chosen.first + chosen.count) if image(chosen.seed, number)]
    tally.extra["not made"] = chosen.count - len(numbers)
    for number, outcome in isolated(numbers, lambda number: compare(image(chosen.seed, number)), Limits()):
        tally.add(outcome, number, image(chosen.seed, number))
        if tally.spent():
            return


def main() -> int:
    chosen = options("images", 200)
    try:
        import cv2
    except ImportError:
        print("OpenCV is not installed: pip install opencv-python-headless", file=sys.stderr)
        return 2
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    with workplace():
        tally = Tally("images", chosen)
        images(chosen, tally)
        return tally.finish()


if __name__ == "__main__":
    raise SystemExit(main())
