"""Converts image files to Datums like Caffe's converters: raw bytes, or an image file inside the record."""
from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ocaffe import proto
from ocaffe.data.changes.resample import resize
from ocaffe.data.decoding.decode import Color, open_image, planes, read_file
from ocaffe.errors import Error, shape_text

_OPTIONS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 95, "subsampling": 2},  # OpenCV's defaults
    "WEBP": {"lossless": True},
}


@dataclass(frozen=True)
class Recipe:
    """Settings of the conversion. `encode` is an extension such as 'jpg', '' for raw bytes, or None for the extension of the file."""

    gray: bool = False
    size: tuple[int, int] | None = None  # height, width
    shortest: int = 0  # minimum of the shorter side in pixels (SSD's min_dim); 0: no minimum
    longest: int = 0  # maximum of the longer side in pixels (SSD's max_dim); 0: no maximum
    encode: str | None = ""
    dimensions: bool = False  # store them in encoded Datums too, as SSD's converter does and Caffe's does not

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return the size to which an image of this size is resized."""
        if self.shortest or self.longest:
            short, long = sorted((height, width))
            factor = np.float32(max(1.0, self.shortest / short)) if self.shortest else np.float32(1)
            if self.longest and int(factor * np.float32(long)) > self.longest:
                factor = np.float32(self.longest) / np.float32(long)
            return round(height * float(factor)), round(width * float(factor))
        return self.size or (height, width)


class Packed(NamedTuple):
    """A Datum, the shape (channels, height, width) of the image in it, and the size (height, width) of the image file."""

    datum: Any
    shape: tuple[int, int, int]
    original: tuple[int, int]


def datum_of(path: str, label: int, recipe: Recipe) -> Packed:
    """Return the Datum of the image file `path`. Raise Error without a place."""
    content = read_file(path)
    image = open_image(content)
    native_gray = image.gray
    pixels = planes(image, Color.GRAY if recipe.gray else Color.COLOR)
    before: tuple[int, int] = pixels.shape[1], pixels.shape[2]
    pixels = resize(pixels, *recipe.resized(*before))
    channels, height, width = pixels.shape
    extension = os.path.splitext(path)[1][1:].lower()
    encode = extension if recipe.encode is None else recipe.encode.lower().lstrip(".")
    if recipe.encode is None and not extension:
        raise Error("it has no extension that tells how to encode it", fix="--encode_type=png")
    dimensions = {"channels": channels, "height": height, "width": width}
    if not encode:
        return Packed(proto.Datum(**dimensions, data=pixels.tobytes(), label=label, encoded=False), (channels, height, width), before)
    if recipe.gray > native_gray or (height, width) != before or not _same_format(extension, encode):
        content = encoded(pixels, encode)
    datum = proto.Datum(data=content, label=label, encoded=True, **(dimensions if recipe.dimensions else {}))
    return Packed(datum, (channels, height, width), before)


def encoded(pixels: np.ndarray, extension: str) -> bytes:
    """Encode an image (channels x height x width: gray, or blue, green, red) in the format of this extension."""
    name = file_format(extension)
    buffer = io.BytesIO()
    image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels[::-1].transpose(1, 2, 0)))
    try:
        image.save(buffer, name, **_OPTIONS.get(name, {}))
    except (OSError, ValueError) as problem:
        raise Error(f"an image of {shape_text(pixels.shape)} cannot be written as {name}: {problem}", fix="--encode_type=png") from None
    return buffer.getvalue()


def file_format(extension: str) -> str:
    """Return Pillow's name of the format with this extension. Raise Error if Pillow cannot write it."""
    name = Image.registered_extensions().get(f".{extension.lower().lstrip('.')}", "")
    if name not in Image.SAVE:
        raise Error(f"'{extension}' is not an image format that can be written", fix="--encode_type=png, or --encode_type=jpg")
    return name


def _same_format(extension: str, encode: str) -> bool:
    return {"jpeg": "jpg"}.get(extension, extension) == {"jpeg": "jpg"}.get(encode, encode)
