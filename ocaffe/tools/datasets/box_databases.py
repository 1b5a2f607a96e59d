"""Converts data sets with boxes to databases for AnnotatedData, with SSD's label map. Boxes and images that cannot be used are errors, or are left out."""
from __future__ import annotations

import itertools
import os
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.data.source import RECORDS, permutation
from ocaffe.data.stores.labels_txt import LABELS, check_class, labels_bytes
from ocaffe.data.stores.text_list import list_content
from ocaffe.errors import Error, Place, names_text, within
from ocaffe.formats.text import read, write_text
from ocaffe.shown import command
from ocaffe.support import log
from ocaffe.support.files import check_folder, new_folder
from ocaffe.support.inside import is_below, leads_out
from ocaffe.tools.datasets.annotations import BACKGROUND, Box, Boxes, annotate, read_label_map
from ocaffe.tools.datasets.box_set import UNKNOWN_CLASS, BoxSet, Fault, Picture
from ocaffe.tools.datasets.coco_set import read_coco
from ocaffe.tools.datasets.encode import Recipe, datum_of
from ocaffe.tools.datasets.imageset import Entry, Made, write_records
from ocaffe.tools.datasets.labelme_set import read_labelme
from ocaffe.tools.datasets.voc_set import read_voc
from ocaffe.tools.datasets.yolo_set import read_yolo

FORMATS: dict[str, tuple[Callable[[str], BoxSet], str]] = {  # by name: the reader, and a line for the help
    "voc": (read_voc, "make databases of boxes in PASCAL VOC's format, for detection"),
    "coco": (read_coco, "the same of MS COCO's format"),
    "yolo": (read_yolo, "the same of YOLO's format"),
    "labelme": (read_labelme, "the same of LabelMe's format"),
}
SHARE = 0.2  # of the images of a set that is not divided, for testing
TRAIN, TEST = "train", "test"
NO_LABEL = -1  # label of an image with boxes, as SSD's converter writes it
_SLACK = 1  # pixels by which a box may leave its image because of rounding; it is clipped
_SOURCE = "convert_annoset.cpp"


class Settings(NamedTuple):
    """How to make the databases.

    `parts` are the parts to convert; without them all, and `trainval` only in place of `train`. `share` of a set that is not divided is for testing.
    `label_map` is a label map to use. `skip_bad`: leave out boxes and images that cannot be used.
    """

    recipe: Recipe = Recipe(encode=None, dimensions=True)
    parts: tuple[str, ...] = ()
    share: float = SHARE
    seed: int = 0
    shuffle: bool = True
    check_size: bool = False
    label_map: str = ""
    skip_bad: bool = False


def make_databases(kind: str, root: str, out: str, settings: Settings, left_out: list[Fault] | None = None) -> list[str]:
    """Make the folder `out` with a database for each part of the data set in the folder `root`. Return lines for the user. Raise Error.

    `left_out` gets what skip_bad leaves out, and then nothing is logged about it.
    """
    check_folder(root)
    found = FORMATS[kind][0](os.path.normpath(root))
    parts = _divided(found.parts, root, settings)
    for picture in itertools.chain(*parts.values()):
        if not is_below(root, picture.path):
            problem = leads_out(root, picture.path, picture.source)
            picture.faults.append(Fault(picture.source, "outside of the data set", problem.fact, problem.fix or "", whole=True))
    fault = next((fault for pictures in parts.values() for picture in pictures for fault in picture.faults), None)
    if fault is not None and not settings.skip_bad:
        raise fault.error()
    if not settings.label_map:
        _check_names(found.classes, parts, root)
    label_map = _label_map(found.classes, settings.label_map)
    lines = []
    with new_folder(out) as made:
        for part, pictures in parts.items():
            lines.append(_Part(part, pictures, label_map, made, settings, left_out).write(out))
        name = f"labelmap_{kind}.prototxt"
        (made / name).write_text(write_text(label_map), encoding="utf-8")
    background = any(item.label == BACKGROUND[1] for item in label_map.item)
    return [*lines, f"{os.path.join(out, name)}: {len(label_map.item)} classes {'with' if background else 'without'} the background"]


