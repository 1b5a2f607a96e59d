"""Stores of image files with their labels. Lists, folders, tables and shards differ only in where the files are."""
from __future__ import annotations

import math
import os
from abc import abstractmethod
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.source import Note
from ocaffe.data.stores.store import Opener, Record, Store
from ocaffe.errors import Error
from ocaffe.formats.nearby import right_root

Label = float | tuple[float, ...]


class File(NamedTuple):
    """An image file: its number, its name in the file system, and its label or labels."""

    number: int
    path: str
    label: Label


class FileOpener(Opener):
    """Reads image files by `content`, a function of a module, which raises Error without a place."""

    def __init__(self, content: Callable[[Any], bytes]) -> None:
        self._content = content

    def parse(self, content: Any) -> Record:
        return Record(content.label, self._content(content))


class Files(Store):
    """`entries` image files. `labels` is entries x label_count, float32. A found file has its label, and all that is needed to read it."""

    one_size = "set new_height and new_width"
    labels: np.ndarray
    notes: tuple[Note, ...]  # log lines for the opening

    @abstractmethod
    def file(self, record: int) -> Any:
        """Return where a file is."""

    def find(self, records: Sequence[int]) -> Sequence[Any]:
        return [self.file(record) for record in records]

    def label(self, record: int) -> Label:
        row: list[float] = self.labels[record].tolist()
        return tuple(row) if len(row) > 1 else row[0]


class NamedFiles(Files):
    """Files that lines of the text file `source` name. `kind` is that of the text, for messages."""

    kind: str

    def __init__(self, source: str, root: str) -> None:
        self._source, self._root = source, root
        self._names: list[str] = []
        self._lines = array("q")  # numbers of lines

    def file(self, record: int) -> File:
        return File(record, self._names[record], self.label(record))

    def name(self, found: File) -> str:
        return found.path

    def fault(self, problem: Error, record: int, found: File) -> Error:
        missing = not os.path.exists(found.path)
        fix = right_root(self._root, found.path, self._source) if missing else None
        if missing and fix is None:
            fix = more_labels(found.path, found.label)
        fix = fix or problem.fix or f"correct the {self.kind}, or replace the file"
        return Error(f"{self._source}, line {self._lines[found.number]}: {found.path}: {problem.fact}", fix=fix)


def more_labels(name: str, label: Label) -> str | None:
    """Return the remedy if the missing file `name` ends in numbers, which are labels before the last one."""
    words = name.split()
    count = next((number for number, word in enumerate(words[::-1]) if not is_number(word)), len(words))
    own = len(label) if isinstance(label, tuple) else 1
    return f"label_count: {count + own} in image_data_param, if each line has {count + own} labels" if 0 < count < len(words) else None


def is_number(word: str) -> bool:
    """Return whether a word is a finite number."""
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def label_values(words: Sequence[str], floats: bool) -> list[float]:
    """Return labels from text: finite numbers, or without `floats` whole ones of 32 bits, which are C's int. Raise ValueError with the fact."""
    return [_float(word) if floats else _int(word) for word in words]


def whole_number(word: str) -> int:
    """Return a number of a list: an int of C, 32 bits. Raise ValueError."""
    number = int(word)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(word)
    return number


def _int(word: str) -> int:
    try:
        return whole_number(word)
    except ValueError:
        raise ValueError(f"the label '{word}' is not a whole number of 32 bits") from None


def _float(word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not abs(number) < 3.4e38:  # float32 has few larger ones
        raise ValueError(f"the label '{word}' is not a finite number")
    return number
