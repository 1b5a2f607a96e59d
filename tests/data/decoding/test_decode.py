"""Decoding as by OpenCV in Caffe. tests/layers/test_data_layers.py compares with images that real Caffe decoded."""
from __future__ import annotations

import io
import random
import subprocess
import sys
import threading
import time
import types
import warnings
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from ocaffe.data.decoding import decode, jpeg
from ocaffe.data.decoding.decode import Color, open_image, planes
from ocaffe.data.decoding.heif import is_heif
from ocaffe.data.decoding.pixels import FORMATS
from ocaffe.errors import Error
from tests.data.decoding import image_kinds, jpegs

pytestmark = pytest.mark.quick

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
    assert result.shape == open_image(data).shape(color)
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


def exif_jpeg(array: np.ndarray, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(array, "JPEG", quality=95, exif=exif)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation(orientation: int) -> None:
    data = exif_jpeg(np.dstack([SMOOTH] * 3), orientation)
    with Image.open(io.BytesIO(data)) as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    assert (decoded(data, Color.COLOR) == upright[:, :, ::-1].transpose(2, 0, 1)).all()


@pytest.mark.filterwarnings("ignore")  # Pillow's
def test_unknown_orientations_are_ignored() -> None:
    """OpenCV ignores them too."""
    color = np.dstack([SMOOTH] * 3)
    sound = decoded(exif_jpeg(color, 1), Color.COLOR)
    for orientation in (0, 9, 99, 65535):
        assert (decoded(exif_jpeg(color, orientation), Color.COLOR) == sound).all()
    for damaged in (b"Exif\0\0nonsense", b"Exif\0\0II*\0\x08\0\0\0\xff\xff", b"Exif\0\0MM\0*\xff\xff\xff\xff"):
        assert (decoded(encoded(color, "JPEG", quality=95, exif=damaged), Color.COLOR) == sound).all()


def test_large_images_are_converted_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    palette = Image.fromarray(RGB).quantize(16)
    ink = Image.fromarray(RGB).convert("CMYK")
    files = [*map(encoded, (RGB, GRAY, np.dstack([RGB, GRAY]), palette)), exif_jpeg(RGB, 6), encoded(ink, "TIFF")]
    whole = [[decoded(data, color) for color in Color] for data in files]
    monkeypatch.setattr(decode, "_STRIP", 60)
    assert all((a == b).all() for data, before in zip(files, whole) for a, b in zip([decoded(data, color) for color in Color], before))


@pytest.mark.parametrize("kind", ["EPS", "ICNS", "TGA", "PCX", "ICO", "IM", "SGI", "MSP"])
def test_formats_that_opencv_does_not_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow reads them, and starts gs for EPS."""
    if kind not in Image.SAVE and not (Image.init() and kind in Image.SAVE):
        pytest.skip(f"this Pillow cannot write {kind}")
    monkeypatch.setattr(subprocess, "Popen", None)
    picture = Image.fromarray(RGB).resize((32, 32))
    with pytest.raises(Error, match=r"not an image file of a format that ocaffe reads \(JPEG, PNG, .*\)$"):
        open_image(encoded(picture.convert("1") if kind == "MSP" else picture, kind))


@pytest.mark.skipif("AVIF" not in FORMATS, reason="this Pillow has no AVIF")
def test_avif_has_the_values_of_opencv() -> None:
    cv2 = pytest.importorskip("cv2")
    for picture in (RGB, GRAY, np.dstack([RGB, GRAY])):
        content = encoded(Image.fromarray(picture).resize((48, 32)), "AVIF")
        for color in Color:
            found, expected = decoded(content, color), cv2.imdecode(np.frombuffer(content, np.uint8), color.value)
            if expected is None:
                pytest.skip("this OpenCV has no AVIF")
            assert (found == expected.reshape(*expected.shape[:2], -1).transpose(2, 0, 1)).all()


def test_heic_needs_a_plugin_that_a_user_has_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, png = b"\0\0\0\x18ftypheic" + bytes(8), encoded(RGB, "PNG")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(Error, match=r"HEIC photo, which no installed package reads\n  fix: export the photos as JPEG .*pip install pillow-heif.*LGPL.*GPL"):
        open_image(begin + png)
    plugin = types.ModuleType("pillow_heif")

    def opened(stream: io.BytesIO, name: str) -> Image.Image:
        image = Image.open(io.BytesIO(stream.read()[len(begin) :]))
        image.format = "HEIF"
        return image

    plugin.register_heif_opener = lambda: monkeypatch.setitem(Image.OPEN, "HEIF", (opened, None))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pillow_heif", plugin)
    assert (decoded(begin + png, Color.COLOR) == decoded(png, Color.COLOR)).all()
    with pytest.raises(Error, match="the limit is 9"):
        open_image(begin + png, 9)


@pytest.mark.parametrize("begin, found", [
    (b"\0\0\0\x18ftypmif1\0\0\0\0mif1heic", True), (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avif", False), (b"\0\0\0\x18ftypavif", False),
    (b"\0\0\0\x18ftypheix", True), (b"", False), (b"ftypheic", False),
])  # fmt: skip
def test_containers_of_heic(begin: bytes, found: bool) -> None:
    assert is_heif(begin) is found


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "JPEG2000", "PPM", "TIFF", "WEBP"])
def test_damaged_files_are_errors(kind: str) -> None:
    """Pillow's plugins raise exceptions of many types for them."""
    sound, rng, failed = encoded(RGB, kind), np.random.default_rng(0), 0
    for _ in range(60):
        content = bytearray(sound[: rng.integers(4, len(sound)) if rng.random() < 0.3 else None])
        for _ in range(int(rng.integers(1, 6))):
            content[int(rng.integers(min(len(content), 200)))] = int(rng.choice([0, 255, rng.integers(256)]))
        try:
            with warnings.catch_warnings(action="ignore"):
                planes(open_image(bytes(content), 1 << 20), Color.COLOR)
        except Error:
            failed += 1
    assert failed


def test_a_raised_limit() -> None:
    """It may be higher than Pillow's own, which holds for the whole process."""
    data = encoded(np.zeros((40, 50), np.uint8))
    with pytest.raises(Error, match="it has 50 x 40 = 2,000 pixels, and the limit is 1,999") as caught:
        open_image(data, 1999)
    assert "max_image_pixels: 2000" in str(caught.value.fix)
    assert open_image(encoded(Image.new("1", (20_000, 10_000)), "TIFF", compression="group4"), 1 << 28).shape(Color.GRAY) == (1, 10_000, 20_000)


def test_large_images_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_SMALL", 0)
    budget, running, most = decode._Budget(10), [0], [0]

    def work(pixels: int) -> None:
        with budget.of(pixels):
            running[0] += pixels
            most[0] = max(most[0], running[0])
            time.sleep(0.001)
            running[0] -= pixels

    threads = [threading.Thread(target=work, args=[pixels]) for pixels in (4, 4, 4, 30, 4, 4, 30, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert running[0] == 0 and most[0] == 30  # 30 alone, else at most 10


def test_sixteen_bits() -> None:
    data = encoded(Image.fromarray(GRAY.astype(np.uint16) * 256 + 77))
    with pytest.raises(Error, match="type I;16\\) are not of 1, 3 or 4 channels of 8 bits"):
        decoded(data)
    assert (decoded(data, Color.GRAY) == GRAY).all() and (decoded(data, Color.COLOR) == GRAY).all()


@pytest.mark.filterwarnings("ignore")  # Pillow's
@pytest.mark.parametrize("name", image_kinds.values())
def test_values_of_opencv(name: str) -> None:
    """tests/data/decoding/opencv_values.json has the values of cv2.imdecode, and null for the kinds that are refused."""
    data = image_kinds.small(name)
    for color, values in image_kinds.values()[name].items():
        if values is None:
            with pytest.raises(Error):
                decoded(data, Color[color])
        else:
            expected = np.array(values)
            assert decoded(data, Color[color]).shape == expected.shape and (decoded(data, Color[color]) == expected).all(), color


def test_kinds_without_opencvs_values() -> None:
    data = image_kinds.small("tiff 2 16 4 extra=1 order=<")
    with pytest.raises(Error, match="a TIFF file of type RGBA with 16 bits, whose values would differ from OpenCV's") as caught:
        decoded(data, Color.COLOR)
    assert "PNG file with 8 bits" in str(caught.value.fix)


def test_low_bytes_of_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("png 2 16", "png 6 16", "tiff 2 16 3 order=>", "gif global 2 0 background=1", "bmp 16")
    files = [image_kinds.KINDS[name](random.Random(0), 9, 14) for name in names]
    whole = [decoded(data, color) for data in files for color in (Color.GRAY, Color.COLOR)]
    monkeypatch.setattr(decode, "_STRIP", 30)
    strips = [decoded(data, color) for data in files for color in (Color.GRAY, Color.COLOR)]
    assert all((a == b).all() for a, b in zip(whole, strips))


def test_not_an_image() -> None:
    with pytest.raises(Error, match="not an image file"):
        open_image(b"what is this")
    with pytest.raises(Error, match="cannot be decoded"):
        decoded(encoded(RGB)[:150])
    with pytest.raises(Error, match="cannot be decoded"):
        decoded(encoded(np.dstack([SMOOTH] * 3), "JPEG")[:-60])


def test_header_with_a_monstrous_size() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "BMP")
    content = bytearray(buffer.getvalue())
    content[18:26] = (100_000).to_bytes(4, "little") * 2
    with pytest.raises(Error, match="100000 x 100000 = 10,000,000,000 pixels, and the limit is 178,956,970"):
        open_image(bytes(content))


@pytest.mark.parametrize("decoder", ["simplejpeg", "Pillow"])
def test_jpeg_values_of_opencv(decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both decoders give OpenCV's values, to the byte, for every file of tests/data/decoding/jpegs.zip."""
    if decoder == "Pillow":
        monkeypatch.setattr(jpeg, "simplejpeg", None)
    elif jpeg.simplejpeg is None:
        pytest.skip("simplejpeg is not installed")
    assert len(jpegs.files()) >= 200
    different = []
    for name, data in jpegs.files().items():
        assert (jpeg.find(data) is not None) == (decoder == "simplejpeg" and not name.startswith("cmyk"))
        for mode, expected in jpegs.digests()[name].items():
            image = decoded(data, Color[mode])
            if jpegs.digest(image[0] if mode == "GRAY" else image.transpose(1, 2, 0)) != expected:
                different.append((name, mode))
    assert different == []
