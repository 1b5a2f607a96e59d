"""LMDB and LevelDB behind one interface: records in key order, read by number. Errors have no place; the source adds it."""
from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ocaffe import proto
from ocaffe.data.databases.leveldb_manifest import cut_log, live_files
from ocaffe.data.databases.lmdb_file import COPY, Anywhere, Arena, Changed, Damaged, Forward, LmdbFile, Snapshot, Spot
from ocaffe.data.databases.slot import NoSlot, Slot
from ocaffe.errors import Error
from ocaffe.formats.nearby import MissingPath
from ocaffe.shown import command
from ocaffe.support import log
from ocaffe.support.files import check_plain, to_read
from ocaffe.support.interpreter import interpreter, not_started
from ocaffe.support.parsing import reason
from ocaffe.support.whole import whole

_TRIES = 100
_REPLACE = "make the database again with a sound image in this record, or without the record"

Key = bytes | memoryview
Item = tuple[Key, Any]  # key, value (bytes or memoryview)
T = TypeVar("T")


class Unreadable(Exception):
    """Records cannot be read. The message is the fact."""

    def __init__(self, fact: str, fix: str | None = None, whole: bool = False) -> None:
        """`whole`: the fact is about the whole database, not about a record."""
        super().__init__(fact)
        self.fix, self.whole = fix, whole


class Cursor(Protocol):
    """Finds records by number; one thread at a time. Any thread may read what was found. All methods raise Unreadable."""

    def find(self, records: Sequence[int]) -> list[Any]:
        """Return where these records are, at least one, or only those before the first one that is missing."""

    def values(self, found: Sequence[Any], arena: Arena) -> list[Any]:
        """Return the values of found records: bytes or memoryviews, which may be in `arena`."""

    def key(self, found: Any) -> Key:
        """Return the key of a found record."""

    def size(self, found: Any) -> int:
        """Return the bytes of the value of a found record."""


class Database(ABC):
    """An open database of `entries` records, at least one. Layers with the same source share one object."""

    entries: int
    portable = False  # found records can be sent to other processes

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def cursor(self, random: bool) -> Cursor:
        """Return a new cursor. `random`: records are found in any order. Raises Unreadable."""

    def fault(self, reason: object, record: int | None = None, key: Key | None = None) -> Error:
        """Return the error for a database, or for one record, that cannot be read."""
        return fault(self.path, reason, record, key)


class NoDatum(Error):
    """A record is of another kind, and so all records are. To skip bad ones does not help."""


def fault(path: str, reason: object, record: int | None = None, key: Key | None = None) -> Error:
    """Return the error for the database `path`, or for one of its records, that cannot be read."""
    where = f", record {record}" if record is not None else ""
    where += f" (key '{key_text(key)}')" if key is not None else ""
    fact = reason.fact if isinstance(reason, Error) else reason
    fix = getattr(reason, "fix", None) or (_REPLACE if isinstance(reason, Error) else COPY)
    return (NoDatum if isinstance(reason, NoDatum) else Error)(f"database {path}{where}: {fact}", fix=fix)


def key_text(key: Key) -> str:
    return bytes(key).decode("ascii", "backslashreplace")


class Reader:
    """Reads records by number. In order it takes one step per record. With `random` it first lists where all records are.

    One thread at a time may call a method. Any thread may read what was found, by `cursor`.
    """

    def __init__(self, database: Database, random: bool = False) -> None:
        self.database = database
        self._arena = Arena()
        try:
            self.cursor = database.cursor(random)
        except Unreadable as problem:
            raise database.fault(problem) from None

    def find(self, records: Sequence[int]) -> list[Any]:
        """Return where these records are, at least one, all below `entries`."""
        different = list(dict.fromkeys(records))
        try:
            found = self.cursor.find(different)
        except Unreadable as problem:
            raise self.database.fault(problem, None if problem.whole else records[0]) from None
        if len(found) < len(different):
            raise self.database.fault(f"the record is missing, although the database has {self.database.entries} entries", different[len(found)])
        if len(different) == len(records):
            return found
        places = dict(zip(different, found))
        return [places[record] for record in records]

    def key(self, found: Any) -> Key:
        try:
            return self.cursor.key(found)
        except Unreadable as problem:
            raise self.database.fault(problem) from None

    def size(self, found: Any) -> int:
        """Return the bytes of the value of a found record."""
        return self.cursor.size(found)

    def read(self, first: int, count: int = 1) -> list[Item]:
        """Return keys and values of the records `first` ... `first + count - 1`, all below `entries`."""
        return self.records(range(first, first + count))

    def records(self, records: Sequence[int]) -> list[Item]:
        """Return keys and values of these records, at least one, all below `entries`. Values are valid until the next call."""
        found = self.find(records)
        try:
            values = self.cursor.values(found, self._arena)
        except Unreadable as problem:
            raise self.database.fault(problem, records[0]) from None
        return list(zip(map(self.key, found), values))


