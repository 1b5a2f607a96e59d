"""Tables and lists that name image files, with any texts after the file: lines of text, or tags."""
from __future__ import annotations

import os
import re
from typing import NamedTuple

import numpy as np

from ocaffe.data.source import RECORDS, permutation
from ocaffe.data.stores.folder import is_image_name
from ocaffe.data.stores.table import SUFFIX, headed_rows
from ocaffe.data.stores.text_list import Listing
from ocaffe.errors import Error, Place
from ocaffe.zoo.images import parts_in, root_of
from ocaffe.zoo.unreadable import Check

_BETWEEN = re.compile(r"[\t ,;]+")


class Listed(NamedTuple):
    """Image files with texts. `names` are relative to the folder `root`. `header`: the names of the columns after the file, [] if there are none.

    `cells`: the texts of each image. `lines`: the numbers of their lines in the file `source`.
    """

    source: str
    root: str
    header: list[str]
    names: list[str]
    cells: list[list[str]]
    lines: list[int]

    def chosen(self, rows: list[int]) -> Listed:
        """Return some of the images."""
        return self._replace(names=[self.names[row] for row in rows], cells=[self.cells[row] for row in rows], lines=[self.lines[row] for row in rows])

    def place(self, row: int) -> Place:
        return Place(self.source, self.lines[row])


def read_listing(source: str) -> Listed:
    """Return the image files and texts of a table (.csv) or list. Raise Error."""
    header, names, cells, lines = _table(source) if source.lower().endswith(SUFFIX) else _list(source)
    return Listed(source, _root(source, names[0]), header, names, cells, lines)


def _table(source: str) -> tuple[list[str], list[str], list[list[str]], list[int]]:
    head, rows = headed_rows(source)
    column = _file_column(rows[0].cells)
    if column is None and head is None and len(rows) > 1 and (column := _file_column(rows[1].cells)) is not None:
        head, rows = rows[0], rows[1:]
    if column is None:
        row = rows[min(1, len(rows) - 1)]  # the first one may be a header
        cells = ", ".join(f"'{cell}'" for cell in row.cells[:5])
        raise Error(f"no cell names an image file: {cells}", place=Place(source, row.line), fix="let one column have the files, such as images/1.jpg")
    for row in rows:
        if len(row.cells) != len(rows[0].cells):
            fact = f"the row has {len(row.cells)} columns, and line {rows[0].line} has {len(rows[0].cells)}"
            raise Error(fact, place=Place(source, row.line), fix="write as many cells in each row; texts with a comma need quotes")
    def others(found: list[str]) -> list[str]:
        return found[:column] + found[column + 1 :]

    width = len(rows[0].cells)
    if head is not None and len(head.cells) != width:
        fact = f"the header has {len(head.cells)} columns, and the rows have {width}"
        raise Error(fact, place=Place(source, head.line), fix="name each column once")
    header = others(head.cells) if head is not None else []
    return header, [row.cells[column] for row in rows], [others(row.cells) for row in rows], [row.line for row in rows]


def _file_column(cells: list[str]) -> int | None:
    return next((column for column, cell in enumerate(cells) if is_image_name(cell, photos=True)), None)


def _list(source: str) -> tuple[list[str], list[str], list[list[str]], list[int]]:
    names, cells, lines = [], [], []
    for line in Listing(source, "the file of an image, a space, and its text").lines:
        found = divided(line.text)
        if found is None:
            fact = f"'{line.text[:80]}' has no text after the name of an image"
            raise Error(fact, place=Place(source, line.number), fix="write a file, a space, and the text, such as images/1.jpg hello")
        names.append(found[0])
        cells.append([found[1]])
        lines.append(line.number)
    return [], names, cells, lines


def divided(line: str) -> tuple[str, str] | None:
    """Return the image file at the begin of a line, and the text after it. None without one of them."""
    for between in _BETWEEN.finditer(line):
        if is_image_name(line[: between.start()], photos=True):
            return (line[: between.start()], line[between.end() :]) if line[between.end() :] else None
    return None


def _root(source: str, name: str) -> str:
    """Return the folder to which the names are relative: as of all lists, or a folder beside the file, such as `images`. Raise Error."""
    beside = os.path.dirname(source) or "."
    if not any(os.path.exists(os.path.join(folder, name)) for folder in ("", beside)):
        for folder in sorted(entry.path for entry in os.scandir(beside) if entry.is_dir()):
            if os.path.exists(os.path.join(folder, name)):
                return folder
    return root_of(source, name)


def listings(data: str, val: str, share: float, seed: int) -> tuple[Listed, Listed]:
    """Return the images for training and for testing of a table or list, of two in a folder, or of the only one in a folder. Raise Error."""
    if os.path.isdir(data):
        data, val = (data, val) if val else parts_in(data)
    if os.path.isdir(data):
        data = only_file(data)
    train = read_listing(data)
    if val:
        return train, read_listing(val)
    count = len(train.names)
    testing = min(max(round(count * share), 1), count - 1)
    if not 0 < share < 1 or testing < 1:
        fix = "a share of the images between 0 and 1: --test 0.2" if count > 1 else "add images, at least one more"
        raise Error(f"--test is {share:g}, and there are {count} images", place=data, fix=fix)
    order = permutation((seed & 0xFFFFFFFFFFFFFFFF, 0), RECORDS, 0, count).tolist()
    return train.chosen(sorted(order[testing:])), train.chosen(sorted(order[:testing]))


def only_file(folder: str) -> str:
    """Return the only table in a folder, '' if there is not one."""
    found = [name for name in sorted(os.listdir(folder)) if name.lower().endswith(SUFFIX)]
    return os.path.join(folder, found[0]) if len(found) == 1 else ""


def readable(parts: tuple[Listed, Listed]) -> tuple[tuple[Listed, Listed], list[str]]:
    """Return the images that can be decoded, and a line for each other one. Raise Error if none can."""
    check, kept = Check(), []
    for part in parts:
        fits = check.files(part.source, part.root, part.names, np.zeros(len(part.names), np.int64), ["images"])
        kept.append(part.chosen(np.flatnonzero(fits).tolist()))
    return (kept[0], kept[1]), [f"{each.name}: {each.reason}" for each in check.found]
