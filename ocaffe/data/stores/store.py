"""Stores of images: a database, a list, a folder. A source reads records by number and does not know where they are."""
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.databases.datum import Alike
from ocaffe.data.databases.lmdb_file import Arena
from ocaffe.errors import Error


class Record(NamedTuple):
    """An image and its label (or labels, or None). Either `file` is set, the content of an image file, or `values`, of `shape`."""

    label: Any
    file: Any
    values: np.ndarray | None = None
    shape: tuple[int, int, int] = (0, 0, 0)


class Opener(ABC):
    """Reads and parses found records. Any number of threads may use it, and other processes if its store is portable: then it can be pickled."""

    def read(self, found: Sequence[Any], arena: Arena) -> Sequence[Any]:
        """Return the contents of found records. They may be in `arena`, and are valid until its next use. Raise Error."""
        return found

    @abstractmethod
    def parse(self, content: Any) -> Record:
        """Return the record with this content. Raise Error without a place."""


class Store(ABC):
    """`entries` images, at least one."""

    entries: int
    opener: Opener
    portable = True  # other processes can read found records
    one_size = ""  # how to make images of one size, for messages

    @abstractmethod
    def find(self, records: Sequence[int]) -> Sequence[Any]:
        """Return where these records are. One thread at a time may call it. Raise Error."""

    def sent(self, found: Any) -> Any:
        """Return `found` as it is sent to another process."""
        return found

    @abstractmethod
    def name(self, found: Any) -> str:
        """Return the name of a record, for messages."""

    @abstractmethod
    def fault(self, problem: Error, record: int, found: Any) -> Error:
        """Return `problem` with the place of the record."""

    def alike(self, found: Sequence[Any]) -> Alike | None:
        """Return these records at once if they are small raw images of one shape, else None."""
        return None
