#!/usr/bin/env python3
"""Whole steps of the zoo's nets on a GPU beside PyTorch, on the same prototxt, in turn: A B C D A B C D.

    benchmarks/gpu.py [--only NET ...] [--phase TRAIN TEST] [--batch 64] [--device SPEC] [--rounds 2] [--steps 20] [--peer FILE] [--json FILE]

Data are on the device, steps are queued, one synchronisation at the end; a figure is the median over rounds of ms per step. TRAIN is forward, backward and
SGD's update, TEST forward. `fp32` and `tf32` are ocaffe's --math; `strict` is PyTorch in IEEE fp32, `default` what it does out of the box (TF32 in
convolutions), each the better of its two memory formats. --peer (or $OCAFFE_TORCH_PEER) is the script that runs a prototxt in PyTorch.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from resident import CLASSES, ROOT, constant, resident  # first: it makes ocaffe importable

from ocaffe import log, proto  # isort: skip
from ocaffe.cl.device import select_device
from ocaffe.cl.session import Session
from ocaffe.graph.record import Choices
from ocaffe.model.text import read_net, write_text
from ocaffe.network import Network
from ocaffe.solver.solver import Solver

NETS = ("alexnet", "googlenet", "resnet18", "resnet50", "vgg16", "mobilenet_v2", "lenet")
WARM = 3  # steps before the clock starts
CONTENDERS = {"fp32": ("ocaffe", "fp32"), "strict": ("torch", "strict"), "tf32": ("ocaffe", "tf32"), "default": ("torch", "default")}


def ocaffe_ms(file: str, phase: str, device_spec: str | None, math: str, steps: int) -> float:
    """This process's figure: one run."""
    device = select_device(device_spec, math=math)
    message = constant(read_net(file))
    if phase == "TRAIN":
        param = proto.SolverParameter(base_lr=1e-4, lr_policy="fixed", momentum=0.9, weight_decay=5e-4, max_iter=1 << 30, snapshot_after_train=False)
        param.net_param.CopyFrom(message)
        solver = Solver(param, device)

        def run(count: int) -> None:
            solver.step(count)
    else:
        network = Network(message, proto.TEST, Session(device), Choices(backward=False), quiet=True)
        network.fill_parameters()
        tape = network.bound().tape

        def run(count: int) -> None:
            for _ in range(count):
                tape.run()

    run(WARM)
    device.queue.finish()
    begin = time.perf_counter()
    run(steps)
    device.queue.finish()
    return 1e3 * (time.perf_counter() - begin) / steps


def commands(name: str, file: str, phase: str, options: argparse.Namespace) -> list[list[str]]:
    """What prints a line of JSON with `ms`."""
    engine, math = CONTENDERS[name]
    common = ["--steps", str(options.steps), "--phase", phase]
    if engine == "ocaffe":
        device = ["--device", options.device] if options.device else []
        return [[sys.executable, str(Path(__file__).resolve()), *common, *device, "--run", math, file]]
    peer = [sys.executable, options.peer, file, "--phase", phase, "--device", "cuda", "--math", math, "--iters", str(options.steps)]
    return [[*peer, "--classes", str(CLASSES), "--layout", layout, "--json"] for layout in options.layouts]


def compare(net: str, phase: str, options: argparse.Namespace) -> dict[str, object]:
    """Median ms of each contender."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{net}.prototxt"
        file.write_text(write_text(resident(net, options.batch, getattr(proto, phase))))
        times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for _ in range(options.rounds):
            for name, found in times.items():
                figures = []
                for command in commands(name, str(file), phase, options):
                    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
                    if done.returncode:
                        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
                    figures.append(json.loads(done.stdout.splitlines()[-1])["ms"])
                found.append(min(figures))
    return {"net": net, "phase": phase, "batch": options.batch, **{name: statistics.median(found) for name, found in times.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(NETS), choices=NETS, metavar="NET")
    parser.add_argument("--phase", nargs="*", default=["TRAIN", "TEST"], choices=["TRAIN", "TEST"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", help="of ocaffe, in its words; PyTorch takes the first CUDA device")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layouts", nargs="*", default=["nchw", "nhwc"])
    parser.add_argument("--peer", default=os.environ.get("OCAFFE_TORCH_PEER", str(ROOT.parent / "shared/bench/torch_peer.py")))
    parser.add_argument("--json")
    parser.add_argument("--run", nargs=2, metavar=("MATH", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    log.quiet(2)
    if options.run:
        print(json.dumps({"ms": ocaffe_ms(options.run[1], options.phase[0], options.device, options.run[0], options.steps)}))
        return
    if not Path(options.peer).exists():
        raise SystemExit(f"{options.peer} does not exist: name the script that runs a prototxt in PyTorch with --peer or OCAFFE_TORCH_PEER")
    print("| net | phase | batch | ocaffe fp32, ms | PyTorch strict, ms | ratio | ocaffe tf32, ms | PyTorch default, ms | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows = []
    for net in options.only:
        for phase in options.phase:
            row = compare(net, phase, options)
            rows.append(row)
            a, b, c, d = (float(row[name]) for name in CONTENDERS)  # type: ignore[arg-type]
            print(f"| {net} | {phase} | {options.batch} | {a:.2f} | {b:.2f} | {a / b:.2f} | {c:.2f} | {d:.2f} | {c / d:.2f} |", flush=True)
            if options.json:
                (ROOT / options.json).write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
