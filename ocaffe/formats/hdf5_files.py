"""Reads HDF5 files. The only code of ocaffe that opens an HDF5 file for reading is the child process of `Hdf5Files` (hdf5_child.py)."""
from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ocaffe.errors import Error
from ocaffe.ir.tensor import Shape
from ocaffe.support.files import check_plain, open_plain
from ocaffe.support.interpreter import interpreter, not_started
from ocaffe.support.parsing import parsing

NO_H5PY = 77  # exit status of hdf5_child.py
CHILD = Path(__file__).with_name("hdf5_child.py")
SECONDS = 5.0
AGAIN = "copy the file again, or write it again"
_PIPE = 1 << 20  # bytes of the pipe that values come through; the system's default of 64 KiB halves the rate


class Member(NamedTuple):
    """A member of a group. `kind` is group, dataset or other; `problem` says why another one is refused, `fix` is the remedy.

    `id` is equal for links to one group.
    """

    kind: str
    shape: Shape = ()
    dtype: np.dtype[Any] = np.dtype(np.float32)
    id: str = ""
    problem: str = ""
    fix: str = ""


class Hdf5Files:
    """Reads HDF5 files in a child process: a damaged file ends the child, never this process. The child starts with the first file.

    Only values inside the file are read. Raises Error, placed at the file, if the file is damaged, or refers to other files, or if HDF5's library
    crashes or does not end.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        """A call may compute for `seconds`, and longer for a large file. Waiting for a disk does not count."""
        self._seconds = seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize | None = None

    def __enter__(self) -> Hdf5Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child. The next call starts another one."""
        if self._end is not None:
            self._end()
        self._child = self._end = None

    def members(self, path: str | Path, group: str = "/", keep: bool = False) -> dict[str, Member]:
        """Return the members of a group, in the file's order. The file stays open with `keep`."""
        answer = self._ask(path, list=group, keep=keep)
        return {
            name: Member(item["kind"], tuple(item.get("shape") or ()), _dtype(item), *(item.get(key, "") for key in ("id", "problem", "fix")))
            for name, item in answer["members"].items()
        }

    def attributes(self, path: str | Path, group: str) -> dict[str, Any]:
        """Return the attributes of a group that are text or one number."""
        return self._ask(path, attributes=group, keep=True)["attributes"]

    def read(self, path: str | Path, dataset: str, rows: slice | None = None, out: np.ndarray | None = None) -> np.ndarray:
        """Return `rows` of a dataset of numbers, or all of it, with the type that is stored. The file stays open until another one is read.

        Values of the type and shape of `out`, which is contiguous, are read into it. Then it is the result.
        """
        answer = self._ask(path, read=dataset, rows=rows and (rows.start, rows.stop))
        if "text" in answer:
            raise Error(f"dataset '{dataset}' is text, not numbers", place=str(path), fix="write it as numbers, such as float32")
        shape, dtype = tuple(answer["shape"]), np.dtype(answer["dtype"])
        fits = out is not None and out.flags.c_contiguous and (out.shape, out.dtype) == (shape, dtype)
        array = out if out is not None and fits else np.empty(shape, dtype)
        raw = array.reshape(-1).view(np.uint8)
        if "pieces" in answer:
            with open_plain(path, buffering=0) as stream:
                for offset, size in answer["pieces"]:
                    stream.seek(offset)
                    _fill(stream, raw[:size], path)
                    raw = raw[size:]
        else:
            assert self._child is not None and self._child.stdout is not None
            _fill(self._child.stdout, raw, path)
        return array

    def text(self, path: str | Path, dataset: str) -> str:
        """Return the text of a dataset of one string."""
        answer = self._ask(path, read=dataset, rows=None)
        if "text" not in answer:
            raise Error(f"dataset '{dataset}' is not text", place=str(path), fix="write it as one string")
        return answer["text"]

    def _ask(self, path: str | Path, **request: Any) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError), parsing("cannot be read", str(path), "give an HDF5 file"):
            check_plain(path)
        child = self._started()
        assert child.stdin is not None and child.stdout is not None
        line = b""
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps({"path": os.path.abspath(path), **request}).encode() + b"\n")
            child.stdin.flush()
            line = child.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._death(path)
        answer: dict[str, Any] = json.loads(line)
        if "problem" in answer:
            raise Error(answer["problem"], place=str(path), fix=answer["fix"])
        if "damage" in answer:
            raise Error(f"cannot be read as HDF5, it may be truncated: {answer['damage']}", place=str(path), fix=AGAIN)
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            command = [interpreter(), "-I", "-S", str(CHILD), json.dumps(sys.path), str(self._seconds)]
            try:
                self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            except OSError as problem:
                raise not_started("reads HDF5 files", problem) from None
            self._end = weakref.finalize(self, _stop, self._child)
            _widen(self._child.stdout)
        return self._child

    def _death(self, path: str | Path) -> Error:
        """Return the error that says how the child ended, after it ended by itself."""
        assert self._child is not None
        status = self._child.wait()
        self.close()
        if status == NO_H5PY:
            return Error("HDF5 files need the package h5py, which cannot be imported", place=str(path), fix="pip install h5py")
        how = f"the process that reads it ended with status {status}"
        if status == -getattr(signal, "SIGPROF", 0):
            how = "HDF5's library does not come to an end, so the file is damaged"
        else:
            with contextlib.suppress(ValueError):
                how = f"HDF5's library crashed ({signal.Signals(-status).name}), so the file is damaged"
        return Error(f"cannot be read as HDF5: {how}", place=str(path), fix=AGAIN)


def _dtype(item: dict[str, Any]) -> np.dtype[Any]:
    return np.dtype(item.get("dtype", "<f4"))


def _fill(stream: Any, raw: np.ndarray, path: str | Path) -> None:
    view, done = raw.data, 0
    while done < len(view):
        count = stream.readinto(view[done:])
        if not count:
            raise Error(f"ends {len(view) - done:,} bytes before the end of its values: it is truncated", place=str(path), fix=AGAIN)
        done += count


def _widen(stream: Any) -> None:
    """Make the pipe larger. Only Linux can, and only up to the system's limit."""
    if sys.platform in ("linux", "android"):
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)


def _stop(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    with contextlib.suppress(OSError):  # unsent data is lost
        child.__exit__(None, None, None)
