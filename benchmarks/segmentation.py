#!/usr/bin/env python3
"""A segmentation net of the zoo: from images and masks to the mean IoU on held-out images. PyTorch can train the same net on the same batches.

    benchmarks/segmentation.py digits --data DIGITS
    benchmarks/segmentation.py data --data DATA [--mnist DIGITS] [--images 2000] [--held-out 200] [--size 128] [--parts 1] [--backbone 1]
    benchmarks/segmentation.py unet --data DATA --out DIR [--iterations 4000] [--minutes M] [--batch 16] [--backbone 0] [--narrow 1]
        [--weights FILE] [--batch-norm] [--class-weights none] [--solver FIELDS] [--augment FIELDS] [--device D] [--math M]
        [--ranks 1] [--torch cpu|cuda|none] [--json FILE]

The first command writes scikit-learn's digits in MNIST's format, for machines without scikit-learn. The second one makes scenes by `ocaffe dataset
shapes`: ten digits and the background. With `--parts N` so many processes make equal parts of them, from other seeds. The third one writes the files
by `ocaffe new` and trains by `ocaffe train`. It tests the first weights, the best snapshot and the last one on the held-out scenes. The mean IoU of
both frameworks is computed here, from the best class of each pixel.

`--backbone N` makes images of single digits of another seed, and first trains VGG-16 for N iterations on them. FCN-8s and SegNet begin with these
weights. `--ranks N`: N devices train together, each with batches of its own. `--minutes M`: the whole command takes M minutes. It first trains some
hundred iterations, and then as many as there is time for.
`--narrow 8` divides the channels of all layers but the scores, for a try on a CPU without a backbone. PyTorch begins with the same weights as ocaffe,
and ocaffe's data layer makes its batches.
DIR gets the log, the records of the log as JSON, and the weights. Several nets may run at once, each in a process.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import re
import shutil
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

import ocaffe
from ocaffe import log, proto
from ocaffe.cl.device import Device, select_device
from ocaffe.cli import main as command
from ocaffe.data.workers import cores
from ocaffe.formats.filter import filter_net
from ocaffe.formats.text import read_net, read_solver
from ocaffe.layers.seg_accuracy import figures
from ocaffe.tools.datasets.sets import digits
from ocaffe.zoo.project import Choices, Project, write_project
from ocaffe.zoo.segmentation_project import IGNORE, SCORE, write_segmenter
from ocaffe.zoo.text import prototxt

CLASSES = 11
SEED, CROPS_SEED = 1, 7
CROPS, CROP = 10000, 96
PROBE = 400  # iterations that tell the time of one
SPARED = 45.0  # seconds for the start, the tests and the snapshots of a training
SLOWER = 1.04  # a long training against the probe
WEIGHTED = {"Convolution": "convolution_param", "Deconvolution": "convolution_param", "InnerProduct": "inner_product_param"}


def run(*arguments: str) -> None:
    if command(list(arguments)):
        sys.exit(f"failed: ocaffe {' '.join(arguments)}")


def make_digits(folder: str) -> None:
    """Write scikit-learn's digits as the four files of MNIST."""
    os.makedirs(folder, exist_ok=True)
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images, labels = digits(None).parts[part].images[:, 0], digits(None).parts[part].labels
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape)
            pathlib.Path(folder, f"{prefix}-{name}-ubyte").write_bytes(head + values.astype(np.uint8).tobytes())


