#!/usr/bin/env python3
"""Faster R-CNN with ZF on scenes of digits: the mean average precision on images that it did not train on, and ms per step.

    benchmarks/rcnn.py [--device SPEC] [--mnist FOLDER] [--iterations 16000] [--json FILE]

The convolutions and fc6, fc7 are first trained as a classifier of single digits, which have another seed than the scenes. Then the whole net is trained end
to end by `ocaffe train`. A test before the first iteration is the baseline. All data are made here. A step has data, forward, backward and update.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ocaffe import proto  # noqa: E402
from ocaffe.formats.param_str import read_settings, with_settings  # noqa: E402
from ocaffe.formats.text import parse, write_text  # noqa: E402
from ocaffe.zoo.detection_project import write_detector  # noqa: E402
from ocaffe.zoo.net import MSRA, Net, gaussian, lines  # noqa: E402
from ocaffe.zoo.project import Choices  # noqa: E402
from ocaffe.zoo.region_detectors import RATIOS, fc6_and_fc7, zf  # noqa: E402

MEANS = (102.9801, 115.9465, 122.7717)
CROP = 80  # pixels of a crop: then conv5 has 6 x 6 cells, as many as a pooled region


def ocaffe(*words: str, quiet: bool = True) -> str:
    """Run a command and return its log."""
    found = subprocess.run([sys.executable, "-m", "ocaffe", *words], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        sys.exit(f"ocaffe {' '.join(words)}:\n{found.stderr[-3000:]}{found.stdout[-1000:]}")
    if not quiet:
        print(found.stdout, end="", flush=True)
    return found.stderr


def classifier(data: str) -> Any:
    """Return a net with ZF's layers up to fc7 that classifies crops."""
    net = Net(False)
    for phase, part, batch in (("TRAIN", "train", 128), ("TEST", "test", 100)):
        source = {"source": f"{data}/{part}_lmdb", "batch_size": batch, "backend": "LMDB"}
        shuffle = {"shuffle": True} if phase == "TRAIN" else {}
        net.layers.append({"name": "data", "type": "Data", "top": ["data", "label"], "include": {"phase": phase}, "data_param": {**source, **shuffle},
                           "transform_param": {"mean_value": list(MEANS)}})  # fmt: skip
    x = fc6_and_fc7(net, zf(net, "data"))
    net.classify(net.fc("digit", x, 10, weight=gaussian(0.01), bias=0), top5="")
    for layer in net.layers:  # from fillers for pretrained nets to fillers that keep the size of values, with pixels of +-128
        for field in ("convolution_param", "inner_product_param"):
            if field in layer and layer["name"] != "digit":
                layer[field]["weight_filler"] = gaussian(0.0018) if layer["name"] == "conv1" else MSRA
    return parse("\n".join(lines({"name": "ZF-crops", "layer": net.layers})), proto.NetParameter)


def set_anchors(path: pathlib.Path, scales: list[float]) -> None:
    """Give the net in a prototxt anchors of these scales."""
    net = parse(path.read_text(), proto.NetParameter)
    old = None
    for layer in net.layer:
        own = read_settings(layer.python_param.param_str)
        if "feat_stride" in own:
            old = RATIOS * len(own["scales"])
            layer.python_param.param_str = with_settings(layer.python_param.param_str, {"scales": scales})
    assert old is not None
    for layer in net.layer:
        if layer.name in ("rpn_cls_score", "rpn_bbox_pred"):
            layer.convolution_param.num_output = layer.convolution_param.num_output // old * RATIOS * len(scales)
        if layer.name == "rpn_cls_prob_reshape":
            layer.reshape_param.shape.dim[1] = 2 * RATIOS * len(scales)
    path.write_text(write_text(net))


def milliseconds(text: str) -> float:
    """Return ms per step from the lines of a training: the median over the intervals of `display`, without the first."""
    speeds = [float(found) for found in re.findall(r"Iteration \d+ \(([\d.]+) iter/s", text)][2:]
    return 1000 / statistics.median(speeds) if speeds else float("nan")


