"""Stages images with label images as DeepLab and PSPNet do: scaled at random, padded at the bottom and right, cropped and mirrored alike."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ocaffe import proto
from ocaffe.data.changes.resample import Interpolation, resize
from ocaffe.data.changes.transform import HEIGHT, WIDTH, Layout, X, Y
from ocaffe.data.decoding.decode import Color, decoded
from ocaffe.data.dice import Dice
from ocaffe.data.effort import COPY, DECODE, DISK, Laps
from ocaffe.data.stagers.dense_stager import DenseStager, Frame, Names, Pair, Shape3, named
from ocaffe.errors import Error, shape_text

F = np.float32
NONE, IMAGE, PIXEL = (getattr(proto.ImageDataParameter, name) for name in ("NONE", "IMAGE", "PIXEL"))  # label_type


class Cut(NamedTuple):
    """The part of an image in a sample: the height and width after scaling, the corner of the crop, and whether it is mirrored."""

    size: tuple[int, int]
    y: int
    x: int
    mirror: bool


@dataclass
class SegStager(DenseStager):
    """As DenseStager, for ImageSegData. The images are planar, and only their part of the sample is staged. The labels fill the sample.

    `factors`: scales of images, of which each draws one. `label_type`: a label for each pixel from an image file, one for the whole image, or none.
    `ignored`: the label of padding. `tops`: the layer's number of tops; the third one has the sizes of the images.
    """

    factors: tuple[float, ...] = ()
    label_type: int = PIXEL
    ignored: int = 255
    tops: int = 2

    def layouts(self, shape: Shape3) -> list[Layout]:
        """Return the layouts of the consecutive regions of a batch buffer for samples of `shape`: images, labels, sizes."""
        bytes_ = np.dtype(np.uint8)
        images = Layout(self.batch, *shape, bytes_, False, 0)
        return [images, replace(images, channels=1), Layout(self.batch, 1, 1, 2, np.dtype(np.float32), False, 0)][: self.tops]

    def files_of(self, names: Names) -> Sequence[str]:
        """Return the file of an image, and that of its labels, if it has one."""
        return names[: 2 if self.label_type == PIXEL else 1]

    def check_size(self, shape: Shape3) -> None:
        """Any size is right: a smaller image is pasted into the crop."""

    def check_fit(self, names: Names, pair: Pair, frame: Frame) -> None:
        """Raise Error, with the name of a file, for an image that has no place in the samples of a batch."""
        if self.transform.crop is None and pair.shape != frame.shape:
            with named(names[0]):
                raise Error(
                    f"the image is {shape_text(pair.shape)}, the first one of its batch is {shape_text(frame.shape)}",
                    fix="set crop_size, new_height and new_width, or batch_size: 1",
                )

    def cut(self, frame: Frame, n: int, shape: Shape3) -> Cut:
        """Return the part of an image of `shape` that sample number n of a batch shows."""
        dice = Dice(frame.key, frame.positions[n])
        factor = F(self.factors[dice.below(len(self.factors))] if self.factors else 1)
        size = shape[1:] if factor == 1 else (int(F(shape[1]) * factor), int(F(shape[2]) * factor))
        room = [max(side - crop, 0) for side, crop in zip(size, frame.shape[1:])]
        y, x = [dice.below(free + 1) if self.transform.train else free // 2 for free in room]
        return Cut((size[0], size[1]), y, x, self.transform.mirror and dice.below(2) > 0)

    def putter(self, frame: Frame, buffer: np.ndarray) -> Callable[[int, Names, Laps], None]:
        rooms = [(layout, layout.pixels(region), layout.table(region)) for layout, region in self.regions(frame.shape, buffer)]

        def put(n: int, names: Names, laps: Laps) -> None:
            pair = self.open(names)
            laps.end(DISK)
            _, height, width = frame.shape
            self.check_fit(names, pair, frame)
            cut = self.cut(frame, n, pair.shape)
            shown = min(cut.size[0], height), min(cut.size[1], width)
            left = width - shown[1] if cut.mirror else 0
            for (layout, pixels, table), planes in zip(rooms, self.planes(names, pair, cut, shown)):
                table[n] = 0
                laps.end(DECODE)
                if layout.dtype == np.float32:
                    pixels[n] = [min(pair.shape[1], height), min(pair.shape[2], width)]
                    table[n, HEIGHT], table[n, WIDTH] = 1, 2
                elif layout.channels == 1 and layout is not rooms[0][0]:
                    labels = np.full((height, width), self.ignored, np.uint8)
                    labels[: shown[0], left : left + shown[1]] = planes[0]
                    pixels[n] = labels.reshape(-1)
                    table[n, HEIGHT], table[n, WIDTH] = height, width
                else:
                    pixels[n, : planes.size] = planes.reshape(-1)
                    table[n, HEIGHT], table[n, WIDTH], table[n, Y], table[n, X] = *shown, 0, left
                laps.end(COPY)

        return put

    def planes(self, names: Names, pair: Pair, cut: Cut, shown: tuple[int, int]) -> Iterator[np.ndarray]:
        """Yield the shown pixels of an image, and of its labels, as channels x height x width; then nothing of the same kind for the sizes."""
        for name, file, color, method in zip(names, pair.files, (self.color, Color.GRAY), (Interpolation.LINEAR, Interpolation.NEAREST)):
            if method is Interpolation.NEAREST and self.label_type != PIXEL:
                yield np.full((1, *shown), int(names[1]) & 255 if self.label_type == IMAGE else self.ignored, np.uint8)
                continue
            with named(name), decoded(file, color) as image:
                planes = image.transpose(2, 0, 1)
                if self.resized:
                    planes = resize(planes, *self.resized, method)
                planes = resize(planes, *cut.size, method)[:, cut.y : cut.y + shown[0], cut.x : cut.x + shown[1]]
                yield planes[:, :, ::-1] if cut.mirror else planes
        yield np.empty(0, np.uint8)
