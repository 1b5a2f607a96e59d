#!/usr/bin/env python3
"""Speed of training on this machine: ms per iteration, programs, and seconds from the command to the first iteration.

    benchmarks/training.py [--solver zoo/lenet_digits/solver.prototxt] [--device SPEC] [--json FILE]

The default is the solver of bin/quickstart. An iteration is that of `ocaffe train`: data, forward, backward, update.
The figure is the median of 7 rounds of 200 iterations, after 100. Cold: with empty caches (ocaffe's and PoCL's); warm:
the run after it. Run it on a quiet machine.
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
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ocaffe import log  # noqa: E402
from ocaffe.cl.device import select_device  # noqa: E402
from ocaffe.solver.solver import Solver  # noqa: E402


def iteration_ms(solver_file: str, spec: str | None) -> dict[str, object]:
    log.quiet(2)
    device = select_device(spec)
    solver = Solver(solver_file, device)
    solver.param.display = solver.param.test_interval = solver.param.snapshot = 0
    solver.step(100)
    device.queue.finish()
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        solver.step(200)
        device.queue.finish()
        times.append((time.perf_counter() - begin) / 200 * 1000)
    variant = solver.train_nets()[0]
    keys = {key for commands in solver.session.command_lists for key in commands.keys}
    result = {"device": f"{device.name} ({device.platform_name})", "ms": statistics.median(times), "best_ms": min(times),
              "launches": len(variant.recording.schedule), "programs": len(keys), "programs_are": sorted(key.family for key in keys)}  # fmt: skip
    solver.close()
    return result


def start_seconds(solver_file: str, spec: str | None, environment: dict[str, str]) -> float:
    """Seconds from the command to the line of iteration 0."""
    command = [sys.executable, "-m", "ocaffe", "train", "--solver", solver_file, *(["--device", spec] if spec else [])]
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(r"Iteration 0 \(", line):
            break
    seconds = time.perf_counter() - begin
    process.kill()
    process.stderr.close()
    process.wait()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solver", default="zoo/lenet_digits/solver.prototxt")
    parser.add_argument("--device")
    parser.add_argument("--json")
    options = parser.parse_args()
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        caches = {"OCAFFE_CACHE": f"{folder}/ocaffe", "POCL_CACHE_DIR": f"{folder}/pocl"}
        cold = start_seconds(options.solver, options.device, caches)
        warm = [start_seconds(options.solver, options.device, caches) for _ in range(3)]
    row = {"solver": options.solver, **iteration_ms(options.solver, options.device), "cold_s": cold, "warm_s": statistics.median(warm)}
    print("| device | ms per iteration | launches | programs | cold start, s | warm start, s |\n|---|---|---|---|---|---|")
    speed = f"{row['ms']:.2f} (best {row['best_ms']:.2f})"
    print(f"| {row['device']} | {speed} | {row['launches']} | {row['programs']} | {row['cold_s']:.1f} | {row['warm_s']:.2f} |")
    print("programs:", ", ".join(row["programs_are"]))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(row, indent=1) + "\n")


if __name__ == "__main__":
    main()
