"""The source of FlowNet 2's DisparityData layer: .pfm files of a list, with their labels."""
from __future__ import annotations

from typing import Any

import numpy as np

from ocaffe.data.order import Order
from ocaffe.data.source import BatchInfo, Source, check_fields
from ocaffe.data.sources.file_images import new_size
from ocaffe.data.sources.floats import FloatLayout
from ocaffe.data.stores.text_list import Line, Listing
from ocaffe.errors import Error, Place, shape_text
from ocaffe.formats.flow_files import read_pfm
from ocaffe.ir.tensor import Shape
from ocaffe.support.whole import signed

_FIELDS = {"source", "batch_size", "rand_skip", "shuffle", "new_height", "new_width", "is_color", "root_folder"}


class DisparitySource(Source):
    """Batches of disparities, N x 1 or 3 x H x W, and of labels. All files have one size."""

    def __init__(self, param: Any, *, place: Place | None = None, layer: str | None = None) -> None:
        """`param` is the ImageDataParameter."""
        super().__init__(place, layer)
        with self.located():
            check_fields(param, _FIELDS, "image_data_param", "remove it: DisparityData ignores it")
            if not param.batch_size:
                raise Error(f"batch_size is {'0' if param.HasField('batch_size') else 'missing'}", fix="set batch_size in image_data_param to at least 1")
            self._list = Listing(param.source, "the name of a .pfm file and its label")
            self._files = [self._entry(line, param.root_folder) for line in self._list.lines]
            self._channels, self._size = 3 if param.is_color else 1, new_size(param)
            self._order = Order(len(self._files), bool(param.shuffle), int(param.rand_skip))
            self._first = self._values(0).shape
            self.layout = FloatLayout([(int(param.batch_size), *self._first), (int(param.batch_size),)])
        size = ",".join(map(str, self.layout.shapes[0]))
        self.notes = (("disparity_data_layer.cpp:101", f"A total of {len(self._files)} images."),
                      ("disparity_data_layer.cpp:131", f"output data size: {size}"))  # fmt: skip

    def _entry(self, line: Line, root: str) -> tuple[str, int]:
        """Return the file and the label of a line. As in the fork, the last blank is between them."""
        name, _, label = line.text.rpartition(" ")
        number = signed(label)
        if not name or number is None:
            fact = f"{self._list.source}, line {line.number}: '{line.text}' does not end in a blank and a whole number"
            raise Error(fact, fix="write the name of a .pfm file and its label, a whole number, into each line")
        return root + name, number

    def _values(self, record: int) -> np.ndarray:
        """Return the disparities of a record. Raise Error without a place."""
        name = self._files[record][0]
        try:
            values = read_pfm(name)
            if len(values) != self._channels:
                kind = "true: the files have colors (PF)" if len(values) == 3 else "false: the files have no colors (Pf)"
                fix = f"set is_color: {kind}"
                raise Error(f"{name} has {len(values)} channels, the layer {self._channels}", fix=fix)
            if self._size is not None and values.shape[1:] != self._size:
                fact = f"{name} is {shape_text(values.shape[1:])}, new_height and new_width {shape_text(self._size)}"
                raise Error(fact, fix="set new_height and new_width to the size of the files, or remove both")
            return values
        except Error as problem:
            raise Error(f"{self._list.source}, line {self._list.lines[record].number}: {problem.fact}", fix=problem.fix) from None

    def shapes(self) -> list[Shape]:
        return self.layout.shapes

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        images, labels = self.layout.views(buffer)
        with self.located():
            for n, record in enumerate(self._order.records(self.key, self.share.positions(index, len(images)))):
                values = self._values(record)
                if values.shape != self._first:
                    fact = f"{self._files[record][0]} is {shape_text(values.shape)}, {self._files[0][0]} {shape_text(self._first)}"
                    raise Error(fact, fix="list only files of one size: the layer does not resize")
                images[n], labels[n] = values, self._files[record][1]
                wrong = self.wrong_label(1, labels[n : n + 1])
                if wrong is not None:
                    raise Error(f"{self._list.source}, line {self._list.lines[record].number}: {wrong[1].fact}", fix=wrong[1].fix)
        return BatchInfo((), self.nbytes)
