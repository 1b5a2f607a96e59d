"""Reads data sets in YOLO's format: a text file for each image, with a line `CLASS X Y WIDTH HEIGHT` for each box, in fractions of the image.

X and Y are the center. A line of segmentation, `CLASS X1 Y1 X2 Y2 X3 Y3` and more points, gives the box around the points.
"""
from __future__ import annotations

import glob
import math
import os
from collections import Counter

from ocaffe.data.stores.folder import HELD_OUT, TRAINING, is_image_name, split_of, subfolders
from ocaffe.data.stores.labels_txt import check_class
from ocaffe.errors import Error, Place
from ocaffe.support.inside import check_below, inside
from ocaffe.tools.datasets.annotations import Box
from ocaffe.tools.datasets.box_set import NO_BOX, UNKNOWN_CLASS, UNPARSED, BoxSet, Fault, Picture, read_lines, read_names, read_text
from ocaffe.tools.datasets.small_yaml import Value, read_small_yaml

_PARTS = ("train", "val", "test")  # keys of data.yaml
_NAMES = ("obj.names", "classes.txt", "*.names", "data/obj.names", "data/*.names", "labels/classes.txt")
_NO_BOXES = ("classes", "labels", *TRAINING, *HELD_OUT)  # names of text files without boxes
_IMAGES, _LABELS = "images", "labels"


def read_yolo(root: str) -> BoxSet:
    """Return the data set in the folder `root`. data.yaml, classes.txt or obj.names has the names of the classes. Raise Error."""
    description = _first(root, ("data.yaml", "data.yml", "dataset.yaml", "*.yaml", "*.yml"))
    values = read_small_yaml(description, ("names", "path", *_PARTS), root) if description else {}
    file, names = (description, _names(values["names"], description)) if "names" in values else _name_file(root)
    for name in names:
        check_class(name, file)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise Error(f"the class '{twice[0]}' occurs {names.count(twice[0])} times", place=file, fix="give each class its own name")
    parts = {part: _listed(root, values, part, description) for part in _PARTS if part in values} or _found(root)
    made = {part: [_picture(root, name, names, file) for name in dict.fromkeys(images)] for part, images in parts.items()}
    for part, pictures in made.items():
        if not any(os.path.exists(picture.source) for picture in pictures):
            where = f"part '{part}'" if part else f"folder {root}"
            example = f"; the first would be {pictures[0].source}" if pictures else ""
            fix = "the boxes of images/1.jpg are in labels/1.txt, or in images/1.txt"
            raise Error(f"the {where} has {len(pictures)} images and no file with boxes{example}", fix=fix)
    return BoxSet(made, [(name, name) for name in names])


def _first(root: str, patterns: tuple[str, ...]) -> str:
    return next((path for pattern in patterns for path in sorted(glob.glob(os.path.join(glob.escape(root), pattern)))), "")


def _names(value: Value, path: str) -> list[str]:
    """Return the names of the classes by their numbers."""
    if isinstance(value, dict):
        missing = sorted(set(range(len(value))) - set(value))
        if missing:
            raise Error(f"'names' has {len(value)} classes and not the number {missing[0]}", place=path, fix="number the classes from 0")
        value = [value[number] for number in range(len(value))]
    if not isinstance(value, list) or not value:
        raise Error(f"'names' is '{value}'", place=path, fix="write the names of the classes as a list, such as names: [cat, dog]")
    return value


def _name_file(root: str) -> tuple[str, list[str]]:
    path = _first(root, _NAMES)
    if not path:
        fact = f"the folder {root} has no names of classes: no data.yaml with 'names', no classes.txt, no obj.names"
        raise Error(fact, fix="write classes.txt with the name of a class in each line")
    lines = [line.strip() for line in read_text(path, root=root).splitlines()]
    names = lines[: max((number for number, line in enumerate(lines, 1) if line), default=0)]  # empty lines at the end are no classes
    if "" in names:
        fact = "the line is empty, and each line is the name of a class"
        raise Error(fact, place=Place(path, names.index("") + 1), fix="write the name of the class, or remove the line if the boxes are numbered without it")
    if not names:
        raise Error("it names no class", place=path, fix="write the name of a class in each line")
    return path, names


# The images of the parts, relative to the root.


def _listed(root: str, values: dict[str, Value], part: str, description: str) -> list[str]:
    """Return the images of a part that data.yaml names: of a folder, of a list of images, or of several of them."""
    value, base = values[part], values.get("path", "")
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, str) for entry in entries):
        raise Error(f"'{part}' is '{value}'", place=description, fix=f"name a folder of images or a list of them, such as {part}: images/{part}")
    found: list[str] = []
    for entry in map(str, entries):
        name = _resolved(root, (str(base), ""), entry)
        if name is None:
            fact = f"'{part}' names {entry}, which is not in {root}"
            raise Error(fact, place=description, fix="name a folder of images in it, or a text file that lists them")
        path = os.path.join(root, name)
        found += _of_list(root, path) if os.path.isfile(path) else _of_folder(root, name)
    return found


def _resolved(root: str, bases: tuple[str, ...], entry: str) -> str | None:
    """Return the file or folder `entry` relative to the root, or None. Leading '..' are dropped, because many files have them wrongly."""
    for base in bases:
        words = os.path.normpath(os.path.join(base, entry).replace("\\", "/")).split(os.sep)
        inner = os.sep.join(word for word in words if word not in ("", os.pardir)) or os.curdir
        if "\0" not in inner and os.path.exists(os.path.join(root, inner)):
            return inner
    return None