class _Lmdb(Database):
    """An LMDB. A reader slot protects the records as they were when the database was opened.

    On a read-only file system, and where the lock file is another user's, there is no slot. Then the first read after a commit is an error.
    """

    portable = True

    def __init__(self, path: str) -> None:
        super().__init__(path)
        name = os.path.join(path, "data.mdb")
        try:
            self._file = LmdbFile(name)
            self._file.metas()
            self._slot = self._slot_of(path)
            self._snapshot = self._newest()
        except OSError as problem:
            raise Error(f"{name} cannot be opened: {problem.strerror}", fix=to_read(name, problem, "copy the database again, to another disk")) from None
        except Damaged as problem:
            raise Error(f"{path} cannot be opened as LMDB: {problem}", fix=problem.fix) from None
        meta = self._snapshot.meta
        needed, size = (meta.last_page + 1) * meta.page_size, self._file.size
        if size < needed:  # said at once, not after hours at the first record that is missing
            raise Error(f"{name} is truncated: it has {size:,} bytes and needs {needed:,}", fix="copy the database again")
        self.entries = meta.entries

    def _slot_of(self, path: str) -> Slot | None:
        try:
            return Slot(path)
        except (OSError, NoSlot) as problem:
            reason = problem.strerror if isinstance(problem, OSError) else str(problem).partition(" (")[0].rpartition(": ")[2]
            log.warning("db_lmdb.cpp:16", f"{path} is read without a reader slot ({reason}). If it is changed meanwhile, reading ends with an error.")
            return None

    def _newest(self) -> Snapshot:
        """Return the snapshot of the slot's transaction, or the newest one."""
        for _ in range(_TRIES):
            metas = self._file.metas()
            found = next((meta for meta in metas if self._slot is None or meta.transaction == self._slot.transaction), None)
            if found is not None:
                return Snapshot(self._file, found, self._slot is not None)
            assert self._slot is not None
            try:
                self._slot.renew()  # others committed twice since the slot was taken, and the file names the last two transactions
            except NoSlot:
                self._slot = None
        raise Changed("other processes change it without pause")

    def cursor(self, random: bool) -> Cursor:
        return _LmdbCursor(self._snapshot, self._slot, random)


class _LmdbCursor:
    """A copy in another process reads what this one finds."""

    def __init__(self, snapshot: Snapshot, slot: Slot | None, random: bool) -> None:
        self._snapshot, self._slot = snapshot, slot
        self._places: Anywhere | Forward = _readable(Anywhere, snapshot) if random else Forward(snapshot)

    def __getstate__(self) -> dict[str, Any]:
        return {"_snapshot": self._snapshot}

    def find(self, records: Sequence[int]) -> list[Spot]:
        if self._slot is not None and not self._slot.held:  # its process was killed
            self._snapshot.protected, self._slot = False, None
        return _readable(self._places.find, records)

    def values(self, found: Sequence[Spot], arena: Arena) -> list[memoryview]:
        return _readable(self._snapshot.values, found, arena)

    def key(self, found: Spot) -> bytes:
        return _readable(self._snapshot.key, found)

    def size(self, found: Spot) -> int:
        return found.size


