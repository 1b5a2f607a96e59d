"""Tables of image files: .csv with a file and its labels in each row. A label may be the name of a class."""
from __future__ import annotations

import contextlib
import csv
import os
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ocaffe.data.stores.file_store import FileOpener, NamedFiles, is_number, label_values
from ocaffe.data.stores.folder import is_image_name
from ocaffe.data.stores.labels_txt import LABELS, numbering
from ocaffe.data.stores.text_list import read_found
from ocaffe.errors import Error
from ocaffe.support.files import text_lines, to_read

SUFFIX = ".csv"
_DELIMITERS = ",;\t"  # the first one that divides the first line is used

_BEGIN = 1 << 16  # characters of a line in which delimiters are looked for


class Row(NamedTuple):
    """A row of a table: the number of its line, and its cells."""

    line: int
    cells: list[str]


def is_table(source: str, label_count: int) -> bool:
    """Return whether the file `source` is a table: its name ends in .csv, and its content is not that of a list.

    It is a list if its first line has no delimiter. It is a list too if that line is the name of an image file and `label_count` numbers, all with
    white space between them.
    """
    text = _first_line(source) if source.lower().endswith(SUFFIX) else ""
    name, *words = text.rsplit(None, label_count) or [""]
    listed = len(words) == label_count and is_image_name(name) and all(map(is_number, words))
    return not listed and _delimiter(text) is not None


def table_names(source: str) -> list[str]:
    """Return the names of the classes in a table of files and class names, sorted; [] if its labels are numbers or several. Raise Error."""
    rows = _rows(source)
    words = [row.cells[1] for row in rows if len(row.cells) == 2]
    return sorted(set(words)) if len(words) == len(rows) and not any(map(is_number, words)) else []


class TableFiles(NamedFiles):
    """The image files of a table. The first column has the names, the other `label_count` columns the labels.

    With one label, its column may have names of classes. Their numbers are those of the labels.txt beside the table, else of the sorted names.
    """

    kind = "table"

    def __init__(self, source: str, root: str, label_count: int, floats: bool) -> None:
        """`root` is prepended to each name. `floats`: labels may be fractions. Raise Error without a place."""
        rows = _rows(source)
        super().__init__(source, root)
        self.entries, self.opener = len(rows), FileOpener(read_found)
        for row in rows:
            if len(row.cells) != 1 + label_count:
                fact = f"{source}, line {row.line} has {len(row.cells)} columns, and a file and label_count: {label_count} are {1 + label_count}"
                raise Error(fact, fix=f"remove the other columns, or set label_count: {len(rows[0].cells) - 1}")
        self._names = [root + row.cells[0] for row in rows]
        self._lines.extend(row.line for row in rows)
        kinds = {is_number(row.cells[1]) for row in rows} if label_count == 1 else {True}
        self.classes = _classes(source, rows) if False in kinds else []
        if len(kinds) > 1:
            number, text = (next(row for row in rows if is_number(row.cells[1]) == kind) for kind in (True, False))
            fact = f"{source}, line {text.line}: the label '{text.cells[1]}' is not a number, and that of line {number.line} is '{number.cells[1]}'"
            raise Error(fact, fix="write numbers in all lines, or names of classes in all lines")
        self.labels = self._numbered(rows) if self.classes else self._numbers(rows, label_count, floats)
        said = f": {len(self.classes)} classes" if self.classes else ""
        self.notes = (("image_data_layer.cpp:38", f"Opening file {source}{said}"),)

    def _numbered(self, rows: Sequence[Row]) -> np.ndarray:
        numbers = {name: number for number, name in enumerate(self.classes)}
        unknown = next((row for row in rows if row.cells[1] not in numbers), None)
        if unknown is not None:
            fact = f"{self._source}, line {unknown.line}: the class '{unknown.cells[1]}' is not in the {LABELS} beside the table"
            raise Error(fact, fix=f"correct the name in this line, or add it to {LABELS}")
        return np.array([numbers[row.cells[1]] for row in rows], np.float32)[:, None]

    def _numbers(self, rows: Sequence[Row], label_count: int, floats: bool) -> np.ndarray:
        values = array("d")
        for row in rows:
            try:
                values.extend(label_values(row.cells[1:], floats))
            except ValueError as problem:
                whole = f" without a fraction, or set label_count: {label_count} in image_data_param, which allows fractions"
                fix = "write a number" + ("" if floats else whole)
                raise Error(f"{self._source}, line {row.line}: {problem}", fix=fix) from None
        return np.array(values, np.float32).reshape(len(rows), label_count)


def _classes(source: str, rows: Sequence[Row]) -> list[str]:
    empty = next((row for row in rows if not row.cells[1]), None)
    if empty is not None:
        raise Error(f"{source}, line {empty.line}: the label is empty", fix="write a number or the name of a class")
    return numbering(os.path.dirname(source) or ".") or sorted({row.cells[1] for row in rows})


def _rows(source: str) -> list[Row]:
    """Return the rows of a table without its header and without blank lines. White space around cells is removed. Raise Error."""
    return headed_rows(source)[1]


def headed_rows(source: str) -> tuple[Row | None, list[Row]]:
    """Return the header of a table, None if it has none, and the other rows as `_rows` does. Raise Error."""
    try:
        delimiter = _delimiter(_first_line(source)) or ","
        reader = csv.reader(text_lines(source, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
        rows = [Row(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if "".join(cells).strip() or len(cells) > 1]
    except (OSError, ValueError) as problem:
        fact = f"the table {source} cannot be read: {getattr(problem, 'strerror', None) or problem}"
        raise Error(fact, fix=to_read(source, problem, "set source to the path of the table")) from None
    except csv.Error as problem:
        raise Error(f"{source}, line {reader.line_num}: the row cannot be read: {problem}", fix="correct the quotes in this line or before it") from None
    headed = _has_header(rows)
    if not rows[headed:]:
        raise Error(f"the table {source} has no rows", fix="write a row for each image: its file and its label")
    return rows[0] if headed else None, rows[headed:]


def _first_line(source: str) -> str:
    """Return the first line of a text file that is not blank; '' if there is none or it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return next((line.strip() for line in text_lines(source) if line.strip()), "")
    return ""


def _has_header(rows: Sequence[Row]) -> bool:
    """Return whether the first row is a header: it names no image file and the second row does, or only the second row has labels that are numbers."""
    if len(rows) < 2:
        return False
    first, second = (is_image_name(row.cells[0]) for row in rows[:2])
    if first or second:
        return not first
    numbers = [[is_number(cell) for cell in row.cells[1:]] for row in rows[:2]]
    return not any(numbers[0]) and all(numbers[1])


def _delimiter(line: str) -> str | None:
    """Return the delimiter of the cells in a line, or None."""
    with contextlib.suppress(csv.Error):  # a zero byte, before Python 3.11
        return next((mark for mark in _DELIMITERS if len(next(csv.reader([line[:_BEGIN]], delimiter=mark), [])) > 1), None)
    return None
