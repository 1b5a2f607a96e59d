"""Reads dumps: an .npz file, or a folder with a file for each value. They are files of others, so their sizes are compared with the net's first."""
from __future__ import annotations

import array
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ocaffe.errors import Error, Place, shape_text
from ocaffe.formats.numpy_file import read_npy, read_npz
from ocaffe.ir.tensor import Shape
from ocaffe.support.files import check_folder, open_plain, text_lines
from ocaffe.support.here import here
from ocaffe.support.inside import check_below
from ocaffe.support.parsing import parsing

TYPES = {
    ".f32": "<f4", ".float": "<f4", ".float32": "<f4", ".f16": "<f2", ".half": "<f2", ".float16": "<f2",
    ".i8": "<i1", ".s8": "<i1", ".int8": "<i1", ".u8": "<u1", ".uint8": "<u1",
}  # fmt: skip
BY_SIZE = {4: "<f4", 2: "<f2", 1: "<i1"}  # bytes of a value -> its type in files without a type in their name
BINARY, TEXTS = (".bin", ".raw", ".dat"), (".txt", ".csv", ".text")
SCALE, ZERO = "_scale", "_zero_point"  # endings of the names of a value's scale and zero point in an .npz
MOST_FILES, MOST_LINES = 10_000, 100_000
FREE, VALUE_BYTES = 64 << 20, 16  # bytes of an .npy file, and for each value
TEXT_BYTES = 64  # of a number with the signs before the next one
KINDS = "an .npz file, or a folder with a file for each value: .npy, .txt, .csv, .f32, .f16, .i8, .u8 or .bin"


class Entry(NamedTuple):
    """A value of a dump. `place` is its file, or the file and the name in it. Numbers in text have the digits that were printed."""

    values: np.ndarray
    place: str
    text: bool = False


class Scale(NamedTuple):
    """The number for an integer is (integer - zero) * scale. Both fields have one value, or one for each channel."""

    scale: np.ndarray
    zero: np.ndarray


