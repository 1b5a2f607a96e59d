"""Stages images: reads, decodes and crops records, and writes them to a buffer. Threads and other processes do it in the same way."""
from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ocaffe.data.changes.resample import resize
from ocaffe.data.changes.sizing import Sized
from ocaffe.data.changes.transform import Layout, Transform, Window
from ocaffe.data.databases.lmdb_file import Arena
from ocaffe.data.decoding.decode import Color, ImageFile, decoded, open_image
from ocaffe.data.effort import COPY, DECODE, DISK, Laps
from ocaffe.data.stagers.crew import Chunk, Large
from ocaffe.data.stores.store import Opener, Record
from ocaffe.errors import Error, shape_text

Shape3 = tuple[int, int, int]


class Unfit(Error):
    """A sound image cannot be used with the settings of the layer. Such a record is not a bad one."""


class Picture(NamedTuple):
    """A record whose header has been read. `shape` is that of the image after decoding and resizing; `file` is None for a raw image."""

    record: Record
    shape: Shape3
    file: ImageFile | None


class Frame(NamedTuple):
    """A batch: the key of its random numbers, the positions of its images in the endless sequence of records, its layout, and the shape of all its
    images if that must be one.
    """

    key: tuple[int, int]
    positions: range
    layout: Layout
    shape: Shape3 | None


class Result(NamedTuple):
    """The images of a chunk that cannot be used, with the reasons, and the seconds of work by kind."""

    problems: tuple[tuple[int, Error], ...]
    seconds: dict[str, float]


class Stager:
    """The settings of a source of pictures. Any number of threads may use it. It can be pickled if its opener can."""

    def __init__(self, opener: Opener, transform: Transform, color: Color, resized: tuple[int, int] | None, labels: bool) -> None:
        """`resized`: height and width to which image files are resized. `labels`: the layer has a top for labels."""
        self.opener, self.transform, self.color, self.resized, self.labels = opener, transform, color, resized, labels
        self.largest: int | None = None  # pixels of an image that is not Large; None: there are no other processes
        self.checked: Shape3 | None = None  # the shape that last passed the checks
        self._memory = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_memory"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _memory=threading.local())

    def picture(self, content: Any) -> Picture:
        """Return the image in a record's content. Raise Error without a place."""
        record = self.opener.parse(content)
        file, shape = None, record.shape
        if record.file is not None:
            file = open_image(record.file, self.transform.max_pixels)
            shape = file.shape(self.color)
            if self.largest is not None and shape[1] * shape[2] > self.largest:
                raise Large(f"it has {shape[1] * shape[2]:,} pixels")
            if self.resized:
                shape = (shape[0], *self.resized)
        if shape != self.checked:
            try:
                self.transform.check(*shape)
            except Error as problem:
                raise Unfit(problem.fact, fix=problem.fix) from None
            self.checked = shape
        if self.labels and record.label is None:
            raise Error("it has no label, and the layer has a top for labels", fix="remove the second top, or make the database with labels")
        return Picture(record, shape, file)

    def read(self, found: Sequence[Any]) -> Sequence[Any]:
        """Return the contents of found records. They are valid until the thread's next call. Raise Error."""
        arena: Arena | None = getattr(self._memory, "arena", None)
        if arena is None:
            arena = self._memory.arena = Arena()
        return self.opener.read(found, arena)

    def write(self, frame: Frame, chunk: Chunk, buffer: np.ndarray) -> Result:
        """Write the images of a chunk, their rows of the table and their labels to the buffer of the batch."""
        layout, laps = frame.layout, Laps()
        pixels, table, labels = layout.pixels(buffer), layout.table(buffer), layout.labels(buffer)
        samples = self.transform.samples(frame.key, frame.positions)
        problems: list[tuple[int, Error]] = []
        for n, content in zip(chunk.images, self.read(chunk.found)):
            try:
                picture = self.picture(content)
                laps.end(DISK)
                self._check(picture, frame)
                sized = self.transform.sized(frame.key, frame.positions[n], picture.shape)
                window, table[n] = samples.at(n, picture.shape if sized is None else (picture.shape[0], *sized.size))
                self._put(picture, sized, window, pixels[n], layout, laps)
            except Error as problem:
                problems.append((n, problem))
                continue
            labels[n] = 0 if picture.record.label is None else picture.record.label
        return Result(tuple(problems), laps.seconds)

    def _check(self, picture: Picture, frame: Frame) -> None:
        shape, values = picture.shape, picture.record.values
        if frame.shape and shape != frame.shape:
            raise Unfit(f"the image is {shape_text(shape)}, the first one of its batch is {shape_text(frame.shape)}")
        if shape[0] != frame.layout.channels:
            fix = "set force_color: true or force_gray: true in transform_param"
            raise Unfit(f"the image has {shape[0]} channels, the first record has {frame.layout.channels}", fix=fix)
        if values is not None and values.dtype == np.float32 and frame.layout.dtype != np.float32:
            fix = "write all records with data, or all with float_data, where the database is written"
            raise Unfit("it has float_data, the first record has bytes", fix=fix)

    def _put(self, picture: Picture, sized: Sized | None, window: Window | None, room: np.ndarray, layout: Layout, laps: Laps) -> None:
        if picture.file is None:
            values = picture.record.values
            assert values is not None
            if sized is not None and values.dtype != np.uint8:
                fix = "write the images as bytes in data, or in the final size and without resize_param"
                raise Unfit("it has float_data, and transform_param resizes images of bytes", fix=fix)
            pixels = values.reshape(picture.shape)
            copy_window(pixels if sized is None else sized.apply(pixels), window, room, layout)
        else:
            with decoded(picture.file, self.color) as image:
                pixels = image.transpose(2, 0, 1)
                if self.resized:
                    pixels = resize(pixels, *self.resized)
                if sized is not None:
                    pixels = sized.apply(pixels)
                laps.end(DECODE)
                copy_window(pixels, window, room, layout)
        laps.end(COPY)


def copy_window(image: np.ndarray, window: Window | None, room: np.ndarray, layout: Layout, mixed: bool = True) -> None:
    """Write an image (channels x height x width), or a window of it, to `room`. If the window shrinks, a pixel is the mean of its square if `mixed`.
    Else it is the pixel in the middle of its square.
    """
    if window is not None:
        y, x, height, width, shrink = window
        image = image[:, y : y + height, x : x + width]
        if shrink > 1 and not mixed:
            image = image[:, shrink // 2 :: shrink, shrink // 2 :: shrink]
        elif shrink > 1:
            image = np.stack([np.asarray(Image.fromarray(plane).reduce(shrink)) for plane in image])
    if layout.interleaved:
        image = image.transpose(1, 2, 0)
    room[: image.size].reshape(image.shape)[...] = image
