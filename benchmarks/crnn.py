#!/usr/bin/env python3
"""CRNN of the zoo: from made lines of text to the share of whole strings on held-out images. PyTorch trains the same net on the same batches.

    benchmarks/crnn.py OUT [--mnist FOLDER] [--images 22000] [--splits 20,2] [--iterations 6000] [--batch 32] [--solver FIELDS] [--augment FIELDS]
                       [--device D] [--math M] [--torch cpu|cuda|none] [--json FILE]

`ocaffe dataset text` makes OUT/data, if it is not there. `ocaffe new crnn` writes the files into OUT/net, and `ocaffe train` trains with the log
OUT/crnn.log, from the weights OUT/first.caffemodel. PyTorch begins with the same weights. ocaffe's data layer reads and changes the images of both.
The shares of both are computed by `shares` below. ocaffe's ms are the median of the log, with the data layer, and PyTorch's are without it.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import ocaffe
from ocaffe import log, proto
from ocaffe.cl.device import Device, select_device
from ocaffe.cli import main as command
from ocaffe.formats.filter import filter_net
from ocaffe.formats.text import read_net, read_solver
from ocaffe.zoo.project import Choices, Project
from ocaffe.zoo.text_project import write_reader

BLANK = 0
Batch = tuple[np.ndarray, np.ndarray]


def run(*arguments: str) -> None:
    if command(list(arguments)):
        sys.exit(f"failed: ocaffe {' '.join(arguments)}")


def batches(made: Project, phase: int, count: int, device: Device) -> Iterator[Batch]:
    """Yield what the net's data layer yields: images N x 1 x H x W, and labels N x L."""
    message = filter_net(read_net(made.path("train_val.prototxt")), proto.NetState(phase=phase))
    with ocaffe.Net(proto.NetParameter(layer=[layer for layer in message.layer if layer.type == "ImageData"]), phase, device=device) as net:
        for _ in range(count):
            net.forward()
            yield np.array(net.blobs["data"].data), np.array(net.blobs["label"].data).astype(np.int64)


def decoded(scores: np.ndarray) -> list[list[int]]:
    """Return the texts of scores T x N x C: the best classes without repetitions and blanks."""
    best = scores.argmax(2).T.tolist()
    return [[c for t, c in enumerate(row) if c != BLANK and (not t or c != row[t - 1])] for row in best]


def shares(found: list[list[int]], labels: list[list[int]]) -> dict[str, float]:
    """Return the share of whole strings, and of characters: 1 - edit distances / characters of all texts."""
    errors = sum(distance(text, true) for text, true in zip(found, labels, strict=True))
    return {"strings": float(np.mean([text == true for text, true in zip(found, labels)])), "characters": 1 - errors / sum(map(len, labels))}


def distance(a: list[int], b: list[int]) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def texts_of(labels: np.ndarray) -> list[list[int]]:
    return [[c for c in row if c != BLANK] for row in labels.tolist()]


def test_ocaffe(made: Project, weights: str, held_out: list[Batch], device: Device) -> dict[str, float]:
    """Return the shares by the deploy net, whose CTCGreedyDecoder decodes."""
    found: list[list[int]] = []
    with ocaffe.Net(made.path("deploy.prototxt"), weights, ocaffe.TEST, device=device) as net:
        for images, _ in held_out:
            net.blobs["data"].reshape(*images.shape)
            net.blobs["data"].data[...] = images
            net.forward()
            found += [[int(c) for c in row if c >= 0] for row in net.blobs["text"].data.reshape(len(images), -1)]
    return shares(found, [text for _, labels in held_out for text in texts_of(labels)])


