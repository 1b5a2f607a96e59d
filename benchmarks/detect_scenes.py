#!/usr/bin/env python3
"""A detector of the zoo from nothing: scenes of digits, a backbone trained as classifier, a training, and the mean average precision on other scenes.

    benchmarks/detect_scenes.py NET FOLDER [--scenes 5000] [--tests 500] [--side S] [--crops 10000] [--iterations 3000] [--json FILE] ...

Its files are made in FOLDER: the scenes, and the images of single digits for the backbone. Those that exist are used again. The handwritten digits of the
scenes for testing occur in no scene for training. The images for the backbone have another seed. `untrained` is the precision of the detector with the
trained backbone and new layers of predictions. ms: wall time of a step of the whole training with its data layer, after the first 20 steps.
"""
import argparse
import json
import os
import pathlib
import sys
import time
from typing import Any

from backbones import ENDS, pretrained

import ocaffe
from ocaffe import log
from ocaffe.cl.device import select_device
from ocaffe.cli import main as command
from ocaffe.formats.text import read_net, read_solver
from ocaffe.solver.average_precision import Detections
from ocaffe.zoo import FOLDER
from ocaffe.zoo.detection_project import SCORE, write_detector
from ocaffe.zoo.project import Choices
from ocaffe.zoo.templates import image_shape
from ocaffe.zoo.text import prototxt

MOST_EXPANDED = 1.5
FIRST = 20  # steps that are not timed
AVERAGED = 100  # losses


def run(*arguments: str) -> None:
    if command(list(arguments)):
        sys.exit(f"ocaffe {' '.join(arguments)} failed")


def make(folder: str, scenes: int, tests: int, side: int, crops: int, crop_side: int, mnist: str) -> float:
    """Make FOLDER/made, databases of scenes, and FOLDER/other/crops, images of single digits. Return the seconds."""
    begin, size, digits = time.perf_counter(), f"{side}x{side}", ["--mnist", mnist] if mnist else []
    if not os.path.exists(f"{folder}/made"):
        run("dataset", "shapes", f"{folder}/scenes", "--images", str(scenes + tests), "--size", size, "--splits", f"{scenes},{tests},0", "--seed", "1", *digits)
        run("dataset", "voc", f"{folder}/scenes", f"{folder}/made")
    if crops and not os.path.exists(f"{folder}/other"):
        own = "--images", "1", "--splits", "1,0,0", "--seed", "2", "--crops", str(crops), "--crop-size", str(crop_side)
        run("dataset", "shapes", f"{folder}/other", *own, *digits)
    return time.perf_counter() - begin


def spare(file: str, most_expanded: float = MOST_EXPANDED) -> None:
    """Let the training neither mirror the digits, which are symbols, nor shrink them to a fourth, as the published nets do."""
    net = read_net(file)
    for layer in net.layer:
        if layer.type == "AnnotatedData" and layer.transform_param.HasField("expand_param"):
            layer.transform_param.mirror = False
            layer.transform_param.expand_param.max_expand_ratio = min(layer.transform_param.expand_param.max_expand_ratio, most_expanded)
    pathlib.Path(file).write_text(prototxt(net))


class Training:
    """A training by the files of a project, without its own tests."""

    def __init__(self, solver_file: str, device: Any) -> None:
        self.settings = read_solver(solver_file)
        self.settings.test_interval, self.settings.average_loss = self.settings.max_iter + 1, AVERAGED
        for field in ("snapshot", "best_output", "display"):
            self.settings.ClearField(field)
        self.loss = 0.0  # mean of the last steps
        self.solver = ocaffe.get_solver(self.settings, device=device)

    def step(self, iterations: int) -> float:
        """Return the seconds of so many iterations."""
        begin = time.perf_counter()
        self.solver.step(iterations)
        self.loss = float(self.solver.loss_history().mean())  # waits for the device
        return time.perf_counter() - begin

    def precision(self) -> float:
        net, found = self.solver.test_nets[0], Detections(self.settings.ap_version)
        net.share_with(self.solver.net)
        for _ in range(self.settings.test_iter[0]):
            net.forward()
            found.add(net.blobs[SCORE].data)
        return found.mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", choices=list(ENDS))
    parser.add_argument("folder")
    parser.add_argument("--scenes", type=int, default=5000)
    parser.add_argument("--tests", type=int, default=500)
    parser.add_argument("--mnist", default="", help="folder with MNIST's files; default: the digits of scikit-learn")
    parser.add_argument("--side", type=int, default=0, help="of the scenes; default: as the images of the net")
    parser.add_argument("--size", type=int, default=0, help="of the net's images, for YOLO")
    parser.add_argument("--crops", type=int, default=10000, help="0: without a trained backbone")
    parser.add_argument("--crop-side", type=int, default=64)
    parser.add_argument("--backbone", type=int, default=1000, help="iterations of the backbone")
    parser.add_argument("--backbone-rate", type=float, default=0)
    parser.add_argument("--weights", default="", help="begin from these weights, without training a backbone")
    parser.add_argument("--iterations", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--parts", type=int, default=4, help="the precision is computed after each part of the training")
    parser.add_argument("--solver", default="", help="more fields of the solver")
    parser.add_argument("--transform", default="", help="mean, scale and more fields of the transform_param of both data layers")
    parser.add_argument("--expand", type=float, default=MOST_EXPANDED, help="the most that a scene is shrunk by; 1: never")
    parser.add_argument("--device", default="")
    parser.add_argument("--math", default="")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if options.iterations // options.parts <= FIRST:
        parser.error(f"a part has {options.iterations // options.parts} iterations; give more than {FIRST}")
    device = select_device(options.device or None, math=options.math or None)
    os.makedirs(options.folder, exist_ok=True)
    side = options.side or options.size or image_shape(read_net(str(FOLDER / options.net / "deploy.prototxt")))[1]
    result: dict[str, Any] = {"net": options.net, "device": str(device), "batch": options.batch}
    result["seconds to make data"] = make(options.folder, options.scenes, options.tests, side, options.crops, options.crop_side, options.mnist)
    log.quiet()
    weights, work = options.weights, f"{options.folder}/{options.net}-{os.getpid()}"
    if options.crops and not weights:
        found = pretrained(options.net, f"{options.folder}/other/crops", f"{work}/backbone", device, iterations=options.backbone,
                           side=options.crop_side, rate=options.backbone_rate)  # fmt: skip
        weights, result["backbone"] = found.weights, {"accuracy": found.accuracy, "seconds": found.seconds, "iterations": options.backbone}
        print(json.dumps(result), flush=True)
    choices = Choices(
        batch=options.batch, iterations=options.iterations, weights=weights, size=options.size, solver=options.solver, transform=options.transform
    )  # fmt: skip
    made = write_detector(options.net, f"{options.folder}/made", f"{work}/net", choices, device.target)
    spare(made.path("train_val.prototxt"), options.expand)
    training = Training(made.path("solver.prototxt"), device)
    result |= {"scenes": made.images.train.images, "test scenes": made.images.test.images, "untrained": training.precision(), "map": {}}
    training.step(FIRST)
    done, seconds = FIRST, 0.0
    for part in range(1, options.parts + 1):
        upto = options.iterations * part // options.parts
        seconds += training.step(upto - done)
        done = upto
        result["map"][done] = training.precision()
        result |= {"loss": training.loss, "ms": 1000 * seconds / (done - FIRST)}
        print(json.dumps(result), flush=True)
    training.solver.net.save(f"{work}/net/{options.net}.caffemodel")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
