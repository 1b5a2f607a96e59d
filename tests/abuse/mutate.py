"""Damage for inputs: of bytes, of text, and of protobuf messages field by field. All of it depends on a random.Random alone."""
from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

INTEGERS = (0, 1, -1, 2, 3, 7, 64, 255, 256, 1000, 65535, 65536, 10**6, 10**9, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, -1e38, 1e9, float("inf"), float("-inf"), float("nan"))
TEXTS = ("", "a", "data", "label", "/", ".", "..", "/dev/zero", "/dev/null", "no/such/file", "a\nb", "a\0b", "\x7f", "é", "x" * 300, "%s%n", "TRAIN", "0")
WORDS = tuple(str(number) for number in INTEGERS) + ("0.5", "-0.5", "1e9", "1e400", "nan", "inf", "-inf", "0x7fffffff", "010", "9" * 30, "true", '""', "MAX")
_NUMBER = re.compile(r"(?<![\w.])-?\d+\.?\d*(?:e[-+]?\d+)?")
_STRING = re.compile(r'"[^"\n]*"')
_CPP = FieldDescriptor
_RANGES = {
    _CPP.CPPTYPE_INT32: (-(2**31), 2**31 - 1), _CPP.CPPTYPE_INT64: (-(2**63), 2**63 - 1), _CPP.CPPTYPE_UINT32: (0, 2**32 - 1),
    _CPP.CPPTYPE_UINT64: (0, 2**64 - 1),
}  # fmt: skip


def times(rng: random.Random) -> int:
    """How many times an input is damaged: mostly once."""
    return rng.choice((1, 1, 1, 2, 3, 6))


# bytes


def damage(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """`data` with some damage: changed bits and numbers, missing, repeated and strange parts. `other` is an input of the same kind."""
    content = bytearray(data)
    for _ in range(times(rng)):
        at = rng.randrange(len(content) + 1)
        rng.choice(_DAMAGE)(rng, content, at, other or b"\0")
    return bytes(content)


def _flip(rng: random.Random, data: bytearray, at: int, other: bytes) -> None:
    if at < len(data):
        data[at] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, data: bytearray, at: int, other: bytes) -> None:
    data[at : at + 1] = bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)))])


def _truncate(rng: random.Random, data: bytearray, at: int, other: bytes) -> None:
    del data[at:]


def _remove(rng: random.Random, data: bytearray, at: int, other: bytes) -> None:
    del data[at : at + _length(rng)]


def _repeat(rng: random.Random, data: bytearray, at: int, other: bytes) -> None:
    data[at:at] = data[at : at + _length(rng)]


def _splice(rng: random.Random, data: bytearray, at: int, other: bytes) -> None:
    data[at:] = other[rng.randrange(len(other)) :]


def _insert(rng: random.Random, data: bytearray, at: int, other: bytes) -> None:
    begin = rng.randrange(len(other))
    data[at:at] = other[begin : begin + _length(rng)]


def _noise(rng: random.Random, data: bytearray, at: int, other: bytes) -> None:
    data[at:at] = rng.randbytes(rng.choice((1, 2, 8)))


def _integer(rng: random.Random, data: bytearray, at: int, other: bytes) -> None:
    size, letter = rng.choice(((2, "H"), (4, "I"), (8, "Q")))
    data[at : at + size] = struct.pack(rng.choice("<>") + letter, rng.choice(INTEGERS) % (1 << 8 * size))


def _real(rng: random.Random, data: bytearray, at: int, other: bytes) -> None:
    data[at : at + 4] = struct.pack("<f", rng.choice(FLOATS))


def _varint(rng: random.Random, data: bytearray, at: int, other: bytes) -> None:
    """Insert a long integer of protobuf, also one longer than 64 bits."""
    data[at:at] = b"\xff" * rng.choice((1, 4, 9, 12)) + rng.choice((b"\x0f", b"\x01", b""))


def _length(rng: random.Random) -> int:
    return rng.choice((1, 2, 4, 16, 100, 1000))


_DAMAGE: tuple[Callable[[random.Random, bytearray, int, bytes], None], ...] = (
    _flip, _flip, _byte, _truncate, _remove, _repeat, _splice, _insert, _noise, _integer, _real, _varint,
)  # fmt: skip


# text


