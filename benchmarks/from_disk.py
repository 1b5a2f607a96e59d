#!/usr/bin/env python3
"""Whole trainings from a database, by the command line, against the same training with its data on the device: ms per iteration.

    benchmarks/from_disk.py [--device DEVICE] [--iterations 1000] [--display 100] [--images 2048] [--json FILE] [ROW ...]

`resident` trains on constants, which stay on the device (DummyData). `raw` and `jpeg` read an LMDB of 3 x 256 x 256 images, as Datums or as JPEG files of
quality 90 with as much detail as photographs. `wait` is the share of the time that the training waited for data, from its log. The first display, in which
kernels are built and queues fill, is left out; the figure is the median of the others. In short runs the processes that decode images start too late.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
from loader import picture, record
from resident import ROOT, constant, resident

from ocaffe import log, proto
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.formats.text import read_net, write_text

ROWS = {  # name: (net, batch, math, sources)
    "resnet50 bf16": ("resnet50", 64, "bf16", ("raw", "jpeg")),
    "resnet50 tf32": ("resnet50", 64, "tf32", ("raw",)),
    "mobilenet_v2 bf16": ("mobilenet_v2", 64, "bf16", ("jpeg",)),
    "alexnet fp32": ("alexnet", 256, "fp32", ("jpeg",)),
    "alexnet bf16": ("alexnet", 256, "bf16", ("raw", "jpeg")),
    "resnet50 fp32": ("resnet50", 64, "fp32", ("raw",)),
}
SIZE, CLASSES = 256, 10
_DISPLAY = re.compile(r"Iteration (\d+) \(([\d.e+-]+) iter/s")
_WAIT = re.compile(r"data wait (\d+) %(.*)")


def make(folder: str, kind: str, images: int) -> str:
    path = os.path.join(folder, kind)
    rng = np.random.default_rng(0)
    values = [record(picture(rng, SIZE, SIZE), kind == "jpeg", n % CLASSES) for n in range(64)]
    with LmdbWriter(path) as out:
        for n in range(images):
            out.put(b"%08d" % n, values[n % len(values)])
    return path


def train(folder: str, net: Any, options: argparse.Namespace, math: str) -> dict[str, Any]:
    """Run `ocaffe train`. Return the median ms per iteration and the log's data wait."""
    solver = proto.SolverParameter(base_lr=0.001, lr_policy="fixed", momentum=0.9, weight_decay=0.0005, random_seed=1)
    solver.max_iter, solver.display, solver.snapshot_after_train = options.iterations, options.display, False
    solver.snapshot_prefix = os.path.join(folder, "snapshot")
    solver.net_param.CopyFrom(net)
    path = os.path.join(folder, "solver.prototxt")
    pathlib.Path(path).write_text(write_text(solver))
    command = [sys.executable, "-m", "ocaffe", "train", "--solver", path, "--math", math]
    done = subprocess.run(command + (["--device", options.device] if options.device else []), capture_output=True, text=True, cwd=ROOT, check=False)
    rates = [float(rate) for _, rate in _DISPLAY.findall(done.stderr)][2:]
    if done.returncode or not rates:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    waits = _WAIT.findall(done.stderr)[2:]
    return {"ms": 1000 / statistics.median(rates), "wait": max((int(share) for share, _ in waits), default=0), "named": waits[-1][1] if waits else ""}


def fed(name: str, batch: int, path: str) -> Any:
    """Return the TRAIN net with its data from the database `path`."""
    net = read_net(str(ROOT / "zoo" / name / "train_val.prototxt"))
    kept = [layer for layer in net.layer if layer.type != "Accuracy" and not any(rule.phase == proto.TEST and rule.HasField("phase") for rule in layer.include)]
    del net.layer[:]
    net.layer.extend(kept)
    for layer in net.layer:
        if layer.type == "Data":
            layer.data_param.source, layer.data_param.batch_size = path, batch
            layer.transform_param.ClearField("mean_file")
    return net


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {', '.join(ROWS)}")
    parser.add_argument("--device", default="", help="as for ocaffe train")
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--display", type=int, default=100)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--json", help="adds the figures to those of this file")
    options = parser.parse_args()
    log.quiet()
    print(f"{'':<20}{'data':<10}{'ms':>8}{'ratio':>8}{'wait':>7}")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {kind: make(folder, kind, options.images) for kind in ("raw", "jpeg")}
        for row in options.rows or ROWS:
            name, batch, math, kinds = ROWS[row]
            found = results[row] = {"resident": train(folder, constant(resident(name, batch, proto.TRAIN)), options, math)}
            for kind in kinds:
                found[kind] = train(folder, fed(name, batch, paths[kind]), options, math)
            for kind, figures in found.items():
                ratio = figures["ms"] / found["resident"]["ms"]
                print(f"{row:<20}{kind:<10}{figures['ms']:8.1f}{ratio:8.2f}{figures['wait']:6} %{figures['named']}", flush=True)
    if options.json:
        file = pathlib.Path(options.json)
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(known | results, indent=1) + "\n")


if __name__ == "__main__":
    main()
