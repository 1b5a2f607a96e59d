"""Letters in pictures: Pillow's own font, or a font of the system for names with letters that it lacks. ocaffe ships no font."""
from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from PIL import ImageFont

from ocaffe.shown import visible
from ocaffe.support.drawable import MOST, drawable

Font: TypeAlias = "ImageFont.ImageFont | ImageFont.FreeTypeFont"

FOLDERS = {
    "win32": (r"C:\Windows\Fonts",),
    "darwin": ("/System/Library/Fonts", "/Library/Fonts", "~/Library/Fonts"),
}.get(sys.platform, ("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts"))
SUFFIXES = (".ttf", ".otf", ".ttc")
FIRST = ("dejavusans.", "notosans-regular.", "liberationsans-regular.", "arial.")  # looked at before the others
STYLES = ("bold", "italic", "oblique", "mono", "light", "condensed", "serif")  # looked at last
FILES, FONTS = 5000, 200  # looked at, at most
NONE = "\U0010fffe"  # no font has it: what it draws is the sign for a missing letter


def lettering(names: Sequence[str], size: float, most: int = MOST) -> tuple[list[str], Font]:
    """Return names in one line of at most `most` characters, and a font that draws them: of the system for other letters than those of ASCII.

    If no font has all letters, the names are spelt in ASCII, and Pillow's own font draws them.
    """
    lines = [unicodedata.normalize("NFC", visible(name[:most]).replace("\t", " "))[:most] for name in names]
    letters = frozenset(letter for letter in itertools.chain(*lines) if not letter.isascii())
    with contextlib.suppress(OSError):
        if letters and (path := _font_with(letters)):
            return lines, ImageFont.truetype(path, size)
    return [drawable(name, most) for name in names], ImageFont.load_default(size)


@functools.lru_cache(64)
def _font_with(letters: frozenset[str]) -> str:
    """Return the file of a font that has the letters, '' if there is none."""
    for path in _fonts():
        with contextlib.suppress(OSError):
            font = ImageFont.truetype(path, 12)
            missing = _drawn(font, NONE)
            if all(_drawn(font, letter) != missing for letter in letters):
                return path
    return ""


def _drawn(font: ImageFont.FreeTypeFont, letter: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(letter)
    return mask.size, bytes(mask)


@functools.lru_cache(1)
def _fonts() -> list[str]:
    """Return files of fonts, those for plain text first."""
    return sorted(itertools.islice(_files(), FILES), key=_rank)[:FONTS]


def _files() -> Iterator[str]:
    for top in FOLDERS:
        for folder, _, names in os.walk(os.path.expanduser(top)):
            yield from (os.path.join(folder, name) for name in sorted(names) if name.lower().endswith(SUFFIXES))


def _rank(path: str) -> tuple[int, int, str]:
    name = os.path.basename(path).lower()
    first = next((place for place, begin in enumerate(FIRST) if name.startswith(begin)), len(FIRST))
    return first, any(style in name for style in STYLES), path
