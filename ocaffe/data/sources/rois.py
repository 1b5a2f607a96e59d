"""The sources of py-faster-rcnn's RoIDataLayer: images with their true boxes, scaled so that the shorter side has a given length.

Source of the rules: rbgirshick/py-faster-rcnn, lib/roi_data_layer and lib/utils/blob.py. Images and boxes are float32, as there. Random numbers come from
the key of the layer and the number of the batch, so a training can be continued at any batch.
"""
from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.changes.resample import check_pixels
from ocaffe.data.databases.database import Reader
from ocaffe.data.databases.datum import refuse_unmarked
from ocaffe.data.decoding.decode import Color, decoded, open_image
from ocaffe.data.dice import Dice
from ocaffe.data.source import RECORDS, BatchInfo, Source, permutation
from ocaffe.data.sources.floats import FloatLayout
from ocaffe.data.sources.roidb import Entry, flipped, open_annotated, parse, read_roidb
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, Place, shape_text
from ocaffe.ir.tensor import Shape

CHANNELS = 3
ROWS = 8  # the number of rows of gt_boxes is a multiple of it
_NO_BOX = -1
_LABEL_ROW = 8  # columns of the rows that DetectionEvaluate reads


class Scaled(NamedTuple):
    """An image of a batch: whether it is mirrored, the factor of its size, the size after that, and its position in the endless sequence."""

    entry: Entry
    mirrored: bool
    scale: float
    size: tuple[int, int]
    position: int

    def boxes(self, chosen: np.ndarray) -> np.ndarray:
        """Return boxes of the stored image (n x 4) as they are in this one."""
        return (flipped(chosen, self.entry.size[1]) if self.mirrored else chosen) * self.scale


