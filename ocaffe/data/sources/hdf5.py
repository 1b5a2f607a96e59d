"""The source of an HDF5Data layer: the rows of a list of HDF5 files, file after file, starting again at the end."""
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.data.source import FILES, RECORDS, BatchInfo, Source, permutation
from ocaffe.data.sources.floats import FloatLayout
from ocaffe.errors import Error, Place, shape_text
from ocaffe.formats.hdf5_files import Hdf5Files, Member
from ocaffe.formats.nearby import MissingPath, elsewhere
from ocaffe.ir.tensor import Shape
from ocaffe.shown import command, literal, path_word
from ocaffe.support.files import text_lines
from ocaffe.support.here import here
from ocaffe.support.kinds import HDF5, WrongKind

_UNCHANGED = "start again, and do not change the files while they are read"
_SIGNATURE = "\udc89HDF"  # the first bytes of an HDF5 file, read as text


class Hdf5Source(Source):
    """Batches of the datasets `names`, row by row. With `shuffle`, each epoch has a random order of the files and of the rows in each file.

    One file is open at a time. Without `shuffle` rows are read as they are needed. With it a whole file is read at once, as in Caffe.
    """

    def __init__(self, param: Any, names: Sequence[str], *, place: Place | None = None, layer: str | None = None) -> None:
        """`param` is the HDF5DataParameter; `names` are the tops."""
        super().__init__(place, layer)
        with self.located():
            if not param.batch_size:
                raise Error(f"batch_size is {'0' if param.HasField('batch_size') else 'missing'}", fix="set batch_size in hdf5_data_param to at least 1")
            self.names = list(names)
            self.shuffle = bool(param.shuffle)
            self.files = _listed(param.source)
            self._hdf5 = Hdf5Files()
            self._file = _File(self._hdf5, self.files[0], self.names)
            inner = self._file.inner
            self._rows = [self._file.rows, *(self._measure(path, inner) for path in self.files[1:])]
            self._layout = FloatLayout([(int(param.batch_size), *shape) for shape in inner])
            self._orders: dict[tuple[int, int], np.ndarray] = {}
        self.notes = (
            ("hdf5_data_layer.cpp:91", f"Loading list of HDF5 filenames from: {param.source}"),
            ("hdf5_data_layer.cpp:106", f"Number of HDF5 files: {len(self.files)}"),
        )

    def _measure(self, path: str, inner: list[Shape]) -> int:
        """Return the number of rows of a file. Raise Error if the shapes of its rows differ from the first file's."""
        file = _File(self._hdf5, path, self.names)
        for name, first, shape in zip(self.names, inner, file.inner):
            if shape != first:
                raise Error(
                    f"rows of dataset '{name}' are {shape_text(shape)} in {path}, {shape_text(first)} in {self.files[0]}",
                    fix=f"write rows of {shape_text(first)} to '{name}' in {path}, or remove the file from the source list",
                )
        file.close()
        return file.rows

    @property
    def layout(self) -> FloatLayout:
        return self._layout

    def shapes(self) -> list[Shape]:
        return self._layout.shapes

    @property
    def nbytes(self) -> int:
        return self._layout.nbytes

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        views = self._layout.views(buffer)
        batch = len(views[0])
        done, positions = 0, self.share.positions(index, batch)
        step = positions.step
        with self.located():
            while done < batch:
                epoch, file, row = self._locate(positions[done])
                count = min(batch - done, -(-(self._rows[file] - row) // step))
                rows = slice(row, row + (count - 1) * step + 1, step)
                self._read(epoch, file, rows, [view[done : done + count] for view in views])
                done += count
        return BatchInfo(tuple(self.shapes()), self.nbytes)

    def _locate(self, position: int) -> tuple[int, int, int]:
        """Return the epoch, the number of the file and the row in it at `position` of the endless sequence of rows."""
        epoch, row = divmod(position, sum(self._rows))
        order = self._order(FILES, epoch, 0, len(self.files)) if self.shuffle else range(len(self.files))
        for file in order:
            if row < self._rows[file]:
                return epoch, int(file), row
            row -= self._rows[file]
        raise AssertionError("the rows of an epoch are those of its files")

    def _read(self, epoch: int, number: int, rows: slice, targets: list[np.ndarray]) -> None:
        path = self.files[number]
        if self._file.path != path:
            self._file.close()
            self._file = _File(self._hdf5, path, self.names)
            if self._file.rows != self._rows[number]:
                fact = f"{path} had {self._rows[number]} rows, and now it has {self._file.rows}"
                raise Error(fact, fix=_UNCHANGED)
        order: Sequence[int] | np.ndarray = range(rows.start, rows.stop, rows.step)
        if self.shuffle:
            order = self._order(RECORDS, epoch, number, self._rows[number])[rows]
            for target, values in zip(targets, self._file.loaded()):
                np.take(values, order, axis=0, out=target)
        elif rows.step == 1:
            self._file.read(rows, targets)
        else:  # HDF5 reads rows with gaps one by one, which takes longer than reading those between them too
            between = [np.empty((rows.stop - rows.start, *target.shape[1:]), np.float32) for target in targets]
            self._file.read(slice(rows.start, rows.stop), between)
            for target, values in zip(targets, between):
                target[...] = values[:: rows.step]
        for top, (name, target) in enumerate(zip(self.names, targets)):
            wrong = self.wrong_label(top, target)
            if wrong is not None:
                row = order[wrong[0] * len(target) // target.size]
                raise Error(f"{path}, row {row} of dataset '{name}': {wrong[1].fact}", fix=wrong[1].fix)

    def _order(self, stream: int, epoch: int, file: int, count: int) -> np.ndarray:
        """Return the order of the rows of a file, or of the files, in an epoch. The last order of each kind is cached."""
        key = (stream, epoch << 32 | file)
        if key not in self._orders:
            self._orders = {old: order for old, order in self._orders.items() if old[0] != stream}
            self._orders[key] = permutation(self.key, *key, count)
        return self._orders[key]

    def close(self) -> None:
        self._file.close()
        self._hdf5.close()


class _File:
    """An HDF5 file. Its datasets have `rows` rows of the shapes `inner`."""

    def __init__(self, files: Hdf5Files, path: str, names: Sequence[str]) -> None:
        self.path, self.names = path, names
        self._files = files
        if not os.path.exists(path):
            raise Error(f"the HDF5 file {path} does not exist any more", fix="put it back, start again, and do not remove files while they are read")
        found = [self._dataset(name) for name in names]
        self._values: list[np.ndarray] | None = None
        counts = {name: data.shape[0] for name, data in zip(names, found)}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"'{name}' {count}" for name, count in counts.items())
            raise Error(f"the datasets of {path} differ in their number of rows: {listed}", fix="write as many rows to each of them, one for each sample")
        self.rows = int(next(iter(counts.values())))
        if not self.rows:
            raise Error(f"the datasets of {path} have no rows", fix="write rows to it, or remove its line from the source list")
        self.inner: list[Shape] = [data.shape[1:] for data in found]

    def _dataset(self, name: str) -> Member:
        folder, _, leaf = name.rpartition("/")
        members = self._files.members(self.path, folder)
        data = members.get(leaf)
        if data is not None and data.problem:
            raise Error(data.problem, place=self.path, fix=data.fix)
        if data is None or data.kind != "dataset":
            present = ", ".join(f"'{key}'" for key in members)
            fix = f"name the top like one of these, or write a dataset '{name}' to the file" if present else f"write a dataset '{name}' to the file"
            raise Error(f"{self.path} has no dataset '{name}' for the top of that name; it has {present or 'none'}", fix=fix)
        if data.dtype.kind not in "fiu":
            raise Error(f"dataset '{name}' of {self.path} is of type {data.dtype}, not of numbers", fix="write it as numbers, such as float32")
        if not data.shape:
            fix = "write it as an array whose first axis counts the samples, for example of shape (1,)"
            raise Error(f"dataset '{name}' of {self.path} is a scalar, and has no rows", fix=fix)
        return data

    def read(self, rows: slice, targets: list[np.ndarray]) -> None:
        """Write `rows` of every dataset to `targets`, converted to float."""
        for name, target in zip(self.names, targets):
            values = self._files.read(self.path, name, rows, target)
            if values.shape != target.shape:
                raise Error(f"dataset '{name}' of {self.path} has another shape now", fix=_UNCHANGED)
            if values is not target:
                target[...] = values

    def loaded(self) -> list[np.ndarray]:
        """Return all rows of every dataset as float."""
        if self._values is None:
            values = [np.empty((self.rows, *shape), np.float32) for shape in self.inner]
            self.read(slice(0, self.rows), values)
            self._values = values
        return self._values

    def close(self) -> None:
        self._values = None


def _itself(source: str) -> str:
    """Return the remedy if source names the HDF5 file itself."""
    made = f"{os.path.splitext(source)[0]}.txt"
    return f"{command('echo', path_word(source))} > {command(made)}, and source: {literal(made)} in hdf5_data_param"


def _listed(source: str) -> list[str]:
    """Return the files named in the text file `source`. Names are separated by white space, as in Caffe."""
    fix = "source names a text file with one HDF5 file per line"
    try:
        text = "".join(text_lines(source))
    except OSError as problem:
        if isinstance(problem, WrongKind) and problem.kind.name == HDF5:
            raise Error(f"the source list {source} is itself an HDF5 file", fix=_itself(source)) from None
        raise MissingPath(f"the source list '{source}' cannot be read: {problem.strerror}", source, "source", fix) from None
    files = text.split()
    if not files:
        raise Error(f"the source list {source} names no file", fix="write the name of an HDF5 file into each of its lines")
    missing = next((path for path in files if not os.path.exists(path)), None)
    if missing is not None:
        found = elsewhere(missing, source)
        fix = f"correct its name in the list (relative to {here()})"
        if found is not None:
            fix = f"write {found.path} into the list" + (f", or run in {found.folder}, to which '{missing}' is relative" if found.folder else "")
        raise Error(f"the HDF5 file {missing} of the list {source} does not exist", fix=fix)
    return files
