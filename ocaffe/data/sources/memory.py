"""The source of a MemoryData layer: arrays that a script passes in."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe.data.source import BatchInfo, Source, check_fields
from ocaffe.data.sources.floats import FloatLayout
from ocaffe.errors import Error, Place, axis_order, shape_text
from ocaffe.ir.tensor import Shape

_SIDES = ("batch_size", "channels", "height", "width")


class MemorySource(Source):
    """Batches of consecutive rows of two arrays, starting again at the first row after the last one."""

    def __init__(self, param: Any, labels: bool, *, place: Place | None = None, layer: str | None = None) -> None:
        """`param` is the MemoryDataParameter; `labels`: the layer has a top for labels."""
        super().__init__(place, layer)
        with self.located():
            check_fields(param, {*_SIDES, "dim"}, "memory_data_param", "remove it")
            given = [name for name in _SIDES if param.HasField(name)]
            if param.dim and given:
                raise Error(f"dim is given, and {given[0]} too", fix="keep dim with the size of each axis, or batch_size, channels, height and width")
            missing = [] if param.dim else [name for name in _SIDES if not getattr(param, name)]
            if missing:
                fact = f"memory_data_param has no {' and no '.join(missing)}"
                raise Error(fact, fix=f"set {' and '.join(missing)} in memory_data_param to at least 1")
            shape = tuple(map(int, param.dim)) or tuple(int(getattr(param, name)) for name in _SIDES)
            if min(shape) < 1:
                raise Error(f"dim is {shape_text(shape)}", fix="write dim with a positive number for each axis")
        self.layout = FloatLayout([shape, (shape[0], *(1,) * (len(shape) - 1))][: 1 + labels])
        self._arrays: list[np.ndarray] = []
        self._begin = 0  # the number of the batch that starts at row 0

    def shapes(self) -> list[Shape]:
        return self.layout.shapes

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    def hand_over(self, data: Any, labels: Any, batch: int) -> None:
        """Copy new arrays. Batch number `batch` starts at their first row.

        `data`: n x channels x height x width, or n x the further dims of the OpenCL branch's `dim`. n is a multiple of the batch size.
        `labels`: n values, or None for zeros. No thread may be filling a batch during the call.
        """
        with self.located():
            size, *inner = self.shapes()[0]
            data = np.array(data, np.float32)
            if not data.ndim or list(data.shape[1:]) != inner:
                order = axis_order(data.shape[1:], inner) if data.ndim else None
                axes = "" if order is None else ", ".join(map(str, (0, *(axis + 1 for axis in order))))
                fix = f"give set_input_arrays an array of N x {shape_text(inner)}" + (f": data.transpose({axes})" if axes else "")
                raise Error(f"data is {shape_text(data.shape)}, and the layer requires n x {shape_text(inner)}", fix=fix)
            if not len(data) or len(data) % size:
                rest = f"or leave {len(data) % size} out" if len(data) > size else "or set a smaller batch_size in memory_data_param"
                fact = f"data has {len(data)} rows, not a multiple of the batch size {size}"
                raise Error(fact, fix=f"add {size - len(data) % size} rows, {rest}")
            labels = np.zeros(len(data), np.float32) if labels is None else np.array(labels, np.float32)
            if labels.size != len(data):
                fix = f"give set_input_arrays {len(data)} labels, one for each row of data"
                raise Error(f"labels has {labels.size} values, data {len(data)} rows", fix=fix)
            self._arrays = [data, labels.reshape(-1, *(1 for _ in inner))]
            self._begin = batch

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        views = self.layout.views(buffer)
        if not self._arrays:
            with self.located():
                raise Error("the layer has no data yet", fix="call net.set_input_arrays(data, labels) before net.forward()")
        size, rows = len(views[0]), len(self._arrays[0])
        row = (index - self._begin) * size % rows
        for top, (view, array) in enumerate(zip(views, self._arrays)):
            view[...] = array[row : row + size]
            wrong = self.wrong_label(top, view)
            if wrong is not None:
                with self.located():
                    raise Error(f"row {row + wrong[0]} of the arrays: {wrong[1].fact}", fix=wrong[1].fix)
        return BatchInfo(tuple(self.shapes()), self.nbytes)
