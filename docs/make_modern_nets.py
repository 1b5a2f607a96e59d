"""Writes the tables of draws in docs/modern-nets.md from benchmarks/refusals.json: `python docs/make_modern_nets.py`."""
from __future__ import annotations

import json
import pathlib
from typing import Any

PAGE = pathlib.Path(__file__).parent / "modern-nets.md"
RESULTS = PAGE.parents[1] / "benchmarks" / "refusals.json"
RUNTIMES = {"intel": "Intel, CPU", "pocl": "PoCL, CPU", "nvidia": "NVIDIA, GPU"}
END = "<!-- end -->"
Record = dict[str, dict[str, Any]]


def summary(groups: dict[str, Record]) -> list[str]:
    """Return the lines of the table of all nets."""
    lines = ["| nets | number | compared | refused | largest share |", "|---|---|---|---|---|"]
    for title, rows in groups.items():
        total = [sum(row[field] for row in rows.values()) for field in ("compared", "refused")]
        lines.append(f"| {title} | {len(rows)} | {total[0]} | {total[1]} | {max(row['share'] for row in rows.values()):.2g} |")
    return lines


def single(rows: Record) -> list[str]:
    """Return the lines of the table that has a line for each net."""
    cells = [f"| {name} | {RUNTIMES[row['runtime']]} | {row['compared']} | {row['refused']} | {row['share']:.2g} |" for name, row in sorted(rows.items())]
    return ["| net | runtime | compared | refused | largest share |", "|---|---|---|---|---|", *cells]


def page() -> str:
    """Return the text of the page with new tables."""
    record: Record = json.loads(RESULTS.read_text(encoding="utf-8"))
    imported = {name: row for name, row in record.items() if name.endswith(", imported")}
    zoo = {name: row for name, row in record.items() if name.startswith("zoo/") and name not in imported}
    modern = {name: row for name, row in record.items() if not name.startswith("zoo/")}
    groups = {"modern nets, imported": modern, "nets of the zoo, exported": zoo, "exported nets of the zoo, imported": imported}
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in (("summary", summary(groups)), ("modern", single(modern)), ("zoo", single(zoo | imported))):
        start = f"<!-- table {name} -->\n"
        before, _, after = text.partition(start)
        text = "\n".join([before + start, *lines, "", END]) + after.partition(END)[2]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
