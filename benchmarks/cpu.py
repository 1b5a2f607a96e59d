#!/usr/bin/env python3
"""Whole steps of the zoo's nets on CPU runtimes, compared with PyTorch and, in TEST, onnxruntime and OpenVINO.

    benchmarks/cpu.py [--only NET ...] [--phase TRAIN TEST] [--batch N ...] [--device SPEC ...] [--threads 2] [--rounds 2] [--steps 10]
                      [--no-torch | --alone] [--python FILE] [--json FILE]

Every contender (ocaffe on each of the devices, the peers) runs the same prototxt, data in memory, in a separate
process, alternating: A B C A B C. TRAIN is forward, backward and SGD's update; TEST is forward with a read-back of the
outputs. A figure is the median over rounds of each round's median, ms; PyTorch's is the better of its two memory
formats. Before and after each run numpy multiplies matrices. If it reaches less than 90 % of its best rate, the run was
disturbed and is repeated in up to --repeats further rounds; `disturbed` marks figures that stay disturbed. --json adds
its rows to those of the file. --alone: no peers, for several batches. --no-torch leaves PyTorch out. --python: the
interpreter with the packages onnxruntime, openvino, torch, protobuf and numpy. PyTorch runs the prototxt eagerly
(torch_net.py). onnxruntime and OpenVINO compute in float, on ONNX files that ocaffe writes.
"""
from __future__ import annotations

import argparse
import inspect
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resident import BATCHES, CLASSES, ROOT, constant, resident  # first: it makes ocaffe importable

import numpy as np  # isort: skip

from ocaffe import log, proto
from ocaffe.formats.text import read_net, write_text

CALM = 0.9  # share of the best calibration; below it the machine is busy
SECONDS = 0.3  # of calls at least, before the measured ones and with them
SIZE = 1024  # of the matrices that calibrate
TEST_BATCHES = (1, 16)
PEERS = ("onnxruntime", "openvino")  # of TEST


def feeds(message: Any) -> dict[str, np.ndarray]:
    """Random values for the Input layer's tops."""
    rng = np.random.default_rng(0)
    shapes = {top: tuple(shape.dim) for layer in message.layer if layer.type == "Input" for top, shape in zip(layer.top, layer.input_param.shape)}
    return {top: (rng.integers(0, CLASSES, shape) if top == "label" else rng.standard_normal(shape)).astype(np.float32) for top, shape in shapes.items()}


def calls(least: int) -> Iterator[int]:
    """Yield at least `least` times, and for SECONDS: threads wake and clocks rise within some hundred calls of a small net."""
    begin = time.perf_counter()
    for call in itertools.count():
        if call >= least and time.perf_counter() - begin > SECONDS:
            return
        yield call


def median_ms(step: Callable[[], object], steps: int) -> float:
    for _ in calls(3):
        step()
    times = []
    for _ in calls(steps):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def ocaffe_ms(file: str, phase: str, device: str, steps: int) -> float:
    """The figure of this process: one contender, one run."""
    if phase == "TEST":
        from ocaffe import Net

        values = feeds(read_net(file))
        net = Net(file, proto.TEST, keep=list(values), device=device)
        return median_ms(lambda: net.forward(**values), steps)
    from ocaffe.cl.device import select_device
    from ocaffe.solver.solver import Solver

    param = proto.SolverParameter(base_lr=1e-4, lr_policy="fixed", momentum=0.9, weight_decay=5e-4, max_iter=1 << 20, snapshot_after_train=False)
    param.net_param.CopyFrom(constant(read_net(file)))
    solver = Solver(param, select_device(device))

    def step() -> None:
        solver.step(1)
        solver.session.device.queue.finish()

    return median_ms(step, steps)


def onnx_file(file: str) -> str:
    """Write the net as an ONNX file beside its prototxt, once."""
    path = Path(file).with_suffix(".onnx")
    if not path.exists():
        from ocaffe.convert.export import Options, export

        path.write_bytes(export(file, options=Options(fillers=True)).model.SerializeToString())
    return str(path)


PEER = f"""
import itertools, sys, time, statistics
from collections.abc import Iterator
SECONDS = {SECONDS}
{inspect.getsource(calls)}
"""
PEER += """
import numpy as np
kind, file, values, threads, steps = sys.argv[1], sys.argv[2], dict(np.load(sys.argv[3])), int(sys.argv[4]), int(sys.argv[5])
if kind == "onnxruntime":
    import onnxruntime
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    run = lambda: session.run(None, values)
else:
    import openvino
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(file, "CPU", options).create_infer_request()
    run = lambda: request.infer(values)
for _ in calls(3):
    run()
times = []
for _ in calls(steps):
    begin = time.perf_counter()
    run()
    times.append(time.perf_counter() - begin)
print('{"ms": %f}' % (1e3 * statistics.median(times)))
"""
TORCH = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import torch_net
from ocaffe import proto
from ocaffe.formats.text import read_net
file, phase, layout, threads, steps, classes = sys.argv[2:]
torch.set_num_threads(int(threads))
way = torch_net.Way("strict", layout, "eager")
ms = torch_net.measure(read_net(file), getattr(proto, phase), way, int(steps), 3, int(classes), "cpu")
print('{"ms": %f}' % ms)
"""


def calibration() -> float:
    """GFLOP/s of numpy's matrix product, the best of five."""
    a = np.ones((SIZE, SIZE), np.float32)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - begin)
    return 2e-9 * SIZE**3 / min(times)


