"""Digests of snapshots of short trainings, to compare two versions of ocaffe on one device: equal digests mean equal bits.

    python -m tests.structure.snapshots [--nets lenet,resnet50] [--iterations 20] [-- FLAGS OF ocaffe train]
    python -m tests.structure.snapshots -- --device intel
    python -m tests.structure.snapshots -- --device nvidia --math bf16

It trains nets of the zoo with `ocaffe train` on a small database of generated images, which is always the same, and prints the SHA-256 of the weights and
of the solver's state in the middle and at the end, with the last loss. The exit status is 1 if a training fails, or if its last loss is no number.
"""
from __future__ import annotations

import argparse
import hashlib
import math
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

import lmdb
import numpy as np

from ocaffe import proto
from ocaffe.formats.text import read_net, read_solver, write_text
from ocaffe.io import array_to_datum
from ocaffe.zoo import FOLDER

NETS = ("lenet", "resnet50", "mobilenet_v2")
BATCH = {"lenet": 64}  # 4 if not listed
SHAPES = {"lenet": (1, 28, 28)}  # of an image
SHAPE, IMAGES = (3, 232, 240), 24
RATE = 0.01  # higher ones can diverge on such images


def make_images(folder: pathlib.Path, shape: tuple[int, ...]) -> None:
    """Write smooth random images with random labels of ten classes."""
    rng = np.random.default_rng(0)
    environment = lmdb.open(str(folder), map_size=1 << 28)
    with environment.begin(write=True) as transaction:
        for index in range(IMAGES):
            noise = rng.normal(128, 60, shape)
            image = np.clip(sum(np.roll(noise, step, axis) for axis in (1, 2) for step in range(3)) / 6, 0, 255).astype(np.uint8)
            transaction.put(b"%08d" % index, array_to_datum(image, int(rng.integers(10))).SerializeToString())
    environment.close()


def prepare(net: str, folder: pathlib.Path, iterations: int) -> None:
    """Write the solver and the database of a net into `folder`. Its files have no path, because a solver's state names the file of its weights."""
    make_images(folder / "images", SHAPES.get(net, SHAPE))
    message: Any = read_net(str(FOLDER / net / "train_val.prototxt"))
    kept = [layer for layer in message.layer if proto.TEST not in [rule.phase for rule in layer.include] and layer.type != "Accuracy"]
    for layer in kept:
        if layer.type == "Data":
            layer.data_param.source, layer.data_param.batch_size = "images", BATCH.get(net, 4)
    trained = proto.NetParameter(name=message.name)
    trained.layer.extend(kept)
    (folder / "net.prototxt").write_text(write_text(trained))
    solver: Any = read_solver(str(FOLDER / net / "solver.prototxt"))
    for name in ("test_iter", "test_interval", "test_initialization"):
        solver.ClearField(name)
    solver.net, solver.snapshot_prefix, solver.random_seed = "net.prototxt", net, 1
    solver.base_lr, solver.max_iter, solver.snapshot, solver.display = RATE, iterations, iterations // 2, iterations // 2
    (folder / "solver.prototxt").write_text(write_text(solver))


def train(net: str, iterations: int, flags: list[str]) -> bool:
    """Train, print the digests, and return whether it went well."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prepare(net, folder, iterations)
        command = [sys.executable, "-m", "ocaffe", "train", "--solver", "solver.prototxt", *flags]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        losses = re.findall(r"Iteration \d+.*? loss = (\S+)", done.stderr)
        if done.returncode or not losses or not math.isfinite(float(losses[-1])):
            print(f"{net}: FAILED with status {done.returncode}, losses {losses}\n{done.stderr[-2000:]}", flush=True)
            return False
        for path in sorted(folder.glob(f"{net}_iter_*")):
            print(f"{path.name:36} {hashlib.sha256(path.read_bytes()).hexdigest()}", flush=True)
        print(f"{net:36} last loss {losses[-1]}", flush=True)
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("flags", nargs="*", help="flags of `ocaffe train`, after --")
    args = parser.parse_args()
    went_well = [train(net, args.iterations, args.flags) for net in args.nets.split(",")]
    return int(not all(went_well))


if __name__ == "__main__":
    sys.exit(main())
