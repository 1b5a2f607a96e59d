"""The source of a WindowData layer (R-CNN): windows of images, showing objects or background, resized to one size."""
from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.changes.resample import resize
from ocaffe.data.changes.transform import HEIGHT, MEAN_X, MEAN_Y, WIDTH, Layout, Transform, X, Y
from ocaffe.data.decoding.decode import Color, decoded, open_image
from ocaffe.data.source import SAMPLE, BatchInfo, Source, below, check_fields, draws
from ocaffe.data.stores.file_store import whole_number
from ocaffe.data.stores.text_list import read_listed
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, Place, shape_text
from ocaffe.formats.nearby import MissingPath, right_root
from ocaffe.ir.tensor import Shape
from ocaffe.support.files import text_lines
from ocaffe.support.whole import whole

CHANNELS = 3  # all images are read in color
_FORMAT = "per image: '# number', file, channels, height, width, number of windows; per window: label overlap x1 y1 x2 y2"
_HEAD = ("the file", "channels", "height", "width", "the number of windows")  # lines of an image after # and its number
_FIELDS = {
    "source", "batch_size", "scale", "fg_threshold", "bg_threshold", "fg_fraction", "context_pad", "crop_mode", "cache_images", "root_folder",
    "mean_file", "crop_size", "mirror",  # without effect, as in Caffe; the net upgrade warns about them
}  # fmt: skip


class Windows(NamedTuple):
    """Windows: the number of the image in the window file, the label, and the corners x1, y1, x2, y2 in pixels, inclusive."""

    image: np.ndarray
    label: np.ndarray
    corners: np.ndarray


class Cut(NamedTuple):
    """The part of an image that a sample shows (`box`: y1, x1, y2, x2, exclusive), its size after resizing, and its position in the sample."""

    box: tuple[int, int, int, int]
    size: tuple[int, int]
    at: tuple[int, int]


