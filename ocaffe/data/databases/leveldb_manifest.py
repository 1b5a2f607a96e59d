"""The files that belong to a LevelDB, by its manifest. LevelDB writes new files beside them, and would overwrite others of the same names.

The format is that of LevelDB's documents log_format.md and impl.md: records in pieces within units of 32 KiB. Each record is a list of tagged changes.
"""
from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ocaffe.support.files import read_plain

_MOST_BYTES = 1 << 28  # of a manifest: some millions of tables
_UNIT, _HEADER = 1 << 15, 7  # bytes of a unit, which no piece crosses, and of the header of a piece: checksum, size, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_TABLES = ("ldb", "sst")


def live_files(path: str) -> list[str]:
    """Return the names of the files in the folder `path` that LevelDB reads. Raise ValueError if CURRENT or the manifest is damaged, or OSError."""
    current = read_plain(os.path.join(path, "CURRENT"), 1 << 10)
    found = re.fullmatch(rb"MANIFEST-(\d{1,18})\n", current)
    if found is None:
        raise ValueError("CURRENT has no name of a manifest")
    manifest = current.decode().strip()
    tables, after, log, earlier = _version(read_plain(os.path.join(path, manifest), _MOST_BYTES))
    if any(number >= after for number in (*tables, int(found[1]))):
        raise ValueError(f"the manifest names a file whose number is not below {after}, the next new one")
    names = {name for number in tables for kind in _TABLES if os.path.exists(os.path.join(path, name := f"{number:06d}.{kind}"))}
    logs = (re.fullmatch(r"(\d{1,18})\.log", name) for name in os.listdir(path))
    return ["CURRENT", manifest, *sorted(names), *sorted(each[0] for each in logs if each is not None and (int(each[1]) >= log or int(each[1]) == earlier))]


def cut_log(path: str, names: list[str]) -> str | None:
    """Return the first log among files in the folder `path` whose end is missing, as LevelDB accepts it after a crash of its writer. None: there is none."""
    for name in names:
        if name.endswith(".log"):
            try:
                for _ in _records(read_plain(os.path.join(path, name))):
                    pass
            except ValueError:
                return name
    return None


def _version(content: bytes) -> tuple[set[int], int, int, int]:
    """Return the numbers of the tables, the number of the next new file, and those of the oldest log and of the one before it (0: none)."""
    tables: set[int] = set()
    after = log = earlier = 0
    for record in _records(content):
        change = _Change(record)
        while change.left:
            tag = change.number()
            if tag == 1:  # the comparator
                change.text()
            elif tag == 2:
                log = change.number()
            elif tag == 3:
                after = change.number()
            elif tag == 4:  # the last sequence number
                change.number()
            elif tag == 5:  # where a level was compacted
                change.number()
                change.text()
            elif tag == 6:
                change.number()
                tables.discard(change.number())
            elif tag == 7:
                change.number()
                tables.add(change.number())
                change.number()
                change.text()
                change.text()
            elif tag == 9:
                earlier = change.number()
            else:
                raise ValueError(f"the manifest has an entry of the unknown kind {tag}")
    return tables, after, log, earlier


def _records(content: bytes) -> Iterator[bytes]:
    parts: list[bytes] = []
    at = 0
    while at + _HEADER <= len(content):
        if _UNIT - at % _UNIT < _HEADER:
            at += _UNIT - at % _UNIT
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        piece = content[at + _HEADER : at + _HEADER + size]
        at += _HEADER + size
        if kind == 0 and size == 0:  # room that was reserved
            continue
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or len(piece) < size or (kind in (_FULL, _FIRST)) != (not parts):
            raise ValueError("it is cut or damaged")
        parts.append(piece)
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
            parts = []
    if parts or any(content[at:]):
        raise ValueError("its end is cut")


class _Change:
    """Reads numbers and texts from a record."""

    def __init__(self, record: bytes) -> None:
        self._record, self._at = record, 0

    @property
    def left(self) -> int:
        return len(self._record) - self._at

    def number(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            if not self.left:
                break
            byte = self._record[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("the manifest has a damaged number")

    def text(self) -> bytes:
        size = self.number()
        if size > self.left:
            raise ValueError("the manifest has a damaged text")
        self._at += size
        return self._record[self._at - size : self._at]
