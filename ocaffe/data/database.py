"""LMDB and LevelDB behind one interface: records in key order, read by number. Errors have no place; the source adds it."""
from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol

import lmdb

from ocaffe import proto
from ocaffe.errors import Error

Key = bytes | memoryview
Item = tuple[Key, Any]  # key, value (bytes or memoryview)


class Cursor(Protocol):
    """A database cursor. The booleans say whether the cursor is at a record."""

    def first(self) -> bool: ...
    def next(self) -> bool: ...
    def set_key(self, key: bytes) -> bool: ...
    def item(self) -> Item: ...


class Database(ABC):
    """An open database of `entries` records, at least one. Layers with the same source share one object, because a process may open an LMDB only once."""

    entries: int

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def cursor(self) -> Cursor:
        """Return a new cursor."""

    @abstractmethod
    def keys(self) -> list[bytes]:
        """Return all keys in order."""

    def run(self, cursor: Any, count: int) -> list[Item]:
        """Return `count` records (fewer at the end), starting with the cursor's. Afterwards the cursor is at the last of them."""
        items = [cursor.item()]
        while len(items) < count and cursor.next():
            items.append(cursor.item())
        return items

    def fault(self, reason: object, record: int | None = None, key: Key | None = None) -> Error:
        """Return the error for a database, or for one record, that cannot be read."""
        where = f", record {record}" if record is not None else ""
        where += f" (key '{key_text(key)}')" if key is not None else ""
        return Error(f"database {self.path}{where}: {reason}", fix="make the database again, or copy it again")


def key_text(key: Key) -> str:
    return bytes(key).decode("ascii", "backslashreplace")


class Reader:
    """Reads records by number.

    The next record takes one step of the cursor. A jump steps over the records between, without reading their values. With `random` the reader
    keeps a list of all keys and seeks directly.
    """

    def __init__(self, database: Database, random: bool = False) -> None:
        self.database = database
        self._cursor = database.cursor()
        self._at = -1  # the record at the cursor
        self._keys = database.keys() if random else None

    def read(self, first: int, count: int = 1) -> list[Item]:
        """Return keys and values of the records `first` ... `first + count - 1`, all below `entries`. Values are valid as long as this reader exists."""
        try:
            self._move(first)
            items = self.database.run(self._cursor, count)
        except _errors() as problem:
            self._at = -1
            raise self.database.fault(_reason(problem), first) from None
        self._at = first + len(items) - 1
        if len(items) < count:
            raise self._absent(first + len(items))
        return items

    def _move(self, record: int) -> None:
        cursor = self._cursor
        if self._keys is not None:
            found, self._at = cursor.set_key(self._keys[record]), record
        else:
            found = True
            if record < self._at or self._at < 0:
                found, self._at = cursor.first(), 0
            while found and self._at < record:
                found = cursor.next()
                self._at += 1
        if not found:
            self._at = -1
            raise self._absent(record)

    def _absent(self, record: int) -> Error:
        return self.database.fault(f"the record is missing, although the database has {self.database.entries} entries", record)


class _Lmdb(Database):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        file = os.path.join(path, "data.mdb")
        try:
            # No lock file: databases may be on read-only file systems, and no process writes them during training.
            self.environment = lmdb.open(path, readonly=True, lock=False, create=False)
        except lmdb.Error as problem:
            fix = "close it there" if "already open" in str(problem) else "make the database again, or copy it again"
            raise Error(f"{path} cannot be opened as LMDB: {_reason(problem)}", fix=fix) from None
        info, stat = self.environment.info(), self.environment.stat()
        needed, size = (info["last_pgno"] + 1) * stat["psize"], os.path.getsize(file)
        if size < needed:  # a read beyond the end of the mapped file would kill the process
            raise Error(f"{file} is truncated: it has {size:,} bytes and needs {needed:,}", fix="copy the database again")
        self.entries = stat["entries"]

    def cursor(self) -> Any:
        # The cursor holds a reference to its transaction, and the transaction to the environment. Values are views of the mapped file.
        return self.environment.begin(buffers=True).cursor()

    def run(self, cursor: Any, count: int) -> list[Item]:
        return list(islice(cursor, count))

    def keys(self) -> list[bytes]:
        try:
            with self.environment.begin() as transaction:
                return list(transaction.cursor().iternext(keys=True, values=False))
        except lmdb.Error as problem:
            raise self.fault(_reason(problem)) from None


_LEVELDB_WRITES = {"LOCK", "LOG", "LOG.old"}


