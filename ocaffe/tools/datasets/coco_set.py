"""Reads data sets in MS COCO's format: annotations/instances_train2017.json and the folder train2017, and similar layouts."""
from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from ocaffe.data.stores.labels_txt import check_class
from ocaffe.errors import Error
from ocaffe.formats.json_file import misfit, parse_json
from ocaffe.support.inside import inside
from ocaffe.tools.datasets.annotations import Box
from ocaffe.tools.datasets.box_set import NO_BOX, BoxSet, Fault, Picture, read_limited

_MOST_BYTES = 2 << 30  # of a JSON file; that of COCO 2017 has 450 MB
_MOST_VALUES = 200_000_000  # COCO 2017 has 50 million
_PATTERNS = ("annotations/instances_*.json", "annotations/*.json", "*.json", "*/_annotations.coco.json", "*/*.json")
_PART = re.compile(r"(train|training|test|testing|val|valid|validation)[-_]?\d*")


def read_coco(root: str) -> BoxSet:
    """Return the data set in the folder `root`. Names of classes are the ids of the categories, as in SSD's label map of COCO. Raise Error."""
    files: list[str] = []
    for pattern in _PATTERNS:
        files = files or sorted(glob.glob(os.path.join(glob.escape(root), pattern)))
    if not files:
        raise Error(f"the folder {root} has no annotations/instances_*.json, and no other JSON file", fix="give the folder that has annotations and the images")
    parts: dict[str, list[Picture]] = {}
    categories: dict[int, str] = {}
    for path in files:
        pictures, found = _read(root, path)
        for number, name in found.items():
            if categories.setdefault(number, name) != name:
                raise Error(f"the category {number} is '{name}', and '{categories[number]}' in another file", place=path, fix="number the categories alike")
        parts[_part(root, path, files)] = pictures
    return BoxSet(parts, [(str(number), categories[number]) for number in sorted(categories)])


def _subset(root: str, path: str) -> str:
    """Return the name of a file's images: 'train2017' of annotations/instances_train2017.json, 'train' of train/_annotations.coco.json."""
    stem = os.path.splitext(os.path.basename(path))[0].removeprefix("instances_")
    folder = os.path.basename(os.path.dirname(path))
    return folder if folder != "annotations" and os.path.dirname(path) != root.rstrip("/\\") else stem


def _part(root: str, path: str, files: Sequence[str]) -> str:
    """Return the name of the part: without the year if that is unique, '' for the only file if it is not named as a part."""
    short = {file: match[1] if (match := _PART.fullmatch(_subset(root, file))) else _subset(root, file) for file in files}
    if len(files) == 1 and not _PART.fullmatch(_subset(root, path)):
        return ""
    return short[path] if list(short.values()).count(short[path]) == 1 else _subset(root, path)


def _read(root: str, path: str) -> tuple[list[Picture], dict[int, str]]:
    """Return the images of a JSON file in their order, and names of categories by id."""
    content = read_limited(path, _MOST_BYTES, root)
    found = parse_json(content, path, most=_MOST_VALUES)
    del content
    images, annotations, categories = (_list(found, key, path) for key in ("images", "annotations", "categories"))
    if not images:
        raise Error("its list 'images' is empty", place=path, fix="export it with images")
    names: dict[int, str] = {}
    for index, each in enumerate(categories):
        number = _whole(each, "id", f"{path}: categories[{index}]")
        if number in names:
            raise Error(f"the id {number} occurs twice", place=f"{path}: categories[{index}]", fix="give each category its own")
        name = each.get("name", str(number))
        if wrong := misfit(name, str, "name"):
            raise Error(wrong, place=f"{path}: categories[{index}]", fix='write a text: "name": "cat"')
        check_class(name, f"{path}: categories[{index}]")
        names[number] = name
    folders, pictures = _folders(root, path), dict[int, Picture]()
    for index, each in enumerate(images):
        place = f"{path}: images[{index}]"
        number = _whole(each, "id", place)
        if number in pictures:
            raise Error(f"the id {number} occurs twice", place=place, fix="give each image its own")
        file = each.get("file_name")
        if not isinstance(file, str) or not file:
            raise Error(f"file_name is {file!r}", place=place, fix='write it: "file_name": "NAME OF THE IMAGE"')
        image = _find(root, folders, file, place)
        size = (_whole(each, "height", place), _whole(each, "width", place)) if "height" in each and "width" in each else None
        pictures[number] = Picture(image, os.path.join(root, image), f"{path}: image {number}", size=size)
    for index, each in enumerate(annotations):
        _add(each, f"{path}: annotations[{index}]", pictures)
    return list(pictures.values()), names


def _add(annotation: Any, place: str, pictures: dict[int, Picture]) -> None:
    number = _whole(annotation, "image_id", place)
    category = _whole(annotation, "category_id", place)
    if number not in pictures:
        first = next(iter(pictures.values()))  # faults are counted for each part, so any image of the part will do
        first.faults.append(Fault(place, "of unknown images", f"image_id is {number}, and no image has this id", "correct image_id"))
        return
    picture = pictures[number]
    box = annotation.get("bbox") or _around(annotation.get("segmentation"))
    if not isinstance(box, list) or misfit(box, [float]) or len(box) != 4:
        fact = f"bbox is {json.dumps(box)[:100]}"
        picture.faults.append(Fault(place, NO_BOX, fact, "write bbox: [x, y, width, height] in pixels, or polygons in segmentation"))
        return
    x, y, width, height = map(float, box)
    picture.boxes.append(Box(str(category), x, y, x + width, y + height, bool(annotation.get("iscrowd", 0))))
    picture.places.append(place)


def _around(polygons: Any) -> list[float] | None:
    """Return the box [x, y, width, height] around polygons [x, y, x, y, ..] of a segmentation, or None if there are none."""
    points = [value for polygon in polygons if isinstance(polygon, list) for value in polygon] if isinstance(polygons, list) else []
    if len(points) < 6 or len(points) % 2 or misfit(points, [float]):
        return None
    x, y = min(points[::2]), min(points[1::2])
    return [x, y, max(points[::2]) - x, max(points[1::2]) - y]


def _list(found: Any, key: str, path: str) -> list[Any]:
    value = found.get(key) if isinstance(found, dict) else None
    if not isinstance(value, list):
        fix = "a JSON file of instances has the lists images, annotations and categories"
        raise Error(f"it has no list '{key}'", place=path, fix=fix)
    return value


def _whole(entry: Any, key: str, place: str) -> int:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, int) or misfit(value, int):
        there = isinstance(entry, dict) and key in entry
        raise Error(f"{key} is {json.dumps(value)[:100] if there else 'missing'}", place=place, fix=f"write a whole number: \"{key}\": NUMBER")
    return value


def _folders(root: str, path: str) -> list[str]:
    """Return the folders that may have the images of a JSON file, relative to `root`."""
    subset = _subset(root, path)
    match = _PART.fullmatch(subset)
    names = [subset, os.path.join("images", subset), *((match[1], os.path.join("images", match[1])) if match else ()), "images", ""]
    names.append(os.path.relpath(os.path.dirname(path), root))
    return [name for name in names if os.path.isdir(os.path.join(root, name))]


def _find(root: str, folders: list[str], file: str, place: str) -> str:
    """Return the path of an image relative to `root`. The folder in which it is found comes first for the next one."""
    if os.path.isabs(file):
        inside(root, file, place)
    for index, folder in enumerate(folders):
        if os.path.exists(inside(root, os.path.join(folder, file), place)):
            folders.insert(0, folders.pop(index))
            break
    return os.path.normpath(os.path.join(folders[0], file))
