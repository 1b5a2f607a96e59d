#!/usr/bin/env python3
"""Planned memory of the zoo's networks in training, beside what Caffe takes. Needs no device.

    benchmarks/memory.py [--json FILE] [NET ...]

TRAIN and TEST nets with the batch sizes of the files; `Caffe` is the least that BVLC Caffe keeps for the same job (ocaffe/memory/report.py).
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATTERNS = {"total": r"^total +(\S+ \S+)", "caffe": r"^Caffe.*? (\d\S* [KMG]?i?B)", "share": r"ocaffe takes (\d+) %", "ratio": r"^TRAIN.*?plan / bound (\S+)"}


def measure(net: str) -> dict[str, str]:
    command = [sys.executable, "-m", "ocaffe", "plan", "--solver", f"zoo/{net}/solver.prototxt"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        return {"net": net, "error": done.stderr.strip().splitlines()[-1]}
    found = {key: re.search(pattern, done.stdout, re.M | re.S) for key, pattern in PATTERNS.items()}
    return {"net": net, **{key: match[1] if match else "?" for key, match in found.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*")
    parser.add_argument("--json")
    options = parser.parse_args()
    nets = options.nets or sorted(path.parent.name for path in (ROOT / "zoo").glob("*/solver.prototxt"))
    rows = [measure(net) for net in nets]
    print("| net | ocaffe | plan / bound | Caffe, at the least | share |\n|---|---|---|---|---|")
    for row in rows:
        cells = [row["error"], "", "", ""] if "error" in row else [row["total"], row["ratio"], row["caffe"], f"{row['share']} %"]
        print(f"| {' | '.join([row['net'], *cells])} |")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
