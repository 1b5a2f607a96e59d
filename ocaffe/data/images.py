"""The source of a Data layer: images of a database, raw or encoded, staged as they are."""
from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.data.database import Item, Key, Reader, key_text, open_database
from ocaffe.data.datum import Alike, Datum, DatumReader
from ocaffe.data.decode import Color, image_shape, open_image, planes
from ocaffe.data.source import RECORDS, SKIP, BatchInfo, Note, Source, below, check_fields, draws, permutation
from ocaffe.data.transform import HEIGHT, MEAN_X, MEAN_Y, MIRROR, WIDTH, Layout, Transform, X, Y
from ocaffe.errors import Error, Place, shape_text
from ocaffe.graph.ir import Shape
from ocaffe.model.wire import Malformed

MOST_WORKERS = 8
RESTART: Note = ("data_layer.cpp:73", "Restarting data prefetching from start.")
_FIELDS = {
    "source", "batch_size", "backend", "rand_skip", "force_encoded_color", "threads", "parser_threads", "shuffle", "prefetch",
    "cache", "precache",  # NVCaffe's, change no number
}  # fmt: skip


class _Image(NamedTuple):
    """A record on its way: its image file if it is encoded (only the header is read yet), the shape of the image."""

    record: int
    key: Key
    datum: Datum
    file: Any
    shape: tuple[int, int, int]


