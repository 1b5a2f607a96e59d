"""Common code of the sources of Data and ImageData: batches of images of one size. If the images are cropped, only the crop is staged."""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.datum import Alike
from ocaffe.data.decode import Color, decoded
from ocaffe.data.order import Order
from ocaffe.data.resample import resize
from ocaffe.data.source import BatchInfo, Note, Source
from ocaffe.data.transform import HEIGHT, MEAN_X, MEAN_Y, MIRROR, WIDTH, Layout, Transform
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, Place, shape_text
from ocaffe.ir.tensor import Shape


class Picture(NamedTuple):
    """An image before it is staged.

    `name` is for messages. `shape` is that of the image after decoding and resizing. Either `file` is set, of which only the header has been
    read, or `values`.
    """

    record: int
    name: str
    label: int | None
    shape: tuple[int, int, int]
    file: Any
    values: np.ndarray | None


class PictureSource(Source):
    """Batches of images, each with a number, a name and a label."""

    what = ""  # the database or the list, for messages
    one_size = ""  # how to make images of one size, for messages
    restart: Note | None = None  # logged with the batch that contains the last record
    resized: tuple[int, int] | None = None  # height and width to which image files are resized

    def __init__(
        self, batch: int, order: Order, transform: Transform, labels: bool, color: Color, workers: int | None, place: Place | None, layer: str | None
    ) -> None:
        """`labels`: the layer has a top for labels; `workers`: threads that decode images (default: one per core)."""
        super().__init__(place, layer)
        if not batch:
            raise Error("batch_size is 0", fix="batch_size of at least 1")
        self.batch, self.order, self.transform, self.labels, self.color = batch, order, transform, labels, color
        self.workers = Workers(workers)
        self._checked: tuple[int, int, int] | None = None  # the shape that last passed the checks

    @abstractmethod
    def _open(self, records: list[int]) -> list[Picture] | Alike:
        """Return the images with these numbers. If all have the shape of the first image, their pixels may be returned instead."""

    @abstractmethod
    def _fault(self, problem: Error, record: int, name: str) -> Error:
        """Return `problem` with the place of the image."""

    @abstractmethod
    def _name(self, record: int) -> str:
        """Return the name of an image, for messages."""

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
        return [data, (self.batch,)] if self.labels else [data]

    def _look(self) -> None:
        """Set the layout of the first batch from the first image."""
        (first,) = self._pictures([0])
        dtype = first.values.dtype if first.values is not None else np.dtype(np.uint8)
        self._first = Layout(self.batch, *self.transform.output(*first.shape), dtype)

    def _pictures(self, records: list[int]) -> list[Picture]:
        pictures = self._open(records)
        assert isinstance(pictures, list)  # _open returns Alike only after _first is set
        return pictures

    def _check(self, shape: tuple[int, int, int]) -> None:
        """Raise Error unless images of this shape can be transformed."""
        if shape != self._checked:
            self.transform.check(*shape)
            self._checked = shape

    # -- batches -----------------------------------------------------------------------------------------------------

    def fill(self, index: int, block: np.ndarray) -> BatchInfo:
        first = index * self.batch
        with self.located():
            records = self.order.records(self.key, first, self.batch)
            pictures = self._open(records)
            layout = self._first if self.transform.crop else self._layout_of(pictures)
            notes = (self.restart,) if self.restart and self.order.entries - 1 in records else ()
            info = BatchInfo(tuple(self._tops(layout)), layout.nbytes, notes)
            if layout.nbytes > block.nbytes:
                return info
            if isinstance(pictures, Alike):
                corners = self._place(first, np.broadcast_to(pictures.shape[1:], (self.batch, 2)), layout, block)
                _cut(pictures, corners, layout, layout.pixels(block))
                layout.labels(block)[...] = [label or 0 for label in pictures.labels]
            else:
                self._write(first, pictures, layout, block)
            wrong = self.wrong_label(1, layout.labels(block))
            if wrong is not None:
                raise self._fault(wrong[1], records[wrong[0]], self._name(records[wrong[0]]))
            return info

    def _layout_of(self, pictures: list[Picture] | Alike) -> Layout:
        """Return the layout of a batch without crop. Raise Error unless all images have one shape."""
        if isinstance(pictures, Alike):
            return self._first
        shape = pictures[0].shape
        for picture in pictures:
            if picture.shape != shape:
                raise Error(
                    f"{self.what}: the image of {picture.name} is {shape_text(picture.shape)}, "
                    f"that of {pictures[0].name} in the same batch is {shape_text(shape)}",
                    fix=f"set crop_size, {self.one_size}, or batch_size: 1",
                )
        return replace(self._first, channels=shape[0], height=shape[1], width=shape[2])

    def _place(self, first: int, sizes: np.ndarray, layout: Layout, block: np.ndarray) -> np.ndarray:
        """Draw the crops of images of `sizes` and write the table. Return the corners."""
        corners, mirror = self.transform.place(self.key, first, sizes)
        table = layout.table(block)
        table[...] = 0
        table[:, HEIGHT : WIDTH + 1] = layout.height, layout.width
        table[:, MEAN_Y : MEAN_X + 1] = corners
        table[:, MIRROR] = mirror
        return corners

    def _write(self, first: int, pictures: list[Picture], layout: Layout, block: np.ndarray) -> None:
        whole = (layout.channels, layout.height, layout.width)
        corners = self._place(first, np.array([picture.shape[1:] for picture in pictures]), layout, block)
        layout.labels(block)[:] = [picture.label or 0 for picture in pictures]
        copies: list[Callable[[], None]] = []
        decodes: list[Callable[[], None]] = []
        for n, (picture, room) in enumerate(zip(pictures, layout.pixels(block))):
            window = None
            if picture.shape != whole:
                window = self._window(picture, layout, (int(corners[n, 0]), int(corners[n, 1])))
            (copies if picture.file is None else decodes).append(partial(self._copy, picture, room, window))
        self.workers.share(copies)
        self.workers.run(decodes)

    def _window(self, picture: Picture, layout: Layout, corner: tuple[int, int]) -> tuple[slice, slice]:
        if picture.shape[0] != layout.channels:
            problem = Error(f"the image has {picture.shape[0]} channels, the first record has {layout.channels}", fix="set force_color or force_gray")
            raise self._fault(problem, picture.record, picture.name)
        assert self.transform.crop is not None
        (y, x), (height, width) = corner, self.transform.crop
        return slice(y, y + height), slice(x, x + width)

    def _copy(self, picture: Picture, room: np.ndarray, window: tuple[slice, slice] | None) -> None:
        """Write the image, or a window of it, to `room`."""
        if picture.file is None:
            assert picture.values is not None
            if picture.values.dtype == np.float32 and room.dtype != picture.values.dtype:
                problem = Error("it has float_data, the first record has bytes", fix="make the database with one kind of data")
                raise self._fault(problem, picture.record, picture.name)
            if window is None:
                room[:] = picture.values
                return
            _put(picture.values.reshape(picture.shape), window, room)
            return
        try:
            with decoded(picture.file, self.color) as image:
                _put(resize(image, *self.resized) if self.resized else image, window, room)
        except Error as problem:
            raise self._fault(problem, picture.record, picture.name) from None

    def close(self) -> None:
        self.workers.close()


def _put(image: np.ndarray, window: tuple[slice, slice] | None, room: np.ndarray) -> None:
    """Write an image (channels x height x width), or a window of it, to `room`."""
    at = 0
    for channel in image:
        part = channel if window is None else channel[window]
        room[at : at + part.size].reshape(part.shape)[...] = part
        at += part.size


def _cut(pictures: Alike, corners: np.ndarray, layout: Layout, room: np.ndarray) -> None:
    """Write the crops of images of one shape at their corners (n x 2: y, x) to `room` (n x pixels of a crop)."""
    images = pictures.pixels.reshape(len(pictures.pixels), *pictures.shape)
    crops = room.reshape(len(room), layout.channels, layout.height, layout.width)
    if crops.shape == images.shape:
        crops[...] = images
        return
    for crop, image, (y, x) in zip(crops, images, corners.tolist()):
        crop[...] = image[:, y : y + layout.height, x : x + layout.width]
