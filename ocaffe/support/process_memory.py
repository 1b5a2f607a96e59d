"""Memory of this process: what the system says it takes, and ways to return what is no longer used.

Linux tells the figures in /proc/self/status (proc(5)). glibc keeps freed heaps until `malloc_trim` (malloc_trim(3)). Elsewhere these functions do nothing.
"""
from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PIECE = 1 << 20  # bytes of an array that are copied or checked at a time
_STATUS = Path("/proc/self/status")


class Taken(NamedTuple):
    """Bytes of this process in the machine's memory. `peak` is the largest number so far, `files` the part of `now` that is pages of files."""

    now: int
    peak: int
    files: int


def taken(file: Path = _STATUS) -> Taken | None:
    """Return VmRSS, VmHWM and RssFile from a file as proc(5) describes /proc/self/status. None: the system does not say."""
    try:
        words = dict(line.split(":", 1) for line in file.read_text(encoding="ascii", errors="replace").splitlines() if ":" in line)
        return Taken(*(int(words[name].split()[0]) << 10 for name in ("VmRSS", "VmHWM", "RssFile")))
    except (OSError, ValueError, KeyError, IndexError):
        return None


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None) if sys.platform == "linux" else None


def return_heaps() -> None:
    """Return freed heaps to the system. This takes milliseconds; call it after a phase that used more memory than the next one will."""
    with suppress(OSError, AttributeError):  # musl has no malloc_trim
        _libc().malloc_trim(0)


def drop_pages(array: np.ndarray) -> None:
    """Let the system forget the pages of a file that `array` is a view of. The next access reads them again.

    Does nothing for an array that is no view of a mapped file, since its values exist nowhere else.
    """
    file = _mapped_file(array)
    if file is None or not array.nbytes or not hasattr(mmap, "MADV_DONTNEED"):
        return
    first = array.ctypes.data - np.frombuffer(file, np.uint8).ctypes.data
    start = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (first + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if start < stop:
        with suppress(OSError):
            file.madvise(mmap.MADV_DONTNEED, start, stop - start)


def _mapped_file(array: np.ndarray) -> mmap.mmap | None:
    """Return the file, mapped for reading alone, that holds the values of a contiguous array. None: memory of another kind."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if not base.flags.c_contiguous:
            return None
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    return base if isinstance(base, mmap.mmap) and memoryview(base).readonly else None


def pieces(array: np.ndarray) -> Iterator[slice]:
    """Yield the ranges of the flat array, of PIECE bytes each."""
    step = max(1, PIECE // max(array.itemsize, 1))
    for start in range(0, array.size, step):
        yield slice(start, min(start + step, array.size))
