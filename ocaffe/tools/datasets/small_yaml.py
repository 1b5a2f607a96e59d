"""Reads the part of YAML that description files of data sets (data.yaml of YOLO) use: keys with a text, a list of texts, or texts by number."""
from __future__ import annotations

import re
from collections.abc import Collection

from ocaffe.errors import Error, Place
from ocaffe.tools.datasets.box_set import read_text

Value = str | list[str] | dict[int, str]
_MOST_BYTES = 1 << 16
_KEY = re.compile(r"([A-Za-z_][\w-]*)\s*:(?:\s+(.*))?")
_NUMBER = re.compile(r"['\"]?(\d{1,9})['\"]?\s*:\s*(.+)")
_CLOSING = {"[": "]", "{": "}"}


def read_small_yaml(path: str, keys: Collection[str], root: str | None = None) -> dict[str, Value]:
    """Return the values of those of `keys` that a file has. Other keys are ignored, with all that is below them. Raise Error, also as `read_limited` does."""
    found: dict[str, list[tuple[int, str]]] = {}  # the numbers and texts of the lines of each key
    current = ""
    for number, line in enumerate(read_text(path, _MOST_BYTES, root).splitlines(), 1):
        text = _without_comment(line)
        if not text or text in ("---", "..."):
            continue
        below = line[0] in " \t" or text[0] in "-]}"
        match = None if below else _KEY.fullmatch(text)
        if match is not None:
            current = match[1]
            found[current] = [(number, match[2])] if match[2] else []
        elif below and current:
            found[current].append((number, text))
        else:
            raise Error(f"'{text[:60]}' is not a key with a value", place=Place(path, number), fix="write the line as KEY: VALUE")
    return {key: _value(found[key], path) for key in keys if found.get(key)}


def _without_comment(line: str) -> str:
    """Return a line without its comment and without white space at its ends. A comment begins with a # after white space, outside of quotes."""
    quote, before = "", " "
    for index, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and before in " \t[{,:":
            quote = char
        elif char == "#" and before in " \t":
            return line[:index].strip()
        before = char
    return line.strip()


def _value(lines: list[tuple[int, str]], path: str) -> Value:
    number, first = lines[0]
    if first[0] in _CLOSING:
        text = " ".join(line for _, line in lines)
        if not text.endswith(_CLOSING[first[0]]):
            raise Error(f"'{first[:60]}' has no closing {_CLOSING[first[0]]}", place=Place(path, number), fix=f"end the list with {_CLOSING[first[0]]}")
        items = _items(text[1:-1])
        items = items if items[-1] else items[:-1]  # a comma at the end is allowed
        if "" in items:
            raise Error(f"'{text[:60]}' has an empty item", place=Place(path, number), fix="write a text between the commas, or remove one of them")
        return [_plain(item) for item in items] if first[0] == "[" else _numbered([(number, item) for item in items], path)
    if first.startswith("- "):
        wrong = next((each for each in lines if not each[1].startswith("- ")), None)
        if wrong is not None:
            raise Error(f"'{wrong[1][:60]}' is not an item of the list", place=Place(path, wrong[0]), fix="begin it with '- '")
        return [_plain(line[2:]) for _, line in lines]
    return _numbered(lines, path) if _NUMBER.fullmatch(first) else _plain(first)


def _items(text: str) -> list[str]:
    """Divide a text at its commas outside of quotes."""
    items, begin, quote = [], 0, ""
    for index, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"" and not text[begin:index].strip():
            quote = char
        elif char == ",":
            items.append(text[begin:index].strip())
            begin = index + 1
    return [*items, text[begin:].strip()]


def _numbered(lines: list[tuple[int, str]], path: str) -> dict[int, str]:
    values: dict[int, str] = {}
    for number, line in lines:
        match = _NUMBER.fullmatch(line)
        if match is None or int(match[1]) in values:
            if match is not None:
                raise Error(f"'{line[:60]}': the number {match[1]} occurs twice", place=Place(path, number), fix="give each class its own number")
            raise Error(f"'{line[:60]}' is not a number and a name", place=Place(path, number), fix="write the line as NUMBER: NAME")
        values[int(match[1])] = _plain(match[2])
    return values


def _plain(text: str) -> str:
    """Return a text without its quotes."""
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
