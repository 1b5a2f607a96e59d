"""Reads data sets of LabelMe: a JSON file for each image, with rectangles and polygons. The box of a polygon is the one around its points."""
from __future__ import annotations

import os
from collections import Counter
from typing import Any

from ocaffe.data.stores.folder import split_of, subfolders
from ocaffe.errors import Error
from ocaffe.formats.json_file import misfit, parse_json
from ocaffe.support.inside import check_below, inside
from ocaffe.tools.datasets.annotations import Box
from ocaffe.tools.datasets.box_set import NO_BOX, UNPARSED, BoxSet, Fault, Picture, images_of, labels_of, read_limited

_MOST_BYTES = 256 << 20  # the file may have the image in it
_LEAST_POINTS = {"rectangle": 2, "polygon": 3}
_SHAPE = {"label": str, "points": [[float]], "shape_type?": (None, str)}  # the types of a shape
_NO_LABEL = "it has no label"
_FIXES = {_NO_LABEL: "give the shape a label"}


def read_labelme(root: str) -> BoxSet:
    """Return the data set in the folder `root`. The classes are those of its labels.txt, else the sorted names in all files. Raise Error."""
    folders, _ = subfolders(root, Counter())
    parts = {part: _pictures(root, part) for part in split_of(folders)} or {"": _pictures(root, "")}
    if not any(parts.values()):
        raise Error(f"the folder {root} has no JSON file", fix="give the folder of LabelMe's files, or one with the folders train and test")
    names = labels_of(root) or sorted({str(box.label) for pictures in parts.values() for picture in pictures for box in picture.boxes})
    return BoxSet(parts, [(name, name) for name in names])


def _pictures(root: str, part: str) -> list[Picture]:
    check_below(root, os.path.join(root, part))
    made = []
    for folder, folders, files in os.walk(os.path.join(root, part)):
        folders.sort()
        images = images_of(folder)
        made += [_picture(root, os.path.relpath(folder, root), name, images) for name in sorted(files) if name.lower().endswith(".json")]
    return made


def _picture(root: str, folder: str, file: str, images: dict[str, str]) -> Picture:
    """Return the image of a JSON file. It is `imagePath`, or the image of the same name beside the file."""
    source = os.path.normpath(os.path.join(root, folder, file))
    stem = os.path.splitext(file)[0]
    name = os.path.normpath(os.path.join(folder, images.get(stem, f"{stem}.jpg")))
    made = Picture(name, os.path.join(root, name), source)
    try:
        found = parse_json(read_limited(source, _MOST_BYTES, root), source)
        if wrong := misfit(found, {"shapes": list}):
            raise ValueError(wrong)
        if isinstance(given := found.get("imagePath"), str) and given:
            path = inside(root, os.path.join(folder, given.replace("\\", "/")), source)
            if stem not in images or os.path.exists(path):
                made.path, made.name = path, os.path.relpath(path, root)
        if not misfit(found, {"imageHeight": int, "imageWidth": int}):
            made.size = found["imageHeight"], found["imageWidth"]
    except Error as problem:
        made.faults.append(Fault(problem.place or source, UNPARSED, problem.fact, problem.fix or "correct the file", whole=True))
        return made
    except ValueError as problem:
        made.faults.append(Fault(source, UNPARSED, f"it is not a file of LabelMe: {problem}", "move it out of the folder", whole=True))
        return made
    for number, shape in enumerate(found["shapes"], 1):
        place = f"{source}: shape {number}"
        try:
            made.boxes.append(_box(shape))
            made.places.append(place)
        except ValueError as problem:
            made.faults.append(Fault(place, NO_BOX, str(problem), _FIXES.get(str(problem), "draw it as a rectangle or a polygon")))
    return made


def _box(shape: Any) -> Box:
    """Return the box of a shape. Raise ValueError with the fact."""
    if misfit(shape, {"label": str}) or not shape["label"].strip():
        raise ValueError(_NO_LABEL)
    if wrong := misfit(shape, _SHAPE):
        raise ValueError(wrong)
    kind, points = shape.get("shape_type") or "polygon", shape["points"]
    if kind not in _LEAST_POINTS:
        raise ValueError(f"shape_type is '{kind[:60]}', which has no box")
    if len(points) < _LEAST_POINTS[kind]:
        raise ValueError(f"the {kind} has {len(points)} points")
    if not all(len(point) == 2 for point in points):
        raise ValueError("a point is not two numbers")
    xs, ys = [float(x) for x, _ in points], [float(y) for _, y in points]
    return Box(shape["label"].strip(), min(xs), min(ys), max(xs), max(ys), shape.get("difficult") is True)
