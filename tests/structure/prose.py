"""Finds private English in docs, docstrings and comments: words that readers stumbled over, and sentences that are too long.

`python -m tests.structure.prose [--long]` prints each finding with its place; with `--long` also sentences of more than 25 words.
"""
from __future__ import annotations

import ast
import io
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Each is a metaphor or an idiom. Write the plain word: "must not" for "nobody may", "needs" for "asks for".
PRIVATE = re.compile(
    r"\b(nobody|somebody|everybody|whoever|once more|at the most|at the least|gives? back|stands? in memory|goes? astray|asks? (for|its|of|the)|"
    r"meets?|knows? (bf16|of|that it)|of (its|their) own accord)\b",
    re.IGNORECASE,
)
# A clause with "what" or "who" as a noun: after a verb or at the start of a sentence, but not in a question. Write a noun: "the values that ..".
NOUN_CLAUSE = re.compile(r"(?:^|[.;:] )(What|Who) (?!is\b|are\b|does\b|do\b|you\b)[a-z]+|\b(of|that|with|from|than|and|as) (what|who) [a-z]+", re.MULTILINE)
MAX_WORDS = 25


def texts(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """The prose of a file with its line: docstrings and comments of code, paragraphs and table-free lines of Markdown."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
                yield getattr(node, "lineno", 1), text
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("# ")
    elif path.suffix in (".cl", ".h"):
        for match in re.finditer(r"/\*(.*?)\*/|//([^\n]*)", source, flags=re.S):
            yield source.count("\n", 0, match.start()) + 1, re.sub(r"\s+", " ", match[1] or match[2] or "")
    else:
        paragraph: list[str] = []
        begin, fenced = 1, False
        for number, line in enumerate([*source.split("\n"), ""], 1):
            fenced ^= line.startswith("```")
            if fenced or line.startswith(("    ", "|", "```", "#")) or not line.strip():
                if paragraph:
                    yield begin, " ".join(paragraph)
                paragraph = []
            else:
                begin = begin if paragraph else number
                paragraph.append(line.strip())


def files(root: pathlib.Path) -> Iterator[pathlib.Path]:
    for pattern in ("ocaffe/**/*.py", "ocaffe/kernels/**/*", "docs/**/*.md", "benchmarks/*.py", "tests/**/*.py", "*.md"):
        for path in sorted(root.glob(pattern)):
            if path.suffix in (".py", ".cl", ".h", ".md") and "golden" not in path.parts and path.name != "prose.py":
                yield path


def findings(path: pathlib.Path, long: bool = False) -> Iterator[tuple[int, str]]:
    """Line and text of each finding in a file."""
    for line, text in texts(path):
        for pattern in (PRIVATE, NOUN_CLAUSE):
            for match in pattern.finditer(text):
                yield line, f"'{match[0].strip()}'"
        for sentence in re.split(r"(?<=[.!?:;])\s+|\n\s*\n|\n\s*[*-] ", text) if long else ():
            words = re.findall(r"[A-Za-z][\w'-]*", re.sub(r"`[^`]*`", "X", sentence))
            if len(words) > MAX_WORDS:
                yield line, f"{len(words)} words: {' '.join(sentence.split())[:100]}"


def main(arguments: Sequence[str]) -> None:
    total = 0
    for path in files(ROOT):
        for line, text in findings(path, "--long" in arguments):
            total += 1
            print(f"{path.relative_to(ROOT)}:{line}: {text}")
    print(f"{total} findings")


if __name__ == "__main__":
    main(sys.argv[1:])
