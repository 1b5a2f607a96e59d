#!/usr/bin/env python3
"""Seconds from the command `ocaffe train` to its first iteration, with empty caches (ocaffe's, the runtime's and Python's bytecode) and with full ones.

    benchmarks/start.py [--only NET ...] [--device SPEC] [--math fp32] [--runs 3] [--json FILE]

The zoo's nets with their data in memory, at the batch of benchmarks/resident.py. Three figures: with all caches empty;
with bytecode alone, which pip writes when it installs a package; and with full caches, the median of --runs. --json
adds its rows to those of the file.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from resident import BATCHES, ROOT, constant, resident  # first: it makes ocaffe importable

from ocaffe import proto
from ocaffe.formats.text import write_text

PROGRAMS, BYTECODE = ("OCAFFE_CACHE", "POCL_CACHE_DIR", "CUDA_CACHE_PATH"), "PYTHONPYCACHEPREFIX"  # variables that name the folders of caches


def seconds(solver: Path, device: str | None, math: str, caches: dict[str, str]) -> float:
    """Seconds from the command to the line of iteration 0."""
    command = [sys.executable, "-m", "ocaffe", "train", "--solver", str(solver), "--math", math, *(["--device", device] if device else [])]
    environment = {**os.environ, **caches, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
    begin = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        log = []
        for line in process.stderr:
            log.append(line)
            if "Iteration 0 (" in line:
                break
        else:
            raise SystemExit("".join(log))
        taken = time.perf_counter() - begin
        process.kill()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=["lenet", "resnet50"], choices=list(BATCHES), metavar="NET")
    parser.add_argument("--device")
    parser.add_argument("--math", default="fp32")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    print("| net | batch | device | all caches empty, s | with bytecode, s | warm, s |\n|---|---|---|---|---|---|")
    rows = []
    device = (options.device or "") + (f", {options.math}" if options.math != "fp32" else "")
    for net in options.only:
        with tempfile.TemporaryDirectory() as folder:
            param = proto.SolverParameter(base_lr=1e-4, lr_policy="fixed", momentum=0.9, max_iter=1 << 20, display=1, snapshot_after_train=False)
            param.net_param.CopyFrom(constant(resident(net, BATCHES[net], proto.TRAIN)))
            solver = Path(folder) / "solver.prototxt"
            solver.write_text(write_text(param))
            caches = {name: f"{folder}/{name}" for name in (*PROGRAMS, BYTECODE)}
            cold = seconds(solver, options.device, options.math, caches)
            for name in PROGRAMS:
                shutil.rmtree(caches[name], ignore_errors=True)
            installed = seconds(solver, options.device, options.math, caches)
            warm = statistics.median(seconds(solver, options.device, options.math, caches) for _ in range(options.runs))
        rows.append({"net": net, "batch": BATCHES[net], "device": device, "cold_s": cold, "installed_s": installed, "warm_s": warm})
        print(f"| {net} | {BATCHES[net]} | {device} | {cold:.1f} | {installed:.1f} | {warm:.2f} |", flush=True)
    if options.json:
        file = ROOT / options.json
        known = {(row["net"], row["device"]): row for row in (json.loads(file.read_text()) if file.exists() else [])}
        known |= {(row["net"], row["device"]): row for row in rows}
        file.write_text(json.dumps([known[key] for key in sorted(known)], indent=1) + "\n")


if __name__ == "__main__":
    main()
