#!/usr/bin/env python3
"""Milliseconds of each net of the zoo: a forward pass of deploy.prototxt for one image, and a training step of train_val.prototxt.

    benchmarks/zoo.py [NET ...] [--device SPEC] [--most N] [--seconds 0.5] [--least 5] [--build] [--again] [--busy] [--json FILE]

A forward pass copies the image to the device and reads the outputs. A training step is forward, backward and the update of the net's solver, with
iter_size 1. It has the published batch, or --most images if that is less. Its inputs stay on the device. Steps are queued in series of at least 20 ms. A
figure is the median of at least --least passes or series, and of as many as fit in --seconds. Weights are those of the fillers, so that a detector lists more
boxes than a trained one does.

--json adds the figures to those of FILE, after each net. Nets that FILE has are left out, unless --again is given. --busy marks the figures of a machine with
other work: docs/make_zoo.py leaves them out, and the next run without --busy measures these nets again. A net that fails is named at the end, and the others
go on. --build runs each net once and measures nothing: several such processes, each with some of the nets, fill the cache of built programs.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from resident import ROOT  # makes ocaffe importable

import ocaffe
from ocaffe import log, proto
from ocaffe.cl.device import Device, select_device
from ocaffe.formats.filter import filter_net
from ocaffe.formats.text import read_solver
from ocaffe.zoo import FOLDER
from ocaffe.zoo.figures import published_batch
from ocaffe.zoo.templates import image_shape, names, upgraded, without_data

SERIES = 0.02  # seconds of queued steps between two readings of the clock
RULE = ("type", "momentum", "momentum2", "delta", "rms_decay", "weight_decay")  # of the solver; the rate is too small to change the weights


def inputs_of(net: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """Return arrays for the Input layers of a net: images, boxes, and labels of the classes 0 and 1."""
    rng = np.random.default_rng(seed)
    shapes = {top: tuple(shape.dim) for layer in net.layer if layer.type == "Input" for top, shape in zip(layer.top, layer.input_param.shape)}
    images, (batch, *_, height, width) = next(iter(shapes.items()))
    made: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        if name == images:
            made[name] = rng.standard_normal(shape)
        elif name == "im_info":  # of Faster R-CNN
            made[name] = np.broadcast_to([height, width, 1], shape)
        elif name == "gt_boxes":  # of Faster R-CNN: corners in pixels, class
            corners = np.sort(rng.uniform(0, (width, height), (math.prod(shape[:-1]), 2, 2)), 1).reshape(-1, 4)
            made[name] = np.insert(corners, 4, 1, 1).reshape(shape)
        elif shape[:2] == (1, 1) and shape[3:] == (8,):  # of AnnotatedData: image, class, number, corners from 0 to 1, difficult
            count = shape[-2]
            corners = np.sort(rng.uniform(0, 1, (count, 2, 2)), 1).reshape(count, 4)
            made[name] = np.column_stack([np.arange(count) * batch // count, np.ones(count), np.arange(count), corners, np.zeros(count)]).reshape(shape)
        else:
            made[name] = rng.integers(0, 2, shape)
    return {name: array.astype(np.float32) for name, array in made.items()}


def median_ms(run: Callable[[int], object], options: argparse.Namespace, series: float = 0.0) -> float:
    """Return the median of the milliseconds of a step. `run(n)` runs n steps and waits for them; a series of steps takes at least `series` seconds."""
    run(1)
    if options.build:
        return 0.0
    begin = time.perf_counter()
    run(1)
    count = math.ceil(series / (time.perf_counter() - begin)) or 1
    times: list[float] = []
    while len(times) < options.least or sum(times) < options.seconds:
        begin = time.perf_counter()
        run(count)
        times.append(time.perf_counter() - begin)
    return round(1e3 * statistics.median(times) / count, 4)


def measured(name: str, device: Device, options: argparse.Namespace) -> dict[str, float]:
    """Return the figures of a net."""
    folder = FOLDER / name
    train, deploy, published = upgraded(folder / "train_val.prototxt"), upgraded(folder / "deploy.prototxt"), read_solver(folder / "solver.prototxt")
    batch = min(published_batch(name), options.most)
    param = proto.SolverParameter(base_lr=1e-12, lr_policy="fixed", max_iter=1 << 30, snapshot_after_train=False)
    for field in RULE:
        if published.HasField(field):
            setattr(param, field, getattr(published, field))
    param.net_param.CopyFrom(filter_net(without_data(train, image_shape(deploy), batch), proto.NetState(phase=proto.TRAIN)))
    with ocaffe.get_solver(param, keep=[], device=device) as solver:
        for blob, array in inputs_of(param.net_param).items():
            solver.net.blobs[blob].data[...] = array
        steps = median_ms(lambda count: (solver.step(count), device.queue.finish()), options, SERIES)
        weights = {layer: [blob.data.copy() for blob in blobs] for layer, blobs in solver.net.params.items()}
    deploy.layer[0].input_param.shape[0].dim[0] = 1
    with ocaffe.Net(deploy, ocaffe.TEST, keep=[], device=device) as net:
        for layer, blobs in net.params.items():
            for blob, array in zip(blobs, weights[layer], strict=True):
                blob.data[...] = array
        image = inputs_of(deploy)
        passes = median_ms(lambda count: [net.forward(**image) for _ in range(count)], options)
    return {"forward_ms": passes, "batch": batch, "train_ms": steps}


def written(file: Path | None, device: Device) -> dict[str, Any]:
    """Return the contents of the file, or new ones if it has figures of busy machines alone. Ends the program if the others are those of another device."""
    made = {"device": f"{device.name} ({device.platform_name}, driver {device.driver_version})", "threads": os.cpu_count(), "nets": {}}
    if file is None or not file.exists():
        return made
    found: dict[str, Any] = json.loads(file.read_text())
    if found["device"] != made["device"] and all(row["busy"] for row in found["nets"].values()):
        return made
    if found["device"] != made["device"]:
        raise SystemExit(f"{file} has the figures of {found['device']}, and this is {made['device']}: name another file, or remove this one")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", metavar="NET")
    parser.add_argument("--device")
    parser.add_argument("--most", type=int, default=1 << 30, help="images of a training step, at most")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--least", type=int, default=5)
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    unknown = sorted({*options.nets} - {*names()})
    if unknown:
        raise SystemExit(f"no net {', '.join(unknown)}; there are {', '.join(names())}")
    log.quiet(2)
    device = select_device(options.device)
    file = ROOT / options.json if options.json else None
    table = written(file, device)
    failed = []
    if not options.build:
        print("| net | forward, 1 image, ms | batch | training step, ms |\n|---|---|---|---|")
    for name in options.nets or names():
        known = table["nets"].get(name)
        if known and not options.again and (options.busy or not known["busy"]):
            continue
        try:
            row = measured(name, device, options)
        except Exception as problem:  # the other nets go on
            failed.append(f"{name}: {type(problem).__name__}: {problem}")
            continue
        if options.build:
            continue
        print(f"| {name} | {row['forward_ms']} | {row['batch']} | {row['train_ms']} |", flush=True)
        if file:
            table["nets"] = dict(sorted({**table["nets"], name: {**row, "busy": options.busy, "date": time.strftime("%Y-%m-%d")}}.items()))
            file.write_text(json.dumps(table, indent=1) + "\n")
    device.close()
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