class _LevelDB(Database):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        try:
            import plyvel
        except ImportError:
            raise Error(
                f"{path} is a LevelDB database, and reading those needs the package plyvel, which is not installed",
                fix="pip install 'ocaffe[leveldb]', or make it again as LMDB: ocaffe convert_imageset --backend=lmdb ... and backend: LMDB",
            ) from None
        # LevelDB writes a log, a lock and a new manifest into the folder that it opens. The user's folder may be read-only or in use.
        # So a temporary folder with links is opened: LevelDB only reads the linked files, or removes their links.
        folder = tempfile.mkdtemp(prefix="ocaffe-leveldb-")
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        for name in os.listdir(path):
            if name not in _LEVELDB_WRITES:
                os.symlink(os.path.join(os.path.abspath(path), name), os.path.join(folder, name))
        try:
            self.environment = plyvel.DB(folder, create_if_missing=False)
        except (plyvel.Error, OSError) as problem:
            raise Error(f"{path} cannot be opened as LevelDB: {str(problem).replace(folder, path)}", fix="make the database again, or copy it again") from None
        self.entries = sum(1 for _ in self.environment.iterator(include_value=False))

    def cursor(self) -> Cursor:
        return _LevelDBCursor(self.environment)

    def keys(self) -> list[bytes]:
        return list(self.environment.iterator(include_value=False))


class _LevelDBCursor:
    def __init__(self, environment: Any) -> None:
        self._iterator = environment.raw_iterator(verify_checksums=True)
        self._environment = environment

    def first(self) -> bool:
        self._iterator.seek_to_first()
        return bool(self._iterator.valid())

    def next(self) -> bool:
        self._iterator.next()
        return bool(self._iterator.valid())

    def set_key(self, key: bytes) -> bool:
        self._iterator.seek(key)
        return bool(self._iterator.valid()) and self._iterator.key() == key

    def item(self) -> Item:
        return self._iterator.key(), self._iterator.value()


def _reason(problem: Exception) -> str:
    """Return LMDB's message without the path at its start."""
    return str(problem).rpartition(": ")[2]


def _errors() -> tuple[type[Exception], ...]:
    """Return the exceptions that reading may raise, of the libraries that have been imported."""
    plyvel = sys.modules.get("plyvel")
    return (lmdb.Error,) if plyvel is None else (lmdb.Error, plyvel.Error)


# backend: its name, the file that identifies it, its class
_BACKENDS: dict[int, tuple[str, str, Callable[[str], Database]]] = {
    proto.DataParameter.LMDB: ("LMDB", "data.mdb", _Lmdb),
    proto.DataParameter.LEVELDB: ("LEVELDB", "CURRENT", _LevelDB),
}
_open: weakref.WeakValueDictionary[tuple[int, int], Database] = weakref.WeakValueDictionary()


def open_database(path: str, backend: int) -> Database:
    """Return the database at `path`, a folder; `backend` is a value of DataParameter.DB. Raises Error, without place."""
    if backend not in _BACKENDS:
        raise Error(f"backend {proto.DataParameter.DB.Name(backend)} is not supported", fix="backend: LMDB")
    name, file, opener = _BACKENDS[backend]
    if not path:
        raise Error("source is empty", fix='source: "the folder of the database"')
    if not os.path.exists(path):
        raise Error(f"the database {path} does not exist", fix=f"make it, or correct source (relative to {os.getcwd()})")
    if not os.path.isdir(path):
        inside = os.path.basename(path) in ("data.mdb", "lock.mdb")
        fix = f'source: "{os.path.dirname(path) or "."}"' if inside else "name the folder that holds data.mdb"
        raise Error(f"{path} is a file, and a database is a folder", fix=fix)
    marker = os.path.join(path, file)
    if not os.path.exists(marker):
        other = next((other for other, present, _ in _BACKENDS.values() if os.path.exists(os.path.join(path, present))), None)
        fix = f"backend: {other}" if other else "name the folder of a database"
        raise Error(f"{path} is no {name} database: it has no file {file}" + (f" (it is one of {other})" if other else ""), fix=fix)
    if not os.path.getsize(marker):
        raise Error(f"{marker} is empty (0 bytes)", fix="make the database again, or copy it again")
    status = os.stat(marker)
    identity = status.st_dev, status.st_ino
    database = _open.get(identity)
    if database is None:
        database = _open[identity] = opener(path)
    if not database.entries:
        raise Error(f"the database {path} has no records", fix="make the database again")
    return database
