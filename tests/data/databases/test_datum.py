"""Parsing of Datum bytes, compared with the protobuf library."""
from __future__ import annotations

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.data.bad_records import BadRecords
from ocaffe.data.databases.database import NoDatum, fault
from ocaffe.data.databases.datum import DatumReader, encode_datum, not_a_datum
from ocaffe.errors import Error
from ocaffe.formats import wire
from tests.data.small_databases import image

pytestmark = pytest.mark.quick


def message(pixels: np.ndarray, **more: object) -> bytes:
    sizes = dict(zip(("channels", "height", "width"), pixels.shape))
    return proto.Datum(**sizes, data=pixels.tobytes(), **more).SerializeToString()


def test_raw_images_with_the_quick_path_and_without() -> None:
    reader = DatumReader()
    for number in range(300):
        label = number * 7 % 300  # a varint of one or two bytes
        more = {"label": label} if number % 3 else {"label": label, "encoded": False}
        pixels = image(number, (1, 28, 28) if number % 50 else (3, 5, 7))
        datum = reader(memoryview(message(pixels, **more)))
        assert datum.shape == pixels.shape and datum.label == label and not datum.encoded and datum.floats is None
        assert (datum.values.reshape(pixels.shape) == pixels).all()


def test_missing_label() -> None:
    reader = DatumReader()
    for label in (None, 0, None, 5):
        more = {} if label is None else {"label": label}
        assert reader(message(image(0), **more)).label == label


def test_equal_lengths_do_not_mislead() -> None:
    """Records of equal length may have other fields at the same position."""
    reader = DatumReader()
    reader(message(image(0, (1, 28, 28)), label=3))
    assert reader(message(image(1, (1, 14, 56)), label=4)).shape == (1, 14, 56)
    assert reader(message(image(1, (1, 14, 56)), encoded=True)).encoded
    assert reader(message(image(1, (1, 14, 56)), label=4)).label == 4
    odd = message(image(1, (1, 14, 56)), label=4)[:-2] + wire.integer(1, 7)  # a second channels field after the pixels
    normal = message(image(1, (1, 14, 56)), label=4)
    assert [reader(content).shape for content in (odd, normal, odd, odd, normal)] == [(7, 14, 56), (1, 14, 56), (7, 14, 56), (7, 14, 56), (1, 14, 56)]


@pytest.mark.parametrize("packed", [False, True])
def test_floats(packed: bool) -> None:
    values = np.random.default_rng(0).normal(size=24).astype(np.float32)
    if packed:
        content = wire.integer(1, 2) + wire.integer(2, 3) + wire.integer(3, 4) + wire.header(6, 96) + values.tobytes() + wire.integer(5, 9)
    else:
        content = proto.Datum(channels=2, height=3, width=4, float_data=values, label=9).SerializeToString()
    datum = DatumReader()(memoryview(content))
    assert datum.shape == (2, 3, 4) and datum.label == 9 and datum.pixels is None
    assert (datum.values == values).all()


def test_order_of_fields_and_unknown_ones() -> None:
    content = wire.integer(5, 2) + wire.integer(7, 1) + wire.string(99, "other") + wire.header(4, 3) + b"abc" + wire.integer(3, 8)
    datum = DatumReader()(content)
    assert datum.label == 2 and datum.encoded and bytes(datum.pixels.data) == b"abc" and datum.shape == (0, 0, 8)  # type: ignore[union-attr]


def test_alike() -> None:
    reader = DatumReader()
    values = [memoryview(message(image(n, (1, 28, 28)), label=n)) for n in range(8)]
    assert reader.alike(values) is None  # no record was read yet
    for value in values:
        reader(value)
    alike = reader.alike(values)
    assert alike is not None and alike.shape == (1, 28, 28) and alike.labels == list(range(8))
    assert (alike.pixels.reshape(8, 1, 28, 28) == np.stack([image(n, (1, 28, 28)) for n in range(8)])).all()
    for other in (
        message(image(0, (1, 28, 27)), label=1),  # another length
        message(image(0, (1, 14, 56)), label=1),  # another head
        message(image(0, (1, 28, 28)), label=100),  # a label not seen before
        message(image(0, (1, 28, 28))),
    ):
        assert reader.alike([*values[:3], memoryview(other)]) is None


def test_wrong_number_of_values() -> None:
    with pytest.raises(Error, match="5 bytes of data for an image of 1 x 2 x 3, which has 6"):
        _ = DatumReader()(proto.Datum(channels=1, height=2, width=3, data=b"12345").SerializeToString()).values
    with pytest.raises(Error, match="2 float_data for an image of 1 x 2 x 3, which has 6"):
        _ = DatumReader()(proto.Datum(channels=1, height=2, width=3, float_data=[1, 2]).SerializeToString()).values
    with pytest.raises(Error, match="neither data nor float_data"):
        _ = DatumReader()(proto.Datum(channels=1, height=2, width=3).SerializeToString()).values


@pytest.mark.parametrize("known", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("cut", [3, 100])
def test_malformed(cut: int, known: bool) -> None:
    content = message(image(0))
    reader = DatumReader()
    if known:
        reader(content)
    with pytest.raises(wire.Malformed):
        reader(content[:cut])


def test_encode_as_the_library() -> None:
    pixels = image(5, (3, 4, 5))
    assert encode_datum(pixels, 300) == message(pixels, label=300)


@pytest.mark.parametrize(
    ("content", "kind"), [(b"\xff\xd8\xff\xe0\x00\x10JFIF", "a JPEG image"), (b"\x89PNG\r\n\x1a\n", "a PNG image"), (b"\x93NUMPY", "a .npy")]
)
def test_a_record_of_another_kind_is_named(content: bytes, kind: str) -> None:
    problem = not_a_datum(wire.Malformed("an unknown wire type 7", 0), content)
    assert problem.fact.startswith(f"it is {kind}") and "SerializeToString()" in str(problem.fix)
    bad = BadRecords(0, 10)
    with pytest.raises(NoDatum) as caught:  # each record is so: to skip bad ones does not help
        try:
            bad.add(3, fault("db", problem, 3))
        except Error as found:
            assert "skip_bad_records" not in str(found.fix)
            raise fault("db", problem, 3) from None
    assert "database db, record 3" in caught.value.fact


def test_a_jpeg_without_encoded_is_named() -> None:
    datum = proto.Datum(channels=3, height=8, width=8, data=b"\xff\xd8\xff\xe0" + bytes(100))
    with pytest.raises(Error, match=r"its data is a JPEG image, and encoded is not set\n  fix: set encoded: true") as caught:
        _ = DatumReader()(datum.SerializeToString()).values
    assert "each Datum" in str(caught.value.fix)


def test_a_tag_of_more_bytes_than_it_needs() -> None:
    plain = proto.Datum(channels=1, height=1, width=2, float_data=[1.5, -2.0], label=3).SerializeToString()
    tag = bytes([6 << 3 | 5])
    long = plain.replace(tag, bytes([tag[0] | 0x80, 0]))
    assert len(long) == len(plain) + 2
    for record in (plain, long):
        found = DatumReader()(record)
        assert found.shape == (1, 1, 2) and found.values.reshape(-1).tolist() == [1.5, -2.0]
