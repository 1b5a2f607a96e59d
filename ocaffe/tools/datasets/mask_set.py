"""Converts pairs of images and masks to files for DenseImageData: copies of the images, gray masks whose levels are the classes, lists, and class weights."""
from __future__ import annotations

import os
import shutil
import zlib
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from ocaffe.data.decoding.decode import Color, open_image, open_pillow, planes, read_file, readable
from ocaffe.data.source import RECORDS, permutation
from ocaffe.data.stores.folder import is_image_name, split_of, subfolders
from ocaffe.data.stores.labels_txt import LABELS, labels_bytes, read_labels
from ocaffe.data.stores.text_list import list_content
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, Place, within
from ocaffe.shown import visible
from ocaffe.support import log
from ocaffe.support.files import check_folder, new_folder
from ocaffe.support.inside import inside
from ocaffe.support.progress import progress
from ocaffe.tools.datasets.box_set import Fault, read_names
from ocaffe.tools.datasets.color_table import IGNORE, ColorTable, read_color_table

SHARE = 0.2  # of the pairs, for testing
WEIGHTS = "class_weights.prototxt"
_IMAGES, _MASKS = "images", "masks"  # folders of the result
_TRAIN, _TEST = "train", "test"
_PARTS = ("train", "val", "test", "trainval")  # names of lists
_CHUNK = 32  # pairs at a time
_SOURCE = "convert_imageset.cpp"


class Settings(NamedTuple):
    """How to make the set.

    `colors` is a file with the colors of the classes, `labels` one with their names. `lists` is a folder with lists of names, train.txt and so on. The
    name of a pair is that of its image without `image_suffix`, and that of its mask without `mask_suffix`. Without parts, `share` is for testing.
    `skip_bad`: leave out pairs that cannot be used.
    """

    colors: str = ""
    labels: str = ""
    lists: str = ""
    image_suffix: str = ""
    mask_suffix: str = ""
    share: float = SHARE
    seed: int = 0
    skip_bad: bool = False


class Pair(NamedTuple):
    """`name` is that of both files without suffixes, relative to their folders. A file that does not exist is ''."""

    name: str
    image: str
    mask: str


class Counts:
    """Pixels of each class in a part, and in how many pixels of images each class occurs. `pixels` are 256 numbers, the last of ignored pixels."""

    def __init__(self) -> None:
        self.pixels = np.zeros(256, np.int64)
        self.around = np.zeros(256, np.int64)  # pixels that count, of the images that have the class
        self.images = 0

    def add(self, pixels: np.ndarray) -> None:
        self.pixels += pixels
        self.around += (pixels > 0) * pixels[:IGNORE].sum()
        self.images += 1

    def weights(self, classes: int) -> np.ndarray:
        """Return the weights of the classes by median frequency balancing (Eigen and Fergus, 2015), 1 for a class without pixels.

        The frequency of a class is its share of the pixels of the images that have it. The weight is the median of all frequencies divided by it.
        """
        there = self.pixels[:classes] > 0
        frequency = self.pixels[:classes][there] / self.around[:classes][there]
        weights = np.ones(classes)
        if there.any():
            weights[there] = np.median(frequency) / frequency
        return weights


