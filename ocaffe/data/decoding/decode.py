"""Decodes image files into the values that OpenCV gives Caffe: bytes, height x width x channels in the order blue, green, red.

libjpeg-turbo decodes JPEG files (jpeg.py), Pillow all others. pixels.py has OpenCV's rules for the values. Only the formats that
OpenCV reads are allowed. Some of Pillow's other formats start programs.
"""
from __future__ import annotations

import contextlib
import importlib
import io
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from PIL import (
    BmpImagePlugin,  # noqa: F401  (a plugin registers its formats when it is imported)
    GifImagePlugin,  # noqa: F401
    Image,
    Jpeg2KImagePlugin,  # noqa: F401
    JpegImagePlugin,  # noqa: F401
    PngImagePlugin,  # noqa: F401
    PpmImagePlugin,  # noqa: F401
    SunImagePlugin,  # noqa: F401
    TiffImagePlugin,  # noqa: F401
    WebPImagePlugin,  # noqa: F401
)

from ocaffe import proto
from ocaffe.data.decoding import jpeg
from ocaffe.data.decoding.exif import exif_orientation
from ocaffe.data.decoding.heif import is_heif, open_heif
from ocaffe.data.decoding.pixels import FORMATS, Layout, layout, low_bytes
from ocaffe.data.decoding.pixels import Color as Color
from ocaffe.errors import Error
from ocaffe.support.files import read_plain, to_read
from ocaffe.support.kinds import kind_of

if "AVIF" in FORMATS:
    importlib.import_module("PIL.AvifImagePlugin")

