"""Writes the tables of docs/targets.md from the targets' tables and benchmarks/targets.json: `python docs/make_targets.py`."""
from __future__ import annotations

import collections
import json
import pathlib
import textwrap
from typing import Any

from ocaffe.convert.targets.table import FOLDER, names, read_table

PAGE = pathlib.Path(__file__).parent / "targets.md"
RESULTS = PAGE.parents[1] / "benchmarks" / "targets.json"
LINTED = RESULTS.with_name("lint_targets.json")
END = "<!-- end -->"


def targets() -> list[str]:
    """Return the lines of the table of targets."""
    lines = ["| `--target` | is | types | sources |", "|---|---|---|---|"]
    for name in names():
        table = read_table(name)
        sources = "; ".join(f"{each['what']} ({each['date']})" for each in table.sources)
        lines.append(f"| `{name}` | {table.title} | {len(table.kinds)} | {sources} |")
    return lines


def notes() -> list[str]:
    """Return the notes and the types of each target."""
    lines = []
    for name in names():
        table = read_table(name)
        types = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["types"]
        lines += [f"### {name}", "", *textwrap.wrap(f"Types: {', '.join(sorted(types))}.", 118, break_on_hyphens=False), ""]
        for note in (*table.notes, *(f"{kind} {reason}." for kind, reason in sorted(table.other.items()))):
            lines += textwrap.wrap(f"* {note}", 118, subsequent_indent="  ", break_on_hyphens=False)
        lines.append("")
    return lines[:-1]


def measured(record: dict[str, Any]) -> list[str]:
    """Return the lines of the table of counts: of the nets of docs/modern-nets.md and the detectors, and of all."""
    modern = {line.split("|")[1].strip() for line in PAGE.with_name("modern-nets.md").read_text(encoding="utf-8").splitlines() if line.count("|") > 2}
    head = ["target", "rewritten of 59", "rewritten of 74", "compared and written", "loaded of 59", "loaded of those tried", "real Caffe within 1e-4"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, nets in sorted(record.items()):
        made = {net: row for net, row in nets.items() if row["status"] != "refused"}
        first = [net for net in made if net in modern or net.startswith("head_")]
        written = sum(row["status"] == "written" for row in made.values())
        loaded = [net for net, row in made.items() if row.get("loaded") == ""]
        tried = sum("loaded" in row for row in made.values())
        real = [row["real"] <= 1e-4 for row in made.values() if "real" in row]
        loads = [str(len(set(loaded) & set(first))), f"{len(loaded)} of {tried}"] if tried else ["not run", "not run"]
        cells = [name, len(first), len(made), written or "not run", *loads, f"{sum(real)} of {len(real)}" if real else "not run"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def refused(record: dict[str, Any]) -> list[str]:
    """Return the lines of the table of what prevents a net."""
    lines = ["| target | first layer without a form | nets |", "|---|---|---|"]
    for name, nets in sorted(record.items()):
        causes = collections.defaultdict(list)
        for net, row in nets.items():
            if row["status"] == "refused":
                causes[row["type"]].append(net)
        lines += [f"| {name} | {kind} | {', '.join(sorted(found))} |" for kind, found in sorted(causes.items())]
    return lines


VERDICTS = {  # the columns: what lint says, and what the compiler does
    "passes, right": "lint passes, compiler: right",
    "missed: refused": "lint passes, compiler: refused",
    "missed: wrong": "lint passes, compiler: wrong",
    "missed: not computed": "lint passes, compiler: not computed",
    "refuses, refused": "lint refuses, compiler: refused",
    "refuses, wrong": "lint refuses, compiler: wrong",
    "refuses, not computed": "lint refuses, compiler: not computed",
    "false alarm": "lint refuses, compiler: right",
}  # fmt: skip


def linted(record: dict[str, Any]) -> list[str]:
    """Return the lines of the table that compares lint with the compilers."""
    used = {name: verdict for name, verdict in VERDICTS.items() if any(verdict in each for each in record["counts"].values())}
    lines = [f"| target | nets | {' | '.join(used)} |", "|---" * (2 + len(used)) + "|"]
    for target, counts in sorted(record["counts"].items()):
        lines.append(f"| {target} | {sum(counts.values())} | {' | '.join(str(counts.get(verdict, 0)) for verdict in used.values())} |")
    return lines


def page() -> str:
    """Return the text of the page with new tables."""
    record = json.loads(RESULTS.read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    compared = json.loads(LINTED.read_text(encoding="utf-8"))
    for name, lines in (("linted", linted(compared)), ("targets", targets()), ("measured", measured(record)), ("refused", refused(record)), ("notes", notes())):
        start = f"<!-- table {name} -->\n"
        before, _, after = text.partition(start)
        text = "\n".join([before + start, *lines, "", END]) + after.partition(END)[2]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
