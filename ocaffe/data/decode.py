"""Encoded images as OpenCV gives them to Caffe: bytes, blue green red, channel by channel. Pillow decodes (and releases the GIL meanwhile)."""
from __future__ import annotations

import io
from enum import Enum
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ocaffe.errors import Error

_EIGHT_BITS = {"1", "L", "P", "RGB", "RGBA", "LA", "PA", "CMYK", "YCbCr", "HSV", "LAB"}
_ALPHA = {"RGBA", "LA", "PA", "La", "RGBa"}
_JPEG_FORMATS = {"JPEG", "MPO"}


class Color(Enum):
    """cv::imdecode's flag: the channels as in the file, three, or one."""

    UNCHANGED = -1
    GRAY = 0
    COLOR = 1


def open_image(data: Any) -> Image.Image:
    """The image whose file is in `data` (bytes-like); only its header is read. Raises Error, without place."""
    try:
        return Image.open(io.BytesIO(data))
    except UnidentifiedImageError:
        raise Error("it is no image file that Pillow can read") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
        raise Error(f"it cannot be decoded: {problem}") from None


def image_shape(image: Image.Image, color: Color) -> tuple[int, int, int]:
    """(channels, height, width) that `planes` will give, from the header alone."""
    width, height = image.size
    if color is not Color.UNCHANGED and _orientation(image) >= 5:  # lies on its side
        width, height = height, width
    return _channels(image, color), height, width


def planes(image: Image.Image, color: Color) -> list[np.ndarray]:
    """The channels of `image`, each height x width: gray; blue, green, red; or those and alpha. Raises Error, without place."""
    try:
        channels = _channels(image, color)
        if color is Color.GRAY and image.format in _JPEG_FORMATS:
            image.draft("L", image.size)  # libjpeg's own luminance, which OpenCV takes too
        file_format = image.format
        if color is not Color.UNCHANGED and _orientation(image) != 1:
            image = ImageOps.exif_transpose(image)
        if channels == 1 or image.mode.startswith("I"):
            return [_gray(image, file_format)] * channels
        mode = "RGB" if channels == 3 else "RGBA"
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    except (OSError, ValueError, SyntaxError) as problem:  # Pillow's words for a truncated or damaged file
        raise Error(f"it cannot be decoded: {problem}") from None
    return [pixels[..., band] for band in (2, 1, 0, 3)[:channels]]


def _channels(image: Image.Image, color: Color) -> int:
    if color is not Color.UNCHANGED:
        return 3 if color is Color.COLOR else 1
    if image.mode not in _EIGHT_BITS:
        raise Error(f"it has pixels of type {image.mode}, not of 8 bits", fix="set force_color or force_gray, or convert the image to 8 bits")
    if image.mode in _ALPHA or (image.mode == "P" and "transparency" in image.info):
        return 4
    return 1 if image.mode in ("1", "L") else 3


def _gray(image: Image.Image, file_format: str | None) -> np.ndarray:
    """Luminance; from color in integers, by libpng's rule (rounds down) for a PNG file, else by OpenCV's."""
    if image.mode.startswith("I"):
        return (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
    if image.mode in ("1", "L", "LA"):
        return np.asarray(image.convert("L"))
    red, green, blue = (np.asarray(band).astype(np.uint32) for band in image.convert("RGB").split())
    if file_format == "PNG":
        return ((red * 9797 + green * 19234 + blue * 3737) >> 15).astype(np.uint8)
    return ((red * 4899 + green * 9617 + blue * 1868 + (1 << 13)) >> 14).astype(np.uint8)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation of a JPEG file. OpenCV heeds it unless the image is asked for unchanged."""
    return int(image.getexif().get(0x0112, 1)) if image.format in _JPEG_FORMATS else 1
