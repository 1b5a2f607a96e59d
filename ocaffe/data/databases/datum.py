"""Datum, the record of Caffe's databases, parsed from its bytes. The pixels are a view of the database's memory, which saves a copy."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from ocaffe import proto
from ocaffe.data.databases.database import Database, NoDatum, Reader
from ocaffe.errors import Error, shape_text
from ocaffe.formats import wire
from ocaffe.support.kinds import EMPTY, is_picture, kind_of

NO_DATA = "set data of the Datum to the bytes of an image file, where the database is written"

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOAT_DATA, _ENCODED = range(1, 8)  # field numbers
_TAILS = 1 << 16  # different ends of records that the cache holds at most
_TAIL = 32  # bytes of such an end at most
SMALL = 1 << 14  # bytes of a record; for larger records copying takes most of the time, not parsing


def not_a_datum(problem: wire.Malformed, content: Any) -> Error:
    """Return the error, without a place, for a record whose `content` cannot be parsed."""
    kind = kind_of(bytes(content[:512]))
    if kind is not None and kind.name != EMPTY:
        made = "caffe_pb2.Datum(encoded=True, data=image, label=NUMBER).SerializeToString()"
        fix = f"write Datum messages, as `ocaffe convert_imageset` does; in Python: {made}"
        return NoDatum(f"it is {kind.name}, not a Datum", fix=fix)
    fix = "write records that are Datum messages, as `ocaffe convert_imageset` does"
    return Error(f"it is not a Datum: {problem.fact} at byte {problem.at}", fix=fix)


def refuse_unmarked(data: bytes) -> None:
    """Raise the error, without a place, if `data`, the begin of the raw values of a Datum, is that of an image file."""
    picture = is_picture(data)
    if picture:
        raise Error(f"its data is {picture}, and encoded is not set", fix="set encoded: true in each Datum, where the database is written")


class Datum(NamedTuple):
    """An image: `shape` is (channels, height, width) as stored. The values are in `pixels` or in `floats`; if `encoded`, `pixels` is an image file."""

    shape: tuple[int, int, int]
    pixels: np.ndarray | None  # uint8
    floats: np.ndarray | None  # float32
    label: int | None
    encoded: bool

    @property
    def values(self) -> np.ndarray:
        """Return the values of an image that is not encoded: uint8 or float32, flat. Raise Error if their number does not match the shape."""
        values = self.pixels if self.pixels is not None else self.floats
        if values is None:
            raise Error("it has neither data nor float_data", fix="set data or float_data of each Datum, where the database is written")
        expected = self.shape[0] * self.shape[1] * self.shape[2]
        if values.size != expected:
            if self.pixels is not None:
                refuse_unmarked(self.pixels[:64].tobytes())
            what = "bytes of data" if self.pixels is not None else "float_data"
            fact = f"{values.size} {what} for an image of {shape_text(self.shape)}, which has {expected}"
            raise Error(fact, fix="set channels, height and width of the Datum to the shape of its values, where the database is written")
        return values


class Alike(NamedTuple):
    """Raw images of one shape: their bytes, n x bytes per image, and their labels."""

    shape: tuple[int, int, int]
    pixels: np.ndarray
    labels: list[int | None]


class _Known(NamedTuple):
    """The bytes in which raw images of one size agree: the begin of the record, and the ends that occurred, by what they say."""

    head: bytes = b""
    pixels: slice = slice(0, 0)
    shape: tuple[int, int, int] = (0, 0, 0)
    tails: dict[bytes, tuple[int | None, bool]] = {}


class DatumReader:
    """Parses the records of one database. Any number of threads may call it.

    Raw images of one size begin with the same bytes up to the pixels, and their last bytes (label, encoded) repeat. The reader caches both, so
    such a record costs two comparisons.
    """

    def __init__(self) -> None:
        self._known = _Known()

    def __call__(self, value: Any) -> Datum:
        """Return the Datum in `value`, bytes or a memoryview; the result is a view of it. Raise wire.Malformed."""
        view = memoryview(value)
        known = self._known
        head, pixels = known.head, known.pixels
        if head and view[: len(head)] == head and len(view) >= pixels.stop:
            tail = known.tails.get(bytes(view[pixels.stop :]))
            if tail is not None:
                data = np.frombuffer(view, np.uint8, pixels.stop - pixels.start, pixels.start)
                return Datum(known.shape, data, None, *tail)
        datum, span = (None if head else _encoded(view)) or _parse(wire.Span(view, 0, len(view)))
        if span is not None and not datum.encoded and len(view) - span.stop < _TAIL:
            if len(known.tails) >= _TAILS or head != view[: span.start] or pixels != span:
                self._known = known = _Known(bytes(view[: span.start]), span, datum.shape, {})
            known.tails[bytes(view[span.stop :])] = datum.label, datum.encoded
        return datum

    def alike(self, values: Sequence[Any]) -> Alike | None:
        """Return all `values` at once, which takes a hundredth of the work. Return None unless all are small raw images like the last parsed one."""
        known, size = self._known, len(values[0])
        if not known.head or size > SMALL or any(len(value) != size for value in values) or size < known.pixels.stop:
            return None
        content = b"".join(values)
        rows = np.frombuffer(content, np.uint8).reshape(len(values), size)
        if not (rows[:, : len(known.head)] == np.frombuffer(known.head, np.uint8)).all():
            return None
        stop = known.pixels.stop
        tails = [known.tails.get(content[at + stop : at + size]) for at in range(0, len(content), size)]
        if None in tails:
            return None
        return Alike(known.shape, rows[:, known.pixels], [tail[0] for tail in tails if tail])


def _encoded(view: memoryview) -> tuple[Datum, None] | None:
    """Return a Datum with an image file, parsed by the library, which is faster. Return None for others, and for damaged ones."""
    try:
        datum = proto.Datum.FromString(view.tobytes())
    except DecodeError:
        return None
    if not datum.encoded or not datum.data:
        return None
    pixels = np.frombuffer(datum.data, np.uint8)
    return Datum((datum.channels, datum.height, datum.width), pixels, None, datum.label if datum.HasField("label") else None, True), None


def _parse(span: wire.Span) -> tuple[Datum, slice | None]:
    """Return the Datum and the position of its pixels.

    The position is None if there are no pixels, or if fields other than the label and the encoded flag follow them.
    """
    numbers: dict[int, int] = {}
    pixels: np.ndarray | None = None
    floats: list[np.ndarray] = []
    where: slice | None = None
    for field, table in _fields(span):
        if field.kind == wire.VARINT:
            numbers[field.number] = wire.signed(field.value)
            if field.number in (_CHANNELS, _HEIGHT, _WIDTH):
                where = None
        elif field.number == _DATA and field.kind == wire.BYTES:
            pixels = np.frombuffer(span.data, np.uint8, field.end - field.start, field.start)
            where = slice(field.start, field.end)
        elif field.number == _FLOAT_DATA and table is not None:
            floats.append(table)
            where = None
    shape = (numbers.get(_CHANNELS, 0), numbers.get(_HEIGHT, 0), numbers.get(_WIDTH, 0))
    if pixels is not None and not pixels.size:
        pixels = where = None
    values = np.concatenate(floats) if floats else None
    datum = Datum(shape, pixels, values, numbers.get(_LABEL), bool(numbers.get(_ENCODED)))
    return datum, where


def _fields(span: wire.Span) -> Iterator[tuple[wire.Field, np.ndarray | None]]:
    """Yield the fields; consecutive float_data fields are yielded as one array."""
    at = span.start
    while at < span.end:
        field = span.field(at)
        table = None
        end = field.end
        if field.number == _FLOAT_DATA and field.kind == wire.FIXED32:
            run, end = span.run(field, at)
            table = np.ascontiguousarray(run).view("<f4").reshape(-1)
        elif field.number == _FLOAT_DATA and field.kind == wire.BYTES:
            if (field.end - field.start) % 4:
                raise wire.Malformed(f"{field.end - field.start} bytes of packed float_data", at)
            table = np.frombuffer(span.data, "<f4", (field.end - field.start) // 4, field.start)
        yield field, table
        at = end


def encode_datum(pixels: np.ndarray, label: int) -> bytes:
    """Return the record of a C x H x W uint8 image, as Caffe's converters write it."""
    numbers = (wire.integer(number, size) for number, size in zip((_CHANNELS, _HEIGHT, _WIDTH), pixels.shape, strict=True))
    return b"".join((*numbers, wire.header(_DATA, pixels.size), pixels.tobytes(), wire.integer(_LABEL, label)))


def raw_shape(database: Database) -> tuple[int, int, int] | None:
    """Return channels, height and width of the first record, None if it is an encoded image. Raise Error."""
    [(_, value)] = Reader(database).read(0)
    first = DatumReader()(value)
    return None if first.encoded else first.shape