def make_masks(images: str, masks: str, out: str, settings: Settings, left_out: list[Fault] | None = None) -> list[str]:
    """Make the folder `out` of the image files in `images` and the masks in `masks`. Return lines for the user. Raise Error.

    `left_out` gets what skip_bad leaves out, and then nothing is logged about it.
    """
    for folder in filter(None, (images, masks, settings.lists)):
        check_folder(folder)
    colors = read_color_table(settings.colors) if settings.colors else None
    names = colors.names if colors else read_labels(_names_file(masks, settings)) if _names_file(masks, settings) else []
    if len(names) > IGNORE:
        raise Error(f"there are {len(names)} classes", place=_names_file(masks, settings), fix=f"give at most {IGNORE} classes, because {IGNORE} is ignored")
    with within(settings.colors or _names_file(masks, settings)):
        labels_bytes(names)  # its errors come before any file is written
    parts = _parts(images, masks, settings)
    lines, counts = [], dict[str, Counts]()
    workers = Workers()
    try:
        with new_folder(out) as made:
            for part, pairs in parts.items():
                converted = _Part(made, colors, len(names), settings, workers, left_out)
                lines.append(f"{os.path.join(out, part)}.txt: {converted.write(part, pairs)}")
                counts[part] = converted.counts
            _check_classes(masks, np.sum([each.pixels for each in counts.values()], 0))
            most = max(int(np.flatnonzero(each.pixels[:IGNORE]).max(initial=0)) for each in counts.values())
            names = names or [str(number) for number in range(most + 1)]
            (made / LABELS).write_bytes(labels_bytes(names))
            training = counts[next(iter(parts))]
            weights = training.weights(len(names))
            (made / WEIGHTS).write_text(_fragment(names, weights), encoding="utf-8")
    finally:
        workers.close()
    return [*lines, *_table(names, training, weights, next(iter(parts)))]


def _check_classes(masks: str, pixels: np.ndarray) -> None:
    """Raise Error if the pixels have fewer than two classes. A net that is trained on them learns nothing, and its mean IoU is 1."""
    there = np.flatnonzero(pixels[:IGNORE]).tolist()
    if len(there) < 2:
        fact = f"all pixels have the class {there[0]}" if there else "no pixel has a class"
        fact += f", or the level {IGNORE}, which is ignored" if pixels[IGNORE] else ""
        fix = "if white is a class, give the colors: --colors FILE with the lines background,0,0,0 and object,255,255,255"
        raise Error(fact, place=masks, fix=fix if pixels[IGNORE] else "give masks with pixels of two classes or more")


def _names_file(masks: str, settings: Settings) -> str:
    """Return the file with the names of the classes, '' if there is none."""
    beside = os.path.join(masks, LABELS)
    return settings.labels or (beside if os.path.exists(beside) else "")


def _parts(images: str, masks: str, settings: Settings) -> dict[str, list[Pair]]:
    """Return the pairs of each part. The first one is for training."""
    if not 0 <= settings.share < 1:
        raise Error(f"--test is {settings.share:g}", fix="a share of the pairs from 0 on and below 1: --test 0.2")
    image_files, mask_files = _files(images, settings.image_suffix), _files(masks, settings.mask_suffix)
    if not image_files or not mask_files:
        folder, suffix = (masks, settings.mask_suffix) if image_files else (images, settings.image_suffix)
        fact = f"the folder {folder} has no image file{f' whose name ends in {suffix}' if suffix else ''}"
        raise Error(fact, fix=f"correct the folder{' or the suffix' if suffix else ''}")

    def pair(name: str) -> Pair:
        return Pair(name, image_files.get(name, ""), mask_files.get(name, ""))

    if settings.lists:
        files = {part: os.path.join(settings.lists, f"{part}.txt") for part in _PARTS}
        listed = {part: _listed(images, path, image_files) for part, path in files.items() if os.path.isfile(path)}
        if not listed:
            fact = f"the folder {settings.lists} has no list train.txt, val.txt, test.txt or trainval.txt"
            raise Error(fact, fix="give the folder with the lists, for VOC2012: --lists VOC2012/ImageSets/Segmentation")
        parts = {part: [pair(name) for name in names] for part, names in listed.items() if part != "trainval" or _TRAIN not in listed}
        return dict(sorted(parts.items(), key=lambda each: not each[0].startswith(_TRAIN)))
    pairs = [pair(name) for name in sorted(image_files.keys() | mask_files.keys())]
    folders, _ = subfolders(images, Counter())
    if parts_found := split_of(folders):
        if other := next((each for each in pairs if each.name.split(os.sep)[0] not in parts_found), None):
            fact = f"{other.image or other.mask} is in none of the parts {' and '.join(parts_found)}"
            raise Error(fact, fix="move it into a part, or give the folders of one part as IMAGES and MASKS")
        return {part: [each for each in pairs if each.name.split(os.sep)[0] == part] for part in parts_found}
    count = round(len(pairs) * settings.share)
    if settings.share and not 0 < count < len(pairs):
        few = f"a share from {1 / len(pairs):.2g} to {1 - 1 / len(pairs):.2g}, which leaves pairs in both parts" if len(pairs) > 1 else "add pairs"
        raise Error(f"--test is {settings.share:g}, and there are {len(pairs)} pairs", fix=f"--test 0, or {few}")
    key = settings.seed & 0xFFFFFFFFFFFFFFFF, zlib.crc32(b"masks")
    order = permutation(key, RECORDS, 0, len(pairs)).tolist()
    rows = {_TRAIN: sorted(order[count:]), _TEST: sorted(order[:count])}
    return {part: [pairs[row] for row in chosen] for part, chosen in rows.items() if chosen}


