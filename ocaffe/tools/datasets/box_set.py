"""A data set with boxes, as the readers of its formats (voc_set.py, coco_set.py, yolo_set.py, labelme_set.py) return it."""
from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ocaffe.data.stores.folder import is_image_name
from ocaffe.data.stores.labels_txt import LABELS, numbering
from ocaffe.errors import Error, Place
from ocaffe.support.files import read_plain, to_read
from ocaffe.support.inside import check_below
from ocaffe.support.parsing import reason
from ocaffe.tools.datasets.annotations import MOST_BYTES, Box

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


def read_limited(path: str, limit: int = MOST_BYTES, root: str | None = None) -> bytes:
    """Return the content of a file. Raise Error if it cannot be read, has more than `limit` bytes, or a link leads out of the folder `root` to it."""
    check_below(root, path)
    try:
        return read_plain(path, limit)
    except OSError as problem:
        large = problem.errno == errno.EFBIG
        fact = reason(problem) if large else f"it cannot be read: {problem.strerror or problem}"
        raise Error(fact, place=path, fix=to_read(path, problem, "divide the file" if large else "correct the name, or add the file")) from None


def read_text(path: str, limit: int = MOST_BYTES, root: str | None = None) -> str:
    """Return the text of a file in UTF-8. Raise Error, also as `read_limited` does."""
    try:
        return read_limited(path, limit, root).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise Error(f"it is not UTF-8 text: {problem.reason} at byte {problem.start}", place=path, fix="save it as UTF-8 text") from None


def read_lines(path: str, root: str | None = None) -> list[tuple[int, str]]:
    """Return the numbers and texts of the lines of a file that have text. Raise Error, also as `read_limited` does."""
    return [(number, line.strip()) for number, line in enumerate(read_text(path, root=root).splitlines(), 1) if line.strip()]


def read_names(path: str, is_there: Callable[[str], bool], root: str | None = None) -> list[tuple[int, str]]:
    """Return the numbers and names of a list of images, as `read_lines` does. White space before or after a name belongs to it if `is_there` knows it so."""
    lines = [(number, line) for number, line in enumerate(read_text(path, root=root).split("\n"), 1) if line.strip()]
    return [(number, line if line != line.strip() and is_there(line) else line.strip()) for number, line in lines]


def labels_of(root: str) -> list[str]:
    """Return the names in the labels.txt of a data set in their order, [] without this file. Raise Error."""
    check_below(root, os.path.join(root, LABELS))
    return numbering(root)


def images_of(folder: str) -> dict[str, str]:
    """Return the image files in a folder by their names without suffix. Of several with one name it is the first by suffix."""
    found: dict[str, str] = {}
    for name in sorted(os.listdir(folder) if os.path.isdir(folder) else []):
        if is_image_name(name) and not name.startswith("."):
            found.setdefault(os.path.splitext(name)[0], name)
    return found
