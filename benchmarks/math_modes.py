#!/usr/bin/env python3
"""Training in each --math: LeNet's accuracy on MNIST, and ResNet-18's loss on synthetic images with two seeds, which show the noise.

    benchmarks/math_modes.py [--device SPEC] [--math fp32 tf32 bf16 fp16] [--mnist FOLDER] [--iterations 10000] [--steps 300] [--json FILE]

--mnist is a folder with the four files of MNIST (idx, gzip): `ocaffe train` then trains LeNet by the solver of lenet.
ResNet-18 trains on 640 images of ten classes, each the image of its class plus noise of twice its strength, 32 at a
time; the figure is the mean loss of the last 50 steps.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from gpu import streamed
from resident import CLASSES, ROOT, resident  # first: it makes ocaffe importable

import ocaffe
from ocaffe import log, proto
from ocaffe.cl.device import select_device

SEEDS = (1, 2)


def lenet(math: str, device: str | None, mnist: str, iterations: int) -> float:
    """The accuracy of the last test."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}

        def command(*arguments: str) -> str:
            done = subprocess.run([sys.executable, "-m", "ocaffe", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            return done.stderr

        command("dataset", "mnist", "--from", mnist, "examples/mnist")
        command("new", "lenet")
        settings = ("--set", f"max_iter={iterations}", "--set", "random_seed=1")
        told = command("train", "--solver", "lenet/solver.prototxt", *settings, "--math", math, *(["--device", device] if device else []))
    return float(re.findall(r"Test net output #\d+: accuracy = ([\d.]+)", told)[-1])


def resnet18(math: str, device: str | None, steps: int, seed: int) -> float:
    """The mean loss of the last 50 steps."""
    rng = np.random.default_rng(0)
    labels = np.arange(640) % CLASSES
    pictures = rng.standard_normal((CLASSES, 3, 28, 28), np.float32).repeat(8, 2).repeat(8, 3)
    images = pictures[labels] + 2 * rng.standard_normal((640, 3, 224, 224), np.float32)
    param = proto.SolverParameter(base_lr=0.01, lr_policy="fixed", momentum=0.9, weight_decay=5e-4, max_iter=steps, random_seed=seed,
                                  snapshot_after_train=False)  # fmt: skip
    param.net_param.CopyFrom(streamed(resident("resnet18", 32, proto.TRAIN)))
    opened = select_device(device, math=math)
    with ocaffe.SGDSolver(param, keep=["loss"], device=opened) as solver:
        solver.net.set_input_arrays(images, labels.astype(np.float32))
        losses = []
        for _ in range(steps):
            solver.step(1)
            losses.append(float(solver.net.blobs["loss"].data))
    return float(np.mean(losses[-50:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device")
    parser.add_argument("--math", nargs="*", default=["fp32", "tf32", "bf16", "fp16"])
    parser.add_argument("--mnist")
    parser.add_argument("--iterations", type=int, default=10000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json")
    options = parser.parse_args()
    log.quiet(2)
    print("| math | LeNet, accuracy | ResNet-18, loss of two seeds |\n|---|---|---|")
    rows = []
    for math in options.math:
        accuracy = lenet(math, options.device, options.mnist, options.iterations) if options.mnist else None
        losses = [resnet18(math, options.device, options.steps, seed) for seed in SEEDS] if options.steps else []
        rows.append({"math": math, "lenet_accuracy": accuracy, "resnet18_loss": losses})
        print(f"| {math} | {accuracy} | {', '.join(f'{loss:.4f}' for loss in losses)} |", flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps({"iterations": options.iterations, "steps": options.steps, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