def rewrite(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A text with odd numbers, changed strings and lines in other places; one in four has damaged bytes instead."""
    if rng.random() < 0.25:
        return damage(rng, data, other)
    text, donor = (part.decode("utf-8", "surrogateescape") for part in (data, other))
    for _ in range(times(rng)):
        text = rng.choice(_REWRITES)(rng, text, donor)
    return text.encode("utf-8", "surrogateescape")


def _odd_number(rng: random.Random, text: str, donor: str) -> str:
    return _replace(rng, text, _NUMBER, rng.choice(WORDS))


def _odd_string(rng: random.Random, text: str, donor: str) -> str:
    found = _STRING.findall(donor) + [f'"{word}"' for word in TEXTS if word.isprintable()]
    return _replace(rng, text, _STRING, rng.choice(found))


def _odd_word(rng: random.Random, text: str, donor: str) -> str:
    return _replace(rng, text, re.compile(r"\S+"), rng.choice((*TEXTS, *WORDS, *(donor.split() or ["a"]))))


def _line(rng: random.Random, text: str, donor: str) -> str:
    """Remove a line, repeat it elsewhere, or add one of the other text."""
    lines, more = text.split("\n"), donor.split("\n")
    at = rng.randrange(len(lines))
    choice = rng.randrange(3)
    if choice == 0:
        del lines[at]
    else:
        lines.insert(at, rng.choice(lines if choice == 1 else more))
    return "\n".join(lines)


def _brackets(rng: random.Random, text: str, donor: str) -> str:
    """Add unbalanced or deep brackets."""
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice("{}[]()<>\"',:") * rng.choice((1, 1, 2, 90, 5000)) + text[at:]


def _replace(rng: random.Random, text: str, pattern: re.Pattern[str], word: str) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text + word
    match = rng.choice(found)
    return text[: match.start()] + word + text[match.end() :]


_REWRITES: tuple[Callable[[random.Random, str, str], str], ...] = (_odd_number, _odd_number, _odd_number, _odd_string, _odd_word, _line, _line, _brackets)


# messages


def distort(rng: random.Random, message: Any, donor: Any, words: Sequence[str] = ()) -> Any:
    """A copy of a protobuf message with odd values in its fields.

    Values are removed, repeated and exchanged, and parts are taken from `donor`, a message of the same type. `words`: more values for strings.
    """
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(times(rng)):
        parts = _parts(copy)
        rng.choice(_DISTORTIONS)(rng, rng.choice(parts), _parts(donor), words)
    return copy


def _parts(message: Any) -> list[Any]:
    """The message and all messages in it."""
    found = [message]
    for part in found:
        for field, value in part.ListFields():
            if field.cpp_type == _CPP.CPPTYPE_MESSAGE:
                found.extend(value if _repeated(field) else (value,))
    return found


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _scalar(rng: random.Random, field: Any, words: Sequence[str]) -> Any:
    """An odd value for a field that is no message."""
    kind = field.cpp_type
    if kind in _RANGES:
        low, high = _RANGES[kind]
        return rng.choice([number for number in INTEGERS if low <= number <= high])
    if kind in (_CPP.CPPTYPE_FLOAT, _CPP.CPPTYPE_DOUBLE):
        return rng.choice(FLOATS)
    if kind == _CPP.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if kind == _CPP.CPPTYPE_BOOL:
        return rng.random() < 0.5
    text = rng.choice(words) if words and rng.random() < 0.7 else rng.choice(TEXTS)
    return text.encode() if field.type == _CPP.TYPE_BYTES else text


def _set(rng: random.Random, part: Any, donors: list[Any], words: Sequence[str]) -> None:
    """Give a field that is set, or any other one, an odd value."""
    present = [field for field, _ in part.ListFields()]
    fields = present if present and rng.random() < 0.8 else part.DESCRIPTOR.fields
    _give(rng, part, rng.choice(fields), words)


def _give(rng: random.Random, part: Any, field: Any, words: Sequence[str]) -> None:
    value = getattr(part, field.name)
    if field.cpp_type == _CPP.CPPTYPE_MESSAGE:
        inner = value.add() if _repeated(field) else value
        inner.SetInParent()
        scalars = [each for each in inner.DESCRIPTOR.fields if each.cpp_type != _CPP.CPPTYPE_MESSAGE]
        if scalars:
            _give(rng, inner, rng.choice(scalars), words)
    elif not _repeated(field):
        setattr(part, field.name, _scalar(rng, field, words))
    elif value and rng.random() < 0.6:
        value[rng.randrange(len(value))] = _scalar(rng, field, words)
    else:
        value.extend(_scalar(rng, field, words) for _ in range(rng.choice((1, 1, 2, 5))))


def _clear(rng: random.Random, part: Any, donors: list[Any], words: Sequence[str]) -> None:
    if present := [field for field, _ in part.ListFields()]:
        part.ClearField(rng.choice(present).name)


def _elements(rng: random.Random, part: Any, donors: list[Any], words: Sequence[str]) -> None:
    """Remove, repeat or exchange elements of a repeated field."""
    lists = [value for field, value in part.ListFields() if _repeated(field)]
    if not lists:
        return
    values = rng.choice(lists)
    one, two = rng.randrange(len(values)), rng.randrange(len(values))
    choice = rng.randrange(3)
    if choice == 0:
        del values[one]
    elif choice == 1:
        values.extend([values[one]])
    elif hasattr(values[one], "CopyFrom"):
        kept = type(values[one])()
        kept.CopyFrom(values[one])
        values[one].CopyFrom(values[two])
        values[two].CopyFrom(kept)
    else:
        values[one], values[two] = values[two], values[one]


def _graft(rng: random.Random, part: Any, donors: list[Any], words: Sequence[str]) -> None:
    """Take over the fields of a part of the same type, or some of them."""
    alike = [donor for donor in donors if donor.DESCRIPTOR is part.DESCRIPTOR]
    if not alike:
        return
    donor = rng.choice(alike)
    if rng.random() < 0.3:
        part.MergeFrom(donor)
    elif fields := donor.ListFields():
        field, value = rng.choice(fields)
        part.ClearField(field.name)
        if _repeated(field):
            getattr(part, field.name).extend(value)
        elif field.cpp_type == _CPP.CPPTYPE_MESSAGE:
            getattr(part, field.name).CopyFrom(value)
        else:
            setattr(part, field.name, value)


_DISTORTIONS: tuple[Callable[[random.Random, Any, list[Any], Sequence[str]], None], ...] = (_set, _set, _set, _clear, _elements, _graft)
