"""The source of a DenseImageData layer (SegNet): images, each with a label image, whose pixels are labels."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ocaffe.data.changes.resample import Interpolation
from ocaffe.data.changes.transform import HEIGHT, WIDTH, Layout, Transform
from ocaffe.data.decoding.decode import Color, open_pillow, read_file
from ocaffe.data.effort import Laps
from ocaffe.data.source import BatchInfo, check_fields
from ocaffe.data.sources.file_images import new_size
from ocaffe.data.stagers.dense_stager import DenseStager, Frame, Names, Shape3
from ocaffe.data.stagers.staged import StagedSource
from ocaffe.data.stores.store import Store
from ocaffe.data.stores.text_list import Line, Listing
from ocaffe.errors import Error, Place
from ocaffe.formats.nearby import right_root
from ocaffe.ir.tensor import Shape

_FIELDS = {"source", "batch_size", "rand_skip", "shuffle", "new_height", "new_width", "is_color", "root_folder"}


class PairFiles(Store):
    """The images and label images that a list names. A found record is the names of both files."""

    def __init__(self, source: str, root: str, each: str = "the file of an image and that of its labels") -> None:
        """`root` is prepended to each name. `each`: the words of a line, for messages. Raise Error without a place."""
        self._list, self._root, self.each = Listing(source, each), root, each
        self._names = [self._pair(line) for line in self._list.lines]
        self.entries = len(self._names)

    def _pair(self, line: Line) -> Names:
        if len(line.words) != 2:
            words = f"{len(line.words)} {'word' if len(line.words) == 1 else 'words'}"
            fact = f"{self._list.source}, line {line.number}: '{line.text}' has {words}, and two are needed"
            raise Error(fact, fix=f"write {self.each} into each line")
        return self._root + line.words[0], self._root + line.words[1]

    def find(self, records: Sequence[int]) -> Sequence[Names]:
        return [self._names[record] for record in records]

    def name(self, found: Names) -> str:
        return found[0]

    def fault(self, problem: Error, record: int, found: Names) -> Error:
        """Return `problem`, whose fact begins with the name of a file, with the line."""
        missing = next((name for name in found if not os.path.exists(name)), None)
        fix = (right_root(self._root, missing, self._list.source) if missing else None) or problem.fix or "correct the list, or replace the file"
        return Error(f"{self._list.source}, line {self._list.lines[record].number}: {problem.fact}", fix=fix)


class Batch(NamedTuple):
    """A batch before it is filled."""

    records: list[int]
    found: list[Names]
    frame: Frame
    info: BatchInfo

    @property
    def space(self) -> int:
        return self.info.nbytes


class DenseImageSource(StagedSource):
    """Batches of image files and label image files, changed in the same way. A buffer holds the images, followed by the labels, N x 1 x H x W.

    Several threads may fill batches at the same time.
    """

    _stager: DenseStager
    fields: ClassVar[set[str]] = _FIELDS
    message: ClassVar[tuple[str, str]] = "dense_image_data_param", "SegNet ignores it: remove it, or set it in transform_param"  # and the remedy for others
    file: ClassVar[str] = "dense_image_data_layer.cpp"
    label_method: ClassVar[Interpolation] = Interpolation.NEAREST  # labels must not be mixed

    def __init__(
        self, param: Any, transform: Transform, labels: bool, *, workers: int | None = None, place: Place | None = None, layer: str | None = None
    ) -> None:
        """`param` is the message with the `fields`; `labels`: the layer has a top for labels; `workers`: their number (default: one per core)."""
        self.place, self.layer = place, layer
        with self.located():
            check_fields(param, self.fields, *self.message)
            transform.refuse_skipping()
            if transform.soft_classes:
                raise Error("mixup and cutmix are set, and pixels have one label each", fix="remove mixup and cutmix from transform_param")
            if transform.sizing is not None and transform.sizing.pads:
                raise Error("resize_param has resize_mode FIT_LARGE_SIZE_AND_PAD, and padding has no labels", fix="set resize_mode: WARP in resize_param")
            super().__init__(PairFiles(param.source, param.root_folder), param, workers, place, layer)
            self.transform, self.labels, self.resized = transform, labels, new_size(param)
            color = Color.COLOR if param.is_color else Color.GRAY
            self._stager = DenseStager(transform, color, self.resized, self.batch, labels, label_method=self.label_method)
            self._first = self._shape(0)
        size = ",".join(map(str, self.shapes()[0]))
        self.notes = (
            (f"{self.file}:35", f"Opening file {param.source}"),
            *(((f"{self.file}:45", "Shuffling data"),) if self.order.shuffle else ()),
            (f"{self.file}:50", f"A total of {self.order.entries} examples."),
            *transform.notes,
            (f"{self.file}:93", f"output data size: {size}"),
        )

    # -- shapes ------------------------------------------------------------------------------------------------------

    def _shape(self, record: int) -> Shape3:
        """Return the shape of the sample of a record, from the header of its image."""
        (found,) = self._find([record])
        try:
            return self.transform.output(*self._stager.open(found).shape)
        except Error as problem:
            raise self.store.fault(problem, record, found) from None

    def shapes(self) -> list[Shape]:
        return self._tops(self._first)

    def _tops(self, shape: Shape3) -> list[Shape]:
        tops: list[Shape] = [(self.batch, channels, *shape[1:]) for channels in (shape[0], 1)]
        return tops[: 1 + self.labels]

    @property
    def nbytes(self) -> int:
        return sum(layout.nbytes for layout in self._stager.layouts(self._first))

    @property
    def space(self) -> int:
        return self.nbytes

    def layouts(self, top: Shape) -> list[Layout]:
        """Return the layouts of the consecutive regions of a buffer for a data top of shape `top`: images, then labels if the layer has a top for them."""
        return self._stager.layouts((top[1], top[2], top[3]))

    # -- batches -----------------------------------------------------------------------------------------------------

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        with self.located():
            batch, crew = self._taken(index)
            if batch.info.nbytes > buffer.nbytes:
                return batch.info
            staged = contextlib.nullcontext((buffer, None)) if crew is None else crew.staged(index, buffer, batch.info.nbytes)
            with staged as (memory, results):
                if results is None:
                    put = self._stager.putter(batch.frame, memory)
                    self._threads.run(partial(self._stage, batch, n, put) for n in range(self.batch))
                if self.labels:
                    self._check_labels(batch, memory)
            return batch.info if memory is buffer else replace(batch.info, buffer=memory)

    def _plan(self, index: int) -> Batch:
        positions = self.share.positions(index, self.batch)
        with self._finding:
            records = self.order.records(self.key, positions)
            found = list(self.store.find(records))
        shape = self._first if self.transform.fixed or self.resized else self._shape(records[0])
        nbytes = sum(layout.nbytes for layout in self._stager.layouts(shape))
        return Batch(records, found, Frame(self.key, positions, shape), BatchInfo(tuple(self._tops(shape)), nbytes))

    def _stage(self, batch: Batch, n: int, put: Callable[[int, Names, Laps], None]) -> None:
        laps = Laps()
        try:
            put(n, batch.found[n], laps)
        except Error as problem:
            raise self.store.fault(problem, batch.records[n], batch.found[n]) from None
        self.effort.add(laps.seconds)

    def _check_labels(self, batch: Batch, buffer: np.ndarray) -> None:
        """Raise Error for a label that a reader of the top does not accept."""
        _, (layout, region), *_ = self._stager.regions(batch.frame.shape, buffer)
        for n, (pixels, row) in enumerate(zip(layout.pixels(region), layout.table(region))):
            wrong = self.wrong_label(1, pixels[: row[HEIGHT] * row[WIDTH]])
            if wrong is not None:
                mask, fix = batch.found[n][1], wrong[1].fix
                if open_pillow(read_file(mask)).mode == "P":
                    fix = "convert the masks by `ocaffe dataset masks`, which writes the indices of the palette; the layer reads gray levels, as in SegNet"
                problem = Error(f"{mask}: {wrong[1].fact}", fix=fix)
                raise self.store.fault(problem, batch.records[n], batch.found[n])
        outside = self.transform.label_outside
        wrong = None if outside is None else self.wrong_label(1, np.array([outside]))
        if wrong is not None:
            fact = f"transform_param has affine, whose label of pixels outside of the image is {outside}: {wrong[1].fact}"
            raise Error(fact, fix="set affine { label } to the ignore_label of the loss, or affine { border: REFLECT }")


class LabelmapSource(DenseImageSource):
    """Batches of images with maps of labels (HED). Maps are resized as images are. With `normalize` their values are fractions, which no loss limits."""

    fields: ClassVar[set[str]] = _FIELDS | {"normalize"}
    message: ClassVar[tuple[str, str]] = "image_data_param", "remove it"
    file: ClassVar[str] = "image_labelmap_data_layer.cpp"
    label_method: ClassVar[Interpolation] = Interpolation.LINEAR
    normalized = True

    def _check_labels(self, batch: Batch, buffer: np.ndarray) -> None:
        if not self.normalized:
            super()._check_labels(batch, buffer)
