"""The source of Data and ImageData: batches of images of one size. If the images are cropped, only the crop is staged.

Each worker reads, decodes and crops whole records, so that their bytes stay in its cache.
"""
from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.bad_records import BadRecords
from ocaffe.data.datum import Alike
from ocaffe.data.decode import Color, ImageFile, decoded, open_image
from ocaffe.data.effort import COPY, DECODE, DISK, Effort, Laps
from ocaffe.data.lmdb_file import Arena
from ocaffe.data.order import Order
from ocaffe.data.resample import resize
from ocaffe.data.source import BatchInfo, Note, Source
from ocaffe.data.store import Record, Store
from ocaffe.data.transform import HEIGHT, MEAN_X, MEAN_Y, MIRROR, WIDTH, Layout, Samples, Transform, Window
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, Place, shape_text
from ocaffe.ir.tensor import Shape

_TOGETHER = 4  # records that a worker reads at a time; neighbours in a database are read with one call


class Picture(NamedTuple):
    """A record whose header has been read. `shape` is that of the image after decoding and resizing; `file` is None for a raw image."""

    record: Record
    shape: tuple[int, int, int]
    file: ImageFile | None


class Unfit(Error):
    """A sound image cannot be used with the settings of the layer. Such a record is not a bad one."""


class Batch(NamedTuple):
    """A batch that is being filled: numbers and places of its records, and views of its block."""

    records: Sequence[int]
    found: Sequence[Any]
    samples: Samples
    layout: Layout
    pixels: np.ndarray
    table: np.ndarray
    labels: np.ndarray
    first: tuple[tuple[int, int, int], str] | None  # shape and name of the first image, if all must have its shape


