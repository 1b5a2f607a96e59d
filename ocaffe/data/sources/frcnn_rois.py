"""The source of makefile/frcnn's FrcnnRoiData: image files of a list with their boxes, as RoIDataLayer of py-faster-rcnn gives them."""
from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.changes.resample import shrunk
from ocaffe.data.decoding.decode import MAX_PIXELS, Color, decoded
from ocaffe.data.dice import Dice
from ocaffe.data.order import Order
from ocaffe.data.source import BatchInfo, Source
from ocaffe.data.sources.floats import FloatLayout
from ocaffe.data.sources.roidb import flipped
from ocaffe.data.sources.rois import ROWS, multiple, resized
from ocaffe.data.stores.text_list import read_image
from ocaffe.errors import Error, Place, shape_text
from ocaffe.formats.nearby import MissingPath
from ocaffe.ir.tensor import Shape
from ocaffe.support.files import text_lines
from ocaffe.support.whole import whole

FIX = "write the list of the fork: '#' and a number, the name of an image, the number of its boxes, then for each: label, x1, y1, x2, y2, difficult"


class Listed(NamedTuple):
    """An image of the list: its line, its file, and its boxes, G x 5: label, x1, y1, x2, y2."""

    line: int
    path: str
    boxes: np.ndarray


class Drawn(NamedTuple):
    """An image of a batch: whether it is mirrored, the factor of its size, and its height and width before and after that."""

    listed: Listed
    mirrored: bool
    scale: float
    before: tuple[int, int]
    after: tuple[int, int]


class ListedBoxes(Source):
    """Batches of one image: data, im_info and gt_boxes."""

    def __init__(self, settings: Any, source: str, root: str, train: bool, *, place: Place | None = None, layer: str | None = None) -> None:
        """`settings`: the attributes of FrcnnRoiData's settings."""
        super().__init__(place, layer)
        self._settings, self._train, self._source = settings, train, source
        with self.located():
            if not settings.scales or min(settings.scales) < 1:
                raise Error(f"scales are {settings.scales}", fix="set scales in the file of config to lengths of the shorter side in pixels, 1 or more")
            for name in ("max_size", "im_size_align"):
                if getattr(settings, name) < 1:
                    raise Error(f"{name} is {getattr(settings, name)}", fix=f"set {name} in the file of config to a length in pixels, 1 or more")
            if len(settings.pixel_means) != 3:
                raise Error(f"pixel_means has {len(settings.pixel_means)} values", fix="give three values of pixel_means: blue, green, red")
            self._images = list(_listed(source, root, int(settings.n_classes)))
            self._rows = multiple(max(len(image.boxes) for image in self._images), ROWS)  # one number, because each one compiles the net again
        self._means = np.float32(settings.pixel_means)
        self._longest = multiple(int(settings.max_size), int(settings.im_size_align))
        self._order = Order(len(self._images), shuffle=True)
        self.notes = (("frcnn_roi_data_layer.cpp:133", f"number of images: {len(self._images)}"),)

    def _drawn(self, index: int) -> Drawn:
        """Return the image of batch number `index`. Raise Error without a place."""
        (position,) = self.share.positions(index, 1)
        (record,) = self._order.records(self.key, range(position, position + 1))
        image, dice, p = self._images[record], Dice(self.key, position), self._settings
        mirrored = bool(p.use_flipped) and dice.below(2) > 0 and self._train
        side = p.scales[dice.below(len(p.scales))]
        try:
            height, width = read_image(image.path, MAX_PIXELS).shape(Color.COLOR)[1:]
        except Error as problem:
            raise self._fault(image, problem) from None
        scale = np.float32(side) / np.float32(min(height, width))
        if scale * max(height, width) > self._longest:
            scale = np.float32(self._longest) / np.float32(max(height, width))
        after = [max(int(np.rint(float(scale) * size)), 1) for size in (height, width)]
        return Drawn(image, mirrored, float(scale), (height, width), (after[0], after[1]))

    def _fault(self, image: Listed, problem: Error) -> Error:
        return Error(f"{self._source}, line {image.line}: {image.path}: {problem.fact}", fix=problem.fix or "correct the list, or replace the file")

    def shapes(self) -> list[Shape]:
        return self._tops(self._drawn(0))

    def _tops(self, image: Drawn) -> list[Shape]:
        height, width = (multiple(size, int(self._settings.im_size_align)) for size in image.after)
        return [(1, 3, height, width), (1, 3), (self._rows, 5)]

    @property
    def nbytes(self) -> int:
        return FloatLayout(self.shapes()).nbytes

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        with self.located():
            image = self._drawn(index)
            tops = self._tops(image)
            layout = FloatLayout(tops)
            if layout.nbytes <= buffer.nbytes:
                data, info, boxes = layout.views(buffer)
                height, width = image.after
                data[...] = 0
                data[0, :, :height, :width] = self._pixels(image).transpose(2, 0, 1)
                info[...] = *data.shape[2:], image.scale
                boxes[...] = -1
                boxes[: len(image.listed.boxes)] = self._boxes(image, data.shape[2], data.shape[3])
        return BatchInfo(tuple(tops), layout.nbytes)

    def _pixels(self, image: Drawn) -> np.ndarray:
        """Return the scaled image less the means, height x width x 3. Raise Error without a place."""
        try:
            with decoded(read_image(image.listed.path, MAX_PIXELS), Color.COLOR) as pixels:
                values = pixels.astype(np.float32)
        except Error as problem:
            raise self._fault(image.listed, problem) from None
        if values.shape[:2] != image.before:
            raise self._fault(image.listed, Error(f"it is {shape_text(values.shape)} now", fix="start again, and do not change the files while they are read"))
        values = (values[:, ::-1] if image.mirrored else values) - self._means
        return shrunk(values, *image.after) if image.scale < 1 else resized(values, image.scale, image.after)

    def _boxes(self, image: Drawn, height: int, width: int) -> np.ndarray:
        """Return x1, y1, x2, y2 and label of the boxes in pixels of the scaled image. They end at the image."""
        labels, corners = image.listed.boxes[:, :1], image.listed.boxes[:, 1:].astype(np.float32)
        corners = flipped(corners, image.before[1]) if image.mirrored else corners
        last = np.array([image.before[1] - 1, image.before[0] - 1], np.float32)
        corners = np.concatenate([np.maximum(corners[:, :2], 0), np.minimum(corners[:, 2:], last)], 1) * np.float32(image.scale)
        outside = corners[:, 2:] >= [width, height]
        corners[:, 2:] = np.where(outside, [width - 1, height - 1], corners[:, 2:])
        return np.concatenate([corners, labels], 1)


