"""Decodes image files into the values that OpenCV gives Caffe: bytes in the order blue, green, red, one plane per channel.

Pillow decodes the files; it releases the GIL meanwhile.
"""
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
    """The flag of cv::imdecode: channels as in the file, three channels, or one."""

    UNCHANGED = -1
    GRAY = 0
    COLOR = 1


def open_image(data: Any) -> Image.Image:
    """Return the image in the file content `data` (bytes-like); only its header is decoded. Raise Error without a place."""
    try:
        return Image.open(io.BytesIO(data))
    except UnidentifiedImageError:
        raise Error("it is not an image file that Pillow can read") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
        raise Error(f"it cannot be decoded: {problem}") from None


def image_shape(image: Image.Image, color: Color) -> tuple[int, int, int]:
    """Return the (channels, height, width) of the result of `planes`, from the header alone."""
    width, height = image.size
    if color is not Color.UNCHANGED and _orientation(image) >= 5:  # rotated by 90 degrees
        width, height = height, width
    return _channels(image, color), height, width


def planes(image: Image.Image, color: Color) -> list[np.ndarray]:
    """Return the channels of `image`, each height x width: gray; blue, green, red; or blue, green, red, alpha. Raise Error without a place."""
    try:
        channels = _channels(image, color)
        if color is Color.GRAY and image.format in _JPEG_FORMATS:
            image.draft("L", image.size)  # libjpeg's own luminance, as in OpenCV
        file_format = image.format
        if color is not Color.UNCHANGED and _orientation(image) != 1:
            image = ImageOps.exif_transpose(image)
        if channels == 1 or image.mode.startswith("I"):
            return [_gray(image, file_format)] * channels
        mode = "RGB" if channels == 3 else "RGBA"
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    except (OSError, ValueError, SyntaxError) as problem:  # Pillow raises these for truncated and damaged files
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
    """Return the luminance. For color images the integer formula is libpng's (rounds down) for PNG files, else OpenCV's."""
    if image.mode.startswith("I"):
        return (np.asarray(image).astype(np.uint32) >> 8).astype(np.uint8)
    if image.mode in ("1", "L", "LA"):
        return np.asarray(image.convert("L"))
    red, green, blue = (np.asarray(band).astype(np.uint32) for band in image.convert("RGB").split())
    if file_format == "PNG":
        return ((red * 9797 + green * 19234 + blue * 3737) >> 15).astype(np.uint8)
    return ((red * 4899 + green * 9617 + blue * 1868 + (1 << 13)) >> 14).astype(np.uint8)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation of a JPEG file. OpenCV applies it unless the flag is UNCHANGED."""
    return int(image.getexif().get(0x0112, 1)) if image.format in _JPEG_FORMATS else 1