class PictureSource(Source):
    """Batches of the images of a store. Several threads may fill batches at the same time."""

    reentrant = True
    effort: Effort

    def __init__(
        self,
        store: Store,
        param: Any,
        transform: Transform,
        labels: bool,
        color: Color,
        workers: int | None,
        *,
        resized: tuple[int, int] | None = None,
        restart: Note | None = None,
        place: Place | None = None,
        layer: str | None = None,
    ) -> None:
        """`param` has batch_size, shuffle and rand_skip. `labels`: the layer has a top for labels. `workers`: threads (default: one per core).

        `resized`: height and width to which image files are resized. `restart`: a log line for the batch with the last record.
        """
        super().__init__(place, layer)
        if not param.batch_size:
            raise Error("batch_size is 0", fix="batch_size of at least 1")
        self.store, self.batch, self.transform, self.labels, self.color = store, int(param.batch_size), transform, labels, color
        self.order = Order(store.entries, bool(param.shuffle), int(param.rand_skip))
        self.resized, self.restart = resized, restart
        self.workers, self.effort = Workers(workers), Effort()
        self._bad = BadRecords(transform.skipped, store.entries)
        self._finding = threading.Lock()
        self._memory = threading.local()
        self._checked: tuple[int, int, int] | None = None  # the shape that last passed the checks
        first = self._look()
        self.encoded = first.file is not None
        dtype = first.record.values.dtype if first.record.values is not None else np.dtype(np.uint8)
        count = 1 if np.ndim(first.record.label) == 0 else len(first.record.label)
        self._first = Layout(self.batch, *transform.output(*first.shape), dtype, self.encoded, count)

    # -- shapes ------------------------------------------------------------------------------------------------------

    def shapes(self) -> list[Shape]:
        return self._tops(self._first)

    @property
    def nbytes(self) -> int:
        return self._first.nbytes

    def layout(self, top: Shape) -> Layout:
        """Return the layout of a block for a data top of shape `top`."""
        return self._first if self.transform.crop else replace(self._first, channels=top[1], height=top[2], width=top[3])

    def _tops(self, layout: Layout) -> list[Shape]:
        data = (self.batch, *self.transform.output(layout.channels, layout.height, layout.width))
        label = (self.batch,) if layout.label_count == 1 else (self.batch, layout.label_count)
        return [data, label] if self.labels else [data]

    # -- records -----------------------------------------------------------------------------------------------------

    def _find(self, records: Sequence[int]) -> Sequence[Any]:
        with self._finding:
            return self.store.find(records)

    def _read(self, found: Sequence[Any]) -> Sequence[Any]:
        """Return the contents of found records. They are valid until the thread's next call."""
        arena: Arena | None = getattr(self._memory, "arena", None)
        if arena is None:
            arena = self._memory.arena = Arena()
        return self.store.read(found, arena)

    def _picture(self, content: Any) -> Picture:
        """Return the image in a record's content. Raise Error without a place."""
        record = self.store.parse(content)
        file, shape = None, record.shape
        if record.file is not None:
            file = open_image(record.file, self.transform.max_pixels)
            shape = file.shape(self.color)
            if self.resized:
                shape = (shape[0], *self.resized)
        if shape != self._checked:
            try:
                self.transform.check(*shape)
            except Error as problem:
                raise Unfit(problem.fact, fix=problem.fix) from None
            self._checked = shape
        if self.labels and record.label is None:
            raise Error("it has no label, and the layer has a top for labels", fix="remove the second top, or make the database with labels")
        return Picture(record, shape, file)

    def _instead(self, record: int, found: Any, problem: Error) -> int:
        """Return the record that takes the place of a bad one. Raise Error if none may."""
        fault = self.store.fault(problem, record, found)
        if isinstance(problem, Unfit):
            raise fault
        self._bad.add(record, fault)
        return self._bad.good(record)

    def _look(self) -> Picture:
        """Return the first record that is not bad."""
        record = 0
        while True:
            (found,) = self._find([record])
            try:
                return self._picture(self._read([found])[0])
            except Error as problem:
                record = self._instead(record, found, problem)

    # -- batches -----------------------------------------------------------------------------------------------------

    def fill(self, index: int, block: np.ndarray) -> BatchInfo:
        first = index * self.batch
        with self.located():
            with self._finding:
                records = [self._bad.good(record) for record in self.order.records(self.key, first, self.batch)]
                found = self.store.find(records)
            alike = self._alike(found)
            layout, example = self._first, None
            if not (self.transform.crop or alike or (self.resized and self.color is not Color.UNCHANGED)):
                example = self._example(records[0], found[0])
                shape = example[0]
                layout = replace(layout, channels=shape[0], height=shape[1], width=shape[2])
            notes = (self.restart,) if self.restart and self.order.entries - 1 in records else ()
            info = BatchInfo(tuple(self._tops(layout)), layout.nbytes, notes)
            if layout.nbytes > block.nbytes:
                return info
            samples = self.transform.samples(self.key, first, self.batch)
            batch = Batch(records, found, samples, layout, layout.pixels(block), layout.table(block), layout.labels(block), example)
            if alike is not None:
                _cut(alike, batch)
            else:
                chunks = range(0, self.batch, min(_TOGETHER, -(-self.batch // self.workers.count)))
                self.workers.run(partial(self._write, batch, range(at, min(at + chunks.step, self.batch))) for at in chunks)
            wrong = self.wrong_label(1, batch.labels)
            if wrong is not None:
                n = wrong[0] // layout.label_count
                raise self.store.fault(wrong[1], records[n], found[n])
            return info

    def _alike(self, found: Sequence[Any]) -> Alike | None:
        """Return the whole batch at once if its records are small raw images like the first record, else None."""
        if self.encoded or self._first.dtype != np.uint8:
            return None
        alike = self.store.alike(found)
        if alike is None or alike.shape != self._checked or (self.labels and None in alike.labels):
            return None
        return alike

    def _example(self, record: int, found: Any) -> tuple[tuple[int, int, int], str]:
        """Return shape and name of the first image of a batch."""
        while True:
            try:
                return self._picture(self._read([found])[0]).shape, self.store.name(found)
            except Error as problem:
                record = self._instead(record, found, problem)
                (found,) = self._find([record])

    def _write(self, batch: Batch, images: range) -> None:
        """Read these images of a batch, and write them to its block."""
        laps, found = Laps(), [batch.found[n] for n in images]
        for n, place, content in zip(images, found, self._read(found)):
            record = batch.records[n]
            while True:
                try:
                    self._stage(batch, n, self._picture(content), laps)
                    break
                except Error as problem:
                    record = self._instead(record, place, problem)
                    (place,) = self._find([record])
                    (content,) = self.store.read([place], Arena())  # the thread's own arena has the records that follow
        self.effort.add(laps)

    def _stage(self, batch: Batch, n: int, picture: Picture, laps: Laps) -> None:
        """Write image `n` of a batch, its row of the table and its label. Raise Error without a place."""
        layout, record, room = batch.layout, picture.record, batch.pixels[n]
        laps.end(DISK)
        if batch.first and picture.shape != batch.first[0]:
            raise Unfit(
                f"the image is {shape_text(picture.shape)}, that of {batch.first[1]} in the same batch is {shape_text(batch.first[0])}",
                fix=f"set crop_size, {self.store.one_size}, or batch_size: 1",
            )
        if picture.shape[0] != layout.channels:
            raise Unfit(f"the image has {picture.shape[0]} channels, the first record has {layout.channels}", fix="set force_color or force_gray")
        window, row = batch.samples.at(n, picture.shape)
        if picture.file is not None:
            with decoded(picture.file, self.color) as image:
                pixels = image.transpose(2, 0, 1)
                if self.resized:
                    pixels = resize(pixels, *self.resized)
                laps.end(DECODE)
                _put(pixels, window, room, layout)
        else:
            assert record.values is not None
            if record.values.dtype == np.float32 and room.dtype != np.float32:
                raise Unfit("it has float_data, the first record has bytes", fix="make the database with one kind of data")
            _put(record.values.reshape(picture.shape), window, room, layout)
        batch.table[n] = row
        batch.labels[n] = 0 if record.label is None else record.label
        laps.end(COPY)

    def close(self) -> None:
        self.workers.close()


def _put(image: np.ndarray, window: Window | None, room: np.ndarray, layout: Layout) -> None:
    """Write an image (channels x height x width), or a window of it, to `room`."""
    if window is not None:
        y, x, height, width = window
        image = image[:, y : y + height, x : x + width]
    if layout.interleaved:
        image = image.transpose(1, 2, 0)
    room[: image.size].reshape(image.shape)[...] = image


def _cut(alike: Alike, batch: Batch) -> None:
    """Write the crops of images of one shape, their table and their labels."""
    layout, count = batch.layout, len(alike.pixels)
    images = alike.pixels.reshape(count, *alike.shape)
    crops = batch.pixels.reshape(count, layout.channels, layout.height, layout.width)
    corners = batch.samples.corners(np.broadcast_to(alike.shape[1:], (count, 2)))
    if crops.shape == images.shape:
        crops[...] = images
    else:
        for crop, image, (y, x) in zip(crops, images, corners.tolist()):
            crop[...] = image[:, y : y + layout.height, x : x + layout.width]
    batch.table[...] = 0
    batch.table[:, HEIGHT : WIDTH + 1] = layout.height, layout.width
    batch.table[:, MEAN_Y : MEAN_X + 1] = corners
    batch.table[:, MIRROR] = batch.samples.mirror
    batch.labels[...] = [label or 0 for label in alike.labels]