def _listed(source: str, root: str, classes: int) -> Iterator[Listed]:
    """Yield the images of a list. Raise Error without a place."""
    try:
        lines = [(number, line.split()) for number, line in enumerate(text_lines(source), 1) if line.strip()]
    except (OSError, ValueError) as problem:
        raise MissingPath(f"the list '{source}' cannot be read: {getattr(problem, 'strerror', None) or problem}", source, "source", FIX) from None
    at = 0

    def take(what: str, count: int) -> tuple[int, list[str]]:
        nonlocal at
        number, words = lines[at] if at < len(lines) else (lines[-1][0] if lines else 0, ["the end of the file"])
        if at >= len(lines) or len(words) < count:
            raise Error(f"{source}, line {number}: '{' '.join(words)}' instead of {what}", fix=FIX)
        at += 1
        return number, words

    while at < len(lines) or not lines:
        _, head = take("'#' and a number", 2)
        number, name = take("the name of an image", 1)
        path = root + " ".join(name)
        place, count = take("the number of boxes", 1)
        if head[0] != "#" or whole(count[0]) < 0:
            raise Error(f"{source}, line {number}: '{head[0]}' and '{count[0]}' instead of '#' and the number of boxes", fix=FIX)
        follow = next((after for after, (_, words) in enumerate(lines[at:]) if words[0] == "#"), len(lines) - at)
        if follow != int(count[0]):
            fact = f"{source}, line {place}: the number of boxes is {count[0]}, and {follow} lines follow"
            raise Error(fact, fix=f"write {follow} in this line, or correct the boxes after it")
        boxes = [_box(source, *take("a box", 6), classes) for _ in range(int(count[0]))]
        if not boxes:
            raise Error(f"{source}, line {number}: {path} has no boxes", fix="leave the image out of the list: the net needs a box in each")
        if not os.path.exists(path):
            raise MissingPath(f"{source}, line {number}: {path} does not exist", path, "root_folder", "correct root_folder or the list")
        yield Listed(number, path, np.array(boxes, np.float32))


def _box(source: str, line: int, words: list[str], classes: int) -> list[float]:
    try:
        label, *corners = [float(word) for word in words[:5]]
    except ValueError:
        raise Error(f"{source}, line {line}: '{' '.join(words)}' is no box", fix=FIX) from None
    if not 0 < label < classes:
        fix = f"write a label from 1 to {classes - 1}" + (f", or set n_classes to at least {label + 1:g}" if label > 0 else ": 0 is the background")
        raise Error(f"{source}, line {line}: the label is {label:g}, and n_classes is {classes}", fix=fix)
    if corners[2] < corners[0] or corners[3] < corners[1]:
        fact = f"{source}, line {line}: the box x1 y1 x2 y2 is {' '.join(f'{corner:g}' for corner in corners)}"
        raise Error(fact, fix="write x2 of at least x1, and y2 of at least y1")
    return [label, *corners]
