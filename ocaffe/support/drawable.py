"""Names in the letters that Pillow's own font has: those of ASCII."""
from __future__ import annotations

import unicodedata

_SPELT = str.maketrans({
    "ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ß": "ss", "æ": "ae", "Æ": "Ae", "ø": "oe", "Ø": "Oe", "œ": "oe", "Œ": "Oe",
    "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ı": "i", "þ": "th", "Þ": "Th", "ð": "d", "Ð": "D",
})  # fmt: skip


def drawable(text: str) -> str:
    """Return `text` in ASCII: Latin letters without their marks (German umlauts as ae, oe, ue), other letters as '?'."""
    spelt = unicodedata.normalize("NFKD", unicodedata.normalize("NFC", text).translate(_SPELT))
    return "".join(letter for letter in spelt if not unicodedata.combining(letter)).encode("ascii", "replace").decode()
