"""Adds up the figures of a campaign: `python -m tests.abuse.report FILE... [--write docs/reliability.md]`.

The files have lines of JSON that the parts print. The table is printed, or written into a document between its two marks.
"""
from __future__ import annotations

import argparse
import collections
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tests.abuse.harness import KINDS

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
HEAD = ("part", "section", "device", "cases", *KINDS, "minutes")


class Key(NamedTuple):
    """A row of the table."""

    part: str
    section: str
    device: str


class Row:
    """The figures of one part and section, added up."""

    def __init__(self) -> None:
        self.kinds: collections.Counter[str] = collections.Counter()
        self.seconds = 0.0

    def add(self, figures: dict[str, Any]) -> None:
        self.kinds.update(figures["kinds"])
        self.seconds += figures["seconds"]


def rows(lines: Iterable[str]) -> dict[Key, Row]:
    """The rows of figures in lines; other lines are ignored."""
    found: dict[Key, Row] = collections.defaultdict(Row)
    for line in lines:
        if line.startswith('{"part"'):
            figures = json.loads(line)
            found[Key(figures["part"], figures["section"], figures["device"])].add(figures)
    return dict(sorted(found.items()))


def table(found: dict[Key, Row]) -> str:
    """The rows and, for each part with several of them, their sum, as a table of Markdown."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for part in dict.fromkeys(key.part for key in found):
        mine = {key: row for key, row in found.items() if key.part == part}
        lines += [_line(key, row) for key, row in mine.items()]
        if len(mine) > 1:
            whole = Row()
            for row in mine.values():
                whole.kinds.update(row.kinds)
                whole.seconds += row.seconds
            lines.append(_line(Key(part, "**all**", ""), whole))
    return "\n".join(lines) + "\n"


def _line(key: Key, row: Row) -> str:
    cells = [*key, f"{row.kinds.total():,}", *(f"{row.kinds[kind]:,}" for kind in KINDS), f"{row.seconds / 60:,.1f}"]
    return "| " + " | ".join(cells) + " |"


def written(document: str, figures: str) -> str:
    """The document with the table between its marks."""
    head, _, rest = document.partition(BEGIN)
    _, mark, tail = rest.partition(END)
    if not mark:
        raise SystemExit(f"the document has no {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{figures}\n{END}{tail}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.abuse.report")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--write", type=pathlib.Path)
    chosen = parser.parse_args(arguments)
    figures = table(rows(line for path in chosen.files for line in path.read_text().splitlines()))
    if chosen.write:
        chosen.write.write_text(written(chosen.write.read_text(), figures))
    else:
        print(figures, end="")


if __name__ == "__main__":
    main()
