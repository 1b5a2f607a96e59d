"""Writes the tables of docs/devices.md: `python docs/make_devices.py`. The figures are those in tests/portability and in ocaffe/kernels/matmul/families.py.

A table is between `<!-- table NAME -->` and `<!-- end -->`. The text around it is written by hand.
"""
from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ocaffe.kernels.matmul.families import FAMILIES

PAGE = pathlib.Path(__file__).with_name("devices.md")
RESULTS = pathlib.Path(__file__).parent.parent / "tests/portability/offline.json"
RUNS = RESULTS.parent / "results"  # of programs that run kernels on a CPU
BEFORE, AFTER, ALL = "products before", "products", "all programs"  # labels of offline.json


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _devices(*results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The devices of one or several results with their figures in the last of them, in the order of the families."""
    found = {name: row for result in results for name, row in result.items()}
    order = [family.name for family in FAMILIES]
    return dict(sorted(found.items(), key=lambda item: order.index(item[1]["family"])))


def _nets(row: dict[str, Any]) -> int:
    """The number of nets besides the selftest."""
    return len(set(row["nets"].split(",")) - {"selftest"})


def compiled(results: dict[str, Any]) -> str:
    """All programs by device."""
    rows = []
    for name, row in _devices(results.get(ALL, {})).items():
        amd = row["maker"] == "amd"
        rows.append([f"`{name}`", row["compiler"], row["date"], _nets(row), row["programs"], row["errors"], row["kernels"], row["spilling_kernels"],
                     f"{row['worst']} {'bytes' if amd else 'registers'}", f"{row['low']} of {row['products']}" if amd else "-"])  # fmt: skip
    head = ["device", "compiler", "compiled", "nets", "programs", "errors", "launched kernels", "with scratch or spills", "worst", "products at occupancy 1"]
    return table(head, rows)


def changed(results: dict[str, Any]) -> str:
    """Products before and after the table of families."""
    before, after = results.get(BEFORE, {}), results.get(AFTER, {})

    def pair(name: str, figure: str) -> str:
        return " → ".join(str(result[name][figure]) if name in result else "?" for result in (before, after))

    def spread(name: str, maker: str) -> str:
        figure = "occupancy" if maker == "amd" else "width"
        launches = (sorted(result[name][figure].items(), key=lambda item: int(item[0])) if name in result else [] for result in (before, after))
        parts = (", ".join(f"{n}: {count}" for n, count in each) or "?" for each in launches)
        return " → ".join(parts)

    head = ["device", "nets", "errors", "kernels with scratch or spills", "their launches", "worst", "at occupancy 1", "products by occupancy or width"]
    figures = ("errors", "spilling_kernels", "spilling_launches", "worst", "low")
    rows = [[f"`{name}`", _nets(row), *(pair(name, figure) for figure in figures), spread(name, row["maker"])]
            for name, row in _devices(before, after).items()]  # fmt: skip
    return table(head, rows)


def families(results: dict[str, Any]) -> str:
    """The rows of the table of families."""
    devices = _devices(*results.values())
    rows = []
    for family in {family.name: family for family in FAMILIES}.values():  # once, though Mesa's drivers may have a row of their own
        imitated = ", ".join(f"`{name}`" for name, row in devices.items() if row["family"] == family.name)
        many = f"from {family.many_sums} sums on" if family.many_sums else "-"
        rows.append([family.name, imitated or "-", family.max_sums, family.unroll or "all", many, family.sub_group or "-", family.lanes, family.registers,
                     family.memory_floats, family.matrix or "-", family.launch])  # fmt: skip
    head = ["family", "compiled here for", "most sums", "unrolled", "256 registers", "sub-group", "lanes", "registers", "floats per cycle", "matrix unit",
            "launch"]  # fmt: skip
    return table(head, rows)


def runs() -> str:
    """The runs on Mesa's rusticl and in Oclgrind."""
    rows = []
    for each in (row for file in sorted(RUNS.glob("*.json"), reverse=True) for row in json.loads(file.read_text())):
        limits = each.get("limits")
        given = f"{limits['max_work_group']} items, {limits['local_memory'] // 1024} KiB" if limits else "its own"
        what = each["run"] + (f", accuracy {each['accuracy']:.3f} at iteration {each['iteration']}" if "accuracy" in each else "")
        rows.append([each["stack"], given, what, each["kind"], each["passed"], each["refused"], each["failed"]])
    return table(["stack", "limits of a work-group", "run", "kernels", "passed", "refused", "failed"], rows)


def page(text: str | None = None) -> str:
    """Return the page with fresh tables."""
    results = json.loads(RESULTS.read_text())
    made = {"compiled": compiled(results), "changed": changed(results), "families": families(results), "runs": runs()}

    def fresh(found: re.Match[str]) -> str:
        return f"<!-- table {found[1]} -->\n\n{made[found[1]]}\n<!-- end -->" if found[1] in made else found[0]

    return re.sub(r"<!-- table (\w+) -->\n.*?<!-- end -->", fresh, text or PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
