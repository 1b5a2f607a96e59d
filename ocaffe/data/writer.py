"""Writing an LMDB that appears under its name only when it is whole."""
from __future__ import annotations

import os
import shutil
from types import TracebackType

import lmdb

from ocaffe.errors import Error

COMMIT_EVERY = 1000  # records, as Caffe's tools
FIRST_MAP = 64 << 20  # bytes; doubled whenever it is full


class LmdbWriter:
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
            # without a sync per commit: the whole is synced once, before it takes its name
            self._environment = lmdb.open(self._temporary, map_size=FIRST_MAP, sync=False, metasync=False, lock=False)
        except (OSError, lmdb.Error) as problem:
            raise self._refused(problem) from None
        self._pending: list[tuple[bytes, bytes]] = []
        self._last = b""  # the highest key so far
        self.count = 0

    @staticmethod
    def check_absent(path: str) -> None:
        if os.path.lexists(path):
            raise Error(f"{path} exists already", fix="remove it, or choose another folder")

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
            self._environment.sync(True)
            self._environment.close()
            os.rename(self._temporary, self.path)
        except (OSError, lmdb.Error) as problem:
            raise self._refused(problem) from None

    def discard(self) -> None:
        self._environment.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> LmdbWriter:
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
        while self._pending:
            try:
                with self._environment.begin(write=True) as transaction:
                    last = self._last
                    for key, value in self._pending:
                        transaction.put(key, value, append=key > last)
                        last = max(key, last)
            except lmdb.MapFullError:
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
            except (OSError, lmdb.Error) as problem:
                raise self._refused(problem) from None
            else:
                self._last = last
                self._pending.clear()

    def _refused(self, problem: Exception) -> Error:
        return Error(f"{self.path} cannot be written: {problem}", fix="check the folder, its permissions and the space on its disk")
