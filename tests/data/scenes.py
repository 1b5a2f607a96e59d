"""Annotated databases of random images for the tests of detectors of regions."""
from __future__ import annotations

import io
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from ocaffe import proto
from tests.data.small_databases import write


class Scene(NamedTuple):
    """An image (height x width x 3, blue first), and its boxes: edges x1, y1, x2, y2 in pixels, label, difficult."""

    pixels: np.ndarray
    boxes: Sequence[tuple[float, float, float, float, int, bool]]


def record(scene: Scene, encoded: bool) -> bytes:
    """Return the AnnotatedDatum of a scene, with a PNG file if `encoded`."""
    height, width, _ = scene.pixels.shape
    message = proto.AnnotatedDatum(type=proto.AnnotatedDatum.BBOX)
    if encoded:
        buffer = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(scene.pixels[..., ::-1])).save(buffer, "PNG")
        message.datum.data, message.datum.encoded = buffer.getvalue(), True
    else:
        message.datum.channels, message.datum.height, message.datum.width = 3, height, width
        message.datum.data = scene.pixels.transpose(2, 0, 1).tobytes()
    for x1, y1, x2, y2, label, difficult in scene.boxes:
        box = proto.NormalizedBBox(xmin=x1 / width, ymin=y1 / height, xmax=x2 / width, ymax=y2 / height, difficult=difficult)
        message.annotation_group.add(group_label=label).annotation.add().bbox.CopyFrom(box)
    return message.SerializeToString()


def scenes(rng: np.random.Generator, count: int, classes: int = 3, sides: tuple[int, int] = (24, 61)) -> list[Scene]:
    """Return images of different sizes, each with one to three bright boxes on a dark ground. The color of a box tells its label."""
    made = []
    for _ in range(count):
        height, width = rng.integers(*sides, 2)
        pixels, boxes = rng.integers(0, 60, (height, width, 3)).astype(np.uint8), []
        for _ in range(rng.integers(1, 4)):
            wide, high = rng.integers(8, width // 2 + 1), rng.integers(8, height // 2 + 1)
            x, y, label = int(rng.integers(0, width - wide + 1)), int(rng.integers(0, height - high + 1)), int(rng.integers(1, classes + 1))
            pixels[y : y + high, x : x + wide] = np.roll([255, 20, 120], label)
            boxes.append((x, y, x + wide, y + high, label, False))
        made.append(Scene(pixels, boxes))
    return made


def database(path: pathlib.Path, made: Sequence[Scene]) -> str:
    """Write the scenes to an LMDB, every second one as a PNG file. Return its path."""
    return write(path, [record(scene, bool(number % 2)) for number, scene in enumerate(made)])
