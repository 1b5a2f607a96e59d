"""Tables of colors: the names of classes and their colors in masks."""
from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from ocaffe.errors import Error, Place
from ocaffe.tools.datasets.box_set import read_lines

IGNORE = 255  # the class of pixels that do not count
_IGNORED_NAMES = ("ignore", "void")
_FIX = "a line is NAME,RED,GREEN,BLUE or RED GREEN BLUE NAME, with levels of 0 to 255"


class ColorTable(NamedTuple):
    """`names` are those of the classes 0, 1, 2 ... `codes` (65536 red + 256 green + blue, rising) and `ids` belong together."""

    names: list[str]
    codes: np.ndarray
    ids: np.ndarray

    def classes(self, pixels: np.ndarray) -> np.ndarray:
        """Return the classes of the pixels (height x width x 3, uint8, red green blue): height x width, uint8. Raise Error without a place."""
        codes = pixels.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
        index = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        if (wrong := self.codes[index] != codes).any():
            y, x = (int(place[0]) for place in wrong.nonzero())
            fact = f"{int(wrong.sum())} pixels have colors that the table lacks, the first is {tuple(pixels[y, x].tolist())} at x {x}, y {y}"
            r, g, b = pixels[y, x].tolist()
            raise Error(fact, fix=f"add a line to the table: NAME,{r},{g},{b}")
        return self.ids[index]


def read_color_table(path: str) -> ColorTable:
    """Return the table in a text file. Classes are numbered from 0 in the order of the lines; `ignore` and `void` are class 255. Raise Error."""
    names: list[str] = []
    found: dict[int, int] = {}
    for number, line in read_lines(path):
        place = Place(path, number)
        words = [word.strip() for word in line.split(",")] if "," in line else line.split(None, 3)
        name, levels = (words[0], words[1:]) if "," in line else (words[-1], words[:-1])
        if not found and number == 1 and [level.lower() for level in levels] == ["r", "g", "b"]:
            continue  # a header
        if not name or len(levels) != 3 or not all(re.fullmatch(r"\d{1,3}", level) and int(level) < 256 for level in levels):
            raise Error(f"'{line[:60]}' is not a name and a color", place=place, fix=_FIX)
        red, green, blue = map(int, levels)
        code = 65536 * red + 256 * green + blue
        ignored = name.lower() in _IGNORED_NAMES
        if code in found or (name in names and not ignored):
            raise Error(f"the {'color' if code in found else 'name'} of '{line[:60]}' occurs twice", place=place, fix="give each class its own color and name")
        found[code] = IGNORE if ignored else len(names)
        if not ignored:
            names.append(name)
    if not names or len(names) > IGNORE:
        raise Error(f"it has {len(names)} classes", place=path, fix=f"write 1 to {IGNORE} classes. {_FIX}")
    codes = np.array(sorted(found), np.uint32)
    return ColorTable(names, codes, np.array([found[code] for code in codes.tolist()], np.uint8))
