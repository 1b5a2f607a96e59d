#!/usr/bin/env python3
"""Planned memory of the zoo's networks, compared with Caffe's and PyTorch's. Needs no device.

    benchmarks/memory.py [--json FILE] [--torch FILE] [NET ...]

Training with SGD and momentum (TRAIN net alone, its staging ring included) and the TEST net; `Caffe` is an estimate of
BVLC Caffe's memory for the same nets (ocaffe/memory/caffe_estimate.py). `PyTorch` is the peak of PyTorch's own count on
a GPU for the same prototxt, read from FILE ({"net batch": MiB}; default torch_peaks_h100.json). Each database has one
generated record of the real size. The last line is the time to plan ResNet-152.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ocaffe import log, proto  # noqa: E402
from ocaffe.compiler.compile import compile_net  # noqa: E402
from ocaffe.compiler.network import phase_net  # noqa: E402
from ocaffe.data.databases.datum import encode_datum  # noqa: E402
from ocaffe.data.databases.writer import LmdbWriter  # noqa: E402
from ocaffe.formats.blob import write_blobproto  # noqa: E402
from ocaffe.formats.text import read_net  # noqa: E402
from ocaffe.graph.build import build  # noqa: E402
from ocaffe.graph.options import NetOptions  # noqa: E402
from ocaffe.graph.parameters import ParameterGroup  # noqa: E402
from ocaffe.ir.target import Target  # noqa: E402
from ocaffe.solver.update import Updater  # noqa: E402
from ocaffe.support.switches import Switches  # noqa: E402

SETS = {
    "mnist/mnist": ("train", "test", (1, 28, 28)), "digits/digits": ("train", "test", (1, 28, 28)), "cifar10/cifar10": ("train", "test", (3, 32, 32)),
    "imagenet/ilsvrc12": ("train", "val", (3, 256, 256)),
}  # fmt: skip
RUNS = [  # net, batch, phase
    *[(net, batch, "TRAIN") for net, batch in (("alexnet", 256), ("alexnet", 64), ("googlenet", 64), ("vgg16", 64), ("resnet18", 64), ("resnet50", 64),
                                               ("mobilenet_v2", 64), ("mobilenet_v1", 64), ("cifar10_quick", 100), ("lenet", 64))],
    *[(net, 64, "TEST") for net in ("alexnet", "googlenet", "vgg16", "resnet50", "mobilenet_v2")],
]  # fmt: skip
LIMITS = [("resnet50", 64, "1900M"), ("vgg16", 64, "2800M"), ("vgg16", 64, "2000M")]
MIB = 1 << 20
SOLVER = 'net: "{net}" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.0005 max_iter: 1\n'


def workplace(folder: pathlib.Path) -> None:
    """Databases of one record each, at the paths that the zoo's files name."""
    for name, (first, second, shape) in SETS.items():
        (folder / "examples" / name).parent.mkdir(parents=True)
        for part in (first, second):
            with LmdbWriter(str(folder / "examples" / f"{name}_{part}_lmdb")) as writer:
                writer.put(b"00000000", encode_datum(np.zeros(shape, np.uint8), 0))
    write_blobproto(folder / "examples/cifar10/mean.binaryproto", np.zeros((1, 3, 32, 32), np.float32))


def measure(net: str, batch: int, phase: str, folder: pathlib.Path, *flags: str) -> dict[str, object]:
    """The plan of one run, as `ocaffe plan --json` writes it."""
    started = time.perf_counter()
    model = str(ROOT / "zoo" / net / "train_val.prototxt")
    (folder / "solver.prototxt").write_text(SOLVER.format(net=model))
    what = ["--solver", "solver.prototxt"] if phase == "TRAIN" else ["--model", model, "--phase", "TEST"]
    command = [sys.executable, "-m", "ocaffe", "plan", *what, "--batch", str(batch), "--json", "plan.json", *flags]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    plan = json.loads((folder / "plan.json").read_text())
    main = plan["nets"][0]
    return {
        "net": net, "batch": batch, "phase": phase, "limit": " ".join(flags), "mib": plan["total_bytes"] / MIB,
        "plan_to_bound": main["recycled_bytes"] / max(main["lower_bound_bytes"], 1), "without_recompute_mib": plan["lower_bound_without_recompute_bytes"] / MIB,
        "more_flops_percent": 100 * main["recomputed_flops"] / max(3 * main["forward_flops"], 1), "launches": plan["launches"],
        "caffe_mib": plan["caffe_bytes"] / MIB, "pieces": main["pieces"], "seconds": time.perf_counter() - started,
    }  # fmt: skip


def planning_seconds(folder: pathlib.Path) -> float:
    """Record, optimise and plan ResNet-152's training: the median of three."""
    log.quiet()
    os.chdir(folder)
    graph = build(phase_net(read_net(str(ROOT / "zoo/resnet152/train_val.prototxt")), proto.TRAIN), proto.TRAIN)
    group = ParameterGroup(graph.params)
    updater = Updater(group, proto.SolverParameter(momentum=0.9))
    times = []
    for _ in range(3):
        started = time.perf_counter()
        compile_net(graph, group, Target(max_allocation=1 << 40), NetOptions(), Switches(), updater)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*")
    parser.add_argument("--json")
    parser.add_argument("--torch", default=str(ROOT / "benchmarks/torch_peaks_h100.json"))
    options = parser.parse_args()
    runs = [(*run, ()) for run in RUNS] + [(net, batch, "TRAIN", ("--memory-limit", limit)) for net, batch, limit in LIMITS]
    with tempfile.TemporaryDirectory() as folder:
        workplace(pathlib.Path(folder))
        rows = [measure(net, batch, phase, pathlib.Path(folder), *flags) for net, batch, phase, flags in runs if not options.nets or net in options.nets]
        seconds = planning_seconds(pathlib.Path(folder))
    peaks = json.loads(pathlib.Path(options.torch).read_text()) if pathlib.Path(options.torch).exists() else {}
    print("| net | batch | phase | MiB | plan / bound | lower bound without recomputation | Caffe | PyTorch | repeated products | microbatches | launches |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        phase = f"{row['phase']} {row['limit']}".strip()
        peak = peaks.get(f"{row['net']} {row['batch']}", "") if row["phase"] == "TRAIN" and not row["limit"] else ""
        print(f"| {row['net']} | {row['batch']} | {phase} | {row['mib']:.0f} | {row['plan_to_bound']:.3f} | {row['without_recompute_mib']:.0f} | "
              f"{row['caffe_mib']:.0f} | {peak} | "
              f"{row['more_flops_percent']:.1f} % | {row['pieces']} | {row['launches']} |")  # fmt: skip
    print(f"planning ResNet-152, batch 32: {seconds:.2f} s")
    if options.json:
        (ROOT / options.json).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
