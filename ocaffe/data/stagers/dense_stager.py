"""Stages images with their label images: reads, decodes and crops both alike. Threads and other processes do it in the same way."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.changes.resample import Interpolation, resize
from ocaffe.data.changes.transform import Layout, Transform
from ocaffe.data.decoding.decode import Color, decoded
from ocaffe.data.effort import COPY, DECODE, DISK, Laps
from ocaffe.data.stagers.crew import Chunk, Large
from ocaffe.data.stagers.stager import copy_window
from ocaffe.data.stores.text_list import read_image
from ocaffe.errors import Error, shape_text

Names = tuple[str, str]  # of the files of an image and of its labels
Shape3 = tuple[int, int, int]


class Pair(NamedTuple):
    """An image and its label image, of which only the headers have been read. `shape` is that of the image after resizing."""

    files: tuple[Any, Any]
    shape: Shape3


class Frame(NamedTuple):
    """A batch: the key of its random numbers, the positions of its images in the endless sequence of records, and the shape of each image in it.

    `draws`: so many draws of the first image are left out. SegData's balance draws again.
    """

    key: tuple[int, int]
    positions: range
    shape: Shape3
    draws: int = 0


class Result(NamedTuple):
    """The seconds of work on a chunk, by kind."""

    seconds: dict[str, float]


@dataclass
class DenseStager:
    """The settings of a source of images with label images. Any number of threads may use it.

    `resized`: height and width to which both are resized. `batch`: images of a batch. `labels`: the layer has a top for labels. `largest`: the pixels of
    an image that is not Large, or None if there are no other processes. `label_method`: how labels are resized.
    """

    transform: Transform
    color: Color
    resized: tuple[int, int] | None
    batch: int
    labels: bool
    largest: int | None = None
    checked: Shape3 | None = None  # the shape that last passed the checks
    label_method: Interpolation = Interpolation.NEAREST  # labels must not be mixed

    def layouts(self, shape: Shape3) -> list[Layout]:
        """Return the layouts of the consecutive regions of a batch buffer for images of `shape`: images, then labels if the layer has a top for them."""
        layout = self.transform.layout(self.batch, shape, np.dtype(np.uint8), True, 0)
        return [layout, replace(layout, channels=1)][: 1 + self.labels]

    def regions(self, shape: Shape3, buffer: np.ndarray) -> Iterator[tuple[Layout, np.ndarray]]:
        """Yield the layouts with their regions of a batch buffer."""
        begin = 0
        for layout in self.layouts(shape):
            yield layout, buffer[begin : begin + layout.nbytes]
            begin += layout.nbytes

    def files_of(self, names: Names) -> Sequence[str]:
        """Return the files of a sample: an image, and its labels."""
        return names

    def check_size(self, shape: Shape3) -> None:
        """Raise Error for an image that the transformation does not take."""
        if shape != self.checked:
            self.transform.check(*shape)
            self.checked = shape

    def open(self, names: Names) -> Pair:
        """Read the files of a sample. Raise Error with the name of a file, without a line."""
        files, shapes = [], []
        for name, color in zip(self.files_of(names), (self.color, Color.GRAY)):
            with named(name):
                file = read_image(name, self.transform.max_pixels)
                channels, *size = file.shape(color)
                if self.largest is not None and size[0] * size[1] > self.largest:
                    raise Large(f"it has {size[0] * size[1]:,} pixels")
                height, width = self.resized or size
                files.append(file)
                shapes.append((channels, height, width))
                self.check_size(shapes[0])
                if shapes[-1][1:] != shapes[0][1:]:
                    fix = "make a file of labels with as many pixels as the image"
                    raise Error(f"the labels are {shape_text(shapes[1][1:])}, the image {shape_text(shapes[0][1:])}", fix=fix)
        return Pair((files[0], files[-1]), shapes[0])

    def write(self, frame: Frame, chunk: Chunk, buffer: np.ndarray) -> Result:
        """Write the images and labels of a chunk, and their rows of the tables, to the buffer of the batch. Raise Error."""
        laps, put = Laps(), self.putter(frame, buffer)
        for n, names in zip(chunk.images, chunk.found):
            put(n, names, laps)
        return Result(laps.seconds)

    def putter(self, frame: Frame, buffer: np.ndarray) -> Callable[[int, Names, Laps], None]:
        """Return a function that writes pair number n of a batch to its buffer. It raises Error with the name of a file, without a line."""
        samples = self.transform.samples(frame.key, frame.positions)
        methods = Interpolation.LINEAR, self.label_method
        rooms = [(layout, layout.pixels(region), layout.table(region)) for layout, region in self.regions(frame.shape, buffer)]

        def put(n: int, names: Names, laps: Laps) -> None:
            pair = self.open(names)
            laps.end(DISK)
            size = self.transform.output(*pair.shape)
            if size != frame.shape:
                with named(names[0]):
                    raise Error(
                        f"the image is {shape_text(size)}, the first one of its batch is {shape_text(frame.shape)}",
                        fix="set crop_size, new_height and new_width, or batch_size: 1",
                    )
            sized = self.transform.sized(frame.key, frame.positions[n], pair.shape)
            window, row = samples.at(n, pair.shape if sized is None else (pair.shape[0], *sized.size))
            for name, file, color, method, (layout, pixels, table) in zip(names, pair.files, (self.color, Color.GRAY), methods, rooms):
                with named(name), decoded(file, color) as image:
                    planes = image.transpose(2, 0, 1)
                    if self.resized:
                        planes = resize(planes, *self.resized, method)
                    if sized is not None:
                        planes = sized.apply(planes, nearest=method is Interpolation.NEAREST)
                    laps.end(DECODE)
                    copy_window(planes, window, pixels[n], layout, mixed=method is not Interpolation.NEAREST)
                table[n] = row
                laps.end(COPY)

        return put


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Add the name of a file to errors."""
    try:
        yield
    except Error as problem:
        raise Error(f"{name}: {problem.fact}", fix=problem.fix) from None
