"""Docs, docstrings and comments keep to plain English (CONTRIBUTING.md)."""
from __future__ import annotations

import pathlib

import pytest

from tests.structure.prose import ROOT, files, findings


def test_no_private_words() -> None:
    found = [f"{path.relative_to(ROOT)}:{line}: {text}" for path in files(ROOT) for line, text in findings(path)]
    assert not found, "\n".join(found)


def test_docs_wrap() -> None:
    """Lines of docs have at most 120 columns; tables and code may be longer."""
    docs = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    generated = {"api.md", "layer-types.md"}
    long = [f"{path.relative_to(ROOT)}:{number}" for path in docs if path.name not in generated for number, line in enumerate(path.read_text().split("\n"), 1)
            if len(line) > 120 and not line.lstrip().startswith("|") and not line.startswith("    ")]  # fmt: skip
    assert not long


@pytest.mark.parametrize(
    ("text", "found"),
    [("# nobody reads it", True), ("# the sum of what it writes", True), ("# Once more for the compiler", True), ("# no launch reads it", False)],
)
def test_private_words_are_found(tmp_path: pathlib.Path, text: str, found: bool) -> None:
    path = tmp_path / "a.py"
    path.write_text(text + "\n")
    assert bool(list(findings(path))) is found
