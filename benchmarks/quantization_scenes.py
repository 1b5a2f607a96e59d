#!/usr/bin/env python3
"""The cost of integers of 8 bits for a detector and a net of masks: trained on scenes of digits, quantized, and tested, all by ocaffe's commands.

    benchmarks/quantization_scenes.py FOLDER [--nets ssd_shapes segnet_basic ..] [--iterations 4000] [--scenes 5000] [--device D] [--trained N] [--json FILE]

The ways are those of quantization.py. The score of ssd_shapes is the mean average precision, that of other nets the mean IoU, in percent, on 500 scenes.
Scenes and trained nets that are in FOLDER are used again. With --trained N, the net that rounds is trained for N iterations at a tenth of the rate.
"""
import argparse
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
import time
from typing import Any

import ocaffe.cli.quantize as command
from ocaffe.cli import main as run_here
from ocaffe.formats.text import read_solver, write_text

TESTS, SIDE, BATCH = 500, 128, 32
BOXES = ("ssd_shapes",)
WAYS = {
    "plain": ["--method", "max", "--ranges-only"], "max": ["--method", "max", "--ranges-only"], "kl": ["--method", "kl", "--ranges-only"],
    "auto": ["--ranges-only"], "recovered": [],
}  # fmt: skip


def run(*arguments: str) -> None:
    if run_here(list(arguments)):
        sys.exit(f"ocaffe {' '.join(arguments)} failed")


def score(net: pathlib.Path, weights: str, device: str, quantized: str = "") -> float:
    """Return the score that `ocaffe test` prints last, in percent."""
    argv = [sys.executable, "-m", "ocaffe", "test", "--model", str(net / "train_val.prototxt"), "--iterations", str(TESTS // BATCH)]
    argv += ["--quantized", quantized] if quantized else ["--weights", weights]
    argv += ["--device", device] if device else []
    text = subprocess.run(argv, check=True, capture_output=True, text=True)
    found = re.findall(r"(\w+) = ([\d.e+-]+)", text.stdout + text.stderr)
    values = [float(value) for name, value in found if name in ("detection_eval", "mean_iou")]
    if not values:
        sys.exit(f"no score in: {(text.stdout + text.stderr)[-2000:]}")
    return 100 * values[-1]


def make(folder: pathlib.Path, scenes: int) -> None:
    if not (folder / "masks").exists():
        run("dataset", "shapes", str(folder / "scenes"), "--images", str(scenes + TESTS), "--size", f"{SIDE}x{SIDE}", "--splits", f"{scenes},0,{TESTS}")
        run("dataset", "voc", str(folder / "scenes"), str(folder / "boxes"))
        run("dataset", "masks", *(str(folder / "scenes" / name) for name in ("JPEGImages", "SegmentationClass")), str(folder / "masks"),
            "--lists", str(folder / "scenes" / "ImageSets" / "Segmentation"))  # fmt: skip


def quantized(way: str, net: pathlib.Path, weights: str, device: str, out: pathlib.Path, *more: str) -> float:
    """Run `ocaffe quantize`, and return its seconds. `plain` has one scale for all weights of a layer, which no scheme with free scales has."""
    shutil.rmtree(out, ignore_errors=True)
    begun, read = time.monotonic(), command.read_scheme
    if way == "plain":
        command.read_scheme = lambda name: dataclasses.replace(read(name), per_channel=False)
    try:
        run("quantize", str(net / "train_val.prototxt"), weights, "--out", str(out), *WAYS[way], *(["--device", device] if device else []), *more)
    finally:
        command.read_scheme = read
    return time.monotonic() - begun


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    folder, device = pathlib.Path(options.folder), options.device
    net = folder / name
    if not (net / "final.caffemodel").exists():
        data = folder / ("boxes" if name in BOXES else "masks")
        norm = ["--batch-norm"] if name == "unet" else []
        run("new", name, "--data", str(data), "--out", str(net), "--batch", str(BATCH), "--iterations", str(options.iterations), *norm)
        run("train", "--solver", str(net / "solver.prototxt"), *(["--device", device] if device else []))
        newest = max(net.glob("*_iter_*.caffemodel"), key=lambda file: int(re.findall(r"\d+", file.stem)[-1]))
        shutil.copy(newest, net / "final.caffemodel")
    weights = str(net / "final.caffemodel")
    result: dict[str, Any] = {"iterations": options.iterations, "fp32": {"score": score(net, weights, device)}}
    print(name, "fp32", result["fp32"], flush=True)
    for way in WAYS:
        seconds = quantized(way, net, weights, device, net / way)
        result[way] = {"score": score(net, weights, device, str(net / way)), "seconds": round(seconds, 1)}
        print(name, way, result[way], flush=True)
    if options.trained:
        solver = read_solver(str(net / "solver.prototxt"))
        solver.base_lr /= 10
        solver.max_iter = options.trained
        (net / "rounded_solver.prototxt").write_text(write_text(solver))
        seconds = quantized("recovered", net, weights, device, net / "trained", "--train", str(net / "rounded_solver.prototxt"))
        result["trained"] = {"score": score(net, weights, device, str(net / "trained")), "seconds": round(seconds, 1)}
        print(name, "trained", result["trained"], flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--nets", nargs="*", default=["ssd_shapes", "unet"])
    parser.add_argument("--iterations", type=int, default=4000)
    parser.add_argument("--scenes", type=int, default=5000)
    parser.add_argument("--trained", type=int, default=0)
    parser.add_argument("--device", default="")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    make(pathlib.Path(options.folder), options.scenes)
    results = {}
    for name in options.nets:
        results[name] = measured(name, options)
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
