"""Compare `ocaffe lint --target` with two compilers.

    python benchmarks/lint_targets.py --seeds 0 160 --out FOLDER --json FILE --tpu-mlir PYTHON --rknn PYTHON --convert 30

The nets are those of the zoo with few channels, some of unusual structures, and for each seed a net with one to four random edits (lint_nets.py). `--more`
adds files that lie in a folder. Each compiler loads each net and computes it. `--convert` counts nets, of those that `lint` refuses and for which it names
`convert --target`, that are converted and judged again.
"""
from __future__ import annotations

import argparse
import collections
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lint_nets

from ocaffe.convert.targets.table import read_table
from ocaffe.errors import Error
from ocaffe.lint import NET_RULES, lint

JUDGES = Path(__file__).with_name("target_judges.py")
TARGETS = {"tpu-mlir": 1e-4, "rknn": 1e-2}  # the largest error of right outputs; rknn computes in float16
OTHER = frozenset(NET_RULES)


def judged(python: str, target: str, bases: list[Path]) -> dict[str, dict[str, Any]]:
    """Return what the compiler does with each net."""
    done = subprocess.run([python, str(JUDGES), target, "--compute", *map(str, bases)], capture_output=True, text=True, errors="replace")
    lines = [line.partition("RESULT ")[2] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return {row.pop("net"): row for row in map(json.loads, lines)}


def outcome(row: dict[str, Any], target: str) -> str:
    """Return 'refused', 'right', 'wrong' or 'not computed': loaded, but not computed by the compiler's own interpreter."""
    if row["loaded"]:
        return "refused"
    if "error" not in row:
        return "not computed"
    return "right" if row["error"] <= TARGETS[target] else "wrong"


def said(base: Path, target: str) -> list[tuple[str, str]]:
    """Return what lint refuses: facts and remedies."""
    table = read_table(target)
    found = lint(f"{base}.prototxt", OTHER, target=table)
    return [(f"{each.layer} {each.fact}", each.fix) for each in found if each.rule in ("target", "")]


def write_nets(seeds: range, plain: bool, out: Path) -> dict[str, list[str]]:
    """Write the nets, and return their edits."""
    edits = {}
    for name, net, told in lint_nets.nets(seeds, plain):
        try:
            if lint_nets.written(net, out / name, len(edits)):
                edits[name] = told
        except Error as problem:
            print(name, "left out:", problem.fact)
    return edits


def convert(base: Path, target: str) -> str:
    """Convert a net as lint's remedy says. Return the error."""
    made = f"{base}_{target}"
    files = [f"{base}.prototxt", f"{base}.caffemodel", f"{made}.prototxt", f"{made}.caffemodel"]
    done = subprocess.run([sys.executable, "-m", "ocaffe", "convert", *files, "--target", target, "--force"], capture_output=True, text=True)
    return "" if done.returncode == 0 else " ".join(done.stderr.split())[-300:]


def converted(rows: dict[str, Any], target: str, python: str, out: Path, count: int) -> dict[str, Any]:
    """Convert some of the nets that lint refuses, and judge what is written."""
    names = [name for name, row in rows.items() if row[target]["lint"] and row[target]["remedy"]][:: max(1, len(rows) // (4 * count))][:count]
    result: dict[str, Any] = {name: {"failed": convert(out / name, target)} for name in names}
    bases = [out / f"{name}_{target}" for name in names if not result[name]["failed"]]
    for name, base in ((name, out / f"{name}_{target}") for name in names):
        for end in (".in.npz", ".exp.npz"):
            Path(f"{base}{end}").write_bytes(Path(f"{out / name}{end}").read_bytes())
    for name, row in judged(python, target, bases).items():
        result[name.removesuffix(f"_{target}")] |= {"outcome": outcome(row, target), **row}
    return result


def measure(options: argparse.Namespace, pythons: dict[str, str]) -> dict[str, Any]:
    """Return the edits of each net and the answers of the compilers. Those that OUT has are kept."""
    stored = options.out / "rows.json"
    rows = json.loads(stored.read_text()) if stored.exists() else {}
    if not options.lint_only:
        edits = write_nets(range(*options.seeds), not options.edited, options.out)
        for path in sorted(options.more.glob("*.caffemodel")) if options.more else ():
            edits[path.stem] = []
            for end in (".prototxt", ".caffemodel", ".in.npz", ".exp.npz"):
                (options.out / f"{path.stem}{end}").write_bytes(path.with_name(f"{path.stem}{end}").read_bytes())
        found = {target: judged(pythons[target], target, [options.out / name for name in edits]) for target in TARGETS}
        rows |= {name: {"edits": told} | {target: found[target][name] for target in TARGETS} for name, told in edits.items()}
        stored.write_text(json.dumps(rows, indent=1))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs=2, required=True, metavar=("FIRST", "END"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the nets")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tpu-mlir", required=True, help="Python with this package")
    parser.add_argument("--rknn", required=True, help="Python with this package")
    parser.add_argument("--edited", action="store_true", help="only the nets with edits")
    parser.add_argument("--convert", type=int, default=0, metavar="N")
    parser.add_argument("--more", type=Path, help="folder of further nets: NAME.prototxt, .caffemodel, .in.npz and .exp.npz")
    parser.add_argument("--lint-only", action="store_true", help="judge by lint again; the compilers' answers are those in OUT")
    options = parser.parse_args()
    pythons = {"tpu-mlir": options.tpu_mlir, "rknn": options.rknn}
    options.out.mkdir(parents=True, exist_ok=True)
    rows = measure(options, pythons)
    counts = {target: collections.Counter[str]() for target in TARGETS}
    differ = []
    for name, row in rows.items():
        for target in TARGETS:
            findings, found = said(options.out / name, target), outcome(row[target], target)
            row[target]["lint"] = [fact for fact, _ in findings]
            row[target]["remedy"] = all("ocaffe convert" in fix and "--target" in fix for _, fix in findings)
            verdict = f"lint {'refuses' if findings else 'passes'}, compiler: {found}"
            counts[target][verdict] += 1
            if (found == "right") == bool(findings):
                differ.append({"net": name, "target": target, "verdict": verdict, "edits": row["edits"], **row[target]})
                print(json.dumps(differ[-1]))
    tables = {target: dict(sorted(each.items())) for target, each in counts.items()}
    edits = {name: row["edits"] for name, row in rows.items()}
    record: dict[str, Any] = {"seeds": options.seeds, "counts": tables, "differ": differ, "edits": edits}
    print(json.dumps(tables, indent=1))
    if options.convert:
        record["converted"] = {target: converted(rows, target, pythons[target], options.out, options.convert) for target in TARGETS}
        for target, nets in record["converted"].items():
            for name, row in nets.items():
                if row["failed"] or row["outcome"] != "right":
                    print(target, "converted", name, row)
    options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
