"""The tokens of protobuf's text format: names, numbers, strings and symbols, each with its place in the text."""
from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from ocaffe.errors import Error, Place

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\f\v\n]+|\#[^\n]*)
      |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
      |(?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)
      |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      |(?P<symbol>[][{}<>:;,/.-])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SIMPLE = {
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
    b"\\": b"\\",
    b"'": b"'",
    b'"': b'"',
    b"?": b"?",
}


class Token(NamedTuple):
    """`kind` is 'name', 'number', 'string', 'symbol', or 'end' after the last token. `text` is the unchanged text of the file."""

    kind: str
    text: str
    at: int  # offset in the text


class Source:
    """A text and the name of its file, for the places in error messages."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def line(self, at: int) -> int:
        """Return the line, counted from 1, of the character at offset `at`."""
        return bisect_right(self._starts, at)

    def place(self, at: int) -> Place:
        return Place(self.file, self.line(at))

    def tokens(self) -> Iterator[Token]:
        """Yield all tokens, then one of kind 'end'. Raises Error for a character sequence that is not a token."""
        at, text = 0, self.text
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._bad_character(at)
            kind = match.lastgroup or ""
            if kind == "number" and text[match.end() : match.end() + 1].isidentifier():
                fix = f"{match.group()} {text[match.end()]}, or quotes around the whole if it is a name"
                raise Error(f"{match.group()!r} needs a space before {text[match.end()]!r}", place=self.place(at), fix=fix)
            if kind != "space":
                yield Token(kind, match.group(), at)
            at = match.end()
        yield Token("end", "", max(len(text.rstrip()) - 1, 0))

    def _bad_character(self, at: int) -> Error:
        char = self.text[at]
        if char in "\"'":
            return Error(
                f"the string that begins with {self.text[at : at + 20].splitlines()[0]} is not closed on its line", place=self.place(at),
                fix=f"end it with {char} on the same line",
            )  # fmt: skip
        fix = 'use plain quotes " around names' if char in "“”‘’«»＂" else None
        shown = f"the byte 0x{ord(char) - 0xDC00:02x}" if 0xDC80 <= ord(char) <= 0xDCFF else f"{char!r}"
        return Error(f"{shown} does not belong here", place=self.place(at), fix=fix)


def unescape(token: Token, source: Source) -> bytes:
    """Return the bytes of a string token with its escapes resolved."""

    def resolve(match: re.Match[bytes]) -> bytes:
        octal, hexadecimal, short, long, simple = match.groups()
        if octal or hexadecimal:
            value = int(octal, 8) if octal else int(hexadecimal, 16)
            if value > 255:
                fact = f"the escape \\{octal.decode()} is {value}, larger than a byte"
                raise Error(fact, place=source.place(token.at), fix="write \\\\ for a backslash, or an octal number from \\0 to \\377")
            return bytes([value])
        if short or long:
            try:
                return chr(int(short or long, 16)).encode()
            except (ValueError, OverflowError, UnicodeEncodeError):
                fact = f"the Unicode escape {match.group().decode()} stands for no character"
                raise Error(fact, place=source.place(token.at), fix="write the character itself, and save the file as UTF-8") from None
        if simple not in _SIMPLE:
            raise Error(
                f"unknown escape \\{simple.decode(errors='replace')} in a string",
                place=source.place(token.at),
                fix="write \\\\ for a backslash",
            )
        return _SIMPLE[simple]

    return _ESCAPE.sub(resolve, token.text[1:-1].encode("utf-8", "surrogateescape"))
