"""Find the line whose brace is missing or too many. A parser notices it only later, because all braces after it close other messages."""
from __future__ import annotations

import re
from typing import NamedTuple

_HIDDEN = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|#[^\n]*")
_OPEN, _CLOSE = "{<", "}>"


class WrongBrace(NamedTuple):
    """A line, from 1 on, and where to write a brace, or which one to remove."""

    line: int
    fact: str
    fix: str


def wrong_brace(text: str, last: int) -> WrongBrace | None:
    """Return the first line whose braces do not agree with the indentation, of the lines up to `last`. None if all agree."""
    opened: list[tuple[int, int]] = []  # line and indentation of each message that is not closed
    every = _HIDDEN.sub("", text).splitlines()
    lines = [line.expandtabs() for line in every[:last]]
    if 3 * sum(line.startswith(" ") for line in lines) < len(lines):  # the file is not indented
        return None
    for number, line in enumerate(lines, 1):
        word = line.strip()
        if not word:
            continue
        indent = len(line) - len(line.lstrip())
        if opened and word[0] not in _CLOSE and indent <= opened[-1][1]:
            begin = opened[-1][0]
            return WrongBrace(begin, f"the message that begins in line {begin} is not closed before line {number}", _closing(begin, number))
        for at, sign in enumerate(word):
            if sign in _OPEN:
                opened.append((number, indent))
            elif sign in _CLOSE:
                if not opened or (at and opened[-1][0] != number and word[0] not in _CLOSE):
                    return WrongBrace(number, f"line {number} has a '{sign}' that closes no message", f"remove one '{sign}' from line {number}")
                begin, deep = opened.pop()
                if not at and deep != indent:
                    return WrongBrace(begin, f"the message that begins in line {begin} is not closed before line {number}", _closing(begin, number))
    if not opened or len(lines) < len(every):
        return None
    begin = opened[-1][0]
    return WrongBrace(begin, f"the message that begins in line {begin} is not closed", f"write }} after line {len(lines)}")


def _closing(begin: int, found: int) -> str:
    return f"write }} at the end of line {begin}" if found == begin + 1 else f"write }} before line {found}"
