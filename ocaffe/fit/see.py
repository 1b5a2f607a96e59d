"""Sees what a person's data are: images with classes, boxes, masks, lines of text or tags. It looks at names, and at the begin of some files."""
from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from ocaffe import proto
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.data.stores.folder import is_image_name, split_of
from ocaffe.data.stores.label_names import is_database
from ocaffe.data.stores.labels_txt import LABELS
from ocaffe.errors import Error
from ocaffe.fit.mask_folders import mask_folders
from ocaffe.formats.nearby import elsewhere
from ocaffe.support.files import open_plain
from ocaffe.support.here import here
from ocaffe.zoo.images import backend_of

CLASSES, BOXES, MASKS = TASKS = ("classes", "boxes", "masks")
MADE = "made"  # the form that `ocaffe dataset` writes: it needs no conversion
ACCEPTED = {
    CLASSES: "class folders, a table, a list, or databases (docs/data.md)",
    BOXES: "data of VOC, COCO, YOLO or LabelMe, or a folder of `ocaffe dataset voc` (docs/detection-data.md)",
    MASKS: "folders `images` and `masks` with files of the same names, or a folder of `ocaffe dataset masks` (docs/segmentation.md)",
}
_HEAD = 1 << 16  # bytes of a file that are looked at
_BOX_LINE = re.compile(r"\d+( +-?[\d.eE+-]+){4,}")


class Seen(NamedTuple):
    """The kind of the data. `form`: a format, or MADE. `why`: the evidence, for people."""

    task: str
    form: str
    why: str


def see(data: str, task: str = "") -> Seen:
    """Return what the data are. `task`: what they must be, '' for any. Raise Error if that is not clear.

    Data of no known form count as images with classes, whose own errors say what is missing.
    """
    if not os.path.exists(data):
        near = elsewhere(data)
        fix = f"{near.path} exists; or " if near else ""
        raise Error(f"{data} does not exist", fix=f"{fix}give {ACCEPTED[task or CLASSES]} (relative to {here()})")
    found = [seen for look in _LOOKS for seen in look(data)]
    tasks = list(dict.fromkeys(seen.task for seen in found))
    if task:
        mine = [seen for seen in found if seen.task == task]
        if mine or task == CLASSES:
            return mine[0] if mine else Seen(CLASSES, "", "")
        other = f"can be {'; '.join(f'{seen.task} ({seen.why})' for seen in found)}" if found else "has none of their forms"
        raise Error(f"--task is {task}, and {data} {other}", fix=f"give {ACCEPTED[task]}" + (f", or --task {tasks[0]}" if tasks else ""))
    if len(tasks) > 1:
        fact = f"{data} can be several things: {'; '.join(f'{seen.task} ({seen.why})' for seen in found)}"
        raise Error(fact, fix=f"choose one: {', or '.join(f'--task {each}' for each in tasks)}")
    return found[0] if found else Seen(CLASSES, "", "")


def _databases(data: str) -> Iterator[Seen]:
    folders = [data] if is_database(data) else [os.path.join(data, name) for name in _names(data) if is_database(os.path.join(data, name))]
    for folder in folders[:1]:
        [(_, value)] = Reader(open_database(folder, backend_of(folder))).read(0)
        with contextlib.suppress(DecodeError):  # records of any other kind are those of `Data`, which judges them
            first = proto.AnnotatedDatum.FromString(bytes(value))
            if first.HasField("datum") and first.HasField("type"):
                yield Seen(BOXES, MADE, f"{folder} is a database of images with boxes")
                return
        yield Seen(CLASSES, MADE, f"{folder} is a database")


def _voc(data: str) -> Iterator[Seen]:
    for folder in (os.path.join(data, "Annotations"), data, *_parts(data)):
        if count := sum(name.lower().endswith(".xml") for name in _names(folder)):
            yield Seen(BOXES, "voc", f"{folder} has {count} XML file" + "s" * (count > 1))
            return


def _json(data: str) -> Iterator[Seen]:
    """COCO has one file for many images, LabelMe one for each."""
    for pattern in ("annotations/*.json", "*.json", "*/*.json"):
        for path in sorted(glob.glob(os.path.join(glob.escape(data), pattern)))[:1]:
            text = _head(path)
            if '"shapes"' in text and ('"imagePath"' in text or '"version"' in text):
                yield Seen(BOXES, "labelme", f"{path} is a file of LabelMe")
                return
            if any(f'"{key}"' in text for key in ("images", "annotations", "categories")):
                yield Seen(BOXES, "coco", f"{path} is a file of COCO")
                return


def _yolo(data: str) -> Iterator[Seen]:
    for pattern in ("data.yaml", "data.yml", "dataset.yaml", "obj.names"):
        if os.path.exists(path := os.path.join(data, pattern)):
            yield Seen(BOXES, "yolo", f"{path} is a file of YOLO")
            return
    labels = os.path.join(data, "labels")
    folders = [labels, *(os.path.join(part, "labels") for part in _parts(data)), *(os.path.join(labels, name) for name in _names(labels)), data, *_parts(data)]
    for folder in folders:
        texts = [name for name in _names(folder) if name.endswith(".txt") and name not in (LABELS, "classes.txt")]
        for path in (os.path.join(folder, name) for name in texts[:3]):
            if _BOX_LINE.match(_head(path).strip()):
                yield Seen(BOXES, "yolo", f"{path} has a line of YOLO for each box")
                return


def _masks(data: str) -> Iterator[Seen]:
    if os.path.isfile(path := os.path.join(data, "train.txt")):
        words = _head(path).split("\n")[0].split()
        if len(words) == 2 and all(map(is_image_name, words)):
            yield Seen(MASKS, MADE, f"{path} lists images and masks")
            return
    if found := mask_folders(data):
        yield Seen(MASKS, "folders", f"{found.images} has images, and {found.masks} masks of the same names")


_LOOKS: tuple[Callable[[str], Iterator[Seen]], ...] = (_databases, _voc, _json, _yolo, _masks)


def _names(folder: str) -> list[str]:
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def _parts(folder: str) -> list[str]:
    """Return the subfolders for training and for testing."""
    return [os.path.join(folder, name) for name in split_of([each for each in _names(folder) if os.path.isdir(os.path.join(folder, each))])]


def _head(path: str) -> str:
    """Return the begin of a text, '' if it cannot be read."""
    with contextlib.suppress(OSError), open_plain(path) as stream:
        return stream.read(_HEAD).decode("utf-8", "replace").lstrip("\ufeff")
    return ""
