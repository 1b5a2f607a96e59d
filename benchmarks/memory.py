#!/usr/bin/env python3
"""Planned memory of the zoo's networks in training, beside what Caffe takes. Needs no device.

    benchmarks/memory.py [--json FILE] [NET ...]

TRAIN and TEST nets with the batch sizes of the files; `Caffe` is the least that BVLC Caffe keeps for the same job (ocaffe/memory/report.py). The data
are one made-up record a database, of the size that the real one has.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ocaffe.data.datum import encode_datum  # noqa: E402
from ocaffe.data.writer import LmdbWriter  # noqa: E402
from ocaffe.model.blob import write_blobproto  # noqa: E402

SETS = {
    "mnist/mnist": ("train", "test", (1, 28, 28)), "digits/digits": ("train", "test", (1, 28, 28)), "cifar10/cifar10": ("train", "test", (3, 32, 32)),
    "imagenet/ilsvrc12": ("train", "val", (3, 256, 256)),
}  # fmt: skip
PATTERNS = {"total": r"^total +(\S+ \S+)", "caffe": r"^Caffe.*? (\d\S* [KMG]?i?B)", "share": r"ocaffe takes (\d+) %", "ratio": r"^TRAIN.*?plan / bound (\S+)"}


def workplace(folder: pathlib.Path) -> None:
    """The zoo and databases of one record each, at the paths that the zoo's files name."""
    (folder / "zoo").symlink_to(ROOT / "zoo")
    for name, (first, second, shape) in SETS.items():
        (folder / "examples" / name).parent.mkdir(parents=True)
        for part in (first, second):
            with LmdbWriter(str(folder / "examples" / f"{name}_{part}_lmdb")) as writer:
                writer.put(b"00000000", encode_datum(np.zeros(shape, np.uint8), 0))
    write_blobproto(folder / "examples/cifar10/mean.binaryproto", np.zeros((1, 3, 32, 32), np.float32))


def measure(net: str, folder: pathlib.Path) -> dict[str, str]:
    command = [sys.executable, "-m", "ocaffe", "plan", "--solver", f"zoo/{net}/solver.prototxt"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
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
    with tempfile.TemporaryDirectory() as folder:
        workplace(pathlib.Path(folder))
        rows = [measure(net, pathlib.Path(folder)) for net in nets]
    print("| net | ocaffe | plan / bound | Caffe, at the least | share |\n|---|---|---|---|---|")
    for row in rows:
        cells = [row["error"], "", "", ""] if "error" in row else [row["total"], row["ratio"], row["caffe"], f"{row['share']} %"]
        print(f"| {' | '.join([row['net'], *cells])} |")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