def _readable(read: Callable[..., T], *arguments: Any) -> T:
    try:
        return read(*arguments)
    except Damaged as problem:
        raise Unreadable(str(problem), problem.fix, problem.whole) from None


_LEVELDB_CHILD = Path(__file__).with_name("leveldb_child.py")
_LEVELDB_MEMORY = 16 << 30  # bytes of address space of the process that counts; up to a thousand tables are mapped at a time


class _LevelDB(Database):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        try:
            import plyvel
        except ImportError:
            raise Error(
                f"{path} is a LevelDB database, and reading those needs the package plyvel, which is not installed",
                fix="`pip install plyvel`; or make it again by `ocaffe convert_imageset --backend=lmdb`, and set backend: LMDB",
            ) from None
        # LevelDB writes a log, a lock, a new manifest and new tables into the folder that it opens. The user's folder may be read-only or in use. So a
        # temporary folder with links is opened. LevelDB only reads the files of its manifest, or removes their links.
        self._folder = folder = tempfile.mkdtemp(prefix="ocaffe-leveldb-")
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        try:
            names = live_files(path)
            for name in names:
                file = os.path.join(path, name)
                if os.path.islink(file):
                    raise Error(f"{path} cannot be opened as LevelDB: {name} is a link", fix=f"{command('cp', '-rL', path, f'{path}.copy')}, and read the copy")
                check_plain(file)  # the library would wait for a pipe
            self.entries = _counted(path, names)
            if (cut := cut_log(path, names)) is not None:  # Caffe reads what is left, too
                log.warn_once(f"leveldb:{path}", f"The database {path} may have lost records: {cut} is cut. Remedy: {COPY}")
            _link(path, names, folder)
            self.environment = plyvel.DB(folder, create_if_missing=False, paranoid_checks=True)
        except Error:
            raise
        except Exception as problem:  # the library has its own errors, and Python's for numbers out of range
            raise Error(f"{path} cannot be opened as LevelDB: {self._said(problem)}", fix=to_read(path, problem, COPY)) from None
        # An iterator that is freed after its closed or freed database ends the process by a signal. Python frees the objects of a cycle in any order, and
        # the library knows its iterators by weak references, which are gone by then. So the finalizer holds them.
        self._iterators: list[Any] = []
        self._close = weakref.finalize(self, _close_all, self._iterators, self.environment)

    def kept(self, iterator: Any) -> Any:
        """Return an iterator of the environment, which is closed before it."""
        self._iterators.append(iterator)
        return iterator

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Turn every exception of the library in the context into an Error."""
        try:
            yield
        except Exception as problem:
            raise Error(f"the database {self.path} is damaged: {self._said(problem)}", fix=COPY) from None

    def _said(self, problem: Exception) -> str:
        return reason(problem).replace(self._folder, self.path)

    def cursor(self, random: bool) -> Cursor:
        with self.reading():
            return _LevelDBCursor(self, random)


def _close_all(iterators: Sequence[Any], environment: Any) -> None:
    for each in (*iterators, environment):
        each.close()


def _link(path: str, names: Sequence[str], folder: str) -> None:
    for name in names:
        os.symlink(os.path.join(os.path.abspath(path), name), os.path.join(folder, name))


def _counted(path: str, names: Sequence[str]) -> int:
    """Return the number of records of the LevelDB with these files. Raise Error if one cannot be read. Another process reads (leveldb_child.py)."""
    with tempfile.TemporaryDirectory(prefix="ocaffe-leveldb-") as folder:
        _link(path, names, folder)
        call = [interpreter(), "-I", "-S", str(_LEVELDB_CHILD), json.dumps(sys.path), folder, str(_LEVELDB_MEMORY)]
        try:
            done = subprocess.run(call, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        except OSError as problem:
            raise not_started("reads LevelDBs", problem) from None
        told = done.stdout.decode(errors="replace").strip().replace(folder, path)
    if done.returncode < 0:
        with contextlib.suppress(ValueError):
            told = f"!the library crashed ({signal.Signals(-done.returncode).name})"
    if whole(told) < 0:
        raise Error(f"the database {path} is damaged: {told[1:] or f'the process that reads it ended with status {done.returncode}'}", fix=COPY)
    return int(told)


class _LevelDBCursor:
    """The library's iterator reads a record where it finds it."""

    def __init__(self, database: _LevelDB, random: bool) -> None:
        self._database, environment = database, database.environment  # a database without users closes its iterators
        self._iterator = database.kept(environment.raw_iterator(verify_checksums=True))
        self._at = -1  # the record at the iterator; -1: unknown
        self._keys = list(database.kept(environment.iterator(include_value=False, verify_checksums=True))) if random else None

    def values(self, found: Sequence[Item], arena: Arena) -> list[Any]:
        return [value for _, value in found]

    def key(self, found: Item) -> Key:
        return found[0]

    def size(self, found: Item) -> int:
        return len(found[1])

    def find(self, records: Sequence[int]) -> list[Item]:
        items: list[Item] = []
        try:
            for record in records:
                if not (self._move(record) if self._keys is None else self._seek(self._keys[record])):
                    break
                items.append((self._iterator.key(), self._iterator.value()))
        except Unreadable:
            raise
        except Exception as problem:  # of the library
            self._at = -1
            raise Unreadable(reason(problem)) from None
        return items

    def _move(self, record: int) -> bool:
        if record < self._at or self._at < 0:
            self._iterator.seek_to_first()
            self._at = 0
        while self._iterator.valid() and self._at < record:
            self._iterator.next()
            self._at += 1
        return bool(self._iterator.valid())

    def _seek(self, key: bytes) -> bool:
        self._iterator.seek(key)
        if not self._iterator.valid() or self._iterator.key() != key:
            raise Unreadable(f"the record with key '{key_text(key)}' has vanished")
        return True