def _listed(images: str, path: str, there: Collection[str]) -> list[str]:
    """Return the names in a list. `there` are those of the images."""
    return [os.path.relpath(inside(images, name, Place(path, line)), images) for line, name in read_names(path, there.__contains__)]


def _files(folder: str, suffix: str) -> dict[str, str]:
    """Return the image files in a folder and its subfolders by their names without suffixes."""
    found: dict[str, str] = {}
    for path, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            stem = os.path.splitext(file)[0]
            if is_image_name(file) and not file.startswith(".") and stem.endswith(suffix):
                name = os.path.normpath(os.path.join(os.path.relpath(path, folder), stem.removesuffix(suffix)))
                found.setdefault(name, os.path.join(path, file))
    return found


class _Part:
    """The conversion of one part."""

    def __init__(
        self, folder: Path, colors: ColorTable | None, classes: int, settings: Settings, workers: Workers, left_out: list[Fault] | None
    ) -> None:  # fmt: skip
        """`classes` is the number of classes, 0 if it is not known."""
        self._faults = left_out
        self._folder, self._colors, self._classes, self._settings, self._workers = folder, colors, classes, settings, workers
        self.counts = Counts()

    def write(self, part: str, pairs: list[Pair]) -> str:
        """Write the files and the list of a part. Return a text for the user."""
        lines, left_out, first = [], Counter[str](), None
        with progress(len(pairs), "pair", part) as bar:
            for start in range(0, len(pairs), _CHUNK):
                chunk = pairs[start : start + _CHUNK]
                for pair, made in zip(chunk, self._workers.run(partial(self._convert, pair) for pair in chunk)):
                    bar.update()
                    if isinstance(made, Fault):
                        if not self._settings.skip_bad:
                            raise made.error()
                        first = first or made
                        if self._faults is None:
                            log.warning(f"{_SOURCE}:1", f"{made.place}: {made.fact}. It is left out.")
                        else:
                            self._faults.append(made)
                        left_out[made.reason] += 1
                        continue
                    self.counts.add(made)
                    lines.append(f"{self._image(pair)} {self._mask(pair)}")
        if not lines:
            fact = f"none of the {len(pairs)} pairs of the part '{part}' can be used"
            raise Error(f"{fact}; the first: {first.place}: {first.fact}" if first else fact, fix=first.fix if first else "add pairs to the part")
        (self._folder / f"{part}.txt").write_bytes(list_content(lines))
        ignored = self.counts.pixels[IGNORE] / self.counts.pixels.sum()
        texts = [f"{len(lines)} pairs, {100 * ignored:.2f} % of the pixels are ignored"]
        return "; ".join(texts + [f"left out: {count} pairs {reason}" for reason, count in sorted(left_out.items())])

    def _image(self, pair: Pair) -> str:
        return f"{_IMAGES}/{pair.name}{os.path.splitext(pair.image)[1]}"

    def _mask(self, pair: Pair) -> str:
        return f"{_MASKS}/{pair.name}.png"

    def _convert(self, pair: Pair) -> np.ndarray | Fault:
        """Write the files of a pair. Return the number of pixels of each class (256 numbers). Several threads do this."""
        if not pair.image or not pair.mask:
            there, missing = (pair.image, "mask") if pair.image else (pair.mask, "image")
            fact = f"it has no {missing}" if there else "there are no image and no mask of this name"
            return Fault(there or pair.name, f"without {missing}", fact, "add the file, or list the names of pairs: --lists", whole=True)
        if pair.name.split() != [pair.name]:
            return Fault(pair.image, "with white space in the name", "the name has white space, at which lists are divided", "rename the files", whole=True)
        place = pair.image
        try:
            size = planes(open_image(read_file(pair.image)), Color.COLOR).shape[1:]
            place = pair.mask
            mask = self._read(pair.mask)
        except Error as problem:
            return Fault(place, "that cannot be read", problem.fact, problem.fix or "replace the file", whole=True)
        if mask.shape != size:
            (height, width), (real_height, real_width) = mask.shape, size
            fact = f"the mask is {width} x {height} (width x height), the image {pair.image} is {real_width} x {real_height}"
            return Fault(pair.mask, "of two sizes", fact, f"make the mask {real_width} x {real_height} without new levels (nearest neighbor)", whole=True)
        pixels = np.bincount(mask.reshape(-1), minlength=256)
        most = int(np.flatnonzero(pixels[:IGNORE]).max(initial=0))
        if self._classes and most >= self._classes:
            y, x = (int(place[0]) for place in (mask == most).nonzero())
            fact = f"the pixel at x {x}, y {y} has the class {most}, and there are the classes 0 to {self._classes - 1}, and {IGNORE} (ignored)"
            return Fault(pair.mask, "with unknown classes", fact, "correct the mask, or the names of the classes", whole=True)
        for name in (self._image(pair), self._mask(pair)):
            (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(pair.image, self._folder / self._image(pair))
        Image.fromarray(mask).save(self._folder / self._mask(pair))
        return pixels

    def _read(self, path: str) -> np.ndarray:
        """Return the classes of the pixels of a mask: height x width, uint8. Raise Error without a place."""
        image = open_pillow(read_file(path))
        if image.format in ("JPEG", "MPO"):
            raise Error("it is a JPEG file, which does not store exact classes", fix="export the masks as PNG from the program that made them")
        if self._colors is None and image.mode not in ("P", "L", "1"):
            fix = "give the colors of the classes: --colors FILE" if image.mode in ("RGB", "RGBA") else "save it as a gray or palette image of 8 bits"
            raise Error(f"its pixels are of type {image.mode}, not classes of 8 bits", fix=fix)
        with readable():
            pixels = np.array(image, np.uint8) if self._colors is None else np.asarray(image.convert("RGB"))
        return pixels if self._colors is None else self._colors.classes(pixels)


def _fragment(names: list[str], weights: np.ndarray) -> str:
    """Return loss_param with SegNet's weights of the classes."""
    lines = "".join(f"  class_weighting: {weight:.6g}  # {visible(name)}\n" for name, weight in zip(names, weights.tolist()))
    return f"# for the layer SoftmaxWithLoss\nloss_param {{\n  ignore_label: {IGNORE}\n  weight_by_label_freqs: true\n{lines}}}\n"


def _table(names: list[str], counts: Counts, weights: np.ndarray, part: str) -> list[str]:
    """Return lines with the share of the pixels and the weight of each class."""
    total = max(int(counts.pixels[:IGNORE].sum()), 1)
    rows = [(name, f"{100 * pixels / total:.3f} %", f"{weight:.4g}") for name, pixels, weight in zip(names, counts.pixels.tolist(), weights.tolist())]
    wide = max(len(row[0]) for row in rows)
    return [f"classes of {part}: share of the pixels, weight by median frequency", *(f"  {name:<{wide}}  {share:>9}  {weight}" for name, share, weight in rows)]
