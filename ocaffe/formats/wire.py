"""The parts of protobuf's wire format that model files need. Reading copies nothing; writing never holds the whole message.

There are two reasons not to use the protobuf library for model files. It rejects messages above 2 GiB. Forks of Caffe also
use one field number for different fields; this reader uses only the numbers that all forks define alike
(docs/quirks.md, "Files and field numbers").
"""
from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ocaffe.errors import Error
from ocaffe.support.files import open_plain, to_read

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}


class Malformed(Exception):
    """The bytes are not a protobuf message. `at` is the offset of the fault; `needs` is the file size that it requires, or 0."""

    def __init__(self, fact: str, at: int, needs: int = 0) -> None:
        super().__init__(fact)
        self.fact, self.at, self.needs = fact, at, needs


class Field(NamedTuple):
    """One field. `value` is the integer of a VARINT. The bytes of other kinds are `data[start:end]`."""

    number: int
    kind: int
    value: int
    start: int
    end: int


class Span(NamedTuple):
    """One message: the bytes `start` to `end` of `data`, which is a mapped file or bytes."""

    data: Any
    start: int
    end: int

    def inner(self, field: Field) -> Span:
        return Span(self.data, field.start, field.end)

    def bytes(self, field: Field) -> bytes:
        return bytes(self.data[field.start : field.end])

    def text(self, field: Field) -> str:
        return self.bytes(field).decode("utf-8", "backslashreplace")

    def fields(self) -> Iterator[Field]:
        """Yield the fields in order. Raises Malformed."""
        at = self.start
        while at < self.end:
            field = self.field(at)
            yield field
            at = field.end

    def field(self, at: int) -> Field:
        """Return the field whose tag starts at `at`. Raises Malformed."""
        tag, start = self._varint(at)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, end = self._varint(start)
            return Field(number, kind, value, start, end)
        if kind == BYTES:
            length, start = self._varint(start)
        elif kind in _SIZES:
            length = _SIZES[kind]
        else:
            raise Malformed(f"an unknown wire type {kind}", at)
        if number == 0:
            raise Malformed("a field numbered 0", at)
        if start + length > self.end:
            raise Malformed(f"a field {number} that ends outside its message", at, start + length)
        return Field(number, kind, 0, start, start + length)

    def run(self, field: Field, tag_at: int) -> tuple[np.ndarray, int]:
        """Return all consecutive unpacked numbers that start with `field`, whose tag is at `tag_at`.

        The result is their bytes as an array of (count, 4 or 8), and the offset after the last one.
        """
        stride, size = field.end - tag_at, 4 if field.kind == FIXED32 else 8
        if stride != 1 + size:  # a tag of more bytes than it needs
            return np.frombuffer(self.data, np.uint8, size, field.end - size).reshape(1, size), field.end
        count = (self.end - tag_at) // stride
        table = np.frombuffer(self.data, np.uint8, count * stride, tag_at).reshape(count, stride)
        other = np.flatnonzero(table[:, 0] != table[0, 0])
        count = int(other[0]) if len(other) else count
        return table[:count, 1:], tag_at + count * stride

    def integers(self, field: Field) -> list[int]:
        """Return the values of a repeated integer field, packed or not."""
        if field.kind != BYTES:
            return [signed(field.value)]
        values, at, packed = [], field.start, self.inner(field)
        while at < field.end:
            value, at = packed._varint(at)
            values.append(signed(value))
        return values

    def _varint(self, at: int) -> tuple[int, int]:
        value, shift, start = 0, 0, at
        while at < self.end:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (2**64 - 1), at
            shift += 7
            if shift > 63:
                raise Malformed("a number of more than 64 bits", start)
        raise Malformed("a number that ends outside its message", start, at + 1)


def signed(value: int) -> int:
    """Return the int64 or int32 that was written as the varint `value`."""
    return value - 2**64 if value >= 2**63 else value


def map_file(path: str | Path) -> Span:
    """Map the file `path`, which must not be empty, and return it as one span."""
    try:
        with open_plain(path) as stream:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as problem:
        fact = f"cannot be read: {getattr(problem, 'strerror', None) or problem}"
        raise Error(fact, place=str(path), fix=to_read(path, problem, "copy it again, to another disk")) from None
    return Span(data, 0, len(data))


def varint(value: int) -> bytes:
    """Return the bytes of an integer. Negative integers have 64 bits, as protobuf writes them."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number: int, kind: int) -> bytes:
    return varint(number << 3 | kind)


def header(number: int, length: int) -> bytes:
    """Return the tag and length that precede the `length` bytes of a message, string or packed field."""
    return tag(number, BYTES) + varint(length)


def integer(number: int, value: int) -> bytes:
    return tag(number, VARINT) + varint(value)


def string(number: int, text: str) -> bytes:
    data = text.encode()
    return header(number, len(data)) + data
