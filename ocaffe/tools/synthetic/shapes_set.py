"""Writes a set of synthetic scenes in VOC's layout, and single digits in class folders."""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ocaffe.data.workers import Workers
from ocaffe.support.files import new_folder
from ocaffe.support.progress import progress
from ocaffe.tools.datasets.sets import DataSet
from ocaffe.tools.synthetic.scenes import CLASSES, Composer, Glyphs, Scene
from ocaffe.tools.synthetic.voc_writer import VocWriter, image_bytes

PARTS = ("train", "val", "test")
CROPS = "crops"
_CHUNK = 32  # scenes at a time


class Settings(NamedTuple):
    """`counts` are the scenes of each of PARTS. `size` is (height, width). `objects` are the least and the most digits of a scene."""

    counts: Sequence[int]
    size: tuple[int, int] = (300, 300)
    seed: int = 1
    objects: tuple[int, int] = (1, 6)
    suffix: str = "jpg"
    crops: int = 0
    crop_size: int = 64  # pixels


def make_shapes(out: str, digits: DataSet, settings: Settings) -> list[str]:
    """Write the folder `out`. Return lines for the user. Raise Error.

    Scenes for training and crops have digits of the training part of `digits`, the others those of its test part.
    """
    glyphs = {part: Glyphs(digits.parts[part]) for part in ("train", "test")}
    lines, workers = [], Workers()
    try:
        with new_folder(out) as root, progress(sum(settings.counts) + settings.crops, "image") as bar:
            writer, first = VocWriter(root, CLASSES, settings.suffix), 0
            for part, count in zip(PARTS, settings.counts):
                if not count:
                    continue
                composer = Composer(glyphs["train" if part == "train" else "test"], *settings.size, settings.seed, part)
                names = [f"{number:06d}" for number in range(first, first + count)]
                objects = difficult = 0
                for start in range(0, count, _CHUNK):
                    numbers = range(start, min(start + _CHUNK, count))
                    scenes = workers.run([partial(_scene, composer, writer, settings, number, names[number]) for number in numbers])
                    bar.update(len(numbers))
                    objects += sum(len(scene.things) for scene in scenes)
                    difficult += sum(thing.difficult for scene in scenes for thing in scene.things)
                writer.write_list(part, names)
                lines.append(f"{part}: {count} scenes, {objects} objects, {difficult} of them difficult")
                first += count
            if settings.crops:
                _crops(root, glyphs["train"], settings, workers)
                bar.update(settings.crops)
                lines.append(f"{CROPS}: {settings.crops} images of {settings.crop_size} x {settings.crop_size}, one digit each")
    finally:
        workers.close()
    return lines


def _scene(composer: Composer, writer: VocWriter, settings: Settings, number: int, name: str) -> Scene:
    scene = composer.scene(number, *settings.objects)
    writer.write(name, scene)
    return scene


def _crops(root: Path, glyphs: Glyphs, settings: Settings, workers: Workers) -> None:
    composer = Composer(glyphs, settings.crop_size, settings.crop_size, settings.seed, CROPS)
    for name in CLASSES:
        (root / CROPS / name).mkdir(parents=True)

    def write(number: int) -> None:
        scene = composer.crop(number)
        path = root / CROPS / CLASSES[scene.things[0].label] / f"{number:06d}.{settings.suffix}"
        path.write_bytes(image_bytes(scene, settings.suffix))

    for start in range(0, settings.crops, _CHUNK):
        workers.run([partial(write, number) for number in range(start, min(start + _CHUNK, settings.crops))])
