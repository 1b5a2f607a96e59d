#!/usr/bin/env python3
"""A training step of SSD300-VGG, compared with torchvision's ssd300_vgg16, in turn: ms per step, and memory. Matching and mining belong to both.

    benchmarks/ssd300.py [--batch 32] [--math ieee tf32 bf16] [--steps 20] [--rounds 3] [--device D] [--torch cuda|cpu|none] [--json FILE]

The images and boxes are on the device. torchvision's own resize and normalisation of images are left out, because ocaffe's are in the data layer. A figure
is the median over rounds of the mean of queued steps. `ieee` is float32 without tensor cores on both sides, `tf32` allows TF32, `bf16` is PyTorch's
autocast. PyTorch runs in both memory formats; the better one counts. Memory: ocaffe's plan, which is what it allocates, and PyTorch's peak of allocated
memory with the parameters, the gradients and the momentum.
"""
import argparse
import contextlib
import json
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from resident import ROOT

import ocaffe
from ocaffe import log, proto
from ocaffe.cl.device import select_device
from ocaffe.compiler.network import phase_net
from ocaffe.formats.text import read_net

SIZE, CLASSES, OBJECTS, WARM = 300, 21, 3, 3
RATE, MOMENTUM, DECAY = 1e-4, 0.9, 5e-4


def scene(batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images and SSD's rows of boxes: image, label, instance, left, top, right, bottom, difficult."""
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, 3, SIZE, SIZE), np.float32)
    corner, size = rng.uniform(0, 0.5, (batch * OBJECTS, 2)), rng.uniform(0.08, 0.5, (batch * OBJECTS, 2))
    numbers = np.arange(batch * OBJECTS)
    columns = [numbers // OBJECTS, rng.integers(1, CLASSES, len(numbers)), numbers % OBJECTS, *corner.T, *(corner + size).T, 0 * numbers]
    return images, np.stack(columns, 1).astype(np.float32)


def timed(run: Callable[[int], object], finish: Callable[[], object], steps: int, rounds: int) -> float:
    run(WARM)
    finish()
    means = []
    for _ in range(rounds):
        begin = time.perf_counter()
        run(steps)
        finish()
        means.append((time.perf_counter() - begin) * 1e3 / steps)
    return statistics.median(means)


def ocaffe_step(options: argparse.Namespace, math: str) -> dict[str, float]:
    images, boxes = scene(options.batch)
    message = phase_net(read_net(str(ROOT / "zoo/ssd300_vgg16/train_val.prototxt")), proto.TRAIN)
    net = proto.NetParameter(name=message.name)
    data = net.layer.add(name="data", type="Input", top=["data", "label"])
    data.input_param.shape.add(dim=images.shape)
    data.input_param.shape.add(dim=(1, 1, *boxes.shape))
    net.layer.extend(layer for layer in message.layer if layer.type != "AnnotatedData")
    param = proto.SolverParameter(base_lr=RATE, lr_policy="fixed", momentum=MOMENTUM, weight_decay=DECAY, max_iter=1 << 30, snapshot_after_train=False)
    param.net_param.CopyFrom(net)
    device = select_device(options.device or None, math=math)
    with ocaffe.SGDSolver(param, keep=[], device=device) as solver:
        solver.net.blobs["data"].data[...] = images
        solver.net.blobs["label"].data[...] = boxes
        ms = timed(solver.step, device.queue.finish, options.steps, options.rounds)
        loss = float(solver.net.blobs["mbox_loss"].data)
        return {"ms": ms, "MiB": solver._solver.session.planned_bytes / 2**20, "loss": loss}


def torch_step(options: argparse.Namespace, math: str, channels_last: bool) -> dict[str, float]:
    import torch
    from torchvision.models.detection import ssd300_vgg16
    from torchvision.models.detection.image_list import ImageList

    place = options.torch
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = math != "ieee"
    torch.backends.cudnn.benchmark = True
    images, boxes = scene(options.batch)
    net = ssd300_vgg16(weights=None, weights_backbone=None, num_classes=CLASSES, trainable_backbone_layers=5).to(place).train()
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    net = net.to(memory_format=memory_format)
    batch = torch.from_numpy(images).to(place).to(memory_format=memory_format)
    rows = torch.from_numpy(boxes).to(place)
    given = [{"boxes": rows[rows[:, 0] == n][:, 3:7] * SIZE, "labels": rows[rows[:, 0] == n][:, 1].long()} for n in range(options.batch)]
    optimizer = torch.optim.SGD(net.parameters(), RATE, MOMENTUM, weight_decay=DECAY)
    image_list = [*batch]
    net.transform.forward = lambda images, targets: (ImageList(batch, [(SIZE, SIZE)] * len(image_list)), targets)
    autocast = (lambda: torch.autocast(place, torch.bfloat16)) if math == "bf16" else contextlib.nullcontext
    last: list[Any] = []

    def run(count: int) -> None:
        for _ in range(count):
            with autocast():
                losses = net(image_list, given)
                loss = sum(losses.values())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            last[:] = [loss.detach()]

    cuda = place == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    ms = timed(run, torch.cuda.synchronize if cuda else lambda: None, options.steps, options.rounds)
    return {"ms": ms, "MiB": torch.cuda.max_memory_allocated() / 2**20 if cuda else 0.0, "loss": float(last[0])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--math", nargs="+", default=["ieee", "tf32", "bf16"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="")
    parser.add_argument("--torch", default="cuda", help="cuda, cpu or none")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    log.quiet(2)
    found: dict[str, Any] = {"batch": options.batch}
    for math in options.math:
        own = ocaffe_step(options, math)
        print(math, json.dumps(own), flush=True)
        row: dict[str, Any] = {"ocaffe": own}
        if options.torch != "none":
            peers = {name: torch_step(options, math, name == "nhwc") for name in ("nchw", "nhwc")}
            best = min(peers.values(), key=lambda peer: peer["ms"])
            row |= {"torchvision": peers, "ratio of ms": own["ms"] / best["ms"]}
            if options.torch == "cuda":
                row["ratio of memory"] = own["MiB"] / min(peer["MiB"] for peer in peers.values())
        found[math] = row
        print(math, json.dumps(row), flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
