"""Compile the corpus of imitated devices by their makers' compilers: `python -m tests.portability.offline OUT --devices dg2,gfx1100`.

OUT/DEVICE.results.json has what each launched kernel needs; a summary of each device is printed. Programs with the tokens and options of compiled ones are
not compiled again (OUT/built), so a second run continues after an interrupted one. --only PATTERN: only programs of these families, for example
'gemm|conv|winograd'. --record LABEL writes the summary into offline.json, from which `python docs/make_devices.py` makes tables of docs/devices.md.
--before: plan as before the table of families, with the row of unknown devices. With --only and --record it makes the other half of a comparison.
--check: the exit status is 1 if a program does not compile, a launched kernel uses scratch (Intel: spills more than 16 registers), or a product has
occupancy 1.
"""
from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import pathlib
import re
import sys
import time
from typing import Any
from unittest import mock

from ocaffe import log
from ocaffe.kernels.matmul import families
from ocaffe.kernels.matmul.families import FAMILIES, family_of
from tests.portability import amd, intel
from tests.portability.compiler import tokens
from tests.portability.corpus import NETS, SELFTEST, write
from tests.portability.devices import DEVICES

PRODUCTS = frozenset({"gemm", "forward", "backward_data", "backward_filter"})  # functions; the others of their programs pack or add up
COMPILERS = {"amd": amd, "intel": intel}
LABELS = ("all programs", "products", "products before")  # of offline.json
SPILLS = {"amd": 0, "intel": 16}  # maximum bytes of scratch, or registers, that --check accepts
RECORD = pathlib.Path(__file__).with_name("offline.json")


def compiled(out: pathlib.Path, device: str, name: str, options: str) -> dict[str, Any]:
    """Return the report on one program of the corpus in `out`, from a file or from the compiler."""
    compiler = COMPILERS[DEVICES[device].compiler]
    source = out / device / f"{name}.cl"
    key = hashlib.sha1(f"{compiler.version()} {device} {options} {' '.join(tokens(source))}".encode()).hexdigest()
    kept = out / "built" / f"{key}.json"
    if not kept.exists():
        begin = time.time()
        errors, kernels = compiler.build(source, device, options)
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps({"errors": errors, "kernels": kernels, "seconds": round(time.time() - begin, 2)}))
    return dict(json.loads(kept.read_text()))


def compile_all(out: pathlib.Path, device: str, programs: dict[str, dict[str, Any]], only: str) -> list[dict[str, Any]]:
    """The launched kernels: name, program, family, tile, launches, and the compiler's figures; `errors` of programs that do not compile."""
    rows = []
    for name, program in programs.items():
        if not re.search(only, program["family"]):
            continue
        found = compiled(out, device, name, program["options"])
        for function, uses in program["kernels"].items():
            facts = found["kernels"].get(function, {})
            tile = "x".join(program["defines"].get(key, "") for key in ("BM", "BN", "TM", "TN", "BK")) if "BM" in program["defines"] else ""
            rows.append({"program": name, "family": program["family"], "kernel": function, "tile": tile, "launches": sum(uses.values()), "nets": sorted(uses),
                         "errors": found["errors"], **facts})  # fmt: skip
    return rows


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of docs/devices.md. Launches are those of all nets; `low` are products with one wave per SIMD unit."""
    products = [row for row in rows if row["kernel"] in PRODUCTS and row["tile"]]
    spilling = [row for row in rows if row.get("spilled")]

    def launches(chosen: list[dict[str, Any]]) -> int:
        return sum(row["launches"] for row in chosen)

    def by(name: str) -> dict[str, int]:
        return {str(n): launches([row for row in products if row.get(name) == n]) for n in sorted({row[name] for row in products if name in row})}

    return {
        "programs": len({row["program"] for row in rows}), "kernels": len(rows), "launches": launches(rows),
        "errors": len({row["program"] for row in rows if row["errors"]}),
        "spilling_kernels": len(spilling), "spilling_launches": launches(spilling), "worst": max((row["spilled"] for row in spilling), default=0),
        "products": launches(products), "low": launches([row for row in products if row.get("occupancy") == 1]),
        "occupancy": by("occupancy"), "width": by("simd"),
    }  # fmt: skip


def record(label: str, device: str, nets: str, figures: dict[str, Any]) -> None:
    """Write a device's figures into offline.json."""
    content = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    target, maker, _ = DEVICES[device]
    facts = {"maker": maker, "family": family_of(target).name, "compiler": COMPILERS[maker].version(), "nets": nets, "date": time.strftime("%Y-%m-%d")}
    content.setdefault(label, {})[device] = {**facts, **figures}
    RECORD.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--devices", default=",".join(name for name, device in DEVICES.items() if device.compiler))
    parser.add_argument("--nets", default=",".join((*NETS, SELFTEST)))
    parser.add_argument("--only", default="")
    parser.add_argument("--record", default="", choices=LABELS)
    parser.add_argument("--before", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    log.quiet(2)
    failed = 0
    for device in args.devices.split(","):
        with mock.patch.object(families, "_family", lambda *_: FAMILIES[-1]) if args.before else contextlib.nullcontext():
            programs = write(args.out, device, args.nets.split(","))
        rows = compile_all(args.out, device, programs, args.only)
        (args.out / f"{device}.results.json").write_text(json.dumps(rows, indent=1) + "\n")
        found = summary(rows)
        failed |= bool(found["errors"] or found["low"] or found["worst"] > SPILLS[DEVICES[device].compiler])
        print(device, json.dumps(found), flush=True)
        if args.record:
            record(args.record, device, args.nets, found)
        for row in sorted(rows, key=lambda row: -row.get("spilled", 0)):
            if row["errors"] or row.get("spilled"):
                print("  ", {key: value for key, value in row.items() if key != "nets"}, flush=True)
    return failed if args.check else 0


if __name__ == "__main__":
    sys.exit(main())