def _divided(parts: dict[str, list[Picture]], root: str, settings: Settings) -> dict[str, list[Picture]]:
    """Return the parts to convert, in the order of the databases' records."""
    if not 0 <= settings.share < 1:
        raise Error(f"--test is {settings.share:g}", fix="a share of the images from 0 on and below 1: --test 0.2")
    named = {part: pictures for part, pictures in parts.items() if part}
    if missing := [part for part in settings.parts if part not in named]:
        there = f"the parts {names_text(list(named))}" if named else "no parts"
        raise Error(f"--parts has '{missing[0]}', and {root} has {there}", fix=command("--parts", ",".join(named)) if named else "leave out --parts")
    if named:
        if settings.share != SHARE:
            raise Error(f"--test is {settings.share:g}, and {root} is divided already: {', '.join(named)}", fix="leave out --test, or use --parts")
        chosen = settings.parts or tuple(part for part in named if part != "trainval" or TRAIN not in named)
        return {part: _ordered(named[part], part, settings) for part in chosen}
    (pictures,) = parts.values()
    count = round(len(pictures) * settings.share)
    if settings.share and not 0 < count < len(pictures):
        raise Error(f"--test is {settings.share:g}, and {root} has {len(pictures)} images", fix=_share_fix(len(pictures)))
    order = permutation(_key(settings.seed, ""), RECORDS, 0, len(pictures)).tolist()
    chosen_rows = {TRAIN: sorted(order[count:]), TEST: sorted(order[:count])}
    return {part: _ordered([pictures[row] for row in rows], part, settings) for part, rows in chosen_rows.items() if rows}


def _share_fix(count: int) -> str:
    """Return the remedy for a share that leaves no image in one of two parts of `count` images."""
    return f"--test 0, or a share from {1 / count:.2g} to {1 - 1 / count:.2g}, which leaves images in both parts" if count > 1 else "--test 0, or add images"


def _ordered(pictures: list[Picture], part: str, settings: Settings) -> list[Picture]:
    """Return images for training in random order; the others as they are."""
    if not settings.shuffle or not part.startswith(TRAIN):
        return pictures
    return [pictures[row] for row in permutation(_key(settings.seed, part), RECORDS, 1, len(pictures)).tolist()]


def _key(seed: int, name: str) -> tuple[int, int]:
    return seed & 0xFFFFFFFFFFFFFFFF, zlib.crc32(os.fsencode(name))


def _label_map(classes: list[tuple[str, str]], path: str) -> proto.LabelMap:
    """Return the label map of the file `path`, or that of `classes` with the background first, as in SSD."""
    if path:
        read_label_map(path, check=True)
        given: proto.LabelMap = read(path, proto.LabelMap)
        _check_names([(item.name, item.display_name or item.name) for item in given.item], {}, path)
        return given
    made = proto.LabelMap()
    if not classes:
        raise Error("the data set has no boxes and no classes", fix="add boxes, or give --label-map-file")
    made.item.add(name=BACKGROUND[0], label=BACKGROUND[1], display_name=BACKGROUND[2])
    for label, (name, shown) in enumerate(classes, 1):
        made.item.add(name=name, label=label, display_name=shown)
    return made


def _check_names(classes: list[tuple[str, str]], parts: dict[str, list[Picture]], source: str) -> None:
    """Raise Error for names of classes that the labels.txt in a database cannot hold. The place is the first box of such a class, else `source`."""
    with within(source):
        for name, shown in classes:
            try:
                check_class(shown)
            except Error as problem:
                boxes = (each for picture in itertools.chain(*parts.values()) for each in zip(picture.boxes, picture.places))
                problem.place = next((place for box, place in boxes if box.label == name), None)
                raise
        labels_bytes([shown for _, shown in classes])


