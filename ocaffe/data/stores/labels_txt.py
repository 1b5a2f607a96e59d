"""labels.txt: the names of the classes, one a line in the order of their numbers. It lies in the folder of the images, of the list or of the database."""
from __future__ import annotations

import os
from collections.abc import Sequence

from ocaffe.errors import Error, Place
from ocaffe.support.files import text_lines, to_read
from ocaffe.support.kinds import HEAD, not_lines

LABELS = "labels.txt"


def labels_bytes(names: Sequence[str]) -> bytes:
    """Return the content of a labels.txt. Raise Error for names that `read_labels` would not read as they are."""
    for name in names:
        check_class(name)
    content = "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")
    if kind := not_lines(content[:HEAD]):
        fact = f"the name {names[0]!r} of the first class would make {LABELS} look like {kind.name}"
        raise Error(fact, fix=f"rename the class or its folder, for example to {'class_' + _plain(names[0])!r}")
    return content


def check_class(name: str, place: Place | str | None = None) -> None:
    """Raise Error for a name of a class that labels.txt cannot hold: its lines lose the white space around them."""
    fault = (
        "is empty" if not name
        else "has a line break" if len(name.splitlines()) > 1
        else "has white space at an end" if name != name.strip()
        else "begins with a byte order mark" if name.startswith("\ufeff")
        else ""
    )  # fmt: skip
    if fault:
        fact = f"the name {name!r} of a class {fault}, which {LABELS} cannot hold"
        raise Error(fact, place=place, fix=f"rename the class or its folder, for example to {_plain(name)!r}")


def _plain(name: str) -> str:
    """Return a name that a labels.txt can hold, for a remedy."""
    return "_".join(name.replace("\ufeff", "").split()) or "other"


def read_labels(path: str) -> list[str]:
    """Return the names in the file `path`. Raise Error."""
    try:
        names = [line.strip() for line in text_lines(path)]
    except OSError as problem:
        fix = to_read(path, problem, "give a file with the name of a class in each line")
        raise Error(f"cannot be read: {problem.strerror}", place=path, fix=fix) from None
    while names and not names[-1]:
        names.pop()
    for number, name in enumerate(names, 1):
        if not name:
            raise Error("the line is empty", place=Place(path, number), fix="write the name of a class in each line")
    return names


def given_labels(folder: str) -> list[str]:
    """Return the names in the labels.txt of `folder`, [] without this file. Raise Error."""
    path = os.path.join(folder, LABELS)
    return read_labels(path) if os.path.lexists(path) else []


def numbering(folder: str) -> list[str]:
    """Return `given_labels` for finding numbers by names: each name must be there once. Raise Error."""
    names = given_labels(folder)
    numbers: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        if numbers.setdefault(name, number) != number:
            fact = f"the class '{name}' is in line {numbers[name]} too"
            raise Error(fact, place=Place(os.path.join(folder, LABELS), number), fix="name each class once")
    return names