class ImageSource(Source):
    """Batches of a database of Datums.

    Images that have the size of the first record are staged whole, and the device crops. Where the first batch has images of several
    sizes (which needs a crop), and for any odd image later, the crop alone is staged.
    """

    def __init__(
        self, param: Any, transform: Transform, labels: bool, *, workers: int | None = None, place: Place | None = None, layer: str | None = None
    ) -> None:
        """`param` is the DataParameter; `labels`: a top wants them; `workers` decode at the same time (default: one per core)."""
        super().__init__(place, layer)
        with self.located():
            check_fields(param, _FIELDS, "data_param", "remove it")
            if not param.batch_size:
                raise Error("batch_size is 0", fix="batch_size of at least 1")
            self.batch = int(param.batch_size)
            self.transform = transform
            self.labels = labels
            self.color = Color.COLOR if param.force_encoded_color and transform.color is Color.UNCHANGED else transform.color
            self.shuffle = bool(param.shuffle)
            self.rand_skip = int(param.rand_skip)
            self.database = open_database(param.source, param.backend)
            self._reader = Reader(self.database, random=self.shuffle)
            self._parse = DatumReader()
            self._checked: tuple[int, int, int] | None = None  # the shape that passed the checks last
            self._orders: dict[int, np.ndarray] = {}
            self.workers = int(workers or param.parser_threads or param.threads or min(os.cpu_count() or 1, MOST_WORKERS))
            self._pool: Executor | None = None
            self._first = self._look()
        kind = proto.DataParameter.DB.Name(param.backend).lower()
        size = ",".join(map(str, self.shapes()[0]))
        self.notes = ((f"db_{kind}.cpp:35", f"Opened {kind} {param.source}"), *transform.notes, ("data_layer.cpp:45", f"output data size: {size}"))
        if transform.color is not Color.UNCHANGED and not self._encoded:
            self.notes += (("data_transformer.cpp:55", "force_color and force_gray only for encoded datum"),)

    # -- shapes ------------------------------------------------------------------------------------------------------

    def shapes(self) -> list[Shape]:
        return self._tops(self._first)

    @property
    def nbytes(self) -> int:
        return self._first.nbytes

    def layout(self, top: Shape) -> Layout:
        """How a block for a data top of shape `top` is laid out."""
        return self._first if self.transform.crop else replace(self._first, channels=top[1], height=top[2], width=top[3])

    def _tops(self, layout: Layout) -> list[Shape]:
        data = (self.batch, *self.transform.output(layout.channels, layout.height, layout.width))
        return [data, (self.batch,)] if self.labels else [data]

    def _look(self) -> Layout:
        """The layout for the first record, or for bare crops if the first batch has images of several sizes."""
        first = self._image(0, *self._reader.read(0))
        dtype = np.dtype(np.uint8 if first.datum.pixels is not None else np.float32)
        shape = first.shape
        self._encoded = first.datum.encoded
        others = range(1, min(self.batch, self.database.entries)) if self.transform.crop else ()
        if any(self._image(record, *self._reader.read(record)).shape != shape for record in others):
            shape = self.transform.output(*shape)
        return Layout(self.batch, *shape, dtype)

    # -- batches -----------------------------------------------------------------------------------------------------

    def fill(self, index: int, block: np.ndarray) -> BatchInfo:
        first = index * self.batch
        with self.located():
            records = self._records(first)
            items = self._read(records)
            alike = self._alike(items)
            images = [] if alike else [self._image(record, item) for record, item in zip(records, items)]
            layout = self._first if self.transform.crop else self._layout_of(alike.shape if alike else images[0].shape, images)
            info = BatchInfo(tuple(self._tops(layout)), layout.nbytes, (RESTART,) if self.database.entries - 1 in records else ())
            if layout.nbytes > block.nbytes:
                return info
            if alike:
                self._place(first, np.broadcast_to(alike.shape[1:], (self.batch, 2)), layout, block)
                layout.pixels(block)[...] = alike.pixels
                layout.labels(block)[...] = [label or 0 for label in alike.labels]
            else:
                self._write(first, images, layout, block)
            return info

    def _read(self, records: list[int]) -> list[Item]:
        if self.shuffle:
            return [self._reader.read(record)[0] for record in records]
        items: list[Item] = []
        while len(items) < self.batch:
            begin = records[len(items)]
            items += self._reader.read(begin, min(self.batch - len(items), self.database.entries - begin))
        return items

    def _alike(self, items: list[Item]) -> Alike | None:
        """The whole batch in one go, where its records are small raw images like the first record."""
        alike = self._parse.alike([value for _, value in items]) if self._first.dtype == np.uint8 else None
        fits = alike and alike.shape == self._checked == (self._first.channels, self._first.height, self._first.width)
        return alike if alike and fits and not (self.labels and None in alike.labels) else None

    def _records(self, first: int) -> list[int]:
        """The numbers of the records at the positions from `first` on."""
        entries = self.database.entries
        if self.rand_skip:
            first += int(below(draws(self.key, SKIP, 0, 1)[0, :1], self.rand_skip)[0])
        if not self.shuffle:
            return [(first + i) % entries for i in range(self.batch)]
        return [int(self._order(position // entries)[position % entries]) for position in range(first, first + self.batch)]

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            self._orders = {old: order for old, order in self._orders.items() if old == epoch - 1}
            self._orders[epoch] = permutation(self.key, RECORDS, epoch, self.database.entries)
        return self._orders[epoch]

    def _image(self, record: int, item: Item) -> _Image:
        key, value = item
        try:
            datum = self._parse(value)
            image = None
            shape = datum.shape
            if datum.encoded:
                if datum.pixels is None:
                    raise Error("it is encoded, but has no data")
                image = open_image(datum.pixels)
                shape = image_shape(image, self.color)
            else:
                _ = datum.values  # raises if they are not as many as the shape says
            if shape != self._checked:
                self.transform.check(*shape)
                self._checked = shape
            if self.labels and datum.label is None:
                raise Error("it has no label, and the layer has a top for labels", fix="remove the second top, or make the database with labels")
        except Malformed as problem:
            raise self.database.fault(f"it is no Datum: {problem.fact} at byte {problem.at}", record, key) from None
        except Error as problem:
            raise self._fault(problem, record, key) from None
        return _Image(record, key, datum, image, shape)

    def _fault(self, problem: Error, record: int, key: Key) -> Error:
        error = self.database.fault(problem.fact, record, key)
        error.fix = problem.fix or error.fix
        return error

    def _layout_of(self, shape: tuple[int, int, int], images: list[_Image]) -> Layout:
        """The layout of a batch that is not cropped: all images are of one shape."""
        for image in images:
            if image.shape != shape:
                raise Error(
                    f"database {self.database.path}: the image of key '{key_text(image.key)}' is {shape_text(image.shape)}, "
                    f"that of key '{key_text(images[0].key)}' in the same batch is {shape_text(shape)}",
                    fix="set crop_size, make the database with one size (convert_imageset --resize_height --resize_width), or batch_size: 1",
                )
        return replace(self._first, channels=shape[0], height=shape[1], width=shape[2])

    def _place(self, first: int, sizes: np.ndarray, layout: Layout, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw the crops of images of `sizes` and write the table; returns the table and the corners."""
        corners, mirror = self.transform.place(self.key, first, sizes)
        table = layout.table(block)
        table[...] = 0
        table[:, HEIGHT : WIDTH + 1] = layout.height, layout.width
        table[:, Y : X + 1] = table[:, MEAN_Y : MEAN_X + 1] = corners
        table[:, MIRROR] = mirror
        return table, corners

    def _write(self, first: int, images: list[_Image], layout: Layout, block: np.ndarray) -> None:
        whole = (layout.channels, layout.height, layout.width)
        table, corners = self._place(first, np.array([image.shape[1:] for image in images]), layout, block)
        layout.labels(block)[:] = [image.datum.label or 0 for image in images]
        tasks: list[Callable[[], None]] = []
        for n, (image, room) in enumerate(zip(images, layout.pixels(block))):
            window = None
            if image.shape != whole:  # odd in size: the crop alone is staged
                window = self._window(image, layout, (int(corners[n, 0]), int(corners[n, 1])))
                table[n, HEIGHT : WIDTH + 1] = self.transform.crop
                table[n, Y : X + 1] = 0
            if image.file is None:
                self._copy(image, room, window)
            else:
                tasks.append(partial(self._copy, image, room, window))
        self._run(tasks)

    def _window(self, image: _Image, layout: Layout, corner: tuple[int, int]) -> tuple[slice, slice]:
        if image.shape[0] != layout.channels:
            problem = Error(f"the image has {image.shape[0]} channels, the first record has {layout.channels}", fix="set force_color or force_gray")
            raise self._fault(problem, image.record, image.key)
        assert self.transform.crop is not None
        (y, x), (height, width) = corner, self.transform.crop
        return slice(y, y + height), slice(x, x + width)

    def _copy(self, image: _Image, room: np.ndarray, window: tuple[slice, slice] | None) -> None:
        """Write the image, or a window of it, to `room`."""
        if image.file is None:
            values = image.datum.values
            if values.dtype == np.float32 and room.dtype != values.dtype:
                problem = Error("it has float_data, the first record has bytes", fix="make the database with one kind of data")
                raise self._fault(problem, image.record, image.key)
            if window is None:
                room[:] = values
                return
            channels = list(values.reshape(image.shape))
        else:
            try:
                channels = planes(image.file, self.color)
            except Error as problem:
                raise self._fault(problem, image.record, image.key) from None
        at = 0
        for channel in channels:
            part = channel if window is None else channel[window]
            room[at : at + part.size].reshape(part.shape)[...] = part
            at += part.size

    # -- workers -----------------------------------------------------------------------------------------------------

    def _run(self, tasks: list[Callable[[], None]]) -> None:
        """Do the tasks, several at a time; returns when none is left, then raises what the first of them raised."""
        if self.workers == 1 or len(tasks) < 2:
            for task in tasks:
                task()
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="ocaffe decode")
        futures = [self._pool.submit(task) for task in tasks]
        wait(futures)
        for future in futures:
            future.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