def train_ocaffe(made: Project, out: pathlib.Path, flags: list[str]) -> tuple[float, float, str]:
    """Train by the command. Return the median ms of an iteration, the seconds of the command, and the file of the weights."""
    solver, began = made.path("solver.prototxt"), time.perf_counter()
    arguments = [sys.executable, "-m", "ocaffe", "train", f"--solver={solver}", f"--weights={out / 'first.caffemodel'}", *flags]
    with open(out / "crnn.log", "w") as written:
        code = subprocess.run(arguments, stderr=written).returncode
    if code:
        sys.exit(f"the training failed: {out / 'crnn.log'}")
    seconds = time.perf_counter() - began
    rates = [float(rate) for rate in re.findall(r"Iteration \d+ \(([\d.e+-]+) iter/s", (out / "crnn.log").read_text())]
    return 1000 / statistics.median(rates), seconds, f"{made.prefix}_iter_{made.iterations}.caffemodel"


# -- PyTorch ---------------------------------------------------------------------------------------------------------


def peer(made: Project, first: dict[str, list[np.ndarray]]) -> tuple[Any, list[dict[str, Any]]]:
    """Return the TRAIN net as a module from images N x 1 x H x W to scores T x N x C. Return its parameters in groups with factors of rate and decay too."""
    import torch
    from torch import nn

    class Lines(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.ModuleList()
            for layer in filter_net(read_net(made.path("train_val.prototxt")), proto.NetState(phase=proto.TRAIN)).layer:
                blobs = [torch.tensor(blob) for blob in first.get(layer.name, [])]
                if layer.type == "Convolution":
                    p = layer.convolution_param
                    kernel = (p.kernel_h, p.kernel_w) if p.kernel_h else (p.kernel_size[0],) * 2
                    self.steps.append(nn.Conv2d(blobs[0].shape[1], len(blobs[0]), kernel, padding=p.pad[0] if p.pad else 0, bias=False))
                    self.steps[-1].weight.data.copy_(blobs[0])
                elif layer.type == "BatchNorm":
                    p = layer.batch_norm_param
                    self.steps.append(nn.BatchNorm2d(len(blobs[0]), eps=p.eps, momentum=1 - p.moving_average_fraction))
                elif layer.type == "ReLU":
                    self.steps.append(nn.ReLU())
                elif layer.type == "Pooling":
                    p = layer.pooling_param
                    self.steps.append(nn.MaxPool2d((p.kernel_h, p.kernel_w)))
                elif layer.type == "Lstm" and layer.name == "lstm":
                    self.lstm = nn.LSTM(blobs[0].shape[1], layer.lstm_param.num_output, bidirectional=True)
                    self._gates(blobs, "")
                elif layer.type == "Lstm":
                    self._gates(blobs, "_reverse")
                elif layer.type == "Dropout":
                    self.dropout = nn.Dropout(layer.dropout_param.dropout_ratio)
                elif layer.type == "InnerProduct":
                    self.scores = nn.Linear(blobs[0].shape[1], len(blobs[0]))
                    self.scores.weight.data.copy_(blobs[0])
                elif layer.type not in ("ImageData", "Scale", "Permute", "Reverse", "Concat", "WarpCTCLoss"):  # Scale is in BatchNorm2d, the others are below
                    sys.exit(f"the module has no {layer.type}")

        def _gates(self, blobs: list[Any], end: str) -> None:
            """Copy an LSTM's weights. Caffe has the gates in the order i, f, o, g, PyTorch i, f, g, o. Caffe has one bias; PyTorch's second one stays 0."""
            for name, blob in zip(("weight_ih", "weight_hh", "bias_ih"), blobs):
                i, f, o, g = blob.chunk(4)
                getattr(self.lstm, f"{name}_l0{end}").data.copy_(torch.cat([i, f, g, o]))
            other = getattr(self.lstm, f"bias_hh_l0{end}")
            other.data.zero_()
            other.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            for step in self.steps:
                x = step(x)
            return self.scores(self.dropout(self.lstm(x.squeeze(2).permute(2, 0, 1))[0]))

    module = Lines()
    module.scores.bias.data.zero_()
    twice = [module.scores.bias]
    others = [parameter for parameter in module.parameters() if parameter.requires_grad and parameter is not module.scores.bias]
    return module, [{"params": others, "factor": 1, "decay": 1}, {"params": twice, "factor": 2, "decay": 0}]


def train_torch(made: Project, first: dict[str, list[np.ndarray]], given: Iterator[Batch], place: str) -> tuple[Any, float]:
    """Return the trained module and the median ms of a step without the data layer."""
    import torch
    from torch.nn import functional

    settings = read_solver(made.path("solver.prototxt"))
    module, groups = peer(made, first)
    module.to(place)
    for group in groups:
        group["weight_decay"] = settings.weight_decay * group["decay"]
    optimizer = torch.optim.Adam(groups, betas=(settings.momentum, settings.momentum2), eps=settings.delta)
    times = []
    for iteration, (images, labels) in enumerate(given):
        for group in optimizer.param_groups:
            group["lr"] = group["factor"] * settings.base_lr * (1 - iteration / settings.max_iter) ** settings.power
        began = time.perf_counter()
        x, y = torch.from_numpy(images).to(place), torch.from_numpy(labels).to(place)
        scores = module(x)
        steps = torch.full((len(images),), len(scores), dtype=torch.long)
        # as in Caffe's forks, the gradient is that of the sum over the samples
        loss = functional.ctc_loss(scores.log_softmax(2), y, steps, (y != BLANK).sum(1), BLANK, "sum", zero_infinity=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        times.append(time.perf_counter() - began)
    return module, 1000 * statistics.median(times)


def test_torch(module: Any, held_out: list[Batch], place: str) -> dict[str, float]:
    import torch

    module.eval()
    found: list[list[int]] = []
    with torch.no_grad():
        for images, _ in held_out:
            found += decoded(module(torch.from_numpy(images).to(place)).cpu().numpy())
    return shares(found, [text for _, labels in held_out for text in texts_of(labels)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--mnist", default="")
    parser.add_argument("--images", type=int, default=22000)
    parser.add_argument("--splits", default="20,2")
    parser.add_argument("--iterations", type=int, default=6000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--solver", default="", help="more fields of the solver")
    parser.add_argument("--augment", default=None)
    parser.add_argument("--device", default="")
    parser.add_argument("--math", default="")
    parser.add_argument("--torch", default="cpu", choices=("cpu", "cuda", "none"))
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    data, net = str(options.out / "data"), str(options.out / "net")
    if not os.path.exists(data):
        digits = [f"--mnist={options.mnist}"] if options.mnist else []
        run("dataset", "text", data, f"--images={options.images}", f"--splits={options.splits}", *digits)
    log.quiet()  # after the command, which sets the level anew
    shutil.rmtree(net, ignore_errors=True)
    device = select_device(options.device or None, math=options.math or None)
    choices = Choices(batch=options.batch, iterations=options.iterations, solver=options.solver, augment=options.augment)
    made = write_reader("crnn", data, net, choices, device.target)
    settings = read_solver(made.path("solver.prototxt"))
    solver = ocaffe.get_solver(settings, device=device)
    first = {name: [np.array(blob.data) for blob in blobs] for name, blobs in solver.net.params.items()}
    solver.net.save(str(options.out / "first.caffemodel"))
    solver.close()
    held_out = list(batches(made, proto.TEST, settings.test_iter[0], device))
    flags = [f"--{name}={value}" for name, value in (("device", options.device), ("math", options.math)) if value]
    ms, seconds, weights = train_ocaffe(made, options.out, flags)
    result: dict[str, Any] = {
        "images": made.images.train.images, "held out": made.images.test.images, "iterations": made.iterations, "batch": made.batch,
        "untrained": test_ocaffe(made, str(options.out / "first.caffemodel"), held_out, device),
        "ocaffe": {**test_ocaffe(made, weights, held_out, device), "ms": ms, "seconds": seconds, "device": str(device)},
    }  # fmt: skip
    print(json.dumps(result), flush=True)
    if options.torch != "none":
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        module, ms = train_torch(made, first, batches(made, proto.TRAIN, made.iterations, device), options.torch)
        result["PyTorch"] = {**test_torch(module, held_out, options.torch), "ms": ms, "version": torch.__version__}
        print(json.dumps(result), flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
