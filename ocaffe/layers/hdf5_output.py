"""HDF5Output: write data and labels to a file."""
from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.errors import Error, shape_text
from ocaffe.ir.graph import Blob
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Shape
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.layers.base import Layer, register
from ocaffe.shown import command, path_word
from ocaffe.support.files import atomic_write, to_write

NAMES = ("data", "label")  # names of the datasets
AXES = 4  # of each dataset; missing trailing axes of a bottom have size 1
SPARE = 1 << 20  # bytes: HDF5's metadata, and a reserve for other programs


@register("HDF5Output")
class HDF5Output(Layer):
    """Writes its two bottoms to the datasets `data` and `label` of an HDF5 file; every forward pass appends its rows.

    Caffe's layer fails in the second forward pass. The first forward pass replaces an existing file atomically. The device waits during the write.
    """

    bottoms, tops = 2, 0
    _rows = 0  # number of rows written so far

    def infer(self, *bottoms: Shape) -> Sequence[Shape]:
        self.path = self.own().file_name
        self.check(self.path, "file_name is missing", 'name the file to write: hdf5_output_param { file_name: "out.h5" }')
        data, label = bottoms
        for i, bottom in enumerate(bottoms):
            fix = f"add a Flatten layer before bottom {i}" if bottom else f"give bottom {i} a batch axis"
            self.check(0 < len(bottom) <= AXES, f"bottom {i} is {shape_text(bottom)}, HDF5Output takes 1 to {AXES} axes", fix)
        self.check(data[0] == label[0], f"bottom 0 has {data[0]} rows, bottom 1 has {label[0]}", "give both bottoms the same batch size")
        return []

    def forward(self, rec: Recorder, bottoms: list[Blob], tops: list[Blob]) -> None:
        refs = [bottom.data for bottom in bottoms]

        def run(commands: Any) -> None:
            if self.repeats:
                return  # the rows are in the file
            self.write([commands.read(ref).reshape(ref.shape + (1,) * (AXES - len(ref.shape))) for ref in refs])

        rec.host(run, reads=refs, what="HDF5Output")

    def backward(self, rec: Recorder, tops: list[Blob], bottoms: list[Blob], propagate: list[bool]) -> None:
        for bottom, wanted in zip(bottoms, propagate):
            if wanted:
                assert bottom.diff is not None
                pointwise(rec, "y0 = 0", writes=[bottom.diff])

    def write(self, arrays: Sequence[np.ndarray]) -> None:
        """Append rows to the file. Raises Error without changing the file if the disk has no room for them."""
        import h5py  # slow to import, and only this layer uses it

        try:
            if self._rows:
                self._check_room(sum(array.nbytes for array in arrays))
                with h5py.File(self.path, "r+") as file:
                    self._append(file, arrays)
            else:
                with atomic_write(self.path) as out, h5py.File(out.name, "w") as file:
                    for name, array in zip(NAMES, arrays):
                        file.create_dataset(name, data=array, maxshape=(None, *array.shape[1:]), chunks=array.shape)
        except Error:
            raise
        except (OSError, RuntimeError) as problem:  # h5py raises either for a failed write
            raise self.error(
                f"{self.path} cannot be written; HDF5 says: {problem}",
                self._remedy(problem),
            ) from None
        self._rows += len(arrays[0])

    def _check_room(self, size: int) -> None:
        free = shutil.disk_usage(os.path.dirname(os.path.abspath(self.path))).free
        self.check(free >= size + SPARE, f"{self.path} needs {size + SPARE:,} bytes more, and {free:,} are free", "free some space, or write to another disk")

    def _remedy(self, problem: Exception) -> str:
        """Return the remedy if HDF5 does not write: who has the file open, else what the system needs."""
        if _open_here(self.path):
            return f"close the file in this script before forward: file.close(), or `with h5py.File({self.path!r}) as file:`"
        if "already open" in str(problem) or "lock" in str(problem):
            return f"close it in the program that has it open: {command('fuser', path_word(self.path))} shows its number"
        return to_write(self.path, OSError(getattr(problem, "errno", None) or errno.EIO, ""), "write another file_name in hdf5_output_param")

    def _append(self, file: Any, arrays: Sequence[np.ndarray]) -> None:
        for name, bottom, array in zip(NAMES, self.param.bottom, arrays):
            inner = file[name].shape[1:]
            self.check(
                inner == array.shape[1:],
                f"a sample of bottom '{bottom}' is {shape_text(array.shape[1:])}, and those in dataset '{name}' of {self.path} are {shape_text(inner)}",
                "give the net images of one size, or make a net with another file_name for each size",
            )
        for name, array in zip(NAMES, arrays):
            file[name].resize(self._rows + len(array), axis=0)
            file[name][self._rows :] = array


def _open_here(path: str) -> bool:
    """Whether this process has the file open by h5py."""
    from h5py import h5f

    for each in h5f.get_obj_ids(h5f.OBJ_ALL, h5f.OBJ_FILE):
        with contextlib.suppress(OSError):
            if os.path.samefile(h5f.get_name(each), path):
                return True
    return False
