"""Sees what a person's data are: images with classes, boxes, masks, lines of text or tags. It looks at names, and at the begin of some files."""
from __future__ import annotations

import contextlib
import csv
import glob
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from ocaffe import proto
from ocaffe.data.databases.database import Reader, open_database
from ocaffe.data.stores.file_store import is_number
from ocaffe.data.stores.folder import TRAINING, is_image_name, split_of
from ocaffe.data.stores.label_names import is_database
from ocaffe.data.stores.labels_txt import LABELS
from ocaffe.data.stores.table import SUFFIX
from ocaffe.errors import Error
from ocaffe.fit.listings import divided, only_file
from ocaffe.fit.mask_folders import mask_folders
from ocaffe.formats.nearby import elsewhere
from ocaffe.support.files import open_plain
from ocaffe.support.here import here
from ocaffe.zoo.images import backend_of

CLASSES, BOXES, MASKS, TEXT, TAGS = TASKS = ("classes", "boxes", "masks", "text", "tags")
MADE = "made"  # the form that `ocaffe dataset` writes: it needs no conversion
ACCEPTED = {
    CLASSES: "class folders, a table, a list, or databases (docs/data.md)",
    BOXES: "data of VOC, COCO, YOLO or LabelMe, or a folder of `ocaffe dataset voc` (docs/detection-data.md)",
    TAGS: "a table with an image file and its tags in each row: a column of 0 and 1 for each tag, or names (docs/fit.md)",
    TEXT: "a list or table with an image file and its text in each line, or a folder of `ocaffe dataset text` (docs/ocr.md)",
    MASKS: "folders `images` and `masks` with files of the same names, or a folder of `ocaffe dataset masks` (docs/segmentation.md)",
}
LISTED = {TEXT: "texts", TAGS: "table"}  # tasks of lists and tables, whose files need not look like one of them, and their forms
_HEAD = 1 << 16  # bytes of a file that are looked at
_HEADERS = {"text", "texts", "transcription", "words"}  # names of a column
_FEW = 20  # lines: of so few, classes can differ in most
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
        if task in LISTED and (os.path.isfile(data) or only_file(data)):
            return Seen(task, LISTED[task], f"--task {task}")
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


def _texts(data: str) -> Iterator[Seen]:
    """Lists with texts, and tables whose header says so. Lists of numbers with a labels.txt, as `ocaffe dataset text` writes them."""
    if os.path.isdir(data):
        lists = [os.path.join(data, name) for name in _names(data) if os.path.splitext(name)[0] in TRAINING and name.endswith((".txt", SUFFIX))]
        tables = [only_file(data)] if only_file(data) else []
    else:
        lists, tables = [data], []
    for path in [*lists, *tables]:
        text = _head(path)
        lines = [line.strip() for line in text.split("\n")[: None if len(text) < _HEAD else -1] if line.strip()]
        if path.lower().endswith(SUFFIX):
            if lines and len(cells := re.split(r"[,;\t]", lines[0].lower())) == 2 and {cell.strip(' "') for cell in cells} & _HEADERS:
                yield Seen(TEXT, "texts", f"the header of {path} is '{lines[0]}'")
                continue
            lines = [" ".join(cells) for line in lines if len(cells := next(csv.reader([line.replace(";", ",")]), [])) == 2]
        found = [each for each in map(divided, lines) if each]
        if not found or len(found) < len(lines) / 2 or is_image_name(found[0][1]):
            continue
        words = [each[1].split() for each in found]
        numbers = len(words[0]) > 1 and all(all(map(is_number, each)) for each in words)
        if numbers and os.path.exists(os.path.join(os.path.dirname(path), LABELS)):
            yield Seen(TEXT, MADE, f"{path} has the numbers of several characters for each image, and {LABELS} lies beside it")
            continue
        several = len({each[1] for each in found})
        if several * 2 <= len(found):
            continue
        named = not all(len(each) == 1 and is_number(each[0]) for each in words)
        if named and not path.lower().endswith(SUFFIX):
            yield Seen(TEXT, "texts", f"{path} has a text for each image, such as '{found[0][1][:40]}'")
        elif len(found) >= _FEW:
            yield Seen(CLASSES, "", f"{path} has a label for each image")
            yield Seen(TEXT, "texts", f"{several} of the {len(found)} labels at its begin differ, such as '{found[0][1][:40]}'")


def _tags(data: str) -> Iterator[Seen]:
    """Tables with several columns after the file, or with several tags in one cell."""
    folder = os.path.isdir(data)
    tables = [os.path.join(data, name) for name in _names(data) if name.lower().endswith(SUFFIX) and os.path.splitext(name)[0] in TRAINING]
    for path in (tables or [only_file(data)]) if folder else [data] if data.lower().endswith(SUFFIX) else []:
        lines = [line for line in _head(path).split("\n")[:-1] if line.strip()] if path else []
        delimiter = next((mark for mark in ",;\t" if lines and mark in lines[0]), ",")
        rows = list(csv.reader(lines, delimiter=delimiter))
        if not rows or not any(is_image_name(cell.strip()) for cells in rows[:2] for cell in cells):
            continue
        if len(rows[0]) > 2:
            yield Seen(TAGS, "table", f"{path} has {len(rows[0])} columns")
        elif first := next((cell for cells in rows for cell in cells if "|" in cell or (";" in cell and delimiter != ";")), None):
            yield Seen(TAGS, "table", f"{path} has several tags in a cell, such as '{first[:40]}'")


_LOOKS: tuple[Callable[[str], Iterator[Seen]], ...] = (_databases, _voc, _json, _yolo, _masks, _texts, _tags)


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