def records(path: pathlib.Path, phase: str) -> list[dict[str, Any]]:
    return [each for each in map(json.loads, path.read_text().splitlines()) if each["phase"] == phase]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="")
    parser.add_argument("--mnist", default="", help="folder with MNIST's IDX files, for its digits; without it scikit-learn is needed")
    parser.add_argument("--scenes", type=int, default=6000, help="images for training")
    parser.add_argument("--held-out", type=int, default=300, help="images for testing")
    parser.add_argument("--pixels", type=int, default=200, help="side of a scene")
    parser.add_argument("--side", type=int, default=300, help="shorter side of the net's images")
    parser.add_argument("--crops", type=int, default=20000)
    parser.add_argument("--pretraining", type=int, default=1500, help="iterations of the classifier")
    parser.add_argument("--iterations", type=int, default=16000)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--solver", default="", help="more fields of the solver")
    parser.add_argument("--anchors", default="2,3.2,5,8,12.6", help="scales of the anchors, in 16 pixels of the net's images")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    device = ["--device", options.device] if options.device else []
    begin = time.perf_counter()

    def told(what: str, **more: Any) -> None:
        print(f"{time.perf_counter() - begin:6.1f} s  {what}", *(f"{name} {value:.4g}" for name, value in more.items()), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        whole = options.scenes + options.held_out
        size = f"{options.pixels}x{options.pixels}"
        shares = f"{100 * options.scenes / whole},{100 * options.held_out / whole},0"
        digits = ["--mnist", options.mnist] if options.mnist else []
        made = [
            subprocess.Popen([sys.executable, "-m", "ocaffe", "dataset", "shapes", *words, *digits], cwd=ROOT, stdout=subprocess.DEVNULL)
            for words in ((f"{folder}/scenes", "--images", str(whole), "--size", size, "--splits", shares, "--seed", "1"),
                          (f"{folder}/other", "--images", "10", "--size", size, "--crops", str(options.crops), "--seed", "2"))
        ]  # fmt: skip
        if any(process.wait() for process in made):
            sys.exit("the data cannot be made")
        ocaffe("dataset", "voc", f"{folder}/scenes", f"{folder}/boxes", quiet=False)
        ocaffe("dataset", "folder", f"{folder}/other/crops", f"{folder}/crops", "--test", "0.1", "--resize-height", str(CROP), "--resize-width", str(CROP))
        told("data")

        pathlib.Path(f"{folder}/crops.prototxt").write_text(write_text(classifier(f"{folder}/crops")))
        tests = max(options.crops // 10 // 100, 1)
        pathlib.Path(f"{folder}/crops_solver.prototxt").write_text(
            f'net: "{folder}/crops.prototxt" type: "Adam" base_lr: 0.0003 momentum: 0.9 momentum2: 0.999 weight_decay: 0.0005 lr_policy: "poly" power: 1 '
            f'max_iter: {options.pretraining} '
            f'test_iter: {tests} test_interval: {options.pretraining} test_initialization: false display: {max(options.pretraining // 20, 1)} '
            f'snapshot_prefix: "{folder}/zf"'
        )
        text = ocaffe("train", "--solver", f"{folder}/crops_solver.prototxt", "--log_json", f"{folder}/crops.log", *device, "-v")
        accuracy = records(pathlib.Path(f"{folder}/crops.log"), "test")[-1]["outputs"]["accuracy"]
        told("classifier of crops:", accuracy=_number(accuracy), ms=milliseconds(text))

        solver = f"base_lr: {options.rate} test_interval: {options.iterations} test_initialization: true clip_gradients: 35 {options.solver}"
        weights = f"{folder}/zf_iter_{options.pretraining}.caffemodel"
        choices = Choices(size=options.side, weights=weights, iterations=options.iterations, augment="", solver=solver)
        project = write_detector("faster_rcnn_zf", f"{folder}/boxes", f"{folder}/net", choices)
        set_anchors(pathlib.Path(project.path("train_val.prototxt")), [float(scale) for scale in options.anchors.split(",")])
        text = ocaffe("train", "--solver", project.path("solver.prototxt"), "--log_json", f"{folder}/net.log", *device, "-v")
        log = pathlib.Path(f"{folder}/net.log")
        scores = [_number(each["outputs"]["detection_eval"]) for each in records(log, "test")]
        losses = [each["loss"] for each in records(log, "train")]
        found = re.search(r"Device \S+ (.*)", text)
        result = {
            "device": found[1] if found else "", "scenes": options.scenes, "held out": options.held_out, "iterations": options.iterations,
            "crops accuracy": _number(accuracy), "map before": scores[0], "map": scores[-1], "ms per step": milliseconds(text), "first loss": losses[0],
            "last loss": losses[-1], "losses": losses[:: max(len(losses) // 20, 1)], "seconds": time.perf_counter() - begin,
        }  # fmt: skip
        told("end to end:", map_before=scores[0], map=scores[-1], ms=result["ms per step"], first_loss=losses[0], last_loss=losses[-1])
    print(json.dumps(result))
    if options.json:
        pathlib.Path(options.json).parent.mkdir(parents=True, exist_ok=True)
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


def _number(value: Any) -> float:
    return float(value[0] if isinstance(value, list) else value)


if __name__ == "__main__":
    main()
