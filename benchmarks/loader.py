#!/usr/bin/env python3
"""Images per second of the Data layer's source alone, through its prefetching thread, from generated databases. Needs no device.

    benchmarks/loader.py [--workers 2] [--seconds 3] [--train DEVICE] [--json FILE] [ROW ...]

`raw` has Datums of 3 x 256 x 256 bytes, as convert_imageset writes them; `jpeg` the same images as JPEG files of
quality 90; `photos` JPEG files of 375 x 500, ImageNet's usual size. `bare` is the rate of decoding alone on one thread,
for comparison: the source cannot be faster than that rate times the number of workers. `wait`, with --train: the share
of time in which a training of zoo/alexnet on DEVICE, batch 64, waits for these data, according to its log (without the
first display, before which kernels are built and queues fill).
"""
import argparse
import io
import json
import os
import pathlib
import sys
import tempfile
import time
from typing import Any

import numpy as np
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ocaffe import proto  # noqa: E402
from ocaffe.data.datum import encode_datum  # noqa: E402
from ocaffe.data.decode import Color, open_image, planes  # noqa: E402
from ocaffe.data.images import ImageSource  # noqa: E402
from ocaffe.data.prefetch import Prefetcher  # noqa: E402
from ocaffe.data.source import key_of  # noqa: E402
from ocaffe.data.transform import Transform  # noqa: E402
from ocaffe.data.writer import LmdbWriter  # noqa: E402
from ocaffe.model.text import parse, read_net  # noqa: E402

ROWS = {  # name: (height, width, JPEG, shuffle, target in images/s on two cores)
    "raw": (256, 256, False, False, 2000),
    "raw, shuffled": (256, 256, False, True, 2000),
    "jpeg": (256, 256, True, False, 350),
    "photos": (375, 500, True, False, 350),
}
IMAGES, BATCH, CROP, DEPTH = 512, 64, 227, 4
ITERATIONS, DISPLAY, WAIT = 12, 4, 0.02  # of --train: iterations, display, target of `wait`


def picture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Height x width x 3, with about as much detail as a photograph: a sum of noise of several sizes."""
    total = np.zeros((height, width, 3))
    for cells in (3, 12, 48, 192):
        coarse = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), np.uint8))
        total += np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)) / cells**0.5
    return (255 * (total - total.min()) / (total.max() - total.min())).astype(np.uint8)


def record(pixels: np.ndarray, jpeg: bool, label: int) -> bytes:
    if not jpeg:
        return bytes(encode_datum(pixels.transpose(2, 0, 1)[::-1], label))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return proto.Datum(data=file.getvalue(), label=label, encoded=True).SerializeToString()


def wait(path: str, shuffle: bool, device: str) -> float:
    """The share of time in which a training of AlexNet waits for the database `path`."""
    from ocaffe import log
    from ocaffe.cl.device import select_device
    from ocaffe.solver.solver import Solver

    log.quiet()
    net = read_net(str(ROOT / "zoo" / "alexnet" / "train_val.prototxt"))
    data = net.layer[0].data_param
    data.source, data.batch_size, data.shuffle = path, BATCH, shuffle
    fields: dict[str, Any] = {"base_lr": 0.001, "lr_policy": "fixed", "momentum": 0.9, "display": DISPLAY, "random_seed": 1}
    opened, records = select_device(device), list[dict[str, Any]]()
    solver = Solver(proto.SolverParameter(net_param=net, **fields), opened)
    solver.on_record = records.append
    solver.step(ITERATIONS + 1)
    solver.close()
    opened.close()
    shares = [float(record["data_wait"]) for record in records[2:]]
    return sum(shares) / len(shares)


def measure(folder: str, row: str, workers: int, seconds: float, device: str = "") -> dict[str, float]:
    height, width, jpeg, shuffle, target = ROWS[row]
    rng, path, size = np.random.default_rng(0), os.path.join(folder, row.replace(", ", "_")), 0
    values = [record(picture(rng, height, width), jpeg, n) for n in range(64)]
    with LmdbWriter(path) as out:
        for n in range(IMAGES):
            out.put(b"%08d" % n, values[n % len(values)])
            size += len(values[n % len(values)])
    text = f'source: "{path}" backend: LMDB batch_size: {BATCH} shuffle: {str(shuffle).lower()}'
    transform = Transform(parse(f"crop_size: {CROP} mirror: true", proto.TransformationParameter, "transform"), True)
    source = ImageSource(parse(text, proto.DataParameter, "data"), transform, True, workers=workers)
    source.key = key_of(1, "data")
    prefetcher = Prefetcher(source, DEPTH)
    for _ in range(2 * DEPTH):  # warm-up
        prefetcher.recycle(prefetcher.get())
    begin, cpu, batches = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - begin < seconds:
        prefetcher.recycle(prefetcher.get())
        batches += 1
    elapsed, busy = time.perf_counter() - begin, time.process_time() - cpu
    prefetcher.close()
    source.close()
    result = {"images_per_s": batches * BATCH / elapsed, "cores": busy / elapsed, "KiB_per_image": size / IMAGES / 1024, "target": target}
    if device:
        result["wait"] = wait(path, shuffle, device)
    if jpeg:
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds / 3:
            planes(open_image(proto.Datum.FromString(values[count % len(values)]).data), Color.UNCHANGED)
            count += 1
        result["bare_per_s"] = count / (time.perf_counter() - begin)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {', '.join(ROWS)}")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--train", default="", metavar="DEVICE", help="train AlexNet on this device too, such as cpu")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    how = f"{options.workers} workers, batches of {BATCH}, crop {CROP}"
    print(f"{'':<14} {'images/s':>9} {'target':>7} {'cores':>6} {'KiB/image':>10} {'bare':>7} {'wait':>6}   {how}")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for row in options.rows or ROWS:
            found = results[row] = measure(folder, row, options.workers, options.seconds, options.train)
            bare = f"{found['bare_per_s']:7.0f}" if "bare_per_s" in found else f"{'':7}"
            share = f"{100 * found['wait']:5.1f}%" if "wait" in found else ""
            print(f"{row:<14} {found['images_per_s']:9.0f} {found['target']:7.0f} {found['cores']:6.2f} {found['KiB_per_image']:10.1f} {bare} {share}")
    if options.json:
        facts = {"workers": options.workers, "batch": BATCH, "crop": CROP, "wait_target": WAIT, "rows": results}
        pathlib.Path(options.json).write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