class _Part:
    """The conversion of one part."""

    def __init__(
        self, name: str, pictures: list[Picture], label_map: proto.LabelMap, folder: Path, settings: Settings, left_out: list[Fault] | None
    ) -> None:  # fmt: skip
        self._faults = left_out
        self._name, self._pictures, self._folder, self._settings = name, pictures, folder, settings
        self._labels = {item.name: item.label for item in label_map.item}
        self._shown = {item.label: item.display_name or item.name for item in label_map.item}
        self._left_out: dict[int, list[Fault]] = {}  # by image
        self._clipped: Counter[int] = Counter()  # boxes, by image
        self._counts: dict[int, Counter[int]] = {}  # boxes by label, by image
        self._sizes: dict[int, tuple[int, int]] = {}  # height and width, by image

    def write(self, out: str) -> str:
        """Write the database and the list of sizes. Return a line for the user."""
        database = f"{self._name}_lmdb"
        entries = [Entry(row, picture.name, "") for row, picture in enumerate(self._pictures)]
        with LmdbWriter(str(self._folder / database)) as writer:
            for row, picture in enumerate(self._pictures):
                self._leave_out(row, picture.faults)
            usable = [entry for entry in entries if not any(fault.whole for fault in self._left_out.get(entry.line, ()))]
            write_records(writer, usable, self._make, self._unreadable, database if self._settings.check_size else None, _SOURCE)
            if not writer.count:
                first = next((fault for faults in self._left_out.values() for fault in faults), None)
                fact = f"none of the {len(entries)} images of the part '{self._name}' can be used"
                raise Error(f"{fact}; the first: {first.place}: {first.fact}" if first else fact, fix=first.fix if first else "add images to the part")
            if list(self._shown) == list(range(len(self._shown))):
                writer.attach(LABELS, labels_bytes(list(self._shown.values())))
            count = writer.count
        rows = [row for row in range(len(entries)) if row in self._counts]
        sized = self._write_sizes(rows)
        return f"{os.path.join(out, database)}: {count} images, {self._summary(rows)}{sized}"

    def _make(self, entry: Entry) -> Made:
        """Return the record of an image. Several threads do this; each writes only to the keys of its image."""
        row, picture, recipe = entry.line, self._pictures[entry.line], self._settings.recipe
        made = datum_of(picture.path, NO_LABEL, recipe)
        if picture.size is not None and picture.size != made.original:
            stated, real = (f"{width} x {height}" for height, width in (picture.size, made.original))
            raise _Unusable(Fault(picture.source, "of another size", f"it states {stated}, and {picture.path} has {real} pixels", _SIZE_FIX, whole=True))
        checked = [self._checked(box, place, made.original, picture.fractions, row) for box, place in zip(picture.boxes, picture.places)]
        boxes = [each for each in checked if isinstance(each, Box)]
        if faults := [each for each in checked if isinstance(each, Fault)]:
            if not self._settings.skip_bad:
                raise faults[0].error()
            self._left_out.setdefault(row, []).extend(faults)
        self._counts[row] = Counter(self._labels[str(box.label)] for box in boxes)
        self._sizes[row] = made.original
        return annotate(made.datum, Boxes(None, boxes), made.original, self._labels, picture.source), made.shape

    def _checked(self, box: Box, place: Place | str, size: tuple[int, int], fractions: bool, row: int) -> Box | Fault:
        """Return a box in pixels inside its image, or the reason against it."""
        height, width = size
        if box.label not in self._labels:
            known = names_text([name for name in self._labels if name != BACKGROUND[0]])
            return Fault(place, UNKNOWN_CLASS, f"the class is '{box.label}', and the classes are {known}", "correct the name, or add it to the classes")
        sides = np.array([width, height] * 2, float)
        corners = np.array(box[1:5], float)
        text = f"xmin, ymin, xmax, ymax = {', '.join(f'{corner:g}' for corner in corners.tolist())}"
        pixels = corners * sides if fractions else corners
        if not np.isfinite(pixels).all():
            return Fault(place, "that are not finite", text, "correct the number, or remove the box")
        if (pixels[:2] > pixels[2:]).any():
            return Fault(place, "that are inverted", f"{text}: a minimum is above its maximum", "exchange the two")
        inner = np.clip(pixels, 0, sides)
        if np.abs(inner - pixels).max() > _SLACK:
            if fractions:
                fix = "divide by width and height of the image, or remove the box" if np.abs(corners).max() > 2 else "clip or remove the box"
                return Fault(place, "that leave the image", f"{text}, and the coordinates are shares of the image, from 0 to 1", fix)
            return Fault(place, "that leave the image", f"{text}, and the image is {width} x {height} (width x height)", "clip or remove the box")
        if (inner[:2] >= inner[2:]).any():
            return Fault(place, "that are empty", f"{text}: the box has no area", "remove the box")
        if (inner != pixels).any():
            self._clipped[row] += 1
        xmin, ymin, xmax, ymax = inner.tolist()
        return Box(box.label, xmin, ymin, xmax, ymax, box.difficult)

    def _unreadable(self, entry: Entry, problem: Error) -> None:
        picture = self._pictures[entry.line]
        if isinstance(problem, _Unusable):
            fault = problem.fault
        else:
            missing = not os.path.exists(picture.path)
            fault = Fault(picture.source, "that are missing" if missing else "that cannot be read", f"{picture.path}: {problem.fact}", _IMAGE_FIX, whole=True)
        self._leave_out(entry.line, [fault])

    def _leave_out(self, row: int, faults: list[Fault]) -> None:
        if faults and not self._settings.skip_bad:
            raise faults[0].error()
        self._left_out.setdefault(row, []).extend(faults)

    def _summary(self, rows: list[int]) -> str:
        total = sum((self._counts[row] for row in rows), Counter[int]())
        classes = ", ".join(f"{shown} {total[label]}" for label, shown in self._shown.items() if label or total[label])
        parts = [f"{total.total()} boxes ({classes})"]
        if bare := sum(not self._counts[row] for row in rows):
            parts.append(f"{bare} images without boxes")
        if clipped := self._clipped.total():
            parts.append(f"{clipped} boxes clipped by up to {_SLACK} pixel")
        faults = [fault for row in sorted(self._left_out) for fault in self._left_out[row]]
        for fault in faults if self._faults is None else ():
            log.warning(f"{_SOURCE}:1", f"{fault.place}: {fault.fact}. It is left out.")
        if self._faults is not None:
            self._faults += faults
        counts = Counter(f"{'images' if fault.whole else 'boxes'} {fault.reason}" for fault in faults)
        parts += [f"left out: {count} {reason}" for reason, count in sorted(counts.items())]
        return "; ".join(parts)

    def _write_sizes(self, rows: list[int]) -> str:
        """Write SSD's list of image names and sizes. Its readers divide lines at white space, so names with it have no such list."""
        names = {row: os.path.splitext(os.path.basename(self._pictures[row].name))[0] for row in rows}
        if spaced := next((name for name in names.values() if name.split() != [name]), None):
            return f"; no {self._name}_name_size.txt, because '{spaced}' has white space"
        lines = [f"{names[row]} {self._sizes[row][0]} {self._sizes[row][1]}" for row in rows]
        (self._folder / f"{self._name}_name_size.txt").write_bytes(list_content(lines))
        return ""


class _Unusable(Error):
    """An image that cannot be used."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.fact)
        self.fault = fault


_SIZE_FIX = "correct the size; if the image has an EXIF orientation, save it upright"
_IMAGE_FIX = "add or replace the image"