def make_data(options: argparse.Namespace) -> None:
    """Make scenes with masks, and with --backbone images of single digits."""
    mnist, count = ("--mnist", options.mnist) if options.mnist else (), options.parts
    masks = pathlib.Path(options.data, "masks")
    parts = [masks / f"part{part}" for part in range(count)] if count > 1 else [masks]
    os.environ.setdefault("OCAFFE_WORKERS", str(max(1, cores() // count)))
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        sizes = options.images // count, options.held_out // count, options.size
        making = [pool.submit(make_masks, str(part), *sizes, SEED + (CROPS_SEED + 1) * n, mnist) for n, part in enumerate(parts)]
        if options.backbone:
            single = "--size", "64x64", "--crops", str(CROPS), "--crop-size", str(CROP), "--seed", str(CROPS_SEED)
            run("dataset", "shapes", f"{options.data}/digits", "--images", "10", *single, *mnist)
        for each in making:
            each.result()
    for name in ("train.txt", "test.txt") if count > 1 else ():
        names = ([f"{part.name}/{word}" for word in line.split()] for part in parts for line in (part / name).read_text().splitlines())
        (masks / name).write_text("".join(f"{' '.join(pair)}\n" for pair in names))
    if count > 1:  # without class_weights.prototxt, which belongs to one part
        shutil.copy(parts[0] / "labels.txt", masks)


def make_masks(masks: str, images: int, held_out: int, size: int, seed: int, mnist: tuple[str, ...]) -> None:
    """Make scenes, and a folder of their images and masks."""
    scenes = f"{masks}-scenes"
    shares = "--images", str(images + held_out), "--splits", f"{images},0,{held_out}"
    run("dataset", "shapes", scenes, *shares, "--size", f"{size}x{size}", "--seed", str(seed), *mnist)
    run("dataset", "masks", f"{scenes}/JPEGImages", f"{scenes}/SegmentationClass", masks, "--lists", f"{scenes}/ImageSets/Segmentation")
    shutil.rmtree(scenes)


def train(solver: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train by the command line. Return seconds, ms per step and the curve, which the log has."""
    folder = os.path.dirname(solver)
    place = f"--gpu={','.join(map(str, range(options.ranks)))}" if options.ranks > 1 else f"--device={options.device}" if options.device else ""
    flags = [flag for flag in (place, f"--math={options.math}" if options.math else "") if flag]
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "ocaffe", "train", "--solver", solver, "--quiet", "--log", f"{folder}/train.log", "--log-json",
                    f"{folder}/train.json", *flags], check=True)  # fmt: skip
    seconds = time.perf_counter() - begin
    rates = [float(rate) for rate in re.findall(r"\(([\d.e+-]+) iter/s", pathlib.Path(folder, "train.log").read_text()) if float(rate)]
    records = [json.loads(line) for line in pathlib.Path(folder, "train.json").read_text().splitlines()]
    trained = [record for record in records if record["phase"] == "train"]
    return {
        "seconds": round(seconds, 1), "ms": round(1000 / statistics.median(rates[1:]), 2) if rates[1:] else None,
        "data_wait": round(statistics.median(record.get("data_wait", 0) for record in trained), 3),
        "loss": [(record["iteration"], round(record["loss"], 4)) for record in trained],
        "mean_iou": [(record["iteration"], round(record["outputs"][SCORE][0], 4)) for record in records if SCORE in record["outputs"]],
    }  # fmt: skip


def backbone(options: argparse.Namespace) -> str:
    """Train VGG-16 on images of single digits, and return its weights. Pixels are scaled as for FCN-8s from fillers."""
    adam = 'type: "Adam" base_lr: 0.0001 momentum2: 0.999 weight_decay: 0.0001 snapshot: 1000000'
    # FCN-8s needs fc6 for 7 x 7 places. SegNet has no fc6, so its backbone may see smaller images
    size = 0 if options.net == "fcn8s" else 64
    choices = Choices(batch=64, iterations=options.backbone, transform=options.transform, solver=adam, augment="", size=size)
    made = write_project("vgg16", f"{options.data}/digits/crops", f"{options.out}/backbone", choices)
    found = train(made.path("solver.prototxt"), options)
    records = [json.loads(line) for line in pathlib.Path(made.path("train.json")).read_text().splitlines()]
    accuracy = next(record["outputs"][made.accuracy][0] for record in reversed(records) if record["phase"] == "test")
    print(f"backbone: accuracy {accuracy:.4f} on other digits, {found['seconds']} s", flush=True)
    return f"{made.prefix}_iter_{options.backbone}.caffemodel"


def narrow(made: Project, factor: int, classes: int) -> None:
    """Divide the outputs of all layers but those of the classes."""
    for file in ("train_val.prototxt", "deploy.prototxt") if factor > 1 else ():
        message = read_net(made.path(file))
        for layer in message.layer:
            param = getattr(layer, WEIGHTED.get(layer.type, "convolution_param"))
            if layer.type in WEIGHTED and param.num_output != classes:
                param.num_output //= factor
        pathlib.Path(made.path(file)).write_text(prototxt(message))


def net_of(file: str, phase: int) -> Any:
    return filter_net(read_net(file), proto.NetState(phase=phase))


def batches(file: str, phase: int, count: int, device: Device) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield what the net's data layer yields: images and labels."""
    message = proto.NetParameter(layer=[layer for layer in net_of(file, phase).layer if layer.type == "DenseImageData"])
    with ocaffe.Net(message, phase, device=device) as net:
        for _ in range(count):
            net.forward()
            yield np.array(net.blobs["data"].data), np.array(net.blobs["label"].data)


def confusion(labels: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return pixels by true class and found class."""
    kept = labels != IGNORE
    return np.bincount(labels[kept].astype(np.int64) * CLASSES + found[kept].astype(np.int64), minlength=CLASSES**2).reshape(CLASSES, -1)


def scores(counts: np.ndarray) -> dict[str, Any]:
    found = figures(counts)
    return {"mean_iou": round(found.mean_iou, 4), "accuracy": round(float(found.accuracy), 4), "iou": [round(float(each), 4) for each in found.iou]}


def test(file: str, weights: str, count: int, device: Device, batch: int = 0) -> dict[str, Any]:
    """Return the scores of the TEST net. `batch`: in place of the file's."""
    message = net_of(file, proto.TEST)
    top = next(layer.bottom[0] for layer in message.layer if layer.type == "SegAccuracy")
    kept = proto.NetParameter(layer=[layer for layer in message.layer if layer.type not in ("SegAccuracy", "SoftmaxWithLoss")])
    data = next(layer.dense_image_data_param for layer in kept.layer if layer.type == "DenseImageData")
    if batch:
        count, data.batch_size = count * data.batch_size // batch, batch
    counts = np.zeros((CLASSES, CLASSES), np.int64)
    with ocaffe.Net(kept, proto.TEST, weights=weights, device=device) as net:
        for _ in range(count):
            net.forward()
            counts += confusion(np.array(net.blobs["label"].data)[:, 0], np.array(net.blobs[top].data).argmax(1))
    return scores(counts)


def rates(settings: Any) -> list[float]:
    """Return the rate of each iteration: the policy poly."""
    return [settings.base_lr * (1 - iteration / settings.max_iter) ** settings.power for iteration in range(settings.max_iter)]


def peer(file: str, weights: str, settings: Any, count: int, device: Device, place: str) -> dict[str, Any]:
    """Train and test the same net in PyTorch."""
    import torch
    from segmentation_torch import Peer

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with ocaffe.Net(net_of(file, proto.TRAIN), proto.TRAIN, weights=weights, device=device) as net:
        first = {name: [np.array(blob.data) for blob in blobs] for name, blobs in net.params.items()}
    net = Peer(net_of(file, proto.TRAIN), first).to(place)
    times, losses = [], []
    optimizer = net.optimizer(settings)
    for rate, (images, labels) in zip(rates(settings), batches(file, proto.TRAIN, settings.max_iter, device)):
        begin = time.perf_counter()
        losses.append(net.step(optimizer, rate, torch.from_numpy(images).to(place), torch.from_numpy(labels).to(place)))
        times.append(time.perf_counter() - begin)
    net.eval()
    counts = np.zeros((CLASSES, CLASSES), np.int64)
    for images, labels in batches(file, proto.TEST, count, device):
        with torch.no_grad():
            counts += confusion(labels[:, 0], net(torch.from_numpy(images).to(place)).argmax(1).cpu().numpy())
    made = {"ms": round(1000 * statistics.median(times), 2), "last loss": round(statistics.mean(losses[-50:]), 4), "version": torch.__version__}
    return {**scores(counts), **made}


def write(options: argparse.Namespace, weights: str, folder: str, iterations: int, device: Device) -> Project:
    """Write the files of a training into a folder of `options.out`."""
    choices = Choices(
        batch=options.batch, iterations=iterations, weights=weights, transform=options.transform if weights else "", solver=options.solver,
        class_weights=options.class_weights, augment=options.augment, batch_norm=options.batch_norm,
    )  # fmt: skip
    made = write_segmenter(options.net, f"{options.data}/masks", f"{options.out}/{folder}", choices, device.target)
    narrow(made, options.narrow, CLASSES)
    return made


def fitting(options: argparse.Namespace, weights: str, begin: float, device: Device) -> int:
    """Return the iterations that end `options.minutes` after `begin`, from a short training."""
    ms = train(write(options, weights, "probe", PROBE, device).path("solver.prototxt"), options)["ms"]
    left = 60 * options.minutes - (time.perf_counter() - begin) - SPARED
    iterations = int(left * 1000 / ms / SLOWER) // 100 * 100
    print(f"{ms} ms an iteration, {iterations} iterations", flush=True)
    if iterations < PROBE:
        sys.exit(f"--minutes {options.minutes:g}: {left:.0f} s are left, and {PROBE} iterations take {PROBE * ms / 1000:.0f} s. Remedy: more minutes")
    return iterations


def measure(options: argparse.Namespace) -> dict[str, Any]:
    begin = time.perf_counter()
    device = select_device(options.device or None, math=options.math or None)
    weights = backbone(options) if options.backbone else options.weights
    if options.minutes:
        options.iterations = fitting(options, weights, begin, device)
    made = write(options, weights, options.net, options.iterations, device)
    for note in made.notes:
        print(note)
    file, settings = made.path("train_val.prototxt"), read_solver(made.path("solver.prototxt"))
    count, first = settings.test_iter[0], made.path("first.caffemodel")
    result: dict[str, Any] = {"device": device.name, "math": device.target.math}
    result |= {name: getattr(options, name) for name in ("net", "iterations", "backbone", "narrow", "batch_norm", "augment", "ranks", "solver")}
    result |= {"batch": made.batch, "images": made.images.train.images, "held_out": made.images.test.images, "input": made.shape}
    settings.random_seed = SEED  # so that the first weights are those of the training
    pathlib.Path(made.path("solver.prototxt")).write_text(prototxt(settings))
    untrained = ocaffe.get_solver(settings, device=device)
    untrained.net.save(first)
    untrained.close()
    result["untrained"] = test(file, first, count, device)
    result["training"] = train(made.path("solver.prototxt"), options)
    result["ocaffe"] = test(file, f"{made.prefix}_iter_{settings.max_iter}.caffemodel", count, device)
    best = sorted(pathlib.Path(options.out, options.net).glob("*_best_iter_*.caffemodel"))
    if best:
        result["best"] = test(file, str(best[-1]), count, device) | {"file": best[-1].name}
        result["one image at a time"] = test(file, str(best[-1]), count, device, batch=1)["mean_iou"]
    print(json.dumps(result), flush=True)
    if options.torch != "none":
        result["PyTorch"] = peer(file, first, settings, count, device, options.torch)
        print(json.dumps(result["PyTorch"]), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("net", choices=("digits", "data", "unet", "segnet", "segnet_basic", "fcn8s"))
    for name, value in (("images", 2000), ("held-out", 200), ("size", 128), ("iterations", 4000), ("batch", 16), ("backbone", 0), ("narrow", 1),
                        ("parts", 1), ("ranks", 1)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--minutes", type=float, default=0, help="choose the iterations so that the command takes so long")
    for name in ("weights", "class-weights", "solver", "augment", "device", "math", "data", "mnist", "out", "json"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--transform", default="mean_value: 104 mean_value: 117 mean_value: 123 scale: 0.017", help="of the backbone and the weights")
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--torch", default="none", help="cpu, cuda or none")
    options = parser.parse_args()
    log.quiet()
    if options.narrow > 1 and options.backbone:
        parser.error("--narrow and --backbone: the weights of the backbone have the published shapes")
    if options.net == "digits":
        return make_digits(options.data)
    if options.net == "data":
        return make_data(options)
    result = measure(options)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