def contenders(file: str, phase: str, options: argparse.Namespace) -> dict[str, list[str]]:
    """Commands that print a line of JSON with `ms`."""
    this = [sys.executable, str(Path(__file__).resolve()), "--steps", str(options.steps), "--threads", str(options.threads)]
    found = {device: [*this, "--device", device, "--phase", phase, "--run", file] for device in options.device}
    if options.alone:
        return found
    for layout in ("nchw", "nhwc") if options.torch else ():
        beside = str(Path(__file__).resolve().parent)
        found[layout] = [options.python, "-c", TORCH, beside, file, phase, layout, str(options.threads), str(options.steps), str(CLASSES)]
    if phase == "TEST":
        values = Path(file).with_suffix(".npz")
        np.savez(values, **feeds(read_net(file)))  # type: ignore[arg-type]
        for name in PEERS:
            found[name] = [options.python, "-c", PEER, name, onnx_file(file), str(values), str(options.threads), str(options.steps)]
    return found


def compare(net: str, phase: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Median ms of each contender, and whether the machine was undisturbed."""
    limits = {name: str(options.threads) for name in ("DPCPP_CPU_NUM_CUS", "POCL_MAX_PTHREAD_COUNT")}
    environment = {**os.environ, **limits, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{net}.prototxt"
        file.write_text(write_text(resident(net, batch, getattr(proto, phase))))
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders(str(file), phase, options)}
        best = 0.0
        for attempt in range(options.rounds + options.repeats):
            for name, command in contenders(str(file), phase, options).items():
                if attempt >= options.rounds and sum(calm >= CALM * best for _, calm in runs[name]) >= options.rounds:
                    continue
                before = calibration()
                done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
                if done.returncode:
                    raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
                after = calibration()
                best = max(best, before, after)
                runs[name].append((json.loads(done.stdout.splitlines()[-1])["ms"], min(before, after)))
    row: dict[str, Any] = {"net": net, "phase": phase, "batch": batch, "calibration_gflops": best, "disturbed": []}
    for name, figures in runs.items():
        calm = [ms for ms, rate in figures if rate >= CALM * best]
        if not calm:
            row["disturbed"].append(name)
        row[name] = statistics.median(calm or [ms for ms, _ in figures])
    row["images_s"] = 1e3 * batch / row[options.device[0]]
    if "nchw" in row:
        row["torch"] = min(row["nchw"], row["nhwc"])
    if PEERS[0] in row:
        row["peer"] = min(row[peer] for peer in PEERS)
    return row


def line(row: dict[str, Any], devices: list[str]) -> str:
    """A row of the printed table; ratios are those of the first device."""
    times = [f"{row[name]:.3g}" if name in row else "" for name in (*devices, "nchw", "nhwc", *PEERS)]
    images = row["images_s"]
    ratios = [f"{row[devices[0]] / row[name]:.2f}" if name in row else "" for name in ("torch", "peer")]
    return f"| {' | '.join([row['net'], row['phase'], str(row['batch']), *times, *ratios, f'{images:.1f}', ' '.join(row['disturbed'])])} |"


def processor() -> str:
    """The processor's name, if the system reports it."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0] if names else platform.processor()


def merged(file: Path, threads: int, row: dict[str, Any]) -> dict[str, Any]:
    """The file's table with this row in place of an older one."""
    def key(row: dict[str, Any]) -> tuple[Any, ...]:
        return list(BATCHES).index(row["net"]), row["phase"] != "TRAIN", row["batch"]

    known = {key(row): row for row in json.loads(file.read_text())["rows"]} if file.exists() else {}
    known[key(row)] = {**row, "processor": processor()}
    return {"threads": threads, "rows": [known[each] for each in sorted(known)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(BATCHES), choices=list(BATCHES), metavar="NET")
    parser.add_argument("--phase", nargs="*", default=["TRAIN", "TEST"], choices=["TRAIN", "TEST"])
    parser.add_argument("--batch", nargs="*", type=int, help="replaces the default batches")
    parser.add_argument("--device", nargs="+", default=["cpu"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2, help="further rounds for disturbed runs")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--run", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    log.quiet(2)
    if options.run:
        print(json.dumps({"ms": ocaffe_ms(options.run, options.phase[0], options.device[0], options.steps)}))
        return
    for package in [] if options.alone else [*(["torch"] if options.torch else []), *(PEERS if "TEST" in options.phase else [])]:
        if subprocess.run([options.python, "-c", f"import {package}"], capture_output=True, check=False).returncode:
            raise SystemExit(f"{options.python} has no package {package}: install it, name another interpreter with --python, or use --no-torch or --alone")
    head = ["net", "phase", "batch", *(f"{name}, ms" for name in (*options.device, "PyTorch nchw", "nhwc", "onnxruntime", "OpenVINO"))]
    print(f"| {' | '.join([*head, '/ PyTorch', '/ better of both', 'images/s', 'disturbed'])} |\n{'|---' * (len(head) + 4)}|")
    for net in options.only:
        for phase in options.phase:
            for batch in options.batch or ([BATCHES[net]] if phase == "TRAIN" else TEST_BATCHES):
                row = compare(net, phase, batch, options)
                print(line(row, options.device), flush=True)
                if options.json:
                    file = ROOT / options.json
                    file.write_text(json.dumps(merged(file, options.threads, row), indent=1) + "\n")


if __name__ == "__main__":
    main()
