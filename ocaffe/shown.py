"""Texts with names of files and of others' data, made safe for each medium: terminal and log, HTML and SVG, a shell, CSV.

A name can have any characters. On a terminal, escape sequences move the cursor or change the title; in a log, a line break begins a forged record.
Texts pass one of these functions where they leave the program: `log.emit`, `say` and `errors.Error` call `shown`.
"""
from __future__ import annotations

import contextlib
import csv
import html
import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

_CONTROLS = "\x00-\x08\x0a-\x1f\x7f-\x9f"  # all but the tab
_INVISIBLE = "\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # directions, separators of lines, no width
_HIDDEN = re.compile(f"[{_CONTROLS}{_INVISIBLE}\ud800-\udfff]")  # the last are halves of characters: bytes of names that are not UTF-8
_NAMED = {"\n": r"\n", "\r": r"\r"}
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)


class Lines(str):
    """A text of several lines that this program has made: its line breaks stay. Each of the `lines` that make it is safe."""

    __slots__ = ()

    def __new__(cls, *lines: str) -> Lines:
        """`lines`: each becomes one line, unless it is Lines."""
        return super().__new__(cls, "\n".join(map(shown, lines)))

    def __getnewargs__(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.split("\n"))


def visible(text: str) -> str:
    r"""Return one line in which hidden characters are written as in Python: `\n`, `\x1b`, `\u202e`. The tab stays."""
    return _HIDDEN.sub(lambda found: _escape(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a name that is not UTF-8
        code -= 0xDC00
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def shown(text: str) -> str:
    """Return `text` for a terminal or a log: Lines as they are, any other text as one line."""
    return text if isinstance(text, Lines) else visible(text)


def lines_of(text: str) -> Lines:
    """Return a text of several lines that is no name, such as the output of a compiler or a file, with its line breaks."""
    return Lines(*text.replace("\r\n", "\n").split("\n"))


def say(*lines: str, flush: bool = False) -> None:
    """Print to stdout, each of `lines` as one line unless it is Lines. Without `lines`, print an empty one. No other function prints there."""
    with printing():
        write(sys.stdout, *lines)
        if flush:
            sys.stdout.flush()


class NotPrinted(OSError):
    """The system does not write to stdout, for example because the disk is full."""


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Context of a call that writes to stdout. Raise NotPrinted for an OSError, unless the reader of a pipe has ended."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise NotPrinted(problem.errno, problem.strerror) from problem


def write(stream: TextIO | None, *lines: str, begin: str = "") -> None:
    """Write lines to a stream for people. Characters that its encoding lacks are escaped. None: a stream that was closed before Python started.

    `begin` comes first, as it is: a word in a color.
    """
    if stream is None:
        return
    text = begin + "".join(f"{shown(line)}\n" for line in lines or ("",))
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def markup(text: str) -> str:
    """Return `text` for HTML and SVG, as content or in an attribute with quotes."""
    return html.escape(shown(text))


def command(*words: object) -> str:
    """Return a command that a POSIX shell reads as these words. A name that begins with '-' must be given as `path_word` makes it."""
    return " ".join(_word(str(word)) for word in words)


def _word(text: str) -> str:
    if not _HIDDEN.search(text) and "\t" not in text:
        return shlex.quote(text)
    inside = "".join(_octal(each) for each in text)
    return f"$'{inside}'"


def _octal(character: str) -> str:
    """Return a character for the quotes $'...', which bash, zsh and ksh read: bytes as three octal digits."""
    if character in "\\'":
        return f"\\{character}"
    if character != "\t" and not _HIDDEN.match(character):
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def flag(name: str, value: object) -> str:
    """Return the flag --NAME=VALUE for a shell."""
    return command(f"--{name}={value}")


def path_word(path: object) -> str:
    """Return the path for `command`: a program would take a name that begins with '-' as a flag."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def markdown(text: str) -> str:
    """Return a name for Markdown, also within a table."""
    return re.sub(r"[\\`*<>|\[\]&]", lambda found: f"\\{found[0]}", visible(text))


def code_span(text: str) -> str:
    """Return a name as code in a table of Markdown. The marks around it are longer than those in it."""
    text = visible(text).replace("|", r"\|")
    marks = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{marks}{space}{text}{space}{marks}"


def literal(text: str) -> str:
    """Return a string of a prototxt, in its quotation marks."""
    return '"' + prototxt(text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) + '"'


def prototxt(text: str) -> str:
    """Return the text of a prototxt with its hidden characters as escapes of protobuf, but for its line breaks. Only strings have such characters."""
    return _HIDDEN.sub(lambda found: found[0] if found[0] == "\n" else _unicode(ord(found[0])), text)


def _unicode(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def cell(text: str) -> str:
    """Return a text for CSV. Spreadsheets compute a cell that begins like a formula; after a quotation mark they do not."""
    text = visible(text)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def write_table(stream: TextIO, rows: Iterable[Sequence[Any]], delimiter: str = ",", end: str = "\n") -> None:
    """Write rows as CSV. Texts pass `cell`, numbers are written as they are."""
    writer = csv.writer(stream, delimiter=delimiter, lineterminator=end)
    writer.writerows([cell(each) if isinstance(each, str) else each for each in row] for row in rows)


def json_text(value: Any, **settings: Any) -> Lines:
    """Return JSON in ASCII, which has no hidden characters but those of its own lines."""
    return Lines(*json.dumps(value, **settings).replace("\x7f", "\\u007f").split("\n"))
