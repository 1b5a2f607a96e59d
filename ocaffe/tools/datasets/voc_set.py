"""Reads data sets in PASCAL VOC's layout: Annotations/NAME.xml, JPEGImages/NAME.jpg and ImageSets/Main/train.txt, or XML files beside the images."""
from __future__ import annotations

import os
from collections import Counter

from ocaffe.data.stores.folder import split_of, subfolders
from ocaffe.errors import Error, Place
from ocaffe.support.inside import inside
from ocaffe.tools.datasets.annotations import read_boxes
from ocaffe.tools.datasets.box_set import UNPARSED, BoxSet, Fault, Picture, images_of, labels_of, read_names

ANNOTATIONS, IMAGES, LISTS = "Annotations", "JPEGImages", os.path.join("ImageSets", "Main")
_PARTS = ("train", "val", "test", "trainval")  # names of lists; the other lists are those of single classes


def read_voc(root: str) -> BoxSet:
    """Return the data set in the folder `root`. The classes are those of its labels.txt, else the sorted names in all files. Raise Error."""
    if os.path.isdir(os.path.join(root, ANNOTATIONS)):
        parts = _standard(root)
    else:
        folders, _ = subfolders(root, Counter())
        parts = {part: _beside(root, part) for part in split_of(folders)} or {"": _beside(root, "")}
    if not any(parts.values()):
        missing = f"no XML file in {ANNOTATIONS}" if os.path.isdir(os.path.join(root, ANNOTATIONS)) else f"no folder {ANNOTATIONS}, and no XML file"
        raise Error(f"the folder {root} has {missing}", fix="give the folder that has Annotations and JPEGImages (VOC2007)")
    names = labels_of(root) or sorted({str(box.label) for pictures in parts.values() for picture in pictures for box in picture.boxes})
    return BoxSet(parts, [(name, name) for name in names])


def _standard(root: str) -> dict[str, list[Picture]]:
    images = images_of(os.path.join(root, IMAGES))
    known: dict[str, Picture] = {}

    def picture(stem: str, place: Place | str) -> Picture:
        if stem not in known:
            source = inside(os.path.join(root, ANNOTATIONS), f"{stem}.xml", place)
            known[stem] = _picture(root, IMAGES, images.get(stem, f"{stem}.jpg"), source)
        return known[stem]

    def is_there(stem: str) -> bool:
        return "\0" not in stem and os.path.exists(os.path.join(root, ANNOTATIONS, f"{stem}.xml"))

    lists = {part: os.path.join(root, LISTS, f"{part}.txt") for part in _PARTS}
    lines = {path: read_names(path, is_there, root) for path in lists.values() if os.path.isfile(path)}
    found = {part: [(_name(root, text), Place(path, line)) for line, text in lines[path]] for part, path in lists.items() if path in lines}
    parts = {part: [picture(name, place) for name, place in listed] for part, listed in found.items()}
    return parts or {"": [picture(stem, root) for stem in _stems(os.path.join(root, ANNOTATIONS))]}


def _name(root: str, line: str) -> str:
    """Return the image that a line of a list names. Lists of VOC's classes have -1, 0 or 1 after it."""
    name, _, mark = line.rpartition(" ")
    marked = mark in ("-1", "0", "1") and name.strip() and not os.path.exists(os.path.join(root, ANNOTATIONS, f"{line}.xml"))
    return name.strip() if marked else line


def _beside(root: str, folder: str) -> list[Picture]:
    """Return the images of a folder whose XML files lie beside them."""
    path = os.path.join(root, folder)
    images = images_of(path)
    return [_picture(root, folder, images.get(stem, f"{stem}.jpg"), os.path.join(path, f"{stem}.xml")) for stem in _stems(path)]


def _stems(folder: str) -> list[str]:
    return sorted(name[:-4] for name in os.listdir(folder) if name.lower().endswith(".xml"))


def _picture(root: str, folder: str, image: str, source: str) -> Picture:
    name = os.path.join(folder, image)
    made = Picture(name, os.path.join(root, name), source)
    try:
        size, boxes = read_boxes(source, "xml", root)
    except Error as problem:
        made.faults.append(Fault(source, UNPARSED, problem.fact, problem.fix or "correct the file", whole=True))
        return made
    made.size, made.boxes = size if size != (0, 0) else None, boxes  # some tools write 0 x 0 for a size that they do not have
    made.places = [f"{source}: object {number}" for number in range(1, len(boxes) + 1)]
    return made
