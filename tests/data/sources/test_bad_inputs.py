"""Images that cannot be used, in a folder, a list and an LMDB: the error names the record and the remedy, and skip_bad_records goes on."""
from __future__ import annotations

import io
import pathlib
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.data.changes.transform import Transform
from tests.data.pictures import failure, save
from tests.data.small_databases import image, png, samples, source, write
from tests.data.stores.test_opening import source as listed

pytestmark = pytest.mark.quick

SHAPE = image(0).shape


def _png(width: int, height: int, bits: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _jpeg() -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*SHAPE[1:], 3), np.uint8)).save(out, "JPEG")
    return out.getvalue()


BAD: dict[str, tuple[bytes, str]] = {  # content and a part of the message
    "bomb": (_png(50_000, 50_000, 8, b""), "50000 x 50000 = 2,500,000,000 pixels, and the limit is"),
    "no image": (b"what is this\n" * 9, "it is not an image file"),
    "truncated JPEG": (_jpeg()[:-20], "it cannot be decoded"),
    "truncated in the header": (_jpeg()[:120], "it cannot be decoded"),
    "no bytes": (b"", "it is e"),  # empty, or encoded without data
    "HEIC": (b"\0\0\0\x18ftypheic" + bytes(99), "it is a HEIC photo, which no installed package reads"),
}
PLACES = ("folder", "list", "LMDB")
Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Make, str]]:
    """Return a function that stores four images, of which the second and perhaps the third have the given content.

    It returns a function that opens them, and the place of the second one.
    """
    monkeypatch.chdir(tmp_path)

    def store(place: str, *contents: bytes) -> tuple[Make, str]:
        if place == "LMDB":
            bad = [proto.Datum(data=content, label=1, encoded=True).SerializeToString() for content in contents]
            path = write(tmp_path / "db", [png(0), *bad, png(2), png(3)][:4])
            return lambda **transform: source(path, 3, transform=transform), f"database {path}, record 1 (key '00000001'): "
        for n in range(4):
            save(tmp_path / "set" / "ab"[n == 3] / f"{n}.png", image(n))
        for n, content in enumerate(contents, 1):
            (tmp_path / "set" / "a" / f"{n}.png").write_bytes(content)
        (tmp_path / "list.txt").write_text("".join(f"set/{'ab'[n == 3]}/{n}.png {n}\n" for n in range(4)))
        name = "set" if place == "folder" else "list.txt"
        where = "set/a/1.png: " if place == "folder" else "list.txt, line 2: set/a/1.png: "
        return lambda **transform: listed(name, 3, transform=transform), where

    return store


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", BAD)
def test_bad_images(make: Any, kind: str, place: str) -> None:
    content, fact = BAD[kind]
    opened, where = make(place, content)
    error = failure(lambda: samples(opened(), 0))
    assert error.fact.startswith(where) and fact in error.fact.removeprefix(where)
    assert str(error.fix).endswith("or skip up to N such records: transform_param { skip_bad_records: N }")  # a net in a script has no flags


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", BAD)
def test_bad_images_are_skipped_and_counted(make: Any, kind: str, place: str, capfd: pytest.CaptureFixture[str]) -> None:
    opened, where = make(place, BAD[kind][0])
    images, _ = samples(opened(skip_bad_records=1), 0)
    assert [np.array_equal(images[n], image(n)) for n in (0, 2)] == [True, True] and np.array_equal(images[1], image(2))
    said = capfd.readouterr().err
    assert f"Skipped bad record 1 of at most 1: {where}" in said


@pytest.mark.parametrize("place", PLACES)
def test_more_bad_images_than_allowed(make: Any, place: str) -> None:
    opened, _ = make(place, b"", b"")
    made = opened(skip_bad_records=1)
    error = failure(lambda: samples(made, 0))
    assert "(1 bad records before it were skipped, and the limit is 1)" in error.fact and "{ skip_bad_records: N }" in str(error.fix)


@pytest.mark.parametrize("place", PLACES)
def test_images_of_16_bits_are_read(make: Any, place: str) -> None:
    """OpenCV reads the upper 8 bits, and Caffe uses these. A Data layer has an encoded image unchanged unless it sets force_color; that needs 8 bits."""
    values = np.random.default_rng(1).integers(0, 1 << 16, (SHAPE[1], SHAPE[2], 3)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    opened, _ = make(place, _png(SHAPE[2], SHAPE[1], 16, rows))
    if place == "LMDB":
        assert "force_color" in str(failure(lambda: samples(opened(), 0)).fix)
    images, _ = samples(opened(**{"force_color": True} if place == "LMDB" else {}), 0)
    assert np.array_equal(images[1], (values >> 8)[:, :, ::-1].transpose(2, 0, 1).astype(np.uint8))


def test_the_limit_of_a_bomb_is_a_field() -> None:
    assert Transform(proto.TransformationParameter(max_image_pixels=10), True).max_pixels == 10
