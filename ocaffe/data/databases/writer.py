"""Writes a database, LMDB or LevelDB. It gets its final name only when it is complete."""
from __future__ import annotations

import errno
import os
import re
import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any

import lmdb

from ocaffe.errors import Error
from ocaffe.support.files import final_name, remove_leftovers, temporary_name, to_write
from ocaffe.support.parsing import reason

COMMIT_EVERY = 1000  # records, as in Caffe's tools
LEAST_FREE = 1 << 20  # bytes of a disk that is not full
FIRST_MAP = 64 << 20  # bytes; doubled each time the map is full


class Writer(ABC):
    """`with LmdbWriter(path) as out: out.put(key, value)`.

    The database is built in a temporary folder beside `path`. `finish`, or the end of the `with` statement, renames it. After a failure the folder is
    removed, and those of killed processes are removed too. An existing database is never overwritten. Raises Error.
    """

    def __init__(self, path: str, commit_every: int = COMMIT_EVERY) -> None:
        """`commit_every`: records of a transaction."""
        self.path, self._commit_every = path.rstrip("/\\") or path, commit_every
        target = Path(self.path)
        self.check_absent(self.path)
        self._temporary = str(temporary_name(target))
        try:
            remove_leftovers(target.parent, re.escape(target.name))
            os.makedirs(self._temporary)
            self._open(self._temporary)
        except BaseException as problem:
            shutil.rmtree(self._temporary, ignore_errors=True)
            if isinstance(problem, self._problems()):
                raise self._refused(problem) from None
            raise
        self._pending: list[tuple[bytes, bytes]] = []
        self.count = 0

    @staticmethod
    def check_absent(path: str) -> None:
        if os.path.lexists(path):
            raise Error(f"{path} exists already", fix="remove it, or choose another folder")

    @abstractmethod
    def _open(self, folder: str) -> None:
        """Create the empty database in `folder`."""

    @abstractmethod
    def _write(self, records: list[tuple[bytes, bytes]]) -> None:
        """Write the records in one transaction."""

    @abstractmethod
    def _close(self, whole: bool) -> None:
        """Close the files. `whole`: first make sure that all data is on disk."""

    def _problems(self) -> tuple[type[Exception], ...]:
        """Return the exceptions of the system and of the library."""
        return (OSError,)

    def put(self, key: bytes, value: bytes) -> None:
        """Add a record. Keys in rising order give the smallest database."""
        self._pending.append((key, value))
        self.count += 1
        if len(self._pending) >= self._commit_every:
            self._commit()

    def attach(self, name: str, content: bytes) -> None:
        """Add a file to the folder of the database. Caffe ignores it."""
        try:
            with open(os.path.join(self._temporary, name), "xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as problem:
            raise self._refused(problem) from None

    def finish(self) -> None:
        """Write the remaining records and give the database its name."""
        self._commit()
        try:
            self._close(whole=True)
            os.rename(self._temporary, self.path)
        except self._problems() as problem:
            raise self._refused(problem) from None

    def discard(self) -> None:
        self._close(whole=False)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.finish()
        except BaseException:
            self.discard()
            raise

    def _commit(self) -> None:
        try:
            self._write(self._pending)
        except self._problems() as problem:
            raise self._refused(problem) from None
        self._pending.clear()

    def _refused(self, problem: BaseException) -> Error:
        path, fact = final_name(self.path), reason(problem)
        if isinstance(problem, OSError):
            fact = problem.strerror or fact
        else:  # the libraries have the system's words in theirs
            told = (code for code in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS) if os.strerror(code) in fact)
            problem = OSError(next(told, errno.EIO), "")
        if problem.errno == errno.EIO and shutil.disk_usage(Path(self.path).parent).free < LEAST_FREE:  # what LMDB says of a write that ends early
            problem, fact = OSError(errno.ENOSPC, ""), os.strerror(errno.ENOSPC)
        there = next(each for each in (Path(path), *Path(path).parents) if each.parent.is_dir())  # its folder gets its name later
        return Error(f"{path} cannot be written: {fact}", fix=to_write(there, problem))


class LmdbWriter(Writer):
    """An LMDB whose map grows as it fills."""

    def __init__(self, path: str, commit_every: int = COMMIT_EVERY, first_map: int = FIRST_MAP) -> None:
        """`first_map`: the size of the map at first, in bytes."""
        self._first_map = first_map
        super().__init__(path, commit_every)

    def _open(self, folder: str) -> None:
        # No sync per commit: _close syncs once, before the database gets its name.
        self._environment = lmdb.open(folder, map_size=self._first_map, sync=False, metasync=False, lock=False)
        self._last = b""  # the highest key so far

    def _problems(self) -> tuple[type[Exception], ...]:
        return OSError, lmdb.Error

    def _write(self, records: list[tuple[bytes, bytes]]) -> None:
        while True:
            try:
                last = self._last
                with self._environment.begin(write=True) as transaction:
                    for key, value in records:
                        transaction.put(key, value, append=key > last)
                        last = max(key, last)
                self._last = last
                return
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])

    def _close(self, whole: bool) -> None:
        if whole:
            self._environment.sync(True)
        self._environment.close()


class LevelDbWriter(Writer):
    """A LevelDB with Caffe's settings; needs the package plyvel."""

    def _open(self, folder: str) -> None:
        try:
            import plyvel
        except ImportError:
            raise Error(
                f"{self.path} is to be a LevelDB database, and writing it needs the package plyvel, which is not installed",
                fix="`pip install plyvel`, or add --backend=lmdb to the command, which writes an LMDB",
            ) from None
        self._error = plyvel.Error
        self._database: Any = plyvel.DB(folder, create_if_missing=True, error_if_exists=True, max_open_files=100, block_size=1 << 16, write_buffer_size=1 << 28)

    def _problems(self) -> tuple[type[Exception], ...]:
        return OSError, getattr(self, "_error", OSError)

    def _write(self, records: list[tuple[bytes, bytes]]) -> None:
        with self._database.write_batch(transaction=True, sync=True) as batch:
            for key, value in records:
                batch.put(key, value)

    def _close(self, whole: bool) -> None:
        self._database.close()


WRITERS: dict[str, type[Writer]] = {"lmdb": LmdbWriter, "leveldb": LevelDbWriter}  # by the values of --backend
OPENED = {"lmdb": "db_lmdb.cpp:35", "leveldb": "db_leveldb.cpp:18"}  # Caffe's file and line of the log line "Opened ..."
