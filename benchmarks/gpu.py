#!/usr/bin/env python3
"""Whole steps of the zoo's nets on a GPU, compared with PyTorch on the same prototxt, alternating: A B C D A B C D.

    benchmarks/gpu.py [--only NET ...] [--phase TRAIN TEST] [--batch 64] [--mode resident|io|pageable] [--math fp32 tf32 bf16 ieee] [--device SPEC] [--rounds 2]
                      [--steps 20] [--peer FILE | --alone] [--json FILE]

TRAIN is forward, backward and SGD's update, TEST forward. Mode `resident`: data are on the device, steps are queued,
one synchronisation at the end; a figure is the median over rounds of ms per step. Mode `io`: each step copies an image
batch from the host's memory and reads back the loss (TEST: the last blob); the median over steps. The batch is in
pinned memory: TEST in `net.pinned`, TRAIN in blocks that are sent ahead. Mode `pageable`: TEST copies an ordinary
array, as dlprimitives' published figures are measured. Both modes print these figures too.

`fp32`, `tf32`, `bf16` and `ieee` are ocaffe's --math. `ieee` uses no tensor cores, but the last-block reduction, which
other makers' GPUs do not have. Peers: `strict` is PyTorch in IEEE fp32 and `autocast` its bf16, each the better of its
two memory formats; `default` is PyTorch without settings (TF32 in convolutions, NCHW), `default_nhwc` the same with
channels last. --peer (or $OCAFFE_TORCH_PEER) is the script that runs a prototxt in PyTorch. Each side is one process;
one waits while the other measures.
"""
from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib.util
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from resident import CLASSES, ROOT, constant, resident  # first: it makes ocaffe importable

import ocaffe
from ocaffe import log, proto
from ocaffe.cl.device import select_device
from ocaffe.model.text import read_net, write_text

NETS = ("alexnet", "googlenet", "resnet18", "resnet50", "vgg16", "mobilenet_v2", "lenet")
WARM = 3  # steps before the clock starts
PEERS = {"fp32": ("strict",), "tf32": ("default", "default_nhwc"), "bf16": ("autocast",), "ieee": ("strict",)}
FORMATS = {"strict": ("nchw", "nhwc"), "default": ("nchw",), "default_nhwc": ("nhwc",), "autocast": ("nchw", "nhwc")}
DLPRIMITIVES = {  # ms on an H100, batch 64, dlprimitives' nets and benchmark: a pageable copy each step
    "TRAIN": {"alexnet": 25.4, "resnet18": 63.8, "resnet50": 182, "vgg16": 288, "mobilenet_v2": 88.9},
    "TEST": {"alexnet": 10.4, "resnet18": 16.0, "resnet50": 39.3, "vgg16": 63.3, "mobilenet_v2": 20.1},
}


@dataclass
class Case:
    """One figure to measure."""

    file: str
    phase: str
    math: str
    mode: str
    steps: int
    device: str | None = None
    layout: str = ""


def timed(run: Callable[[int], object], finish: Callable[[], object], case: Case) -> float:
    """ms of a step: the mean of queued steps, or the median of steps that wait."""
    count, rounds = (1, case.steps) if case.mode != "resident" else (case.steps, 1)
    run(WARM)
    finish()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run(count)
        finish()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times) / count


def ocaffe_ms(case: Case) -> float:
    device = select_device(case.device, math=case.math)
    message = read_net(case.file)
    shape = tuple(message.layer[0].input_param.shape[0].dim)
    images = np.random.default_rng(0).standard_normal(shape, np.float32)
    if case.phase == "TRAIN":
        param = proto.SolverParameter(base_lr=1e-4, lr_policy="fixed", momentum=0.9, weight_decay=5e-4, max_iter=1 << 30, snapshot_after_train=False)
        param.net_param.CopyFrom(constant(message) if case.mode == "resident" else streamed(message))
        with ocaffe.SGDSolver(param, keep=[], device=device) as solver:
            if case.mode != "resident":
                solver.net.set_input_arrays(images, (np.arange(shape[0]) % CLASSES).astype(np.float32))
                return timed(solver.step, lambda: None, case)  # step returns after the losses are on the host
            return timed(solver._solver.step, device.queue.finish, case)
    with ocaffe.Net(message, ocaffe.TEST, keep=[], device=device) as net:
        for layer in message.layer:
            if layer.type == "BatchNorm":  # PyTorch's initial value; a variance of 0 would make all values infinite, and such tiles are computed twice
                net.params[layer.name][1].data[...] = net.params[layer.name][2].data[...] = 1
        if case.mode != "resident":
            if case.mode == "io":
                pinned = net.pinned("data")
                pinned[...] = images
                images = pinned
            return timed(lambda count: [net.forward(data=images) for _ in range(count)], lambda: None, case)
        commands = net._network.bound().commands
        return timed(lambda count: [commands.run() for _ in range(count)], device.queue.finish, case)


def streamed(message: Any) -> Any:
    """The same net with a MemoryData layer in place of Input: arrays of the host, copied batch after batch."""
    result = proto.NetParameter()
    result.CopyFrom(message)
    layer = result.layer[0]
    batch, channels, height, width = layer.input_param.shape[0].dim
    layer.type = "MemoryData"
    layer.ClearField("input_param")
    layer.memory_data_param.MergeFrom(proto.MemoryDataParameter(batch_size=batch, channels=channels, height=height, width=width))
    return result


