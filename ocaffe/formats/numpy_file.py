"""Reads arrays of numbers in .npy and .npz files of others. Nothing is unpickled, and sizes are compared with the file before memory is taken."""
from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from ocaffe.errors import Error
from ocaffe.support.files import open_plain
from ocaffe.support.kinds import NPY, NPZ
from ocaffe.support.parsing import parsing

KINDS = "biuf"  # of numpy's types: truth values, integers, floats
MOST_ARRAYS = 1000  # of an .npz file
FREE, RATIO = 256 << 20, 50  # bytes of arrays, and times the bytes of the file, which an .npz may unpack to
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npy(path: str | Path, fix: str) -> np.ndarray:
    """Return the array in an .npy file. Raise Error; `fix` is the remedy for a file of another kind."""
    with parsing("cannot be read as .npy", str(path), fix, own=NPY), open_plain(path) as stream:
        return _array(stream, os.fstat(stream.fileno()).st_size, str(path), fix)


def read_npz(path: str | Path, fix: str) -> dict[str, np.ndarray]:
    """Return the arrays in an .npz file by name. Raise Error; `fix` is the remedy for a file of another kind."""
    with parsing("cannot be read as an .npz of arrays", str(path), fix, own=NPZ), open_plain(path) as stream, zipfile.ZipFile(stream) as archive:
        size, members = os.fstat(stream.fileno()).st_size, archive.infolist()
        whole = sum(member.file_size for member in members)
        if len(members) > MOST_ARRAYS:
            raise ValueError(f"it has {len(members):,} arrays, and the limit is {MOST_ARRAYS:,}")
        if whole > max(FREE, RATIO * size):
            raise ValueError(f"its {size:,} bytes unpack to {whole:,}, and the limit is {max(FREE, RATIO * size):,}")
        found = {}
        for member in members:
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"'{member.filename}' is compressed by another method than numpy's")
            with archive.open(member) as part:
                found[member.filename.removesuffix(".npy")] = _array(part, member.file_size, str(path), fix)
        return found


def _array(stream: IO[bytes], size: int, place: str, fix: str) -> np.ndarray:
    """Return the array of a stream of `size` bytes."""
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"it has version {version[0]}.{version[1]} of the format, which arrays of numbers do not need")
    try:
        shape, by_columns, dtype = _HEADERS[version](stream)
    except (MemoryError, RecursionError):  # of Python's parser, for thousands of signs or brackets; numpy limits the header to 10,000 bytes
        raise ValueError("its header is nested too deep") from None
    if dtype.kind not in KINDS:
        fact = "cannot be read as .npy: it holds " + ("objects of Python" if dtype.hasobject else str(dtype))
        raise Error(f"{fact}, not numbers", place=place, fix="write it by np.save(..., array.astype(np.float32))" if not dtype.hasobject else fix)
    needed, there = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if min(shape, default=0) < 0 or needed > there:
        raise ValueError(f"its header says {' x '.join(map(str, shape))} values, {needed:,} bytes, and {there:,} bytes follow")
    array = np.empty(math.prod(shape), dtype)
    memory = memoryview(array.view(np.uint8).data)
    while memory:
        count = stream.readinto(memory)  # type: ignore[attr-defined]
        if not count:
            raise EOFError(f"it ends {len(memory):,} bytes too early")
        memory = memory[count:]
    return array.reshape(shape, order="F" if by_columns else "C")
