#!/usr/bin/env python3
"""Memory of whole processes on CPUs beside their plans: `ocaffe train` and `ocaffe test` with empty and full caches, and a real Caffe.

    benchmarks/process_memory.py [--only NET ...] [--device intel pocl] [--caffe PYTHON] [--json FILE]

Figures are MiB. `peak` is VmHWM in /proc/PID/status, the largest VmRSS, read every 10 ms. `start-up` is the peak of a process that has imported ocaffe with
its layers and made a context and a queue. `runtime` is the estimate of `ocaffe plan` for the programs and kernels of the runtime. `excess` is the peak minus
start-up and plan, `rest` the excess minus `runtime`. Compilers run in processes of their own, which do not count. A training has 3 iterations and a snapshot,
a test 3 batches. DummyData layers give the data, so no database is mapped. `caffe`: a Python with pycaffe (CONTRIBUTING.md), default: OCAFFE_CAFFE_PYTHON.
Without it its column is empty. It runs the same files in the same run. The exit status is 1 if a run fails, a rest is above 48 MiB, or a net but LeNet takes
more than Caffe.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from resident import ROOT, constant, resident  # first: it makes ocaffe importable

from ocaffe import proto
from ocaffe.formats.text import write_text

MIB = 1 << 20
ALLOWED = 48  # MiB above start-up, plan and runtime
INTERVAL = 0.01  # s
STEPS = 3
NETS = {"lenet": 64, "googlenet": 8, "alexnet": 16, "resnet50": 8, "vgg16": 4}  # batch sizes
ABOVE_CAFFE = {"lenet"}  # ocaffe's start-up alone is above Caffe's figure
CACHES = ("OCAFFE_CACHE", "POCL_CACHE_DIR")
OPEN = """
import sys, time, ocaffe
from ocaffe.cl.device import select_device
from ocaffe.layers.base import registry
registry()
device = select_device(sys.argv[1])
device.queue
time.sleep(0.5)
"""
CAFFE = {
    "train": "import sys, caffe; caffe.set_mode_cpu(); caffe.SGDSolver(sys.argv[1]).solve()",
    "test": f"import sys, caffe; caffe.set_mode_cpu(); n = caffe.Net(sys.argv[1], sys.argv[2], caffe.TEST); [n.forward() for _ in range({STEPS})]",
}


def environment(**more: str) -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(os.cpu_count() or 1))
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", "GLOG_minloglevel": "2", **threads, **more}


def watched(command: list[str], **more: str) -> float:
    """Run a command to its end and return VmHWM of its process in MiB. Raises SystemExit if it fails."""
    peak = 0
    with tempfile.TemporaryFile() as said, subprocess.Popen(command, cwd=ROOT, env=environment(**more), stdout=said, stderr=said) as process:
        while process.poll() is None:
            words = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if ":" in line)
            if "VmHWM" in words:  # not a process that has just ended
                peak = int(words["VmHWM"].split()[0])
            time.sleep(INTERVAL)
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)}\n{said.read().decode(errors='replace')[-4000:]}")
    return peak / 1024


def files(net: str, batch: int, folder: Path) -> tuple[Path, Path, Path]:
    """Write the solver and the TEST net of a net of the zoo. Return them, and the weights that the training will write."""
    param = proto.SolverParameter(base_lr=1e-4, lr_policy="fixed", momentum=0.9, max_iter=STEPS, snapshot_prefix=str(folder / net), solver_mode=0)
    param.net = str(folder / "train.prototxt")
    solver, model = folder / "solver.prototxt", folder / "test.prototxt"
    Path(param.net).write_text(write_text(constant(resident(net, batch, proto.TRAIN))))
    solver.write_text(write_text(param))
    model.write_text(write_text(constant(resident(net, batch, proto.TEST))))
    return solver, model, folder / f"{net}_iter_{STEPS}.caffemodel"


def planned(arguments: list[str], folder: Path, device: str) -> tuple[float, float]:
    """MiB of `ocaffe plan` for the device, and of the runtime's programs and kernels."""
    file = folder / "plan.json"
    subprocess.run([sys.executable, "-m", "ocaffe", "plan", *arguments, "--device", device, "--json", str(file)], env=environment(), cwd=ROOT, check=True,
                   capture_output=True)  # fmt: skip
    found = json.loads(file.read_text())
    return found["total_bytes"] / MIB, found["runtime_bytes"] / MIB


def measure(net: str, batch: int, device: str, startup: float, caffe: str) -> list[dict[str, Any]]:
    """The rows of one net on one device."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        solver, model, weights = files(net, batch, folder)
        tested = ["test", "--model", str(model), "--weights", str(weights), "--iterations", str(STEPS)]
        runs = {
            "train": (["train", "--solver", str(solver)], ["--solver", str(solver)], [str(solver)]),
            "test": (tested, ["--model", str(model)], [str(model), str(weights)]),
        }
        for what, (command, plan, peer) in runs.items():
            plan_mib, runtime_mib = planned(plan, folder, device)
            theirs = watched([caffe, "-c", CAFFE[what], *peer]) if caffe else None
            for state in ("cold", "warm"):
                caches = {each: str(folder / f"{what}-{each}") for each in CACHES}
                for path in caches.values():
                    Path(path).mkdir(exist_ok=True)
                mine = watched([sys.executable, "-m", "ocaffe", *command, "--device", device], **caches)
                rows.append({
                    "net": net, "batch": batch, "device": device, "phase": what, "caches": state, "startup_mib": startup, "plan_mib": plan_mib,
                    "runtime_mib": runtime_mib, "hwm_mib": mine, "excess_mib": mine - startup - plan_mib,
                    "rest_mib": mine - startup - plan_mib - runtime_mib, "caffe_hwm_mib": theirs,
                })  # fmt: skip
                print(table_row(rows[-1]), flush=True)
    return rows


def table_row(row: dict[str, Any]) -> str:
    figures = [row[name] for name in ("startup_mib", "plan_mib", "runtime_mib", "hwm_mib", "excess_mib", "rest_mib", "caffe_hwm_mib")]
    cells = [f"{row['net']} {row['batch']}", row["device"], row["phase"], row["caches"], *("" if each is None else f"{each:.0f}" for each in figures)]
    return f"| {' | '.join(cells)} |"


def fine(row: dict[str, Any]) -> bool:
    theirs = row["caffe_hwm_mib"]
    return row["rest_mib"] <= ALLOWED and (theirs is None or row["net"] in ABOVE_CAFFE or row["hwm_mib"] < theirs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(NETS), choices=list(NETS), metavar="NET")
    parser.add_argument("--device", nargs="*", default=["intel", "pocl"])
    parser.add_argument("--caffe", default=os.environ.get("OCAFFE_CAFFE_PYTHON", ""), metavar="PYTHON")
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    for device in options.device:
        watched([sys.executable, "-c", OPEN, device])  # tests new runtimes, and writes bytecode
        startup = watched([sys.executable, "-c", OPEN, device])
        for net in options.only:
            rows += measure(net, NETS[net], device, startup, options.caffe)
    if options.json:
        record = {"date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "rows": rows}
        Path(options.json).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if all(map(fine, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
