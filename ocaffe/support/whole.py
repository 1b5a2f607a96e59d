"""Reads whole numbers in texts of others. Python's `int` raises ValueError for thousands of digits, and `isdigit` allows characters that it refuses."""
from __future__ import annotations

MOST_DIGITS = 18  # of a number that 64 bits hold


def whole(text: str, otherwise: int = -1) -> int:
    """Return the whole number in `text`: 1 to MOST_DIGITS of the digits 0 to 9. Return `otherwise` for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else otherwise


def signed(text: str) -> int | None:
    """Return the whole number in `text`, which may have one sign, as `whole` does. Return None for any other text."""
    number = whole(text[text[:1] in ("+", "-") :])
    return None if number < 0 else -number if text[:1] == "-" else number
