"""Writes a set of synthetic lines of text: image files, and lists with the classes of their characters for ImageData with label_count.

Class 0 is the blank of CTC, which also fills the labels of shorter texts. The classes of the characters follow. caffe_ocr (senlinuc) has the same lists.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ocaffe.data.stores.labels_txt import LABELS, labels_bytes
from ocaffe.data.workers import Workers
from ocaffe.support.files import new_folder
from ocaffe.support.progress import progress
from ocaffe.tools.datasets.encode import encoded
from ocaffe.tools.datasets.sets import DataSet
from ocaffe.tools.synthetic.scenes import CLASSES, Glyphs
from ocaffe.tools.synthetic.text_lines import LineComposer

PARTS = {"train": "train", "val": "test"}  # and the part of the digits that each has
BLANK = "blank"
IMAGES, TEXTS = "images", "texts"
_CHUNK = 64  # lines at a time


class Settings(NamedTuple):
    """`counts` are the lines of each of PARTS. `size` is (height, width). `length` are the least and the most digits of a line."""

    counts: Sequence[int]
    size: tuple[int, int] = (32, 128)
    seed: int = 1
    length: tuple[int, int] = (3, 8)
    suffix: str = "png"


def make_text(out: str, digits: DataSet, settings: Settings) -> list[str]:
    """Write the folder `out`. Return lines for the user. Raise Error."""
    said, workers = [], Workers()
    try:
        with new_folder(out) as root, progress(sum(settings.counts), "image") as bar:
            (root / LABELS).write_bytes(labels_bytes([BLANK, *CLASSES]))
            (root / TEXTS).mkdir()
            for (part, source), count in zip(PARTS.items(), settings.counts):
                if not count:
                    continue
                composer = LineComposer(Glyphs(digits.parts[source]), *settings.size, settings.seed, part)
                characters = 0
                with open(root / f"{part}.txt", "w", encoding="ascii") as listed, open(root / TEXTS / f"{part}.txt", "w", encoding="ascii") as texts:
                    for name, text in _write(root, part, composer, settings, count, workers):
                        labels = [1 + CLASSES.index(character) for character in text]
                        labels += [0] * (settings.length[1] - len(labels))
                        listed.write(f"{name} {' '.join(map(str, labels))}\n")
                        texts.write(f"{name} {text}\n")
                        characters += len(text)
                        bar.update(1)
                said.append(f"{part}: {count} images, {characters} digits; label_count {settings.length[1]}")
    finally:
        workers.close()
    return said


def _write(root: Path, part: str, composer: LineComposer, settings: Settings, count: int, workers: Workers) -> Iterator[tuple[str, str]]:
    """Write the images of a part. Yield for each its name below `root`, and its text."""
    (root / IMAGES / part).mkdir(parents=True)

    def write(number: int) -> tuple[str, str]:
        line = composer.line(number, *settings.length)
        name = f"{IMAGES}/{part}/{number:06d}.{settings.suffix}"
        (root / name).write_bytes(encoded(line.pixels[None], settings.suffix))
        return name, line.text

    for start in range(0, count, _CHUNK):
        yield from workers.run([partial(write, number) for number in range(start, min(start + _CHUNK, count))])
