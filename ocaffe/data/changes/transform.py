"""Caffe's DataTransformer, split between host and device: the host draws crops and mirrors, the device does the arithmetic (transform.cl)."""
from __future__ import annotations

import copy
import math
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ocaffe.data.changes.resample import check_pixels
from ocaffe.data.changes.sizing import FIELDS as SIZES
from ocaffe.data.changes.sizing import Sized, Sizing, Stretched, sizing_of
from ocaffe.data.decoding.decode import Color
from ocaffe.data.dice import Dice
from ocaffe.data.source import SAMPLE, Note, aligned, below, check_fields, draws
from ocaffe.errors import Error, shape_text
from ocaffe.formats.blob import read_finite
from ocaffe.formats.nearby import MissingPath
from ocaffe.ir.kernel import Can, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.support.finite import singles

PASTE = Kernel("transform.paste", read("block"), read("mean", optional=True), write("y"), write("label", optional=True), can=Can(recompute=True))
TRANSFORM = Kernel("transform.transform", read("block"), read("mean", optional=True), write("y"), write("label", optional=True), can=Can(recompute=True))

HEIGHT, WIDTH, Y, X, MEAN_Y, MEAN_X, MIRROR = range(7)  # columns of the table
_COLUMNS = 8
GPU_PIXELS = 4  # pixels that a work-item writes on a GPU
NO_PIXELS = "replace the image by one of at least 1 channel, 1 row and 1 column"
_FIELDS = {
    "scale", "mirror", "crop_size", "crop_h", "crop_w", "mean_file", "mean_value", "force_color", "force_gray",
    "max_image_pixels", "skip_bad_records",
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """The layout of a batch buffer with `batch` images: pixels, then a table of int32, then labels.

    An image has channels x height x width values of `dtype`, or height x width x channels if `interleaved`, as image files are decoded.
    """

    batch: int
    channels: int
    height: int
    width: int
    dtype: np.dtype
    interleaved: bool = False
    label_count: int = 1  # labels of an image
    room: int = 1  # an image may have so many times height x width pixels
    columns: int = _COLUMNS  # of the table

    @property
    def image(self) -> int:
        """The stride between images, in elements."""
        return self.channels * self.height * self.width * self.room

    @property
    def table_at(self) -> int:
        return aligned(self.batch * self.image * self.dtype.itemsize)

    @property
    def label_at(self) -> int:
        return self.table_at + aligned(self.batch * self.columns * 4)

    @property
    def nbytes(self) -> int:
        return self.label_at + aligned(self.batch * self.label_count * 4)

    def pixels(self, buffer: np.ndarray) -> np.ndarray:
        """Return the images in `buffer` as a view, batch x image."""
        return buffer[: self.batch * self.image * self.dtype.itemsize].view(self.dtype).reshape(self.batch, self.image)

    def table(self, buffer: np.ndarray) -> np.ndarray:
        return buffer[self.table_at : self.table_at + self.batch * self.columns * 4].view(np.int32).reshape(self.batch, self.columns)

    def labels(self, buffer: np.ndarray) -> np.ndarray:
        """Return the labels in `buffer` as a view, batch x label_count; flat if there is one per image."""
        labels = buffer[self.label_at : self.label_at + self.batch * self.label_count * 4].view(np.float32)
        return labels if self.label_count == 1 else labels.reshape(self.batch, self.label_count)


class Window(NamedTuple):
    """The part of an image that is staged. Squares of `shrink` x `shrink` pixels of it become one pixel, their mean."""

    y: int
    x: int
    height: int
    width: int
    shrink: int = 1


Row = tuple[int, ...] | np.ndarray  # of the table


class Samples:
    """The random choices for the consecutive images of a batch."""

    def __init__(self, crop: tuple[int, int] | None, train: bool, mirror: bool, words: np.ndarray, moves_mean: bool = True) -> None:
        """`words`: four random ones per image. Crops are random if `train`. `moves_mean`: a mean image is cropped like its image."""
        self._crop, self._train, self._moves_mean = crop, train, moves_mean
        self.mirror = (words[:, 0] >> np.uint64(63)).astype(np.int32) if mirror else np.zeros(len(words), np.int32)
        self._words = words[:, 1:3]
        self._numbers = list(zip(self.mirror.tolist(), *(self._words >> np.uint64(32)).T.tolist()))  # numpy is slow for single numbers

    def corners(self, sizes: np.ndarray) -> np.ndarray:
        """Return the corners of the crops (n x 2: y, x) in images of `sizes` (n x 2: height, width)."""
        if self._crop is None:
            return np.zeros((len(sizes), 2), np.int32)
        room = sizes - np.array(self._crop)
        return (below(self._words, room + 1) if self._train else room // 2).astype(np.int32)

    def at(self, n: int, shape: tuple[int, int, int]) -> tuple[Window | None, Row]:
        """Return the window of image `n` that is staged (None: all of it), and its row of the table. `shape`: channels, height, width."""
        mirror, down, across = self._numbers[n]
        _, height, width = shape
        if self._crop is None:
            return None, (height, width, 0, 0, 0, 0, mirror, 0)
        crop_height, crop_width = self._crop
        y, x = height - crop_height, width - crop_width
        if not (y or x):
            return None, (height, width, 0, 0, 0, 0, mirror, 0)
        y, x = (down * (y + 1) >> 32, across * (x + 1) >> 32) if self._train else (y // 2, x // 2)
        place = (y, x) if self._moves_mean else (0, 0)
        return Window(y, x, crop_height, crop_width), (crop_height, crop_width, 0, 0, *place, mirror, 0)


class Transform:
    """The settings of `transform_param`. Errors have no place; the source adds it."""

    sizing: Sizing | None = None  # how the host resizes images before all other changes
    soft_classes = 0  # the length of the labels that `record` writes, if they are probabilities of classes
    label_outside: int | None = None  # the label of pixels outside of the image, if samples have such pixels

    def __init__(self, param: Any, train: bool, more: frozenset[str] = frozenset()) -> None:
        """`param` is the TransformationParameter. Crops are random if `train`, else central. The caller handles the fields in `more` itself."""
        check_fields(param, _FIELDS | more, "transform_param", "remove it, or prepare the images beforehand")
        check_values(param)
        self.train = train
        self.scale = float(param.scale)
        self.mirror = bool(param.mirror)
        self.crop = _crop(param)
        if param.force_color and param.force_gray:
            raise Error("force_color and force_gray are both set", fix="remove force_color, or force_gray")
        self.color = Color.COLOR if param.force_color else Color.GRAY if param.force_gray else Color.UNCHANGED
        self.max_pixels, self.skipped = int(param.max_image_pixels), int(param.skip_bad_records)
        self.mean_file = param.mean_file
        self.mean: np.ndarray | None = None  # C x H x W of mean_file, or the values of mean_value
        if param.mean_file and param.mean_value:
            raise Error("mean_file and mean_value are both set", fix="remove mean_file, or mean_value")
        if param.mean_file:
            self.mean = mean_image(param.mean_file)
        elif param.mean_value:
            self.mean = np.array(param.mean_value, np.float32)
        if more.issuperset(SIZES):
            self.sizing = sizing_of(param, self.crop, train)
        if isinstance(self.sizing, Stretched) and self.mean is not None and self.mean.ndim == 3:
            self.mean = self._middle(self.mean)

    def _middle(self, mean: np.ndarray) -> np.ndarray:
        """Return the middle of a mean image, with the size of the crop. NVCaffe subtracts it from every crop of images that it resizes."""
        height, width = self.crop or mean.shape[1:]
        room = mean.shape[1] - height, mean.shape[2] - width
        if min(room) < 0:
            fact = f"mean_file {self.mean_file} is {shape_text(mean.shape)}, the crop is {shape_text((height, width))}"
            fix = "make the mean of larger images by compute_image_mean, or remove mean_file and set mean_value once for each channel"
            raise Error(fact, fix=fix)
        y, x = room[0] // 2, room[1] // 2
        return np.ascontiguousarray(mean[:, y : y + height, x : x + width])

    @property
    def crops_alike(self) -> bool:
        """Whether images of one shape can be cropped at once, by Samples.corners."""
        return self.sizing is None

    def sized(self, key: tuple[int, int], position: int, shape: tuple[int, int, int]) -> Sized | None:
        """Return how the host resizes the image at this position of the endless sequence of records. None: not at all."""
        return None if self.sizing is None else self.sizing.draw(Dice(key, position) if self.train else None, *shape[1:])

    def refuse_skipping(self) -> None:
        """Raise Error if bad records are to be skipped. Sources that cannot do that call this."""
        if self.skipped:
            fix = "remove skip_bad_records, and take the files that cannot be read out of the list"
            raise Error("transform_param field 'skip_bad_records' is not supported by this layer", fix=fix)

    @property
    def notes(self) -> tuple[Note, ...]:
        return (("data_transformer.cpp:25", f"Loading mean file from: {self.mean_file}"),) if self.mean_file else ()

    def output(self, channels: int, height: int, width: int) -> tuple[int, int, int]:
        """Return the shape of the sample made from an image of this shape."""
        return channels, *(self.crop or (self.sizing.fixed if self.sizing is not None else None) or (height, width))

    @property
    def fixed(self) -> bool:
        """Whether samples have one height and width, whatever the images have."""
        return self.crop is not None or (self.sizing is not None and self.sizing.fixed is not None)

    def layout(self, batch: int, shape: tuple[int, int, int], dtype: np.dtype, interleaved: bool, label_count: int) -> Layout:
        """Return the layout of a batch buffer for images of `shape`."""
        return Layout(batch, *self.output(*shape), dtype, interleaved, label_count)

    def check(self, channels: int, height: int, width: int) -> None:
        """Raise Error unless the crop and the mean fit images of this shape."""
        if min(channels, height, width) < 1:
            raise Error(f"the image is {shape_text((channels, height, width))}", fix=NO_PIXELS)
        for size in [(height, width)] if self.sizing is None else self.sizing.sizes(height, width):
            if size != (height, width):
                check_pixels(f"an image of {height} x {width}, resized,", *size, "set a smaller size, or cut the image off at its longer sides")
            self.check_size(channels, *size, (height, width))

    def check_size(self, channels: int, height: int, width: int, before: tuple[int, int]) -> None:
        """Raise Error unless the crop and the mean fit images of this shape. `before`: height and width before resizing."""
        resized = "" if (height, width) == before else f", resized from {shape_text(before)}"
        if self.crop and (height < self.crop[0] or width < self.crop[1]):
            raise Error(
                f"the crop of {shape_text(self.crop)} is larger than the image of {shape_text((height, width))}{resized}",
                fix=f"set {_largest_crop(self.crop, height, width)} in transform_param, or use larger images",
            )
        moves = not isinstance(self.sizing, Stretched)
        wanted = (channels, height, width) if moves else (channels, *(self.crop or (height, width)))
        if self.mean is not None and self.mean.ndim == 3 and self.mean.shape != wanted:
            raise Error(
                f"mean_file {self.mean_file} is {shape_text(self.mean.shape)}, the image is {shape_text(wanted)}{resized}",
                fix=f"make a mean of {shape_text(wanted)} by compute_image_mean of such images, or remove mean_file and set mean_value once for each channel",
            )
        if self.mean is not None and self.mean.ndim == 1 and len(self.mean) not in (1, channels):
            fix = f"give mean_value once, or {channels} times" if channels > 1 else "force_color: true if other images have colors, else give mean_value once"
            raise Error(f"{len(self.mean)} mean_value given for images of {channels} channels", fix=fix)

    def place(self, key: tuple[int, int], positions: range, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw crop corners (n x 2: y, x) and mirror flags (n) for images of `sizes` (n x 2: height, width).

        `positions`: of the images in the endless sequence of records.
        """
        samples = self.samples(key, positions)
        return samples.corners(sizes), samples.mirror

    def samples(self, key: tuple[int, int], positions: range) -> Samples:
        """Return the random choices for the images at these positions of the endless sequence of records."""
        random = self.mirror or (self.crop is not None and self.train)
        words = draws(key, SAMPLE, positions) if random else np.zeros((len(positions), 4), np.uint64)
        return Samples(self.crop, self.train, self.mirror, words, not isinstance(self.sizing, Stretched))

    def bare(self) -> Transform:
        """Return a Transform that crops and mirrors label images alike, without mean and scale."""
        other = copy.copy(self)
        other.mean, other.scale = None, 1.0
        return other

    def record(self, rec: Recorder, staging: Ref, layout: Layout, data: Ref, label: Ref | None, kernel: Kernel | None = None) -> None:
        """Record the launch of `kernel` that turns a staged batch into `data` (N x C x H x W) and `label` (N)."""
        samples, channels, height, width = data.shape
        if kernel is None and not self.mirror and not (self.crop and self.mean is not None and self.mean.ndim > 1):
            height, width = 1, height * width  # rows are contiguous in memory, and one long row is faster
        mean, kind, mean_size = None, 0, (0, 0)
        if self.mean is not None and self.mean.ndim == 1:
            mean, kind = np.broadcast_to(self.mean, channels).copy(), 1
        elif self.mean is not None:
            mean, kind, mean_size = self.mean, 2, (self.mean.shape[1], self.mean.shape[2])
        group = 32 if width <= 32 else 64
        columns = 1 if rec.target.is_cpu else group * math.ceil(width / (group * GPU_PIXELS))
        rec.launch(
            (kernel or TRANSFORM)(block=staging, mean=None if mean is None else rec.constant("mean", mean), y=data, label=label),
            args=[*map(np.uint64, (layout.table_at, layout.label_at, layout.image)), channels * height, channels, height, width, *mean_size, self.scale],
            size=(columns, channels * height, samples),
            local=None if rec.target.is_cpu else (group, 64 // group, 1),
            defines={
                "PIXEL": "float" if layout.dtype == np.float32 else "uchar",
                "MEAN": kind,
                "LABEL": layout.label_count if label is not None else 0,
                "INTERLEAVED": int(layout.interleaved),
                "VECTOR": int(rec.target.is_cpu),
            },
        )


def _largest_crop(crop: tuple[int, int], height: int, width: int) -> str:
    """Return the fields of the largest crop that an image of height x width has."""
    square = f"crop_size to at most {min(height, width)}"
    return square if crop[0] == crop[1] else f"crop_h to at most {height} and crop_w to at most {width}"


def _crop(param: Any) -> tuple[int, int] | None:
    """Return (height, width) of the crop, or None. crop_size is a square, SSD's crop_h and crop_w a rectangle."""
    if bool(param.crop_h) != bool(param.crop_w) or (param.crop_size and param.crop_h):
        raise Error(
            f"crop_size {param.crop_size}, crop_h {param.crop_h}, crop_w {param.crop_w}", fix="give crop_size alone, or crop_h and crop_w, or none of the three"
        )
    height, width = param.crop_h or param.crop_size, param.crop_w or param.crop_size
    what = "crop_size" if param.crop_size else "crop_h and crop_w"
    check_pixels(f"samples of {what}", int(height), int(width), f"set {what} in transform_param to about the size of the images, or smaller")
    return (height, width) if height else None


def check_values(param: Any) -> None:
    """Raise Error unless scale and mean_value of a TransformationParameter are finite: NaN would spread to every result."""
    for name, values in (("scale", [param.scale]), ("mean_value", param.mean_value)):
        try:
            singles(name, values)
        except ValueError as problem:
            raise Error(str(problem), fix=f"set {name} in transform_param to a finite number") from None


def as_values(path: str) -> str:
    """Return the remedy for a mean_file that a layer cannot subtract: the averages of its channels as mean_value."""
    try:
        values = mean_image(path).mean((1, 2))
    except (Error, ValueError):
        return "remove mean_file, and set mean_value once for each channel"
    return f"replace mean_file by the averages of its channels: {' '.join(f'mean_value: {value:.2f}' for value in values)} in transform_param"


def mean_image(path: str) -> np.ndarray:
    """Return the mean image in a .binaryproto file, C x H x W. Raise Error without a place."""
    if not os.path.exists(path):
        raise MissingPath(f"mean_file {path} does not exist", path, "mean_file", "make it with compute_image_mean, or correct mean_file")
    try:
        mean = read_finite(path)
    except Error as problem:
        problem.fix = problem.fix or "make it with compute_image_mean, or correct mean_file"
        raise
    shape = mean.shape
    while mean.ndim > 3 and mean.shape[0] == 1:
        mean = mean[0]
    if mean.ndim != 3:
        fix = "make a mean image by compute_image_mean, or set mean_value once for each channel"
        raise Error(f"mean_file {path} is {shape_text(shape)}, not channels x height x width", fix=fix)
    return np.ascontiguousarray(mean)