MAX_PIXELS = int(proto.TransformationParameter().max_image_pixels)
_MAGIC = 16  # bytes at the begin of a file by which Pillow finds its format
_STRIP = 1 << 22  # pixels that are converted at a time
_BUDGET = 1 << 27  # pixels of the images that are decoded at the same time; a pixel takes 7 bytes
_SMALL = 1 << 20  # pixels of an image that does not count
_SCRATCH = 1 << 24  # bytes of a decoded image; larger ones get memory of their own, which is not kept
_OTHERS = {b"ftypavif": "AVIF"}  # which Pillow before 11.3 does not read, by the bytes after the first four
_HEADER = 64  # bytes in which the brands of a photo's container are
_JPEG_FORMATS = {"JPEG", "MPO"}
_GRAY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B"}
_EXIF_FORMATS = {*_JPEG_FORMATS, "PNG", "WEBP", "AVIF"}  # Pillow itself turns TIFF files, and OpenCV does so with every flag
_UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {  # by EXIF orientation: the upright view of an image, height x width (x channels)
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels[::-1].swapaxes(0, 1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: pixels[:, ::-1].swapaxes(0, 1),
}

if "PILLOW_BLOCK_SIZE" not in os.environ:
    # Pillow divides the memory of large images. glibc returns only allocations above 32 MB to the system; smaller ones stay with their thread.
    Image.core.set_block_size(1 << 26)


def read_file(path: str) -> bytes:
    """Return the content of a file that a list names. Raise Error without a place."""
    try:
        return read_plain(path)
    except OSError as problem:
        raise Error(f"it cannot be read: {problem.strerror or problem}", fix=to_read(path, problem, "") or None) from None


class ImageFile(ABC):
    """An image file of which only the header has been decoded."""

    gray: bool  # whether the file stores no colors
    count: int  # of pixels

    @abstractmethod
    def shape(self, color: Color) -> tuple[int, int, int]:
        """Return channels, height and width of the result of `pixels`. Raise Error without a place."""

    @abstractmethod
    def pixels(self, color: Color, memory: Callable[[int], np.ndarray]) -> np.ndarray:
        """Return the image, height x width x channels: gray; blue, green, red; or blue, green, red, alpha. Raise Error without a place.

        `memory(size)` returns bytes that the result may use. A file can be decoded once.
        """


def open_image(data: Any, limit: int = MAX_PIXELS) -> ImageFile:
    """Return the image file with the content `data` (bytes-like). `limit`: most pixels. Raise Error without a place."""
    found = jpeg.find(data)
    if found is None:
        return _ByPillow(open_pillow(data, limit))
    _check_size(found.width, found.height, limit)
    return _Turbo(found)


def open_pillow(data: Any, limit: int = MAX_PIXELS) -> Image.Image:
    """Return the image of Pillow in the file content `data`; only its header is decoded. Arguments and errors as for `open_image`."""
    # Image.open would use a limit of the whole process and, for an unknown format, import all plugins.
    if not len(data):
        raise Error("it is empty")
    with readable():
        if is_heif(bytes(data[:_HEADER])):
            image = open_heif(io.BytesIO(data))
            _check_size(*image.size, limit)
            return image
        for name in FORMATS:
            plugin, accepts = Image.OPEN[name]
            if accepts is None or accepts(bytes(data[:_MAGIC])):
                image = plugin(io.BytesIO(data), "")
                break
        else:
            other, kind = _OTHERS.get(bytes(data[4:12])), kind_of(bytes(data[:512]))
            name = f"a file of {other}" if other else kind.name if kind is not None else ""
            fact = f"it is not an image file of a format that ocaffe reads ({', '.join(FORMATS)})" + (f", but {name}" if name else "")
            raise Error(fact, fix=kind.way if kind is not None and kind.way else "convert it to JPEG or PNG" if other else None)
    _check_size(*image.size, limit)
    return image


def _check_size(width: int, height: int, limit: int) -> None:
    if width * height > limit:
        fix = f"transform_param {{ max_image_pixels: {width * height} }} in a data layer, or a smaller image"
        raise Error(f"it has {width} x {height} = {width * height:,} pixels, and the limit is {limit:,}", fix=fix)


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Turn exceptions of Pillow into Error."""
    try:
        yield
    except Error:
        raise
    except Exception as problem:  # for damaged files Pillow's plugins raise exceptions of many types
        raise Error(f"it cannot be decoded: {problem or type(problem).__name__}") from None


class _Budget:
    """Lets threads decode at the same time as long as their images together have at most `pixels`, or there is only one."""

    def __init__(self, pixels: int) -> None:
        self._pixels, self._used, self._changed = pixels, 0, threading.Condition()

    @contextlib.contextmanager
    def of(self, pixels: int) -> Iterator[None]:
        if pixels < _SMALL:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + pixels <= self._pixels)
            self._used += pixels
        try:
            yield
        finally:
            with self._changed:
                self._used -= pixels
                self._changed.notify_all()


_budget = _Budget(_BUDGET)


_scratch = threading.local()


def _scratch_of_thread(size: int) -> np.ndarray:
    """Return memory that the next call of this thread returns again. Fresh memory takes longer to get than to fill."""
    if size > _SCRATCH:
        return np.empty(size, np.uint8)
    memory: np.ndarray | None = getattr(_scratch, "memory", None)
    if memory is None or memory.size < size:
        memory = _scratch.memory = np.empty(size, np.uint8)
    return memory[:size]


@contextlib.contextmanager
def decoded(file: ImageFile, color: Color) -> Iterator[np.ndarray]:
    """Yield the image for the buffer, which must keep no view of it: height x width x channels. Threads with large images wait for each other."""
    with _budget.of(file.count):
        yield file.pixels(color, _scratch_of_thread)


def planes(file: ImageFile, color: Color) -> np.ndarray:
    """Return the image as channels x height x width. Raise Error without a place."""
    return file.pixels(color, lambda size: np.empty(size, np.uint8)).transpose(2, 0, 1)


class _Turbo(ImageFile):
    """A JPEG file that libjpeg-turbo decodes. Pillow tells what is wrong with a damaged one, and decodes it if OpenCV would."""

    def __init__(self, header: jpeg.Jpeg) -> None:
        self._header = header
        self.gray, self.count = header.channels == 1, header.height * header.width

    def shape(self, color: Color) -> tuple[int, int, int]:
        header = self._header
        channels = header.channels if color is Color.UNCHANGED else 3 if color is Color.COLOR else 1
        turned = header.orientation >= 5 and color is not Color.UNCHANGED  # by 90 degrees
        return (channels, header.width, header.height) if turned else (channels, header.height, header.width)

    def pixels(self, color: Color, memory: Callable[[int], np.ndarray]) -> np.ndarray:
        header, channels = self._header, self.shape(color)[0]
        shape = header.height, header.width, channels
        pixels = memory(self.count * channels).reshape(shape)
        if not header.into(pixels):
            return _ByPillow(open_pillow(header.data, self.count)).pixels(color, memory)
        return pixels if header.orientation == 1 or color is Color.UNCHANGED else _UPRIGHT[header.orientation](pixels)


class _ByPillow(ImageFile):
    def __init__(self, image: Image.Image) -> None:
        self.image = image
        self.gray, self.count = image.mode in _GRAY_MODES, image.width * image.height

    def shape(self, color: Color) -> tuple[int, int, int]:
        width, height = self.image.size
        turned = self._orientation(color) >= 5
        return (self._channels(color), width, height) if turned else (self._channels(color), height, width)

    def pixels(self, color: Color, memory: Callable[[int], np.ndarray]) -> np.ndarray:
        """Pillow has memory of its own. The image is closed, because Pillow's copy of the pixels would last as long as it."""
        image, orientation = self.image, self._orientation(color)
        with readable(), contextlib.closing(image):
            if color is Color.GRAY and image.format in _JPEG_FORMATS:
                image.draft("L", image.size)  # libjpeg's own luminance, as in OpenCV
            read = layout(image, color)
            channels = self._channels(color, read)
            images = (image, low_bytes(image, read.low_bytes)) if read.low_bytes else (image,)
            pixels = _strips(images, lambda *strips: _values(read, channels, *strips))
        if orientation != 1:
            pixels = _UPRIGHT[orientation](pixels)
        if pixels.ndim == 2:
            return np.broadcast_to(pixels[..., None], (*pixels.shape, channels))
        return pixels[..., ::-1] if channels == 3 else pixels[..., [2, 1, 0, 3]]

    def _channels(self, color: Color, read: Layout | None = None) -> int:
        if color is not Color.UNCHANGED:
            return 3 if color is Color.COLOR else 1
        if read is None:
            with readable():
                read = layout(self.image, color)
        if not read.channels:
            raise Error(
                f"its pixels ({self.image.format}, type {self.image.mode}) are not of 1, 3 or 4 channels of 8 bits",
                fix="set force_color: true or force_gray: true in transform_param, or convert the image to 8 bits",
            )
        return read.channels

    def _orientation(self, color: Color) -> int:
        """Return the EXIF orientation. OpenCV applies it unless the flag is UNCHANGED, and ignores XMP."""
        if color is Color.UNCHANGED or self.image.format not in _EXIF_FORMATS:
            return 1
        return exif_orientation(self.image.info.get("exif", b""))


def _values(read: Layout, channels: int, *strips: Image.Image) -> np.ndarray:
    """Return height x width (x channels) of 8 bits; an image of several channels that is gray may have none."""
    colors = read.colors(*strips, channels)
    if colors.ndim == 2:
        return colors
    if channels == 1:
        return read.gray(colors)
    if colors.dtype == np.uint16:
        colors = (colors >> 8).astype(np.uint8)
    if channels > colors.shape[2]:
        return np.dstack([colors, np.full(colors.shape[:2], 255, np.uint8)])
    return colors[..., :channels]


def _strips(images: tuple[Image.Image, ...], convert: Callable[..., np.ndarray]) -> np.ndarray:
    """Return `convert(*images)`. Large images are converted in strips, which saves copies of them."""
    for image in images:
        image.load()
    width, height = images[0].size
    rows = max(1, _STRIP // width)
    if rows >= height:
        return convert(*images)
    result = np.empty(0, np.uint8)
    for top in range(0, height, rows):
        strip = convert(*(image.crop((0, top, width, min(top + rows, height))) for image in images))
        if not top:
            result = np.empty((height, *strip.shape[1:]), strip.dtype)
        result[top : top + len(strip)] = strip
    return result
