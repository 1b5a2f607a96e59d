"""Flesch's reading ease and the longest sentence of a Markdown page. Only prose counts: no code, tables or titles."""
from __future__ import annotations

import re

VOWELS = re.compile(r"[aeiouy]+")


def sentences(markdown: str) -> list[list[str]]:
    """Return the words of each sentence. A code span is one word without syllables of its own, `x`."""
    text = re.sub(r"^```.*?^```$", "\n", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?m)^( {4}|\||#).*$", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "x", text))
    text = re.sub(r"\(?\bdocs/[\w/-]+\.md\)?", "x", text)
    parts = re.split(r"(?<=[.!?:])\s+|\n\s*\n|\n\s*[*-] ", text)
    return [words for part in parts if (words := re.findall(r"[A-Za-z][A-Za-z'-]*", part))]


def syllables(word: str) -> int:
    """Estimate the syllables by groups of vowels; a silent e at the end has none."""
    word = word.lower()
    count = len(VOWELS.findall(word))
    return max(1, count - (word.endswith(("e", "es", "ed")) and not word.endswith(("le", "ted", "ded", "ses")) and count > 1))


def reading_ease(markdown: str) -> float:
    """Return Flesch's score: 100 is very easy, 50 fairly difficult, 0 for experts."""
    found = sentences(markdown)
    words = [word for words in found for word in words]
    return 206.835 - 1.015 * len(words) / len(found) - 84.6 * sum(map(syllables, words)) / len(words)


def longest_sentence(markdown: str) -> int:
    """Return the number of words of the longest sentence."""
    return max(map(len, sentences(markdown)))