def torch_ms(case: Case, peer: Any) -> float:
    """Run the peer's main with a command line."""
    math = {"default_nhwc": "default", "autocast": "bf16"}.get(case.math, case.math)
    mode = "resident" if case.mode == "resident" else "io"
    sys.argv = ["peer", case.file, "--phase", case.phase, "--device", "cuda", "--math", math, "--layout", case.layout, "--mode", mode,
                "--iters", str(case.steps), "--warmup", str(WARM), "--classes", str(CLASSES), "--json"]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()) as told:
        peer.main()
    gc.collect()
    peer.torch.cuda.empty_cache()
    return float(json.loads(told.getvalue().splitlines()[-1])["ms"])


def serve(peer: str | None) -> None:
    """The process of a side: read one case per line, print its ms."""
    log.quiet(2)
    measure: Callable[[Case], float] = ocaffe_ms
    if peer is not None:
        spec = importlib.util.spec_from_file_location("peer", peer)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        measure = functools.partial(torch_ms, peer=module)
    for line in sys.stdin:
        case = Case(**json.loads(line))
        try:
            answer: dict[str, object] = {"ms": round(measure(case), 3)}
        except Exception as problem:  # the other cases go on
            answer = {"problem": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(answer), flush=True)


class Side:
    """A process that measures the cases that it receives."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def ask(self, case: Case) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(asdict(case)), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline() or '{"problem": "the process died"}')
        if "problem" in answer:
            raise SystemExit(f"{case}: {answer['problem']}")
        return float(answer["ms"])


def compare(net: str, phase: str, options: argparse.Namespace, ours: Side, theirs: Side | None) -> dict[str, Any]:
    """Median ms of each contender."""
    peers = list(dict.fromkeys(peer for math in options.math for peer in PEERS[math])) if theirs else []
    found: dict[str, list[float]] = {name: [] for name in (*options.math, *peers)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{net}.prototxt"
        file.write_text(write_text(resident(net, options.batch, getattr(proto, phase))))
        case = Case(str(file), phase, "", options.mode, options.steps, options.device)
        for _ in range(options.rounds):
            for math in options.math:
                found[math].append(ours.ask(replace(case, math=math)))
            for peer in peers:
                assert theirs is not None
                found[peer].append(min(theirs.ask(replace(case, math=peer, layout=layout)) for layout in FORMATS[peer]))
    return {"net": net, "phase": phase, "batch": options.batch, "mode": options.mode, **{name: statistics.median(times) for name, times in found.items()}}


def cells(row: dict[str, Any]) -> list[str]:
    """`fp32 16.20, strict 24.80: 0.65`, one for each math."""
    result = []
    for math, peers in PEERS.items():
        if math not in row:
            continue
        text = f"{math} {row[math]:.2f}"
        for peer in (peer for peer in peers if peer in row):
            text += f", {peer} {row[peer]:.2f}: {row[math] / row[peer]:.2f}"
        theirs = DLPRIMITIVES[row["phase"]].get(row["net"])
        if row["mode"] != "resident" and theirs and row["batch"] == 64:
            text += f", dlprimitives {theirs}: {row[math] / theirs:.2f}"
        result.append(text)
    return result


def main() -> None:
    log.quiet(2)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(NETS), choices=NETS, metavar="NET")
    parser.add_argument("--phase", nargs="*", default=["TRAIN", "TEST"], choices=["TRAIN", "TEST"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--mode", default="resident", choices=["resident", "io", "pageable"])
    parser.add_argument("--math", nargs="*", default=["fp32", "tf32"], choices=list(PEERS))
    parser.add_argument("--device", help="ocaffe's device; PyTorch uses the first CUDA device")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--peer", default=os.environ.get("OCAFFE_TORCH_PEER", str(ROOT.parent / "shared/bench/torch_peer.py")))
    parser.add_argument("--alone", action="store_true", help="without PyTorch")
    parser.add_argument("--json", help="adds its rows to those of the file")
    parser.add_argument("--serve", nargs="?", const="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve or None)
        return
    if not options.alone and not Path(options.peer).exists():
        raise SystemExit(f"{options.peer} does not exist: name the script that runs a prototxt in PyTorch with --peer or OCAFFE_TORCH_PEER")
    ours, theirs = Side(), None if options.alone else Side(options.peer)
    file = ROOT / options.json if options.json else None
    table = json.loads(file.read_text()) if file and file.exists() else {"rows": []}
    device = select_device(options.device)
    table |= {"device": f"{device.name}, driver {device.driver_version}", "date": time.strftime("%Y-%m-%d")}
    for net in options.only:
        for phase in options.phase:
            row = compare(net, phase, options, ours, theirs)
            print(f"| {net} | {phase} | {options.batch} | {options.mode} | {' | '.join(cells(row))} |", flush=True)
            same = next((old for old in table["rows"] if all(old.get(key) == row[key] for key in ("net", "phase", "batch", "mode"))), None)
            if same is None:
                table["rows"].append(row)
            else:
                same.update(row)
            if file:
                file.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
