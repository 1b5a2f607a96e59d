"""Text files that list image files, and the reading of files that they name."""
from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from ocaffe.data.decoding.decode import ImageFile, open_image, read_file
from ocaffe.data.stores.file_store import File
from ocaffe.errors import Error
from ocaffe.formats.nearby import MissingPath
from ocaffe.support.files import NotPlain, text_lines, to_read
from ocaffe.support.here import here
from ocaffe.support.kinds import HEAD, not_lines


class Line(NamedTuple):
    """A line of a list: its number from 1 on, and its text without the white space around it. `indent` is that before it."""

    number: int
    text: str
    indent: str = ""

    @property
    def words(self) -> list[str]:
        return self.text.split()


def unlisted(names: Iterable[str], where: str) -> Error | None:
    """Return the error for the first of the `names` in `where` that a list of image files cannot hold, None if it can hold all.

    `names` are in the order of the list. A name may have spaces within it. It may begin with white space if such a file is there when the list is read.
    """
    names = list(names)
    for name in names:
        fault = (
            "has a line break" if len(name.splitlines()) > 1 or name.endswith(("\n", "\r"))
            else "ends with white space" if name != name.rstrip()
            else "begins with a byte order mark" if name.startswith("\ufeff")
            else ""
        )  # fmt: skip
        if fault:
            return Error(f"the name {name!r} in {where} {fault}, which a list cannot hold", fix="rename the file or the folder")
    if kind := not_lines(os.fsencode("\n".join(names[:HEAD]))[:HEAD]):
        return Error(f"the name {names[0]!r} in {where}, the first one, would make a list look like {kind.name}", fix="rename the file or the folder")
    return None


def list_content(lines: Iterable[str]) -> bytes:
    """Return the content of a list. Raise Error if it would not be read as text, because its first name begins like another kind of file."""
    content = os.fsencode("".join(f"{line}\n" for line in lines))
    if kind := not_lines(content[:HEAD]):
        first = os.fsdecode(content.split(b"\n", 1)[0])
        raise Error(f"the line {first!r}, the first of a list, would make it look like {kind.name}", fix="rename the file or the folder")
    return content


def _line(number: int, text: str) -> Line:
    text = text.rstrip()
    return Line(number, text.lstrip(), text[: len(text) - len(text.lstrip())])


class Listing:
    """The lines of the text file `source`, without blank ones. Errors have no place."""

    def __init__(self, source: str, what: str) -> None:
        """`what` describes a line, for messages."""
        self.source = source
        fix = f"source names a text file, each line of which is {what}"
        if not source:
            raise Error("source is empty", fix=fix)
        try:
            self.lines = [_line(number, text) for number, text in enumerate(text_lines(source), 1) if text.strip()]
        except (OSError, ValueError) as problem:  # ValueError: the name has a zero byte
            fact = f"the list '{source}' cannot be read: {getattr(problem, 'strerror', None) or problem}"
            plain = isinstance(problem, NotPlain)
            raise MissingPath(fact, source, "source", to_read(source, problem, fix) if plain else fix) from None
        if not self.lines:
            raise Error(f"the list {source} names no image", fix=fix)

    def fault(self, problem: Error, record: int, name: str) -> Error:
        """Return `problem` with the file `name` and the line number added."""
        fix = problem.fix or "correct the list, or replace the file"
        return Error(f"{self.source}, line {self.lines[record].number}: {name}: {problem.fact}", fix=fix)


def read_image(path: str, limit: int) -> ImageFile:
    """Return the image in a file; only its header is decoded. `limit`: most pixels. Raise Error without a place."""
    return open_image(read_listed(path), limit)


def read_listed(path: str) -> bytes:
    """Return the content of a file. Raise Error without a place."""
    try:
        return read_file(path)
    except Error as problem:
        problem.fix = problem.fix or f"correct its name or root_folder (relative to {here()})"
        raise


def read_found(file: File) -> bytes:
    """Return the content of a found file. Raise Error without a place."""
    return read_listed(file.path)
