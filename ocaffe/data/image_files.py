"""Stores of image files with their labels. Lists, folders, tables and shards differ only in where the files are."""
from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from ocaffe.data.source import Note
from ocaffe.data.store import Record, Store


class Files(Store):
    """`entries` image files. `labels` is entries x label_count, float32."""

    one_size = "set new_height and new_width"
    labels: np.ndarray
    notes: tuple[Note, ...]  # log lines for the opening

    @abstractmethod
    def content(self, record: int) -> bytes:
        """Return the bytes of a file. Raise Error without a place."""

    @abstractmethod
    def name(self, found: int) -> str:
        """Return the name of a file, for messages."""

    def parse(self, content: int) -> Record:
        row = self.labels[content]
        return Record(row if len(row) > 1 else row[0], self.content(content))


def label_values(words: Sequence[str], floats: bool) -> list[float]:
    """Return labels from text: finite numbers, or without `floats` whole ones of 32 bits, which are C's int. Raise ValueError with the fact."""
    return [_float(word) if floats else _int(word) for word in words]


def _int(word: str) -> int:
    try:
        number = int(word)
    except ValueError:
        number = 1 << 31
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(f"the label '{word}' is not a whole number of 32 bits")
    return number


def _float(word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not abs(number) < 3.4e38:  # float32 has few larger ones
        raise ValueError(f"the label '{word}' is not a finite number")
    return number
