#!/usr/bin/env python3
"""The batches that `--batch auto` chooses for 20 trainings with memory limits, each trained for two iterations and tested.

    benchmarks/batch_auto.py [CONFIGURATION ...] [--device SPEC] [--json FILE]

A configuration passes if the training ends, its plan keeps the limit, and a batch that is 5 % larger does not fit. `new`: `ocaffe new --batch auto` chooses
the batch, and `ocaffe train` takes it. `train`: `ocaffe train --batch auto` chooses it. Larger batches are only planned: a training with a limit would
compute values again for them. On a GPU four more configurations fill the free memory without a limit. --json adds the figures of the device to those of
FILE, after each configuration.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from resident import ROOT  # makes ocaffe importable

from ocaffe import log
from ocaffe.cl.device import select_device
from ocaffe.cli.flags import memory_limit
from ocaffe.data.databases.datum import encode_datum
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.errors import Error
from ocaffe.formats.text import read_net, read_solver
from ocaffe.graph.options import NetOptions
from ocaffe.ir.target import Target
from ocaffe.solver.largest_batch import room
from ocaffe.solver.planning import Machine, solver_to_plan
from ocaffe.support.files import atomic_write

RECORDS = 20000  # small images with classes: `ocaffe new` takes at most a tenth of them as one batch
LARGER = 1.05
CHOSEN = re.compile(r"[Bb]atch of (\d+)(?:: |, )(.*)")


class Training(NamedTuple):
    """A configuration. `data`: a folder of `made_data`. `limit`: of --memory-limit, '' for none. `by`: the command that chooses the batch."""

    net: str
    data: str
    limit: str
    by: str
    iter_size: int = 1
    flags: tuple[str, ...] = ()


LIMITED = {
    "lenet 48M": Training("lenet", "gray", "48M", "new"),
    "lenet 16M": Training("lenet", "gray", "16M", "train"),
    "cifar10_quick 64M": Training("cifar10_quick", "color", "64M", "new"),
    "resnet20 128M": Training("resnet20", "color", "128M", "new"),
    "resnet20 64M, iter_size 3": Training("resnet20", "color", "64M", "train", 3),
    "resnet20 64 pixels 200M": Training("resnet20", "color", "200M", "new", 1, ("--size", "64")),
    "vit_digits 40M": Training("vit_digits", "gray", "40M", "new"),
    "squeezenet 160M": Training("squeezenet", "color", "160M", "new"),
    "shufflenet_v2 300M": Training("shufflenet_v2", "color", "300M", "train"),
    "mobilenet_v1 300M, iter_size 2": Training("mobilenet_v1", "color", "300M", "train", 2),
    "mobilenet_v2 400M": Training("mobilenet_v2", "color", "400M", "new"),
    "resnet18 400M": Training("resnet18", "color", "400M", "new"),
    "googlenet 400M": Training("googlenet", "color", "400M", "train"),
    "alexnet 1500M": Training("alexnet", "color", "1500M", "new"),
    "resnet20 of image files 48M": Training("resnet20", "files", "48M", "train"),
    "ssd_shapes 100M": Training("ssd_shapes", "boxes", "100M", "new"),
    "yolo_shapes 80M, iter_size 2": Training("yolo_shapes", "boxes", "80M", "train", 2),
    "mobilenet_ssd 400M": Training("mobilenet_ssd", "boxes", "400M", "train"),
    "segnet_basic 100M": Training("segnet_basic", "masks", "100M", "new"),
    "crnn 80M": Training("crnn", "text", "80M", "train"),
}
FREE = {  # on a GPU
    "resnet18, free memory": Training("resnet18", "color", "", "train"),
    "resnet50, free memory": Training("resnet50", "color", "", "train"),
    "vgg16, free memory": Training("vgg16", "color", "", "train"),
    "ssd300_vgg16, free memory": Training("ssd300_vgg16", "boxes", "", "train"),
}


def made_data(folder: Path) -> None:
    """Make small data of all kinds in a folder."""
    dice = np.random.default_rng(1)
    for name, channels in (("gray", 1), ("color", 3)):
        for part, count in (("train", RECORDS), ("val", 100)):
            (folder / name).mkdir(exist_ok=True)
            with LmdbWriter(str(folder / name / f"{part}_lmdb")) as writer:
                images = dice.integers(0, 256, (count, channels, 32, 32), np.uint8)
                for number, image in enumerate(images):
                    writer.put(b"%08d" % number, encode_datum(image, number % 10))
    ocaffe("dataset", "shapes", folder / "scenes", "--images", 800, "--size", "96x96", "--objects", "1,3", "--crops", 1200, "--crop-size", 32)
    ocaffe("dataset", "voc", folder / "scenes", folder / "boxes")
    scenes = folder / "scenes"
    ocaffe("dataset", "masks", scenes / "JPEGImages", scenes / "SegmentationClass", folder / "masks", "--lists", scenes / "ImageSets/Segmentation")
    ocaffe("dataset", "text", folder / "text", "--images", 1000)
    (scenes / "crops").rename(folder / "files")


def ocaffe(*words: object, device: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command of ocaffe. Raise CalledProcessError if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **({"OCAFFE_DEVICE": device} if device else {})}
    done = subprocess.run([sys.executable, "-m", "ocaffe", *map(str, words)], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout, done.stderr)
    return done


def measured(training: Training, data: Path, folder: Path, target: Target, context: int, device: str) -> dict[str, Any]:
    """Train a configuration. Return its figures."""
    limit = ["--memory-limit", training.limit] if training.limit else []
    classes = ["--classes", 10] if training.data in ("gray", "color") else []
    chooses = ["--batch", "auto", *limit] if training.by == "new" else ["--batch", 2]
    begin = time.monotonic()
    made = ocaffe("new", training.net, "--data", data / training.data, "--out", folder, *classes, *chooses, *training.flags, device=device)
    if training.by == "new":
        seconds = time.monotonic() - begin
    solver = folder / "solver.prototxt"
    auto = ["--batch", "auto"] if training.by == "train" else []
    sets = ["--set", "max_iter=2", "--set", "test_interval=2", "--set", "snapshot=0", "--set", f"iter_size={training.iter_size}"]
    begin = time.monotonic()
    ran = ocaffe("train", "--solver", solver, *auto, *limit, *sets, device=device)
    found = CHOSEN.search(made.stdout if training.by == "new" else ran.stderr)
    assert found is not None, ran.stderr[-2000:]
    batch, allowed = int(found[1]), room(target, memory_limit(training.limit), context)
    sizes = {number: planned(solver, number, training.iter_size, target) for number in (batch, int(batch * LARGER) + 1)}
    larger = max(sizes)
    figures = {
        "batch": batch, "why": found[2].split(";")[0], "limit": allowed, "bytes": sizes[batch], "larger": larger,
        "its bytes": sizes[larger] if math.isfinite(sizes[larger]) else "too many values",
        "trained": "Optimization Done" in ran.stderr, "iterations s": round(time.monotonic() - begin, 1),
    }  # fmt: skip
    if training.by == "new":
        figures["new s"] = round(seconds, 1)
    figures["passes"] = bool(figures["trained"] and sizes[batch] <= allowed < sizes[larger])
    return figures


def planned(solver: Path, batch: int, iter_size: int, target: Target) -> float:
    """Return the bytes of a training with a batch, with its TEST net; infinity if a blob would have too many values."""
    param = read_solver(str(solver))
    param.iter_size = iter_size
    try:
        return solver_to_plan(param, read_net, NetOptions(), batch).plans(Machine.assumed(target))(None).bytes
    except Error:
        return math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CONFIGURATION")
    parser.add_argument("--device", default="")
    parser.add_argument("--json")
    options = parser.parse_args()
    log.quiet(2)
    device = select_device(options.device or None)
    target, context, name = device.target, device.context_bytes, f"{device.name} ({device.platform_name})"
    device.close()
    every = LIMITED if target.is_cpu else {**LIMITED, **FREE}
    chosen = {key: every[key] for key in options.names} if options.names else every
    with tempfile.TemporaryDirectory(prefix="batch-auto-") as folder:
        made_data(Path(folder))
        for number, (key, training) in enumerate(chosen.items()):
            try:
                figures = measured(training, Path(folder), Path(folder) / f"net{number}", target, context, options.device)
            except subprocess.CalledProcessError as problem:
                figures = {"passes": False, "error": (problem.stderr or "").strip().splitlines()[-3:]}
            print(f"{'passes' if figures['passes'] else 'FAILS':<7} {key:<34} {figures}", flush=True)
            if options.json:
                _store(options.json, name, key, figures)


def _store(path: str, device: str, key: str, figures: dict[str, Any]) -> None:
    found = json.loads(Path(path).read_text(encoding="utf-8")) if os.path.exists(path) else {}
    found.setdefault(device, {})[key] = figures
    with atomic_write(path) as out:
        out.write((json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
