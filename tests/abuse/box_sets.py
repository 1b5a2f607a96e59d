"""Checks the readers of data sets with boxes: nothing in a damaged file may vanish.

A reader puts what it cannot use into faults, so it never fails. Here each object of the damaged file is read a second time, by code that shares nothing with
the reader. The reader must return the box of each good object with its values, and a fault for each bad one. The image beside it must be as it was.
"""
from __future__ import annotations

import json
import math
import pathlib
import re
import shutil
import xml.dom.minidom
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ocaffe.tools.datasets.box_set import BoxSet, Picture
from tests.abuse.harness import Wrong

Values = tuple[str, float, float, float, float]  # name, left, top, right, bottom
Objects = list[Values | None] | None  # None for a bad object; None for a file that cannot be read


class Kind(NamedTuple):
    """`damaged` and `sound`: files in the data set. `others`: files that it needs. `objects` is the second reader of a file's content."""

    damaged: str
    sound: str
    content: str
    others: dict[str, str]
    objects: Callable[[bytes], Objects]


SOUND: Values = ("dog", 0.25, 0.25, 0.75, 0.75)  # of a file that is not damaged, in shares or in units of 100 pixels
MOST_DIGITS = 4300  # of a number in JSON


def _number(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(float(value))
    except OverflowError:
        return False


def _labelme(content: bytes) -> Objects:
    try:
        found = json.loads(content.decode("utf-8-sig"))
        shapes = found["shapes"] if isinstance(found, dict) else None
        json.dumps(found, ensure_ascii=False).encode()  # half of a character
        if not isinstance(shapes, list):
            return None
    except (ValueError, KeyError, RecursionError):
        return None
    path = found.get("imagePath")
    if isinstance(path, str) and path and ("\0" in path or path.startswith("/") or _leaves(path)):
        return None
    return [_shape(each) for each in shapes]


def _leaves(path: str) -> bool:
    depth = 0
    for word in path.replace("\\", "/").split("/"):
        depth += -1 if word == ".." else 0 if word in ("", ".") else 1
        if depth < 0:
            return True
    return False


def _shape(shape: Any) -> Values | None:
    if not isinstance(shape, dict) or type(shape.get("label")) is not str or not shape["label"].strip():
        return None
    kind, points = shape.get("shape_type"), shape.get("points")
    least = {None: 3, "": 3, "polygon": 3, "rectangle": 2}.get(kind) if kind is None or isinstance(kind, str) else None
    if least is None or not isinstance(points, list) or len(points) < least:
        return None
    if not all(isinstance(point, list) and len(point) == 2 and all(map(_number, point)) for point in points):
        return None
    xs, ys = sorted(float(point[0]) for point in points), sorted(float(point[1]) for point in points)
    return shape["label"].strip(), xs[0], ys[0], xs[-1], ys[-1]


def _voc(content: bytes) -> Objects:
    """The format has no bad objects: a file is good as a whole."""
    try:
        document = xml.dom.minidom.parseString(content)
    except Exception:  # minidom has exceptions of many types
        return None
    if document.doctype is not None:
        return None
    try:
        for size in _children(document.documentElement, "size")[:1]:
            for name in ("height", "width"):
                int(_text((_children(size, name) or [None])[0], "0"))
        made: list[Values | None] = []
        for each in document.getElementsByTagName("object"):
            name, box = _children(each, "name")[0], _children(each, "bndbox")[0]
            corners = [float(_text(_children(box, side)[0])) for side in ("xmin", "ymin", "xmax", "ymax")]
            if not _text(name).strip():
                return None
            made.append((_text(name).strip(), *corners))  # type: ignore[arg-type]
        return made
    except (ValueError, IndexError):
        return None


def _children(element: Any, name: str) -> list[Any]:
    return [each for each in element.childNodes if each.nodeType == each.ELEMENT_NODE and each.tagName == name]


def _text(element: Any, default: str = "") -> str:
    """The text before the first child."""
    if element is None:
        return default
    words = []
    for node in element.childNodes:
        if node.nodeType == node.ELEMENT_NODE:
            break
        words.append(node.data if node.nodeType in (node.TEXT_NODE, node.CDATA_SECTION_NODE) else "")
    return "".join(words)


_FLOAT = re.compile(r"[-+]?(\d+(_\d+)*\.?(\d+(_\d+)*)?|\.\d+(_\d+)*)([eE][-+]?\d+(_\d+)*)?|[-+]?(inf|infinity|nan)", re.I)
NAMES = ("cat", "dog")


def _yolo(content: bytes) -> Objects:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return [_line(line.split()) for line in text.splitlines() if line.strip()]


def _line(words: Sequence[str]) -> Values | None:
    if not all(map(_FLOAT.fullmatch, words)) or (len(words) != 5 and (len(words) < 7 or len(words) % 2 == 0)):
        return None
    label, *values = map(float, words)
    if label not in (0.0, 1.0) or not all(map(math.isfinite, values)):
        return None
    if len(values) == 4:
        x, y, width, height = values
        return NAMES[int(label)], x - width / 2, y - height / 2, x + width / 2, y + height / 2
    xs, ys = values[0::2], values[1::2]
    return NAMES[int(label)], min(xs), min(ys), max(xs), max(ys)


_VOC = "<annotation><object><name>dog</name><bndbox><xmin>25</xmin><ymin>25</ymin><xmax>75</xmax><ymax>75</ymax></bndbox></object></annotation>"
_LABELME = '{"imagePath": "b.png", "shapes": [{"label": "dog", "points": [[25, 25], [75, 75]], "shape_type": "rectangle"}]}'
KINDS = {
    "voc": Kind("a.xml", "b.xml", _VOC, {}, _voc),
    "labelme": Kind("a.json", "b.json", _LABELME, {}, _labelme),
    "yolo": Kind("labels/a.txt", "labels/b.txt", "1 0.5 0.5 0.5 0.5\n", {"classes.txt": "cat\ndog\n", "images/a.png": "", "images/b.png": ""}, _yolo),
}


def check(kind: str, path: str, read: Callable[[str], BoxSet]) -> None:
    """Read a data set with the damaged file `path`. Raise Wrong if something in it has vanished or changed."""
    which = KINDS[kind]
    root = pathlib.Path(f"{path}-set")
    for name, text in {which.damaged: "", which.sound: which.content, "a.png": "", "b.png": "", **which.others}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    try:
        shutil.copyfile(path, root / which.damaged)
        pictures = {pathlib.Path(each.source).name: each for part in read(str(root)).parts.values() for each in part}
        compare(pictures[pathlib.Path(which.damaged).name], which.objects(pathlib.Path(path).read_bytes()))
        sound = pictures[pathlib.Path(which.sound).name]
        compare(sound, [SOUND if kind == "yolo" else (SOUND[0], *(100 * side for side in SOUND[1:]))])  # type: ignore[list-item]
    finally:
        shutil.rmtree(root)


def compare(picture: Picture, objects: Objects) -> None:
    """Raise Wrong unless a picture has exactly the objects."""
    if objects is None:
        if picture.boxes or not any(fault.whole for fault in picture.faults):
            raise Wrong(f"a file that cannot be read gives {len(picture.boxes)} boxes and {len(picture.faults)} faults")
        return
    wanted = [each for each in objects if each is not None]
    found = [tuple(box)[:5] for box in picture.boxes]
    if len(found) != len(wanted) or len(picture.faults) != len(objects) - len(wanted) or len(picture.places) != len(found):
        raise Wrong(f"{len(wanted)} good and {len(objects) - len(wanted)} bad objects give {len(found)} boxes and {len(picture.faults)} faults")
    if repr(found) != repr(wanted):  # NaN is not equal to itself
        raise Wrong("a box has another name or other corners than its object")