class RoiSource(Source):
    """Batches of images of a database, each with further tops.

    In TRAIN, images without a use are left out, mirrored images are added, and each epoch has another random order. In TEST, all images come in the order
    of the database.
    """

    reentrant = True
    batch = 1  # images

    def __init__(self, settings: Any, train: bool, place: Place | None = None, layer: str | None = None) -> None:
        """`settings`: the attributes of RoIData's settings. Raises Error."""
        super().__init__(place, layer)
        self.settings, self.train = settings, train
        self.means = np.array(settings.pixel_means, np.float32)
        self._reading = threading.Lock()
        with self.located():
            self._check()
            self.database = open_annotated(settings.source)
            self._reader = Reader(self.database, train)
            self.entries = read_roidb(self.database)
            self._check_labels()
            self.prepare()
            self.used = [number for number in range(len(self.entries)) if not train or self.is_used(number)]
            if not self.used:
                fix = "set 'use_diff': True in param_str if all boxes are difficult, else 'source' to a database with boxes"
                raise Error(f"no image of {settings.source} has a box for training", fix=fix)
        self.workers = Workers(self.batch)
        self.images = len(self.used) * (2 if train and settings.use_flipped else 1)
        self._orders: dict[int, list[int]] = {}  # of the last two epochs
        self.notes = (("roidb.py:1", f"{settings.source}: {len(self.used)} images of {len(self.entries)}, {self.images} with mirrored ones"),)

    @abstractmethod
    def prepare(self) -> None:
        """Check the settings, and read what `is_used` needs beside the entries. Raises Error without a place."""

    @abstractmethod
    def is_used(self, number: int) -> bool:
        """Return whether a training uses the image of this number."""

    @abstractmethod
    def rest(self, images: Sequence[Scaled]) -> list[np.ndarray]:
        """Return the tops after the first for the images of a batch."""

    def _check(self) -> None:
        p = self.settings
        if len(self.means) != CHANNELS:
            raise Error(f"pixel_means has {len(self.means)} values", fix="give three in param_str: 'pixel_means': [blue, green, red]")
        if not p.scales or min(p.scales) < 1:
            raise Error(f"scales are {p.scales}", fix="give lengths of the shorter side in pixels in param_str, such as 'scales': [600]")
        for name, usual in (("max_size", 1000), ("pad", 32)):
            if getattr(p, name) < 1:
                raise Error(f"{name} is {getattr(p, name)}", fix=f"set '{name}' in param_str to pixels, at least 1; {usual} is usual")
        if not p.source:
            fix = "param_str: \"'source': 'boxes/train_lmdb', ...\", or `ocaffe train --imdb boxes/train_lmdb`; for plan, summary and time --shape 3x600x1000"
            raise Error("no database is given", fix=fix)

    def _check_labels(self) -> None:
        most = int(self.settings.num_classes) - 1
        for entry in self.entries:
            wrong = entry.labels[(entry.labels < 1) | (entry.labels > most)]
            if len(wrong):
                largest = f"set 'num_classes' in param_str to 1 more than the largest label: at least {wrong[0] + 1}"
                fix = largest if wrong[0] > most else "number the classes from 1 in the label map and in the database: 0 is the background"
                problem = Error(f"a box has label {wrong[0]}, and num_classes is {most + 1}", fix=fix)
                raise self.database.fault(problem, entry.record, self._reader.records([entry.record])[0][0])

    def kept(self, entry: Entry) -> np.ndarray:
        """Return which boxes count: as in py-faster-rcnn, difficult ones do not, unless `use_diff`."""
        return np.ones(len(entry.labels), bool) if self.settings.use_diff else ~entry.difficult

    # -- the order of images -------------------------------------------------------------------------------------------

    def images_of(self, index: int) -> list[Scaled]:
        """Return the images of batch number `index`. A part of an epoch that is less than a batch is left out."""
        batches = max(self.images // self.batch, 1)
        number = index * self.share.ranks + self.share.rank
        epoch, first = number // batches, number % batches * self.batch
        found = []
        for place in range(first, first + self.batch):
            image = self._order(epoch)[place % self.images] if self.train else place % self.images
            entry, position = self.entries[self.used[image % len(self.used)]], number * self.batch + place - first
            scales = self.settings.scales
            side = scales[Dice(self.key, position).below(len(scales)) if self.train else 0]
            found.append(Scaled(entry, image >= len(self.used), *scaled(entry.size, side, self.settings.max_size), position))
        return found

    def _order(self, epoch: int) -> list[int]:
        orders = self._orders
        if epoch not in orders:
            orders = self._orders = {old: found for old, found in orders.items() if old == epoch - 1} | {epoch: self.new_order(epoch)}
        return orders[epoch]

    def new_order(self, epoch: int) -> list[int]:
        """Return the numbers of the images of an epoch; mirrored ones come after all others."""
        return permutation(self.key, RECORDS, epoch, self.images).tolist()

    # -- batches -------------------------------------------------------------------------------------------------------

    def shapes(self) -> list[Shape]:
        return self._tops(images := self.images_of(0), self.rest(images))

    def _tops(self, images: Sequence[Scaled], rest: Sequence[np.ndarray]) -> list[Shape]:
        pad = int(self.settings.pad)
        height, width = (multiple(max(image.size[axis] for image in images), pad) for axis in (0, 1))
        return [(len(images), CHANNELS, height, width), *(array.shape for array in rest)]

    @property
    def nbytes(self) -> int:
        return FloatLayout(self.shapes()).nbytes

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        with self.located():
            images = self.images_of(index)
            rest = self.rest(images)
            tops = self._tops(images, rest)
            layout = FloatLayout(tops)
            if layout.nbytes <= buffer.nbytes:
                data, *others = layout.views(buffer)
                self.workers.run(partial(self._write_image, image, room) for image, room in zip(images, data))
                for array, room in zip(rest, others):
                    room[...] = array
        return BatchInfo(tuple(tops), layout.nbytes)

    def _write_image(self, image: Scaled, room: np.ndarray) -> None:
        """Write the image less the means, scaled, into the upper left corner of `room` (3 x height x width), and zeros beside it."""
        with self._reading:
            item = self._reader.records([image.entry.record])[0]
            key, datum = bytes(item[0]), parse(item).datum
        try:
            if datum.encoded:
                with decoded(open_image(datum.data), Color.COLOR) as pixels:
                    values = pixels.astype(np.float32)
            else:
                values = _stored(datum)
        except Error as problem:
            raise self.database.fault(problem, image.entry.record, key) from None
        values -= self.means
        height, width = image.size
        room[:, height:] = 0
        room[:, :, width:] = 0
        room[:, :height, :width] = resized(values[:, ::-1] if image.mirrored else values, image.scale, image.size).transpose(2, 0, 1)

    def close(self) -> None:
        self.workers.close()


class TrueBoxes(RoiSource):
    """An image for a region proposal network: data, im_info, gt_boxes, and optionally the rows that DetectionEvaluate reads."""

    def __init__(self, settings: Any, train: bool, rows: bool, place: Place | None = None, layer: str | None = None) -> None:
        """`rows`: those for DetectionEvaluate are wanted."""
        self.with_rows = rows
        super().__init__(settings, train, place, layer)

    def prepare(self) -> None:
        self.rows = multiple(max([1, *(len(entry.labels) for entry in self.entries)]), ROWS)  # one number, because each one compiles the net again

    def is_used(self, number: int) -> bool:
        return bool(self.kept(self.entries[number]).any())

    def rest(self, images: Sequence[Scaled]) -> list[np.ndarray]:
        (image,) = images
        info = np.array([[*image.size, image.scale]], np.float32)
        return [info, self._boxes(image), self._rows(image.entry)][: 2 + self.with_rows]

    def _boxes(self, image: Scaled) -> np.ndarray:
        """Return x1, y1, x2, y2 and label of the boxes, in pixels of the scaled image, and rows of -1."""
        chosen = self.kept(image.entry)
        made = np.full((self.rows, 5), _NO_BOX, np.float32)
        made[: chosen.sum(), :4], made[: chosen.sum(), 4] = image.boxes(image.entry.boxes[chosen]), image.entry.labels[chosen]
        return made

    def _rows(self, entry: Entry) -> np.ndarray:
        """Return image, label, instance, edges in shares of the image, difficult; and rows of -1."""
        made = np.full((1, 1, self.rows, _LABEL_ROW), _NO_BOX, np.float32)
        own, (height, width) = made[0, 0, : len(entry.labels)], entry.size
        own[:, 0], own[:, 1], own[:, 2], own[:, 7] = 0, entry.labels, np.arange(len(own)), entry.difficult
        own[:, 3:7] = (entry.boxes + (0, 0, 1, 1)) / (width, height, width, height)
        return made


def _stored(datum: Any) -> np.ndarray:
    """Return the pixels of a raw record, height x width x 3. A gray image gets three equal channels, as a file does. Raise Error without a place."""
    shape = datum.channels, datum.height, datum.width
    if datum.channels not in (1, CHANNELS):
        raise Error(f"its image has {datum.channels} channels", fix="write images of 1 or 3 channels, for example by `ocaffe dataset voc`")
    if len(datum.data) != math.prod(shape):
        refuse_unmarked(datum.data[:64])
        fix = "set channels, height and width of the datum to the shape of its data, where the database is written"
        raise Error(f"it has {len(datum.data)} bytes for an image of {shape_text(shape)}", fix=fix)
    pixels = np.frombuffer(datum.data, np.uint8).reshape(shape).transpose(1, 2, 0)
    return np.broadcast_to(pixels, (*shape[1:], CHANNELS)).astype(np.float32)


def scaled(size: Sequence[int], side: float, longest: float) -> tuple[float, tuple[int, int]]:
    """Return the factor that brings the shorter side of `size` to `side`, but the longer one to `longest` at most, and the size after it.

    Raise Error for too many pixels.
    """
    scale = side / min(size)
    if np.rint(scale * max(size)) > longest:
        scale = longest / max(size)
    height, width = (max(int(np.rint(length * scale)), 1) for length in size)
    fix = "set the shorter and the longer side to about 600 and 1000 pixels"
    check_pixels(f"an image of {shape_text(size)} with a shorter side of {side:g} pixels and a longer one of at most {longest:g}", height, width, fix)
    return scale, (height, width)


def multiple(value: int, of: int) -> int:
    """Return the smallest multiple of `of` that is at least `value`."""
    return -(-value // of) * of


def resized(image: np.ndarray, scale: float, size: Sequence[int]) -> np.ndarray:
    """Return the image (height x width x channels, float32) scaled by linear interpolation, as OpenCV does for float32. `size`: height and width after it."""
    for axis, length in enumerate(size):
        last = image.shape[axis] - 1
        at = (np.arange(length) + 0.5) / scale - 0.5
        left = np.floor(at).astype(np.intp)
        share = (at - left).astype(np.float32).reshape(-1, *[1] * (2 - axis))
        first, second = (image.take(np.clip(left + step, 0, last), axis) for step in (0, 1))
        second -= first
        second *= share
        first += second
        image = first
    return image
