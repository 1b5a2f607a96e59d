"""The source of py-faster-rcnn's RoIDataLayer: images with their true boxes, scaled so that the shorter side has a given length.

Source of the rules: rbgirshick/py-faster-rcnn, lib/roi_data_layer and lib/utils/blob.py. Images and boxes are float32, as there. Random numbers come from
the key of the layer and the number of the batch, so a training can be continued at any batch.
"""
from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from ocaffe.data.decode import Color, decoded, open_image
from ocaffe.data.dice import Dice
from ocaffe.data.floats import FloatLayout
from ocaffe.data.images import Records
from ocaffe.data.roidb import Entry, flipped, open_annotated, parse, read_roidb
from ocaffe.data.source import RECORDS, BatchInfo, Source, permutation
from ocaffe.errors import Error, Place
from ocaffe.ir.tensor import Shape

CHANNELS = 3
ROWS = 8  # the number of rows of gt_boxes is a multiple of it
_NO_BOX = -1
_LABEL_ROW = 8  # columns of the rows that DetectionEvaluate reads


class RoiSource(Source):
    """Batches of one image for a region proposal network: data, im_info, gt_boxes, and optionally the rows that DetectionEvaluate reads.

    In TRAIN, images without a box are left out, mirrored images are added, and each epoch has another random order. In TEST, all images come in the order
    of the database.
    """

    reentrant = True

    def __init__(self, settings: Any, train: bool, rows: bool, place: Place | None = None, layer: str | None = None) -> None:
        """`settings`: the attributes of RoIData's settings. `rows`: the fourth top is wanted. Raises Error."""
        super().__init__(place, layer)
        self.settings, self.train, self.with_rows = settings, train, rows
        self.means = np.array(settings.pixel_means, np.float32)
        self._reading = threading.Lock()
        with self.located():
            self._check()
            database = open_annotated(settings.source)
            self.records = Records(database, train)
            self.entries = read_roidb(database)
            self._check_labels()
            self.used = [entry for entry in self.entries if not train or self.kept(entry).any()]
            if not self.used:
                raise Error(f"no image of {settings.source} has a box that is not difficult", fix="another database, or 'use_diff': True")
        self.images = len(self.used) * (2 if train and settings.use_flipped else 1)
        self.rows = multiple(max([1, *(int(self.kept(entry).sum()) for entry in self.used)]), ROWS)
        self._orders: dict[int, list[int]] = {}  # of the last two epochs
        self.notes = (("roidb.py:1", f"{settings.source}: {len(self.used)} images of {len(self.entries)}, {self.images} with mirrored ones"),)

    def _check(self) -> None:
        p = self.settings
        if len(self.means) != CHANNELS:
            raise Error(f"pixel_means has {len(self.means)} values", fix="three: blue, green, red")
        if not p.scales or min(p.scales) < 1 or p.max_size < 1 or p.pad < 1:
            raise Error(f"scales are {p.scales}, max_size is {p.max_size}, pad {p.pad}", fix="lengths in pixels: 'scales': [600], 'max_size': 1000, 'pad': 32")
        if not p.source:
            raise Error("no database is given", fix="param_str: \"'source': 'boxes/train_lmdb', ...\", or `ocaffe train --imdb boxes/train_lmdb`")

    def _check_labels(self) -> None:
        most = int(self.settings.num_classes) - 1
        for entry in self.entries:
            wrong = entry.labels[(entry.labels < 1) | (entry.labels > most)]
            if len(wrong):
                problem = Error(f"a box has label {wrong[0]}, and num_classes is {most + 1}", fix="num_classes of the label map: 1 more than the largest label")
                raise self.fault(problem, entry)

    def fault(self, problem: Error, entry: Entry) -> Error:
        """Return `problem` with the place of the record."""
        return self.records.fault(problem, entry.record, self.records.read([entry.record])[0][0])

    def kept(self, entry: Entry) -> np.ndarray:
        """Return which boxes count: as in py-faster-rcnn, difficult ones do not, unless `use_diff`."""
        return np.ones(len(entry.labels), bool) if self.settings.use_diff else ~entry.difficult

    # -- the order of images -------------------------------------------------------------------------------------------

    def image(self, position: int) -> tuple[Entry, bool]:
        """Return the image at this position of the endless sequence, and whether it is mirrored."""
        number = position % self.images
        if self.train:
            number = self._order(position // self.images)[number]
        return self.used[number % len(self.used)], number >= len(self.used)

    def _order(self, epoch: int) -> list[int]:
        orders = self._orders
        if epoch not in orders:
            order = permutation(self.key, RECORDS, epoch, self.images).tolist()
            orders = self._orders = {old: found for old, found in orders.items() if old == epoch - 1} | {epoch: order}
        return orders[epoch]

    # -- batches -------------------------------------------------------------------------------------------------------

    def shapes(self) -> list[Shape]:
        return self.tops(*scaled(self.used[0].size, self.settings.scales[0], self.settings.max_size)[1])

    def tops(self, height: int, width: int, labels: int = 1) -> list[Shape]:
        """Return the shapes of the tops for an image of this size. `labels`: rows for DetectionEvaluate."""
        pad = int(self.settings.pad)
        data: Shape = (1, CHANNELS, multiple(height, pad), multiple(width, pad))
        return [data, (1, 3), (self.rows, 5), (1, 1, self.rows, _LABEL_ROW)][: 3 + self.with_rows]

    @property
    def nbytes(self) -> int:
        return FloatLayout(self.shapes()).nbytes

    def fill(self, index: int, block: np.ndarray) -> BatchInfo:
        (position,) = self.share.positions(index, 1)
        with self.located():
            entry, mirrored = self.image(position)
            scales = self.settings.scales
            side = scales[Dice(self.key, position).below(len(scales)) if self.train else 0]
            scale, size = scaled(entry.size, side, self.settings.max_size)
            tops = self.tops(*size)
            layout = FloatLayout(tops)
            if layout.nbytes <= block.nbytes:
                data, info, truth, *rows = layout.views(block)
                self.write_image(entry, mirrored, scale, size, data[0])
                info[0] = *size, scale
                self._write_boxes(entry, mirrored, scale, truth)
                if rows:
                    self._write_rows(entry, rows[0][0, 0])
        return BatchInfo(tuple(tops), layout.nbytes)

    def write_image(self, entry: Entry, mirrored: bool, scale: float, size: tuple[int, int], room: np.ndarray) -> None:
        """Write the image less the means, scaled, into the upper left corner of `room` (3 x height x width), and zeros beside it."""
        with self._reading:
            item = self.records.read([entry.record])[0]
            key, datum = bytes(item[0]), parse(item).datum
        try:
            if datum.encoded:
                with decoded(open_image(datum.data), Color.COLOR) as pixels:
                    image = pixels.astype(np.float32)
            else:
                image = np.frombuffer(datum.data, np.uint8).reshape(datum.channels, datum.height, datum.width).transpose(1, 2, 0).astype(np.float32)
        except Error as problem:
            raise self.records.fault(problem, entry.record, key) from None
        image -= self.means
        height, width = size
        room[:, height:] = 0
        room[:, :, width:] = 0
        room[:, :height, :width] = resized(image[:, ::-1] if mirrored else image, scale, size).transpose(2, 0, 1)

    def _write_boxes(self, entry: Entry, mirrored: bool, scale: float, room: np.ndarray) -> None:
        """Write x1, y1, x2, y2 and label of the boxes, in pixels of the scaled image, and rows of -1."""
        chosen = self.kept(entry)
        boxes = entry.boxes[chosen]
        room[...] = _NO_BOX
        room[: len(boxes), :4] = (flipped(boxes, entry.size[1]) if mirrored else boxes) * scale
        room[: len(boxes), 4] = entry.labels[chosen]

    def _write_rows(self, entry: Entry, room: np.ndarray) -> None:
        """Write image, label, instance, edges in shares of the image, difficult; and rows of -1."""
        room[...] = _NO_BOX
        height, width = entry.size
        own = room[: len(entry.labels)]
        own[:, 0], own[:, 1], own[:, 2], own[:, 7] = 0, entry.labels, np.arange(len(own)), entry.difficult
        own[:, 3:7] = (entry.boxes + (0, 0, 1, 1)) / (width, height, width, height)


def scaled(size: Sequence[int], side: float, longest: float) -> tuple[float, tuple[int, int]]:
    """Return the factor that brings the shorter side of `size` to `side`, but the longer one to `longest` at most, and the size after it."""
    scale = side / min(size)
    if np.rint(scale * max(size)) > longest:
        scale = longest / max(size)
    height, width = (max(int(np.rint(length * scale)), 1) for length in size)
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