class Dump:
    """The values of a dump by name. `path` is an .npz file or a folder; `scales` come first, before those in the .npz. Raises Error."""

    def __init__(self, path: str, scales: Mapping[str, Scale] | None = None) -> None:
        self.path, self._scales = path, dict(scales or {})
        self._arrays: dict[str, np.ndarray] = {}
        self._files: dict[str, Path] = {}
        if os.path.isdir(path):
            self._files = _files(path)
        elif not os.path.lexists(path):
            raise Error(f"the dump {path} does not exist", place="--dump", fix=f"correct the path (relative to {here()}); give {KINDS}")
        else:
            self._arrays = read_npz(path, f"give {KINDS}")
            for name in [each.removesuffix(SCALE) for each in self._arrays if each.endswith(SCALE)]:
                if name in self._arrays and self._has_scale(name):
                    self._scale_of(name)
            if not self._arrays:
                raise Error("the dump has no arrays", place=path, fix="write it again, with an array for each value of the net")
        for name in self._scales:
            if name not in self:
                raise Error(f"the scales name '{name}', which the dump {path} does not have", fix=f"names in the dump are {listed(self.names)}")

    def _has_scale(self, name: str) -> bool:
        """Whether NAME_scale is the scale of integers. It may also be the value of a layer: many nets call Scale layers so."""
        scale = self._arrays[name + SCALE]
        return self._arrays[name].dtype.kind in "iu" and scale.dtype.kind == "f" and scale.ndim < 2

    def _scale_of(self, name: str) -> None:
        """Take the scale and the zero point of a value out of the arrays."""
        scale, zero = self._arrays.pop(name + SCALE), self._arrays.pop(name + ZERO, np.zeros(1))
        self._scales.setdefault(name, checked(scale, zero, f"{self.path}: '{name}{SCALE}'"))

    @property
    def names(self) -> list[str]:
        return list(self._arrays or dict.fromkeys(path.name for path in self._files.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._arrays or name in self._files

    def find(self, name: str) -> str:
        """Return `name`, or the name of a file that stands for it because names of files have no '/', or ''."""
        return next((each for each in (name, re.sub(r"[^\w.-]", "_", name)) if each in self), "")

    def scale(self, name: str) -> Scale | None:
        same = [each for each, path in self._files.items() if path == self._files.get(name)] or [name]
        return next((self._scales[each] for each in same if each in self._scales), None)

    def read(self, name: str, count: int) -> Entry:
        """Return the value `name`, for a blob of `count` values. A file of another size gives an array of the size that it has. Raises Error."""
        if name in self._arrays:
            return Entry(self._arrays[name], f"{self.path}: '{name}'")
        path = self._files[name]
        check_below(self.path, str(path))
        suffix = path.suffix.lower()
        if suffix == ".npy":
            size, most = os.path.getsize(path), max(FREE, VALUE_BYTES * count)
            if size > most:
                fact = f"it has {size:,} bytes, and {count:,} numbers take at most {most:,}"
                raise Error(f"cannot be read: {fact}", place=str(path), fix="give the dump of this net, with the batch of the input")
            return Entry(read_npy(path, "write it by numpy.save"), str(path))
        if suffix in TEXTS:
            return Entry(_numbers(path, count), str(path), text=True)
        with parsing("cannot be read", str(path), f"give {KINDS}"), open_plain(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            each = size // count if count and size % count == 0 else 0
            dtype = np.dtype(TYPES.get(suffix) or BY_SIZE.get(each, "<i1"))
            if size != dtype.itemsize * count:
                return Entry(np.broadcast_to(dtype.type(0), (size // dtype.itemsize,)), str(path))  # only its size is told
            return Entry(np.frombuffer(stream.read(size), dtype), str(path))


def _files(folder: str) -> dict[str, Path]:
    """Return the files of a folder by their names, with and without the ending that says their type."""
    check_folder(folder)
    with parsing("cannot be read", folder, "give a folder that you may read"), os.scandir(folder) as entries:
        found: list[Path] = []
        for entry in entries:
            if not entry.is_dir():
                found.append(Path(entry.path))
            if len(found) > MOST_FILES:
                raise ValueError(f"it has more than {MOST_FILES:,} files")
    names = {path.name: path for path in sorted(found)}
    shorter: dict[str, Path] = {}
    for path in sorted(found):
        if path.suffix.lower() not in (*TYPES, *BINARY, *TEXTS, ".npy"):
            continue
        if path.stem in shorter:
            fact = f"{shorter[path.stem].name} and {path.name} are two files for '{path.stem}'"
            raise Error(fact, place=folder, fix=f"remove one of them, or name one in --map: {path.stem} {path.name}")
        shorter[path.stem] = path
    if not names:
        raise Error("the folder has no files", place=folder, fix=f"give {KINDS}")
    return shorter | names


def _numbers(path: Path, count: int) -> np.ndarray:
    """Return the numbers in a text, which are separated by spaces, commas, semicolons or lines. Lines after # are comments."""
    numbers = array.array("d")
    with parsing("cannot be read as numbers", str(path), "write numbers, separated by spaces, commas or lines"):
        size, most = os.stat(path).st_size, TEXT_BYTES * count + 4096
        if size > most:
            raise ValueError(f"it has {size:,} bytes, and {count:,} numbers take at most {most:,}")
        for line, text in enumerate(text_lines(path), 1):
            for word in re.split(r"[\s,;]+", text.partition("#")[0].strip(" \t\r\n,;")):
                try:
                    numbers.extend([float(word)] if word else [])
                except ValueError:
                    fact = f"'{word[:40]}' is not a number"
                    raise Error(fact, place=Place(str(path), line), fix="write numbers, separated by spaces, commas or lines") from None
    return np.frombuffer(numbers, np.float64) if numbers else np.zeros(0)


def checked(scale: np.ndarray, zero: np.ndarray, place: Place | str) -> Scale:
    """Return a Scale. Raise Error for one that makes no numbers."""
    scale, zero = np.asarray(scale, np.float64).reshape(-1), np.asarray(zero, np.float64).reshape(-1)
    if not scale.size or not (np.isfinite(scale) & (scale > 0)).all() or not np.isfinite(zero).all():
        wrong = next((value for value in scale if not 0 < value < math.inf), None)
        fact = f"the scale {wrong:g} is not a finite number above 0" if wrong is not None else "the scale or the zero point has no finite values"
        raise Error(fact, place=place, fix="give the number that one step of the integer stands for")
    if zero.size not in (1, scale.size):
        raise Error(f"there are {scale.size} scales and {zero.size} zero points", place=place, fix=f"give one zero point, or {scale.size}")
    return Scale(scale, zero)


def read_map(path: str) -> dict[str, tuple[str, Place]]:
    """Return the name in the dump for each blob or layer, and the line: a file of lines 'BLOB NAME'. Raises Error."""
    found: dict[str, tuple[str, Place]] = {}
    for place, words in _lines(path, "BLOB NAME-IN-DUMP"):
        if len(words) != 2:
            raise Error(f"the line has {len(words)} words, and 2 are expected", place=place, fix="write the name of a blob, a space, and its name in the dump")
        if words[0] in found:
            raise Error(f"'{words[0]}' is given twice, first in line {found[words[0]][1].line}", place=place, fix="remove one of the lines")
        found[words[0]] = words[1], place
    return found


def read_scales(path: str) -> dict[str, Scale]:
    """Return the scales by name in the dump: a file of lines 'NAME SCALE' or 'NAME SCALE ZERO_POINT'. Raises Error."""
    found: dict[str, Scale] = {}
    for place, words in _lines(path, "NAME SCALE"):
        try:
            numbers = [float(word) for word in words[1:]]
        except ValueError:
            numbers = []
        if len(numbers) not in (1, 2):
            raise Error("the line is not a name, a scale, and no or one zero point", place=place, fix=f"{words[0]} 0.05, or {words[0]} 0.05 128")
        if words[0] in found:
            raise Error(f"'{words[0]}' is given twice", place=place, fix="remove one of the lines")
        found[words[0]] = checked(np.array(numbers[:1]), np.array(numbers[1:] or [0.0]), place)
    return found


def _lines(path: str, form: str) -> Iterator[tuple[Place, list[str]]]:
    """Yield the words of each line that is not empty or a comment."""
    with parsing("cannot be read", path, f"write lines of the form {form}"):
        for number, text in enumerate(text_lines(path), 1):
            if number > MOST_LINES:
                raise ValueError(f"it has more than {MOST_LINES:,} lines")
            words = text.partition("#")[0].split()
            if words:
                yield Place(path, number), words


def numbers_of(entry: Entry, scale: Scale | None, shape: Shape) -> tuple[np.ndarray | None, str]:
    """Return the values as floats in the order of a blob of `shape`, and a note if their axes were moved. None: they have other sizes.

    Integers are multiplied by their scale. One that has a value for each channel follows axis 1 of the blob.
    """
    values, note = _ordered(entry.values, shape)
    if values is None or scale is None or values.dtype.kind not in "iu":
        return values, note
    parts = []
    for part in scale:
        if part.size not in (1, shape[1] if len(shape) > 1 else 1):
            fact = f"there are {part.size} scales for a blob of {shape_text(shape)}"
            raise Error(fact, place=entry.place, fix="give one scale, or one for each channel")
        parts.append(part.reshape(-1, *[1] * (len(shape) - 2)) if part.size > 1 else part)
    return (values.astype(np.float64) - parts[1]) * parts[0], note


def _ordered(values: np.ndarray, shape: Shape) -> tuple[np.ndarray | None, str]:
    """Return the values in a blob's shape, if it merges or splits axes of theirs or has its channels last, else None."""
    if values.size != math.prod(shape):
        return None, ""
    mine, other = _steps(values.shape), _steps(shape)
    if mine <= other or other <= mine:
        return values.reshape(shape), ""
    if len(shape) == 4 and values.ndim in (3, 4) and (1, *values.shape)[-4:] == (shape[0], shape[2], shape[3], shape[1]):
        return values.reshape(shape[0], shape[2], shape[3], shape[1]).transpose(0, 3, 1, 2), "channels last"
    return None, ""


def _steps(shape: Sequence[int]) -> set[int]:
    """Return the numbers of values in the first 1, 2, .. axes. A shape that merges axes of another one has a part of its numbers."""
    return {math.prod(shape[: axis + 1]) for axis in range(len(shape))} - {1}


def listed(names: Sequence[str], most: int = 6) -> str:
    """Return the first names, for an error."""
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)