# backend: its name, the file that identifies it, its class
_BACKENDS: dict[int, tuple[str, str, Callable[[str], Database]]] = {
    proto.DataParameter.LMDB: ("LMDB", "data.mdb", _Lmdb),
    proto.DataParameter.LEVELDB: ("LEVELDB", "CURRENT", _LevelDB),
}
_opening = threading.Lock()
_open: weakref.WeakValueDictionary[tuple[int, int], Database] = weakref.WeakValueDictionary()


def open_database(path: str, backend: int) -> Database:
    """Return the database at `path`, a folder; `backend` is a value of DataParameter.DB. Raises Error, without place."""
    if backend not in _BACKENDS:
        raise Error(f"backend {proto.DataParameter.DB.Name(backend)} is not supported", fix="backend: LMDB")
    name, file, opener = _BACKENDS[backend]
    if not path:
        raise Error("source is empty", fix="set source to the folder of the database, the one that holds data.mdb")
    if not os.path.exists(path):
        raise MissingPath(f"the database {path} does not exist", path, "source", "correct source, or make the database by `ocaffe convert_imageset`")
    if not os.path.isdir(path):
        inside = os.path.basename(path) in ("data.mdb", "lock.mdb")
        fix = f'source: "{os.path.dirname(path) or "."}"' if inside else "name the folder that holds data.mdb"
        raise Error(f"{path} is a file, and a database is a folder", fix=fix)
    marker = os.path.join(path, file)
    if not os.path.exists(marker):
        other = next((other for other, present, _ in _BACKENDS.values() if os.path.exists(os.path.join(path, present))), None)
        fix = f"backend: {other}" if other else "correct source: it names the folder of a database"
        raise Error(f"{path} is no {name} database: it has no file {file}" + (f" (it is one of {other})" if other else ""), fix=fix)
    if not os.path.getsize(marker):
        raise Error(f"{marker} is empty (0 bytes)", fix=COPY)
    status = os.stat(marker)
    identity = status.st_dev, status.st_ino
    with _opening:
        database = _open.get(identity)
        if database is None:
            database = _open[identity] = opener(path)
    if not database.entries:
        raise Error(f"the database {path} has no records", fix="write records to it, for example by `ocaffe convert_imageset`, or correct source")
    return database
