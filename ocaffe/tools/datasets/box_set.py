"""A data set with boxes, as the readers of its formats (voc_set.py, coco_set.py, yolo_set.py, labelme_set.py) return it."""
from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ocaffe.data.decoding.decode import read_file
from ocaffe.data.stores.folder import is_image_name
from ocaffe.errors import Error, Place
from ocaffe.support.files import to_read
from ocaffe.support.kinds import kind_of
from ocaffe.tools.datasets.annotations import Box

MOST_BYTES = 16 << 20  # of a file with the boxes of one image
UNPARSED = "with unreadable annotations"  # reasons, for the counts
UNKNOWN_CLASS = "of unknown classes"
NO_BOX = "that are no boxes"


class Fault(NamedTuple):
    """Something in a data set that cannot be used. `whole`: the image cannot be used, else one of its boxes."""

    place: Place | str
    reason: str  # for counts: "boxes {reason}" or "images {reason}"
    fact: str
    fix: str
    whole: bool = False

    def error(self) -> Error:
        return Error(self.fact, place=self.place, fix=f"{self.fix}, or leave it out: --skip-bad")


@dataclass
class Picture:
    """An image and its boxes.

    `name` is the image file relative to the data set, `path` the file. `boxes` are in pixels, or fractions of the image's sides if `fractions`. `places`
    has the place of each box in the file `source`. `size` is the height and width that the source states.
    """

    name: str
    path: str
    source: str
    boxes: list[Box] = field(default_factory=list)
    places: list[Place | str] = field(default_factory=list)
    size: tuple[int, int] | None = None
    fractions: bool = False
    faults: list[Fault] = field(default_factory=list)


class BoxSet(NamedTuple):
    """The images of each part by its name, '' if the set is not divided. `classes` are names and display names in the order of the labels from 1 on."""

    parts: dict[str, list[Picture]]
    classes: list[tuple[str, str]]


def read_limited(path: str, limit: int = MOST_BYTES) -> bytes:
    """Return the content of a file. Raise Error if it cannot be read or has more than `limit` bytes."""
    try:
        size = os.path.getsize(path)
    except (OSError, ValueError) as problem:  # ValueError: the name has a zero byte
        fix = to_read(path, problem, "correct the name, or add the file")
        raise Error(f"it cannot be read: {getattr(problem, 'strerror', None) or problem}", place=path, fix=fix) from None
    if size > limit:
        raise Error(f"it has {size:,} bytes, and the limit is {limit:,}", place=path, fix="divide the file")
    try:
        return read_file(path)
    except Error as problem:
        raise Error(problem.fact, place=path, fix=problem.fix or "give a regular file") from None


def parse_json(content: bytes, path: str) -> Any:
    """Return the value in a JSON file. Raise Error."""
    kind = kind_of(content[:512], path)
    try:
        return json.loads(content)
    except json.JSONDecodeError as problem:
        if kind is not None:
            raise Error(f"it is {kind.name}, not JSON", place=path, fix=kind.way or "give the JSON file itself") from None
        cut = problem.pos >= len(problem.doc.rstrip())
        fact = "it is JSON that ends too early" if cut else f"it is not JSON: line {problem.lineno}: {problem.msg}"
        fix = "copy or export it again" if cut else "correct this line, or export the file as JSON"
        raise Error(fact, place=path, fix=fix) from None
    except UnicodeDecodeError as problem:
        if kind is not None:
            raise Error(f"it is {kind.name}, not JSON", place=path, fix=kind.way or "give the JSON file itself") from None
        raise Error(f"it is not JSON: the byte at {problem.start} is not UTF-8", place=path, fix="save it as UTF-8") from None
    except RecursionError:
        raise Error("it is not JSON of annotations: its brackets are nested too deep", place=path, fix="export it again as JSON of annotations") from None


def read_text(path: str, limit: int = MOST_BYTES) -> str:
    """Return the text of a file in UTF-8. Raise Error."""
    try:
        return read_limited(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise Error(f"it is not UTF-8 text: {problem.reason} at byte {problem.start}", place=path, fix="save it as UTF-8 text") from None


def read_lines(path: str) -> list[tuple[int, str]]:
    """Return the numbers and texts of the lines of a file that have text. Raise Error."""
    return [(number, line.strip()) for number, line in enumerate(read_text(path).splitlines(), 1) if line.strip()]


def inside(root: str, name: str, place: Place | str) -> str:
    """Return the path of the file `name`, which is relative to `root` and lies in it. Raise Error.

    Annotations are files of others, so they must not name files outside of the data set.
    """
    path = os.path.normpath(name.replace("\\", "/"))
    if os.path.isabs(path) or path.split(os.sep)[0] == os.pardir or "\0" in name:
        raise Error(f"'{name}' lies outside of the folder {root}", place=place, fix="move the file there, and correct the name")
    return os.path.join(root, path)


def images_of(folder: str) -> dict[str, str]:
    """Return the image files in a folder by their names without suffix. Of several with one name it is the first by suffix."""
    found: dict[str, str] = {}
    for name in sorted(os.listdir(folder) if os.path.isdir(folder) else []):
        if is_image_name(name) and not name.startswith("."):
            found.setdefault(os.path.splitext(name)[0], name)
    return found
