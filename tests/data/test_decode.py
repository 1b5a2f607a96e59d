"""Decoding as by OpenCV in Caffe. tests/layers/test_data_layers.py compares with images that real Caffe decoded."""
from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe.data.decode import Color, image_shape, open_image, planes
from ocaffe.errors import Error

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (9, 14, 3), np.uint8)
GRAY = RNG.integers(0, 256, (9, 14), np.uint8)
SMOOTH = np.add.outer(np.arange(16) * 8, np.arange(24) * 4).astype(np.uint8)


def encoded(array: Any, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    (array if isinstance(array, Image.Image) else Image.fromarray(array)).save(buffer, kind, **options)
    return buffer.getvalue()


def decoded(data: bytes, color: Color = Color.UNCHANGED) -> np.ndarray:
    result = np.stack(planes(open_image(data), color))
    assert result.shape == image_shape(open_image(data), color)
    return result


def luminance(rgb: np.ndarray) -> np.ndarray:
    return rgb.astype(np.float64) @ (0.299, 0.587, 0.114)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_color_files(kind: str) -> None:
    data = encoded(RGB, kind)
    bgr = RGB[:, :, ::-1].transpose(2, 0, 1)
    assert (decoded(data) == bgr).all()
    assert (decoded(data, Color.COLOR) == bgr).all()
    gray = decoded(data, Color.GRAY)
    assert gray.shape == (1, 9, 14) and np.abs(gray[0] - luminance(RGB)).max() <= 1


def test_gray_files() -> None:
    data = encoded(GRAY)
    assert (decoded(data) == GRAY).all() and (decoded(data, Color.GRAY) == GRAY).all()
    assert (decoded(data, Color.COLOR) == GRAY).all() and decoded(data, Color.COLOR).shape == (3, 9, 14)


def test_alpha_palette_and_bits() -> None:
    rgba = np.dstack([RGB, GRAY])
    data = encoded(rgba)
    assert (decoded(data) == rgba[:, :, [2, 1, 0, 3]].transpose(2, 0, 1)).all()
    assert (decoded(data, Color.COLOR) == RGB[:, :, ::-1].transpose(2, 0, 1)).all()  # transparency is dropped, not blended
    palette = Image.fromarray(RGB).quantize(16)
    expected = np.asarray(palette.convert("RGB"))[:, :, ::-1].transpose(2, 0, 1)
    assert (decoded(encoded(palette)) == expected).all()
    bits = Image.fromarray(GRAY).convert("1")
    assert (decoded(encoded(bits)) == np.asarray(bits) * 255).all()


def test_jpeg() -> None:
    color = np.dstack([SMOOTH, SMOOTH[:, ::-1], 255 - SMOOTH])
    assert np.abs(decoded(encoded(color, "JPEG", quality=95)).astype(int) - color[:, :, ::-1].transpose(2, 0, 1)).max() < 25
    assert decoded(encoded(SMOOTH, "JPEG")).shape == (1, 16, 24)
    gray = decoded(encoded(color, "JPEG", quality=95), Color.GRAY)
    assert gray.shape == (1, 16, 24) and np.abs(gray[0] - luminance(color)).max() < 12


def test_orientation_is_heeded_unless_unchanged() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was rotated
    data = encoded(np.dstack([SMOOTH] * 3), "JPEG", quality=95, exif=exif)
    assert decoded(data).shape == (3, 16, 24)
    upright = np.rot90(SMOOTH, -1)
    for color, channels in ((Color.COLOR, 3), (Color.GRAY, 1)):
        turned = decoded(data, color)
        assert turned.shape == (channels, 24, 16) and np.abs(turned[0].astype(int) - upright).max() < 12


def test_sixteen_bits() -> None:
    data = encoded(Image.fromarray(GRAY.astype(np.uint16) * 256 + 77))
    with pytest.raises(Error, match="pixels of type I;16, not of 8 bits"):
        decoded(data)
    assert (decoded(data, Color.GRAY) == GRAY).all() and (decoded(data, Color.COLOR) == GRAY).all()


def test_not_an_image() -> None:
    with pytest.raises(Error, match="not an image file"):
        open_image(b"what is this")
    with pytest.raises(Error, match="cannot be decoded"):
        decoded(encoded(RGB)[:150])
    with pytest.raises(Error, match="cannot be decoded"):
        decoded(encoded(np.dstack([SMOOTH] * 3), "JPEG")[:-60])


def test_header_with_a_monstrous_size() -> None:
    """Pillow refuses it with a special exception."""
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "BMP")
    content = bytearray(buffer.getvalue())
    content[18:26] = (100_000).to_bytes(4, "little") * 2
    with pytest.raises(Error, match="cannot be decoded: Image size"):
        open_image(bytes(content))
