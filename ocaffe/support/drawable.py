"""Names in the letters that Pillow's own font has, those of ASCII, in one line of limited length. Texts in pictures of Pillow pass `drawable`."""
from __future__ import annotations

import unicodedata

from ocaffe.shown import visible

MOST = 80  # characters of a text; a name in a file can have millions

_SPELT = str.maketrans({
    "ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ß": "ss", "æ": "ae", "Æ": "Ae", "ø": "oe", "Ø": "Oe", "œ": "oe", "Œ": "Oe",
    "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ı": "i", "þ": "th", "Þ": "Th", "ð": "d", "Ð": "D",
})  # fmt: skip


def drawable(text: str, most: int = MOST) -> str:
    """Return `text` in ASCII: Latin letters without their marks (German umlauts as ae, oe, ue), hidden characters as escapes, other letters as '?'.

    The result has at most `most` characters and no line break, which Pillow could not measure. Call it before the text is measured.
    """
    spelt = unicodedata.normalize("NFKD", unicodedata.normalize("NFC", visible(text[:most]).replace("\t", " ")).translate(_SPELT))
    return "".join(letter for letter in spelt if not unicodedata.combining(letter)).encode("ascii", "replace").decode()[:most]