def _found(root: str) -> dict[str, list[str]]:
    """Return the images of a set whose parts no file names."""
    folders, _ = subfolders(root, Counter())
    if parts := split_of(folders):  # train/images
        return {part: _of_folder(root, os.path.join(part, _IMAGES) if os.path.isdir(os.path.join(root, part, _IMAGES)) else part) for part in parts}
    base = _IMAGES if _IMAGES in folders else ""
    if base and (parts := split_of(subfolders(os.path.join(root, base), Counter())[0])):  # images/train
        return {part: _of_folder(root, os.path.join(base, part)) for part in parts}
    lists = {part: os.path.join(root, f"{part}.txt") for part in (*TRAINING, *HELD_OUT)}
    listed = {part: _of_list(root, path) for part, path in lists.items() if os.path.isfile(path)}
    return listed or {"": _of_folder(root, base)}


def _of_folder(root: str, folder: str) -> list[str]:
    """Return the images in a folder, then missing ones: those to which a file with boxes belongs."""
    names = [name for name in _below(root, folder) if is_image_name(name)]
    there = {os.path.splitext(name)[0] for name in names}
    labels = _labels_of(os.path.join(folder, "")).rstrip(os.sep)
    beside = labels == folder or not os.path.isdir(os.path.join(root, labels))
    for name in _below(root, folder if beside else labels):
        stem, suffix = os.path.splitext(os.path.relpath(name, folder if beside else labels))
        image = os.path.normpath(os.path.join(folder, stem))
        other = os.path.basename(stem) in _NO_BOXES or (beside and _LABELS in stem.split(os.sep))
        if suffix == ".txt" and image not in there and not other:
            names.append(f"{image}.jpg")
    return names


def _below(root: str, folder: str) -> list[str]:
    """Return the files in a folder and its subfolders."""
    check_below(root, os.path.join(root, folder))
    names = []
    for path, folders, files in os.walk(os.path.join(root, folder)):
        folders.sort()
        names += [os.path.relpath(os.path.join(path, name), root) for name in sorted(files) if not name.startswith(".")]
    return names


def _of_list(root: str, path: str) -> list[str]:
    """Return the images that a list names, relative to the root or to the list."""
    names = []
    bases = os.path.relpath(os.path.dirname(path), root), ""
    for line, text in read_names(path, lambda name: _resolved(root, bases, name) is not None, root):
        name = _resolved(root, bases, text)
        names.append(name or os.path.relpath(inside(root, text, Place(path, line)), root))
    return names


# Boxes.


def _labels_of(path: str) -> str:
    """Return a path with 'labels' in place of the last folder 'images'."""
    words = path.split(os.sep)
    for index in range(len(words) - 2, -1, -1):
        if words[index] == _IMAGES:
            words[index] = _LABELS
            break
    return os.sep.join(words)


def _source(root: str, name: str) -> str:
    """Return the file with the boxes of an image. It is in the folder 'labels' that belongs to its folder 'images', or beside the image."""
    paths = [os.path.join(root, os.path.splitext(path)[0] + ".txt") for path in (_labels_of(name), name)]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def _picture(root: str, name: str, names: list[str], file: str) -> Picture:
    source = _source(root, name)
    made = Picture(name, os.path.join(root, name), source, fractions=True)
    if not os.path.exists(source):  # an image without objects needs no file
        return made
    try:
        lines = read_lines(source, root)
    except Error as problem:
        made.faults.append(Fault(source, UNPARSED, problem.fact, problem.fix or "correct the file", whole=True))
        return made
    for number, text in lines:
        place = Place(source, number)
        found = _box(text, place, names, file)
        if isinstance(found, Fault):
            made.faults.append(found)
        else:
            made.boxes.append(found)
            made.places.append(place)
    return made


def _box(text: str, place: Place, names: list[str], file: str) -> Box | Fault:
    words = text.split()
    try:
        label, values = float(words[0]), [float(word) for word in words[1:]]
    except ValueError:
        return Fault(place, NO_BOX, f"'{text[:60]}' has a word that is not a number", "write the line as CLASS X Y WIDTH HEIGHT in numbers")
    if not (len(values) == 4 or (len(values) >= 6 and len(values) % 2 == 0)):
        return Fault(place, NO_BOX, f"'{text[:60]}' has {len(words)} numbers", "a line is CLASS X Y WIDTH HEIGHT, or CLASS and the points of a polygon")
    if not math.isfinite(label) or not label.is_integer() or not 0 <= label < len(names):
        return Fault(place, UNKNOWN_CLASS, f"the class is {words[0]}, and {file} has the classes 0 to {len(names) - 1}", "correct the class or the names")
    if not all(map(math.isfinite, values)):
        return Fault(place, NO_BOX, f"'{text[:60]}' has a number that is not finite", "write the line in numbers from 0 to 1")
    if len(values) == 4:
        x, y, width, height = values
        return Box(names[int(label)], x - width / 2, y - height / 2, x + width / 2, y + height / 2)
    xs, ys = values[::2], values[1::2]
    return Box(names[int(label)], min(xs), min(ys), max(xs), max(ys))