class WindowSource(Source):
    """Batches of windows drawn at random. A batch has windows of background first, then the fraction `fg_fraction` of object windows."""

    def __init__(
        self, param: Any, transform: Transform, labels: bool, *, workers: int | None = None, place: Place | None = None, layer: str | None = None
    ) -> None:
        """`param` is the WindowDataParameter; `labels`: the layer has a top for labels; `workers`: threads that read and decode (default: one per core)."""
        super().__init__(place, layer)
        with self.located():
            check_fields(param, _FIELDS, "window_data_param", "remove it")
            if not param.batch_size:
                raise Error(f"batch_size is {'0' if param.HasField('batch_size') else 'missing'}", fix="set batch_size in window_data_param to at least 1")
            if transform.crop is None:
                fix = "set crop_size in transform_param to the side in pixels that windows are resized to, such as crop_size: 227"
                raise Error("crop_size is not set", fix=fix)
            if transform.crop[0] != transform.crop[1]:
                fact = f"crop_h is {transform.crop[0]}, crop_w {transform.crop[1]}, and windows are resized to squares"
                raise Error(fact, fix="set crop_size in place of crop_h and crop_w")
            if param.crop_mode not in ("warp", "square"):
                raise Error(f"crop_mode is '{param.crop_mode}'", fix='crop_mode: "warp", or crop_mode: "square"')
            self.batch, self.side, self.pad = int(param.batch_size), transform.crop[0], int(param.context_pad)
            if 2 * self.pad >= self.side:
                fix = f"set context_pad to at most {(self.side - 1) // 2}, or a larger crop_size"
                raise Error(f"context_pad {self.pad} on both sides leaves nothing of crop_size {self.side}", fix=fix)
            self.transform, self.labels, self.square = transform, labels, param.crop_mode == "square"
            transform.refuse_skipping()
            self.workers = Workers(workers)
            self.layout = Layout(self.batch, CHANNELS, self.side, self.side, np.dtype(np.uint8))
            self.objects = int(np.float32(self.batch) * np.float32(param.fg_fraction))
            self._read(param)
            self._check_mean()
            self._files: dict[int, bytes] | None = {} if param.cache_images else None
        size = ",".join(map(str, self.shapes()[0]))
        self.notes = (
            ("window_data_layer.cpp:133", f"Number of images: {len(self.images)}"),
            *transform.notes,
            ("window_data_layer.cpp:171", f"output data size: {size}"),
        )

    # -- the window file ---------------------------------------------------------------------------------------------

    def _read(self, param: Any) -> None:
        self.source, self.root = str(param.source), str(param.root_folder)
        self.images: dict[int, str] = {}
        rows: tuple[list[list[int]], list[list[int]]] = ([], [])  # image, label, corners; of background, of objects
        words = self._words()
        foreground, background = np.float32(param.fg_threshold), np.float32(param.bg_threshold)
        for mark in words:
            if mark != "#":
                raise self._misfit() or self._malformed(f"'{mark}' where '#' and the number of an image were expected")
            image = self._next(words, whole_number, "the number of an image")
            self.images[image] = param.root_folder + self._next(words, str, "the file of an image")
            channels = self._next(words, whole_number, f"the size of image {image}")
            if channels != CHANNELS:
                fact = f"image {image} is listed with {channels} {'channel' if channels == 1 else 'channels'}, and all images are read with {CHANNELS}"
                raise self._misfit() or self._malformed(fact, f"write {CHANNELS} in this line: gray files get three channels")
            for _ in range(2):
                self._next(words, whole_number, f"the size of image {image}")
            for _ in range(self._next(words, whole_number, f"the number of windows of image {image}")):
                label = self._next(words, whole_number, f"the label of a window of image {image}")
                overlap = self._next(words, np.float32, f"the overlap of a window of image {image}")
                corners = [self._next(words, whole_number, f"the corners of a window of image {image}") for _ in range(4)]
                if overlap >= foreground:
                    if label <= 0:
                        fact = f"image {image} has a window of overlap {overlap:g} with label {label}, and labels of objects are 1 or more"
                        raise self._malformed(fact, f"write the label of its class, or an overlap below {foreground:g} (fg_threshold) for background")
                    rows[1].append([image, label, *corners])
                elif overlap < background:
                    rows[0].append([image, 0, *corners])
        if not self.images:
            self._line = 0
            raise self._malformed("it is empty", f"write the images and their windows to it; {_FORMAT}")
        self.kinds = [Windows(*(np.array(kind, np.int64).reshape(-1, 6)[:, part] for part in (0, 1, slice(2, 6)))) for kind in rows]
        for kind, wanted, name in zip(self.kinds, (self.batch - self.objects, self.objects), ("background", "object")):
            if wanted and not len(kind.image):
                fact = f"the window file {self.source} has no {name} window, and a batch takes {wanted}"
                raised = f"set bg_threshold above {background:g}, or fg_fraction: 1 for batches without background"
                fix = raised if name == "background" else f"set fg_threshold below {foreground:g}, or fg_fraction: 0 for batches without objects"
                raise Error(fact, fix=fix)

    def _words(self) -> Iterator[str]:
        try:
            for number, line in enumerate(text_lines(self.source), 1):
                self._line = number
                yield from line.split()
        except OSError as problem:
            fact = f"the window file '{self.source}' cannot be read: {problem.strerror}"
            raise MissingPath(fact, self.source, "source", "set source in window_data_param to the window file") from None

    def _next(self, words: Iterator[str], kind: Callable[[str], Any], what: str) -> Any:
        word = next(words, None)
        if word is None:
            raise self._misfit() or self._malformed(f"it ends where {what} was expected")
        try:
            return kind(word)
        except ValueError:
            raise self._misfit() or self._malformed(f"'{word}' where {what} was expected") from None

    def _misfit(self) -> Error | None:
        """Return the error for the line of the image at hand that shifts those after it. None if its lines are not divided as usual.

        An error shows at a later word, because words may be divided into lines as one likes.
        """
        lines = [(number, line.split()) for number, line in enumerate(text_lines(self.source), 1) if line.strip()]
        begins = [at for at, (number, words) in enumerate(lines) if words[0] == "#" and (number < self._line or not at)]
        if not begins or len(lines[begins[-1]][1]) != 2:
            return None
        listed = lines[begins[-1] :]
        end = next((at for at, (_, words) in enumerate(listed) if at and words[0] == "#"), len(listed))
        for at, what in enumerate(_HEAD, 1):
            number, words = listed[at] if at < end else (listed[end - 1][0], [])
            if words and at > 1 and not (len(words) == 1 and whole(words[0]) >= 0):
                self._line = number
                return self._malformed(f"'{' '.join(words)}' where {what} was expected", f"write {', '.join(_HEAD)}, each in its own line, before the windows")
        if end <= len(_HEAD):
            return None
        windows, count = listed[1 + len(_HEAD) : end], int(listed[len(_HEAD)][1][0])
        for number, words in windows[:count]:
            if len(words) != 6:
                self._line = number
                return self._malformed(f"'{' '.join(words)}' has {len(words)} words, and a window has 6", "write label overlap x1 y1 x2 y2 in this line")
        if len(windows) == count or any(len(words) != 6 for _, words in windows):
            return None
        self._line = listed[len(_HEAD)][0]
        fact = f"the number of windows is {count}, and {len(windows)} follow"
        return self._malformed(fact, f"write {len(windows)} in this line, or correct the windows after it")

    def _malformed(self, fact: str, fix: str = "") -> Error:
        """Return the error for the current line, or for the whole file if that is 0."""
        line = f", line {self._line}" if self._line else ""
        return Error(f"window file {self.source}{line}: {fact}", fix=fix or f"correct the line; {_FORMAT}")

    def _check_mean(self) -> None:
        mean = self.transform.mean
        if mean is None:
            return
        if mean.ndim == 1 and len(mean) not in (1, CHANNELS):
            raise Error(f"{len(mean)} mean_value given for images of {CHANNELS} channels", fix=f"give mean_value once, or {CHANNELS} times")
        if mean.ndim == 3 and (mean.shape[0] != CHANNELS or mean.shape[1] != mean.shape[2] or mean.shape[1] < self.side):
            raise Error(
                f"mean_file {self.transform.mean_file} is {shape_text(mean.shape)}, windows {shape_text((CHANNELS, self.side, self.side))}",
                fix="make a square mean image of at least that size, or remove mean_file and set mean_value once for each channel",
            )

    # -- batches -----------------------------------------------------------------------------------------------------

    def shapes(self) -> list[Shape]:
        return [(self.batch, CHANNELS, self.side, self.side), (self.batch,)][: 1 + self.labels]

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        info = BatchInfo(tuple(self.shapes()), self.nbytes)
        if self.nbytes > buffer.nbytes:
            return info
        words = draws(self.key, SAMPLE, self.share.positions(index, self.batch))
        mirror = (words[:, 1] >> np.uint64(63)).astype(bool) & self.transform.mirror
        table, labels, pixels = self.layout.table(buffer), self.layout.labels(buffer), self.layout.pixels(buffer)
        table[...] = 0
        if self.transform.mean is not None and self.transform.mean.ndim == 3:
            table[:, MEAN_Y : MEAN_X + 1] = (self.transform.mean.shape[1] - self.side) // 2
        tasks = []
        for n in range(self.batch):
            kind = self.kinds[n >= self.batch - self.objects]
            window = int(below(words[n, :1], len(kind.image))[0])
            labels[n] = kind.label[window]
            wrong = self.wrong_label(1, labels[n : n + 1])
            if wrong is not None:
                image = int(kind.image[window])
                with self.located():
                    raise Error(f"window file {self.source}, image {image}: {self.images[image]}: {wrong[1].fact}", fix=wrong[1].fix)
            tasks.append(partial(self._stage, int(kind.image[window]), kind.corners[window], bool(mirror[n]), table[n], pixels[n]))
        with self.located():
            self.workers.run(tasks)
        return info

    def _stage(self, image: int, corners: np.ndarray, mirror: bool, row: np.ndarray, room: np.ndarray) -> None:
        """Read an image, cut the window out, and write it to `room` and its size and position to `row` of the table."""
        try:
            with decoded(open_image(self._file(image), self.transform.max_pixels), Color.COLOR) as pixels:
                self._put(pixels.transpose(2, 0, 1), image, corners, mirror, row, room)
        except Error as problem:
            fact = f"window file {self.source}, image {image}: {self.images[image]}: {problem.fact}"
            root = right_root(self.root, self.images[image], self.source) if not os.path.exists(self.images[image]) else None
            raise Error(fact, fix=root or problem.fix or "replace the file") from None

    def _put(self, pixels: np.ndarray, image: int, corners: np.ndarray, mirror: bool, row: np.ndarray, room: np.ndarray) -> None:
        x1, y1, x2, y2 = (int(n) for n in corners)
        height, width = pixels.shape[1:]
        if not (0 <= x1 <= x2 < width and 0 <= y1 <= y2 < height):
            fix = f"write x1 y1 x2 y2 with 0 <= x1 <= x2 <= {width - 1} and 0 <= y1 <= y2 <= {height - 1} in the window file"
            raise Error(f"the image is {width} x {height}, a window of it {x1} {y1} {x2} {y2}", fix=fix)
        cut = self.cut((x1, y1, x2, y2), (height, width), mirror)
        top, left, bottom, right = cut.box
        row[HEIGHT : WIDTH + 1] = cut.size
        row[Y : X + 1] = cut.at
        if min(cut.size) > 0:
            part = resize(pixels[:, top:bottom, left:right], *cut.size)
            room[: part.size].reshape(part.shape)[...] = part[:, :, ::-1] if mirror else part

    def _file(self, image: int) -> bytes:
        """Return the content of an image file."""
        data = self._files.get(image) if self._files is not None else None
        if data is None:
            data = read_listed(self.images[image])
            if self._files is not None:
                self._files[image] = data
        return data

    def cut(self, corners: tuple[int, int, int, int], image: tuple[int, int], mirror: bool) -> Cut:
        """Return the Cut of a window (x1, y1, x2, y2); `image` is height and width of its image.

        With context_pad the window is enlarged, so that context_pad pixels of the sample around it show its surroundings. Pixels outside the
        image stay empty. All arithmetic is float32, as in Caffe.
        """
        x1, y1, x2, y2 = corners
        if not self.pad and not self.square:
            return Cut((y1, x1, y2 + 1, x2 + 1), (self.side, self.side), (0, 0))
        grown = np.float32(self.side) / np.float32(self.side - 2 * self.pad)
        half = [np.float32((last - first + 1) / 2) for first, last in ((y1, y2), (x1, x2))]
        centre = [np.float32(np.float32(first) + part) for first, part in zip((y1, x1), half)]
        if self.square:
            half = [max(half)] * 2
        begin, end, size, before, after = [], [], [], [], []
        for middle, part, length in zip(centre, half, image):
            low, high = _round(middle - part * grown), _round(middle + part * grown)
            outside = max(0, -low), max(0, high - length + 1)
            scale = np.float32(self.side) / np.float32(high - low + 1)
            begin.append(low + outside[0])
            end.append(high - outside[1] + 1)
            size.append(_round(np.float32(end[-1] - begin[-1]) * scale))
            before.append(_round(np.float32(outside[0]) * scale))
            after.append(_round(np.float32(outside[1]) * scale))
        at = before[0], after[1] if mirror else before[1]
        height, width = (min(n, self.side - place) for n, place in zip(size, at))  # rounding may have made the size too large
        return Cut((begin[0], begin[1], end[0], end[1]), (height, width), at)

    def close(self) -> None:
        self.workers.close()


def _round(value: np.float32) -> int:
    """Round as C does: halves away from zero."""
    return int(math.copysign(math.floor(abs(float(value)) + 0.5), value))
