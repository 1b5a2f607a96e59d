"""Writing a database, LMDB or LevelDB, that appears under its name only when it is whole."""
from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any

import lmdb

from ocaffe.errors import Error

COMMIT_EVERY = 1000  # records, as Caffe's tools
FIRST_MAP = 64 << 20  # bytes; doubled whenever it is full


class Writer(ABC):
    """`with LmdbWriter(path) as out: out.put(key, value)`. Builds in `path`.tmp; `finish`, or the end of the block, gives it its name.

    If anything fails, nothing remains. What exists already is never written over. Raises Error.
    """

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/\\") or path
        self._temporary = f"{self.path}.tmp"
        self.check_absent(self.path)
        try:
            if os.path.isdir(self._temporary):  # of a run that was killed
                shutil.rmtree(self._temporary)
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
        """Make the empty database in `folder`."""

    @abstractmethod
    def _write(self, records: list[tuple[bytes, bytes]]) -> None:
        """Write them in one transaction."""

    @abstractmethod
    def _close(self, whole: bool) -> None:
        """Let go of the files; `whole`: after everything is safely on disk."""

    def _problems(self) -> tuple[type[Exception], ...]:
        """What the system and the library raise."""
        return (OSError,)

    def put(self, key: bytes, value: bytes) -> None:
        """Add a record; keys in rising order make the smallest database."""
        self._pending.append((key, value))
        self.count += 1
        if len(self._pending) >= COMMIT_EVERY:
            self._commit()

    def finish(self) -> None:
        """Write what is left and give the database its name."""
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
        return Error(f"{self.path} cannot be written: {problem}", fix="check the folder, its permissions and the space on its disk")


class LmdbWriter(Writer):
    """An LMDB whose map grows as it fills."""

    def _open(self, folder: str) -> None:
        # without a sync per commit: the whole is synced once, before it takes its name
        self._environment = lmdb.open(folder, map_size=FIRST_MAP, sync=False, metasync=False, lock=False)
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
                f"{self.path} shall be a LevelDB database, and writing those needs the package plyvel, which is not installed",
                fix="pip install 'ocaffe[leveldb]', or --backend=lmdb",
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


WRITERS: dict[str, type[Writer]] = {"lmdb": LmdbWriter, "leveldb": LevelDbWriter}  # by the names that --backend takes
OPENED = {"lmdb": "db_lmdb.cpp:35", "leveldb": "db_leveldb.cpp:18"}  # where Caffe's log says so
