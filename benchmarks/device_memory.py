#!/usr/bin/env python3
"""Device memory of `ocaffe train` from the start of the process to its end, by the driver's figure for the whole GPU, with empty and full caches.

    benchmarks/device_memory.py [--quick] [--only NET ...] [--source constant raw] [--state cold warm] [--device nvidia] [--gpu-index 0] [--json FILE]

Data are constants, or come from an LMDB of 256 x 256 images (`raw`).

NVML is read every 0.1 s. Figures are MiB above those of the idle GPU, so nothing else may run on it. `context` is that of a process with an open device
and nothing else, `plan` that of `ocaffe plan` for this device, or the limit. `excess` is the peak minus both. `beyond` is the peak minus what `ocaffe plan`
says that the device shows: of a first start without a limit this is more, because of compilers. ocaffe promises 64 MiB at most. `processes` is the largest
number of processes on the GPU at a time. Seconds are those from the command to the line of iteration 0. --quick takes the rows of ResNet-50 in fp32
without a limit and with 1900M. --json adds its rows to those of the file. The exit status is 1 if a run fails or `beyond` is above 64 MiB.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from resident import ROOT, constant, resident  # first: it makes ocaffe importable

from from_disk import fed, make  # isort: skip

from ocaffe import proto
from ocaffe.cli.flags import memory_limit
from ocaffe.formats.text import write_text

MIB = 1 << 20
ALLOWED = 64  # MiB above context and plan
INTERVAL = 0.1  # s
ITERATIONS, IMAGES = 20, 1024
CACHES = ("OCAFFE_CACHE", "CUDA_CACHE_PATH", "PYTHONPYCACHEPREFIX")
OPEN = "import sys, time; from ocaffe.cl.device import select_device; d = select_device(sys.argv[1]); print(d.context_bytes, flush=True); time.sleep(1)"


class Failed(Exception):
    """A child failed; the message is its log."""


class Row(NamedTuple):
    net: str
    math: str
    batch: int
    limit: str
    source: str = "constant"


ROWS = (  # the most important first
    Row("resnet50", "fp32", 64, ""), Row("resnet50", "fp32", 64, "1900M"), Row("resnet50", "bf16", 64, ""), Row("resnet50", "bf16", 64, "1500M"),
    Row("vgg16", "fp32", 64, ""), Row("alexnet", "fp32", 256, ""), Row("vgg16", "fp32", 64, "2800M"), Row("alexnet", "fp32", 256, "1200M"),
    Row("resnet50", "fp32", 8, ""), Row("lenet", "fp32", 64, ""),
    Row("alexnet", "fp32", 64, "", "raw"), Row("alexnet", "bf16", 256, "", "raw"), Row("resnet50", "fp32", 64, "1400M", "raw"),
    Row("resnet50", "fp32", 64, "", "raw"),
    Row("alexnet", "fp32", 64, "70G", "raw"), Row("resnet50", "fp32", 8, "70G"),  # compilers within the plan
)  # fmt: skip
QUICK = 2


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """The figures of one GPU."""

    def __init__(self, index: int) -> None:
        self._library = ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")
        self._handle = ctypes.c_void_p()
        if self._library.nvmlInit_v2() or self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self._handle)):
            raise SystemExit(f"NVML has no GPU {index}")

    def used(self) -> int:
        """Bytes in use on the whole GPU."""
        memory = _Memory()
        if status := self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
            raise SystemExit(f"nvmlDeviceGetMemoryInfo: status {status}")
        return int(memory.used)

    def processes(self) -> int:
        """The number of processes with a context; 0 if the driver does not say."""
        count = ctypes.c_uint(0)
        self._library.nvmlDeviceGetComputeRunningProcesses_v3(self._handle, ctypes.byref(count), None)  # with room for none it sets the count
        return count.value


class Sampler(threading.Thread):
    """Samples the figures every INTERVAL seconds between `start` and `stop`."""

    def __init__(self, gpu: Nvml) -> None:
        super().__init__(daemon=True)
        self._gpu = gpu
        self._end = threading.Event()
        self.idle = gpu.used()
        self.samples: list[tuple[float, int, int]] = []  # (seconds, bytes above the idle figure, processes)

    def run(self) -> None:
        begin = time.perf_counter()
        while not self._end.wait(INTERVAL):
            self.samples.append((time.perf_counter() - begin, self._gpu.used() - self.idle, self._gpu.processes()))

    def stop(self) -> tuple[float, float, int]:
        """Return the peak in MiB, its time in seconds, and the largest number of processes."""
        self._end.set()
        self.join()
        seconds, peak, _ = max(self.samples, key=lambda sample: sample[1])
        return peak / MIB, seconds, max(processes for _, _, processes in self.samples)


def environment(**more: str) -> dict[str, str]:
    result = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **more}
    result.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
    return result


def settled(gpu: Nvml) -> None:
    """Wait until the memory of ended processes is free, 5 s at most."""
    last = -1
    for _ in range(10):
        now = gpu.used()
        if now == last:
            return
        last = now
        time.sleep(0.5)


def empty_context(gpu: Nvml, device: str) -> tuple[float, float]:
    """MiB of a process with an open device: by the driver, and by ocaffe's own measurement."""
    settled(gpu)
    idle = gpu.used()
    with subprocess.Popen([sys.executable, "-c", OPEN, device], env=environment(), stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        own = int(process.stdout.readline() or "-1") / MIB
        found = (gpu.used() - idle) / MIB
    return found, own


def plan(solver: Path, row: Row, device: str, context: float) -> tuple[float, float]:
    """MiB of the plan for this device, or of the limit, and MiB that the device shows at a first start, by `ocaffe plan`."""
    if row.limit:
        limit = float(memory_limit(row.limit) or 0) / MIB
        return limit, limit + context
    file = solver.with_suffix(".json")
    command = [sys.executable, "-m", "ocaffe", "plan", "--solver", str(solver), "--device", device, "--math", row.math, "--json", str(file)]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(done.stderr)
    said = json.loads(file.read_text())
    return float(said["total_bytes"]) / MIB, float(said["first_start_bytes"]) / MIB


def train(gpu: Nvml, solver: Path, row: Row, device: str, caches: dict[str, str]) -> dict[str, float]:
    """Run one training under the sampler. Raises Failed."""
    command = [sys.executable, "-m", "ocaffe", "train", "--solver", str(solver), "--device", device, "--math", row.math]
    command += ["--memory-limit", row.limit] if row.limit else []
    settled(gpu)
    sampler = Sampler(gpu)
    sampler.start()
    begin = time.perf_counter()
    first, log = 0.0, []
    with subprocess.Popen(command, cwd=ROOT, env=environment(**caches), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            log.append(line)
            if "Iteration 0 (" in line:
                first = time.perf_counter() - begin
    peak, at, processes = sampler.stop()
    if process.returncode or not first:
        raise Failed("".join(log))
    return {"peak_mib": peak, "peak_at_s": at, "processes": processes, "first_iteration_s": first}


def measure(gpu: Nvml, row: Row, states: list[str], device: str, context: float) -> list[dict[str, Any]]:
    """The rows of one net, cold before warm."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        param = proto.SolverParameter(base_lr=1e-4, lr_policy="fixed", momentum=0.9, max_iter=ITERATIONS, display=1, snapshot_after_train=False)
        plain = row.source == "constant"
        data = constant(resident(row.net, row.batch, proto.TRAIN)) if plain else fed(row.net, row.batch, make(folder, row.source, IMAGES))
        param.net_param.CopyFrom(data)
        solver = Path(folder) / "solver.prototxt"
        solver.write_text(write_text(param))
        planned, first_start = plan(solver, row, device, context)
        for state in ("cold", "warm"):
            figures = train(gpu, solver, row, device, {name: f"{folder}/{name}" for name in CACHES})  # also without "cold": it fills the caches
            excess = figures["peak_mib"] - context - planned
            beyond = min(excess, figures["peak_mib"] - first_start) if state == "cold" else excess
            if state in states:
                sizes = {"context_mib": context, "plan_mib": planned, "excess_mib": excess, "beyond_mib": beyond}
                found.append({**row._asdict(), "caches": state, **figures, **sizes})
                cells = (*row, state, f"{figures['peak_mib']:.0f}", f"{context:.0f}", f"{planned:.0f}", f"{excess:.0f}",
                         f"{beyond:.0f}", f"{figures['peak_at_s']:.1f}", figures["processes"], f"{figures['first_iteration_s']:.1f}")  # fmt: skip
                print(f"| {' | '.join(map(str, cells))} |", flush=True)
            if states == ["cold"]:
                break
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", choices=sorted({row.net for row in ROWS}), metavar="NET")
    parser.add_argument("--source", nargs="*", default=["constant", "raw"], choices=["constant", "raw"])
    parser.add_argument("--state", nargs="*", default=["cold", "warm"], choices=["cold", "warm"])
    parser.add_argument("--device", default="nvidia")
    parser.add_argument("--gpu-index", type=int, default=0, help="of the device, in NVML's order")
    parser.add_argument("--json")
    options = parser.parse_args()
    gpu = Nvml(options.gpu_index)
    empty_context(gpu, options.device)  # the first process of a machine tests the runtimes and loads libraries from the disk
    context, own = empty_context(gpu, options.device)
    print(f"an empty context: {context:.0f} MiB by the driver, {own:.0f} MiB by ocaffe's measurement\n")
    print("| net | math | batch | limit | data | caches | peak | context | plan | excess | beyond | peak at, s | processes | first iteration, s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    rows: list[dict[str, Any]] = []
    failed = False
    for row in ROWS[: QUICK if options.quick else None]:
        if (options.only and row.net not in options.only) or row.source not in options.source:
            continue
        try:
            rows += measure(gpu, row, options.state, options.device, context)
        except Failed as failure:  # the other rows go on
            failed = True
            print(*row, "failed:", str(failure)[-2000:], flush=True)
        if options.json:
            save(ROOT / options.json, rows)
    return int(failed or any(row["beyond_mib"] > ALLOWED for row in rows))


def save(file: Path, rows: list[dict[str, Any]]) -> None:
    def key(row: dict[str, Any]) -> tuple:
        return tuple(({"source": "constant"} | row)[name] for name in (*Row._fields, "caches"))

    known = {key(row): row for row in (json.loads(file.read_text()) if file.exists() else [])} | {key(row): row for row in rows}
    file.write_text(json.dumps([known[each] for each in sorted(known)], indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
