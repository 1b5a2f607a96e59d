"""Reads JSON files of others. A table says which types a format has, so that code behind it gets no other type.

A table is made of

* types: `str`, `bool`, `int` (of 64 bits), `float` (finite, also written as a whole number), `list`, `dict`, `object` (anything), None (null);
* `[KIND]`, a list of values of that kind;
* `{"name": KIND, "other?": KIND}`, an object with these keys, of which those with a question mark may be missing. It may have more keys;
* `Each(KIND)`, an object with any keys;
* `(KIND, KIND)`, one of several kinds.
"""
from __future__ import annotations

import codecs
import json
import math
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ocaffe.errors import Error, Place
from ocaffe.formats.sniff import is_text
from ocaffe.support.files import read_plain, to_read
from ocaffe.support.kinds import kind_of
from ocaffe.support.parsing import parsing, reason

MOST_BYTES = 64 << 20  # of a file of settings or scores
MOST_VALUES = 10_000_000  # numbers, texts, lists and objects of a file; each takes up to 100 bytes of memory
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_HALVES = re.compile(rb"\\u[dD][89a-fA-F]")  # halves of surrogate pairs; a text with a single half cannot be written or printed
_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list", dict: "an object", object: "anything", None: "null"}
_SHOWN = 60  # characters of a value in a message


class Each(NamedTuple):
    """An object with any keys, whose values are of one kind."""

    kind: Any


def read_json(path: str | os.PathLike[str], kind: Any, what: str, fix: str, most: int = MOST_BYTES, raw: bool = False) -> Any:
    """Return the value in the JSON file `path`, of the kind that the table `kind` describes. Raise Error.

    `what` is the file in words, 'a file of scores'. `raw`: texts may have bytes that are no UTF-8, as names of files can.
    """
    place = os.fspath(path)
    with parsing("cannot be read", place, fix):
        content = read_plain(path, most)
    try:
        found = parse_json(content, place, raw=raw)
    except Error as problem:
        raise Error(f"is not {what}: {problem.fact}", place=place, fix=to_read(place, problem, fix)) from None
    if wrong := misfit(found, kind):
        raise Error(f"is not {what}: {wrong}", place=place, fix=fix)
    return found


def parse_json(content: bytes, place: Place | str, strict: bool = True, raw: bool = False, most: int = MOST_VALUES) -> Any:
    """Return the value in the content of a JSON file. Raise Error.

    `strict`: texts have no line ends. `raw` is that of `read_json`. `most`: values that the file may have.
    """
    if (count := sum(map(content.count, (b",", b"[", b"{")))) > most:
        raise Error(f"it has about {count:,} values, and the limit is {most:,}", place=place, fix="divide the file")
    try:
        found = json.loads(content.decode("utf-8-sig"), strict=strict)
    except (ValueError, RecursionError) as problem:
        raise _not_json(content, place, problem) from None
    if _HALVES.search(content) and (text := next((text for text in _texts(found) if _is_broken(text, raw)), None)) is not None:
        raise Error(f"the text {ascii(text)[:_SHOWN]} has half of a character", place=place, fix="write the character itself, in UTF-8")
    return found


def _not_json(content: bytes, place: Place | str, problem: Exception) -> Error:
    """Return the error for content that Python's parser does not take."""
    kind = kind_of(content[:512], place.file if isinstance(place, Place) else place)
    if kind is not None:
        return Error(f"it is {kind.name}, not JSON", place=place, fix=kind.way or "give the JSON file itself")
    if isinstance(problem, json.JSONDecodeError):
        if problem.pos >= len(problem.doc.rstrip()):
            return Error("it is JSON that ends too early", place=place, fix="copy or export it again")
        return Error(f"it is not JSON: line {problem.lineno}: {problem.msg}", place=place, fix="correct this line, or export the file as JSON")
    if isinstance(problem, UnicodeDecodeError):
        if not content.startswith(_UTF16) and not is_text(content[:4096]):
            return Error("it is a binary file, not JSON", place=place, fix="give the JSON file itself")
        return Error(f"it is not JSON: the byte at {problem.start} is not UTF-8", place=place, fix="save it as UTF-8")
    text = "its brackets are nested too deep" if isinstance(problem, RecursionError) else reason(problem)  # such as a number of thousands of digits
    return Error(f"it is not JSON that can be read: {text}", place=place, fix="export it again as plain JSON")


def misfit(value: Any, kind: Any, where: str = "") -> str:
    """Return why a value is not of a kind, and '' if it is. `where` names the value: 'size[1]'."""
    if isinstance(kind, tuple) and not isinstance(kind, Each):
        found = [misfit(value, each, where) for each in kind]
        near = next((text for each, text in zip(kind, found) if isinstance(value, (list, dict)) and _outer(each) is type(value)), "")
        return "" if "" in found else near or _told(value, " or ".join(map(_name, kind)), where)
    if not _fits(value, _outer(kind)):
        return _told(value, _name(kind), where)
    for key, each, inner in _parts(value, kind):
        if inner is _MISSING:
            return f"{where or 'it'} has no {'list ' if _outer(kind[key]) is list else ''}'{key}'"
        if text := misfit(each, inner, f"{where}[{key}]" if isinstance(key, int) else f"{where}.{key}".lstrip(".")):
            return text
    return ""


_MISSING = object()


def _parts(value: Any, kind: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the key, the value and the kind of each part that a kind describes."""
    if isinstance(kind, list):
        yield from ((index, each, kind[0]) for index, each in enumerate(value))
    elif isinstance(kind, Each):
        yield from ((key, each, kind.kind) for key, each in value.items())
    elif isinstance(kind, dict):
        for key, inner in kind.items():
            name = key.removesuffix("?")
            if name in value:
                yield name, value[name], inner
            elif name == key:
                yield name, None, _MISSING


def _outer(kind: Any) -> Any:
    return list if isinstance(kind, list) else dict if isinstance(kind, (dict, Each)) else kind


def _fits(value: Any, outer: Any) -> bool:
    if outer is None or outer is object:
        return outer is object or value is None
    if outer is int:
        return type(value) is int and -(2**63) <= value < 2**63
    if outer is float:
        return type(value) in (int, float) and _is_finite(value)
    return type(value) is outer


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond floats
        return False


def _name(kind: Any) -> str:
    return _NAMES[_outer(kind)]


def _told(value: Any, wanted: str, where: str) -> str:
    return f"{where or 'it'} is {_shown(value)}, not {wanted}"


def _shown(value: Any) -> str:
    """Return a value of a JSON file for a message."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}.."


def _texts(value: Any) -> Iterator[str]:
    """Iterate over all texts in a value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _is_broken(text: str, raw: bool) -> bool:
    return any("\ud800" <= letter <= "\udfff" and not (raw and "\udc80" <= letter <= "\udcff") for letter in text)
