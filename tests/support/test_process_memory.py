"""The figures of a process, and memory that goes back to the system."""
from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from ocaffe.support.process_memory import PIECE, Taken, drop_pages, pieces, return_heaps, taken

pytestmark = pytest.mark.quick
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the figures are Linux's")


def test_figures(tmp_path: Path) -> None:
    file = tmp_path / "status"
    file.write_text("Name:\tpython\nVmHWM:\t  900 kB\nVmRSS:\t     700 kB\nRssFile:\t 30 kB\n", encoding="ascii")
    assert taken(file) == Taken(700 << 10, 900 << 10, 30 << 10)
    file.write_text("Name:\tpython\nVmHWM:\t  900 kB\n", encoding="ascii")  # as other systems write it
    assert taken(file) is None and taken(tmp_path / "absent") is None


@LINUX
def test_figures_of_this_process() -> None:
    before = taken()
    array = np.ones(64 << 20, np.uint8)
    after = taken()
    assert before is not None and after is not None
    assert array.nbytes * 0.9 < after.now - before.now < array.nbytes * 1.5 and after.peak >= after.now
    del array
    return_heaps()


def test_pieces_cover_an_array() -> None:
    for dtype, size in ((np.uint8, 3 * PIECE + 1), (np.float64, 5), (np.float32, 0)):
        found = [index for part in pieces(np.empty(size, dtype)) for index in (part.start, part.stop)]
        assert found[1:-1:2] == found[2::2] and (found[:1], found[-1:]) == (([0], [size]) if size else ([], []))


@LINUX
def test_pages_of_a_file_are_dropped(tmp_path: Path) -> None:
    size = 32 << 20
    (tmp_path / "weights").write_bytes(b"\5" * size)
    with open(tmp_path / "weights", "rb") as stream:
        data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(data, np.float32, size // 4 - 2, 8).reshape(2, -1)
    total = array.sum()
    full = taken()
    drop_pages(array)
    empty = taken()
    assert full is not None and empty is not None
    assert full.files - empty.files > 0.9 * size
    assert array.sum() == total


def test_other_memory_keeps_its_values() -> None:
    plain, anonymous = np.full(1 << 20, 7, np.uint8), np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)
    anonymous[:] = 7
    for array in (plain, anonymous, anonymous[::2], plain[:0]):
        drop_pages(array)
        assert (array == 7).all()
