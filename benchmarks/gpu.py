#!/usr/bin/env python3
"""Whole steps of the zoo's nets on a GPU, compared with PyTorch on the same prototxt, alternating: A B C D A B C D.

    benchmarks/gpu.py [--only NET ...] [--phase TRAIN TEST] [--batch 64] [--mode resident|io|pageable] [--math fp32 tf32 bf16 ieee] [--device SPEC] [--rounds 2]
                      [--steps 20] [--ways eager graph compile | --alone] [--json FILE]

TRAIN is forward, backward and SGD's update, TEST forward. Mode `resident`: data are on the device, steps are queued,
one synchronisation at the end; a figure is the median over rounds of ms per step. Mode `io`: each step copies an image
batch from the host's memory and reads back the loss (TEST: the last blob); the median over steps. The batch is in
pinned memory: TEST in `net.pinned`, TRAIN in batch buffers that are sent ahead. Mode `pageable`: TEST copies an ordinary
array, as dlprimitives' published figures are measured. Both modes print these figures too.

`fp32`, `tf32`, `bf16` and `ieee` are ocaffe's --math. `ieee` uses no tensor cores, but the last-block reduction, which
other makers' GPUs do not have. The peer is PyTorch (torch_net.py) in IEEE fp32, in TF32, and with autocast to bfloat16.
Its `default` is eager execution in NCHW, for tf32 with PyTorch's own settings (TF32 in convolutions only). Its `best`
is the fastest of --ways in both memory formats; the first round measures all of them. `--ways eager graph compile`
takes a minute more for each net and math, for the compiler. Each side is one process; one waits while the other
measures.
"""
from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from resident import CLASSES, ROOT, constant, resident  # first: it makes ocaffe importable

import ocaffe
from ocaffe import log, proto
from ocaffe.cl.device import select_device
from ocaffe.formats.text import read_net, write_text

NETS = ("alexnet", "googlenet", "resnet18", "resnet50", "vgg16", "mobilenet_v2", "lenet")
WARM = 3  # steps before the clock starts
PEERS = {"fp32": "strict", "tf32": "tf32", "bf16": "autocast", "ieee": "strict"}  # PyTorch's settings for a math of ocaffe (torch_net.MATHS)
DEFAULTS = {"tf32": "default"}  # those of `default`, if they differ
DEFAULT = ("nchw", "eager")
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
    way: Sequence[str] = ()  # of PyTorch: layout and mode


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
        commands = net._network.nets.bound(net._engine.options).commands
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


def torch_ms(case: Case) -> float:
    import torch
    import torch_net

    layout, mode = case.way
    found = torch_net.measure(read_net(case.file), getattr(proto, case.phase), torch_net.Way(case.math, layout, mode), case.steps, WARM, CLASSES,
                              copies=case.mode != "resident")  # fmt: skip
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    return found


def serve(measure: Callable[[Case], float]) -> None:
    """The process of a side: read one case per line, print its ms."""
    log.quiet(2)
    for line in sys.stdin:
        case = Case(**json.loads(line))
        try:
            answer: dict[str, object] = {"ms": round(measure(case), 3)}
        except Exception as problem:  # the other cases go on
            answer = {"problem": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(answer), flush=True)


SIDES: dict[str, Callable[[Case], float]] = {"ocaffe": ocaffe_ms, "PyTorch": torch_ms}


class Side:
    """A process that measures the cases that it receives."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def ask(self, case: Case) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(asdict(case)), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline() or '{"problem": "the process died"}')
        if "problem" in answer:
            raise SystemExit(f"{case}: {answer['problem']}")
        return float(answer["ms"])


def compare(net: str, phase: str, options: argparse.Namespace, ours: Side, theirs: Side | None) -> dict[str, Any]:
    """Return the median ms of each contender. PyTorch's best way is the fastest of the first round."""
    peers = list(dict.fromkeys(PEERS[math] for math in options.math)) if theirs else []
    ways = [(layout, mode) for mode in dict.fromkeys((DEFAULT[1], *options.ways)) for layout in ("nchw", "nhwc")]
    found: dict[str, list[float]] = {math: [] for math in options.math}
    of_peers: dict[str, dict[Sequence[str], list[float]]] = {peer: {way: [] for way in ways} for peer in peers}
    defaults: dict[str, list[float]] = {peer: [] for peer in peers}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{net}.prototxt"
        file.write_text(write_text(resident(net, options.batch, getattr(proto, phase))))
        case = Case(str(file), phase, "", options.mode, options.steps, options.device)
        for _ in range(options.rounds):
            for math in options.math:
                found[math].append(ours.ask(replace(case, math=math)))
            for peer in peers:
                assert theirs is not None
                for way, times in of_peers[peer].items():
                    times.append(theirs.ask(replace(case, math=peer, way=way)))
                if peer in DEFAULTS:
                    defaults[peer].append(theirs.ask(replace(case, math=DEFAULTS[peer], way=DEFAULT)))
                elif DEFAULT in of_peers[peer]:
                    defaults[peer].append(of_peers[peer][DEFAULT][-1])
                best = min(of_peers[peer], key=lambda way: of_peers[peer][way][0])
                of_peers[peer] = {way: times for way, times in of_peers[peer].items() if way in (best, DEFAULT)}
    row: dict[str, Any] = {"net": net, "phase": phase, "batch": options.batch, "mode": options.mode}
    row |= {math: statistics.median(times) for math, times in found.items()}
    for peer in peers:
        medians = {way: statistics.median(times) for way, times in of_peers[peer].items()}
        best = min(medians, key=lambda way: medians[way])
        row.setdefault("PyTorch", {})[peer] = {"default": statistics.median(defaults[peer]), "best": medians[best], "way": " ".join(best)}
    return row


def cells(row: dict[str, Any]) -> list[str]:
    """Return `fp32 16.20, PyTorch 24.80 (nhwc graph): 0.65, default 26.00: 0.62`, one for each math."""
    result = []
    for math, peer in PEERS.items():
        if math not in row:
            continue
        text = f"{math} {row[math]:.2f}"
        if other := row.get("PyTorch", {}).get(peer):
            text += f", PyTorch {other['best']:.2f} ({other['way']}): {row[math] / other['best']:.2f}"
            text += f", default {other['default']:.2f}: {row[math] / other['default']:.2f}"
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
    parser.add_argument("--ways", nargs="*", default=["eager", "graph"], choices=["eager", "graph", "compile"], help="of PyTorch to run a step")
    parser.add_argument("--alone", action="store_true", help="without PyTorch")
    parser.add_argument("--json", help="adds its rows to those of the file")
    parser.add_argument("--serve", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(SIDES[options.serve])
        return
    ours, theirs = Side("ocaffe"), None if options.alone else Side("PyTorch")
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
                row["PyTorch"] = same.get("PyTorch", {}) | row.get("PyTorch", {})
                same.update(row)
            if file:
                file.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
