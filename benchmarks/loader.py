#!/usr/bin/env python3
"""Images per second of a data layer's source alone, through its prefetching threads, from generated databases. Needs no device.

    benchmarks/loader.py [--workers 2] [--seconds 3] [--torch] [--train DEVICE] [--json FILE] [ROW ...]

`raw` has Datums of 3 x 256 x 256 bytes, as convert_imageset writes them; `jpeg` the same images as JPEG files of
quality 90; `photos` JPEG files of 375 x 500, ImageNet's usual size. `masks` are JPEG files of 128 x 128, each with a
PNG file of labels, for DenseImageData; they are not cropped. `bare` is the rate of decoding alone on one thread,
for comparison: the source cannot be faster than that rate times the number of workers. `torch`, with --torch: the rate
of PyTorch's DataLoader with as many worker processes, which reads the same database, decodes with Pillow, crops and
mirrors. `wait`, with --train: the share of time in which a training of alexnet on DEVICE, batch 64, waits for these
data, according to its log (without the first display, before which kernels are built and queues fill).
"""
import argparse
import gc
import io
import json
import os
import pathlib
import platform
import sys
import tempfile
import time
from typing import Any

import lmdb
import numpy as np
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ocaffe import proto  # noqa: E402
from ocaffe.data.changes.transform import Transform  # noqa: E402
from ocaffe.data.databases.datum import encode_datum  # noqa: E402
from ocaffe.data.databases.writer import LmdbWriter  # noqa: E402
from ocaffe.data.decoding.decode import Color, open_image, planes  # noqa: E402
from ocaffe.data.prefetch import Prefetcher  # noqa: E402
from ocaffe.data.source import key_of  # noqa: E402
from ocaffe.data.sources.database_images import ImageSource  # noqa: E402
from ocaffe.data.sources.dense import DenseImageSource  # noqa: E402
from ocaffe.data.stagers.staged import StagedSource  # noqa: E402
from ocaffe.formats.text import parse, read_net  # noqa: E402

ROWS = {  # name: (height, width, JPEG, shuffle)
    "raw": (256, 256, False, False),
    "raw, shuffled": (256, 256, False, True),
    "jpeg": (256, 256, True, False),
    "photos": (375, 500, True, False),
}
MASKS, SIDE, CLASSES = "masks", 128, 11
IMAGES, BATCH, CROP, DEPTH = 2048, 64, 227, 4
WARM = 4.0  # seconds
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
    net = read_net(str(ROOT / "zoo/alexnet" / "train_val.prototxt"))
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


def make(path: str, row: str) -> tuple[list[bytes], int]:
    """Write the database of `row`. Return different records of it, and the bytes of all."""
    height, width, jpeg, _ = ROWS[row]
    rng = np.random.default_rng(0)
    values = [record(picture(rng, height, width), jpeg, n) for n in range(64)]
    with LmdbWriter(path) as out:
        for n in range(IMAGES):
            out.put(b"%08d" % n, values[n % len(values)])
    return values, sum(len(values[n % len(values)]) for n in range(IMAGES))


def make_masks(path: str) -> None:
    """Write images with label images, and the list of them."""
    rng = np.random.default_rng(0)
    os.makedirs(path)
    for n in range(IMAGES):
        Image.fromarray(picture(rng, SIDE, SIDE)).save(f"{path}/{n}.jpg", "JPEG", quality=90)
        labels = Image.fromarray(rng.integers(0, CLASSES, (5, 5), np.uint8))
        labels.resize((SIDE, SIDE), Image.Resampling.NEAREST).save(f"{path}/{n}.png")
    pathlib.Path(path, "list.txt").write_text("".join(f"{n}.jpg {n}.png\n" for n in range(IMAGES)))


def database_source(path: str, shuffle: bool, workers: int) -> StagedSource:
    text = f'source: "{path}" backend: LMDB batch_size: {BATCH} shuffle: {str(shuffle).lower()}'
    transform = Transform(parse(f"crop_size: {CROP} mirror: true", proto.TransformationParameter, "transform"), True)
    return ImageSource(parse(text, proto.DataParameter, "data"), transform, True, workers=workers)


def masks_source(path: str, workers: int) -> StagedSource:
    param = proto.DenseImageDataParameter(source=f"{path}/list.txt", root_folder=f"{path}/", batch_size=BATCH, shuffle=True)
    return DenseImageSource(param, Transform(proto.TransformationParameter(), True), True, workers=workers)


def source_rate(source: StagedSource, seconds: float) -> tuple[float, float]:
    """Return the source's images per second, and the workers that it keeps busy. The source is closed then."""
    source.key = key_of(1, "data")
    prefetcher = Prefetcher(source, DEPTH)
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM:  # processes start meanwhile
        prefetcher.recycle(prefetcher.get())
    begin, work, batches = time.perf_counter(), sum(source.effort.seconds().values()), 0
    while time.perf_counter() - begin < seconds:
        prefetcher.recycle(prefetcher.get())
        batches += 1
    elapsed, busy = time.perf_counter() - begin, sum(source.effort.seconds().values()) - work
    prefetcher.close()
    source.close()
    return batches * BATCH / elapsed, busy / elapsed


class Peer:
    """The database as PyTorch's users read it: a map-style data set, which each worker process opens for itself."""

    def __init__(self, path: str, size: tuple[int, int]) -> None:
        self.path, self.size = path, size
        self.transaction: Any = None

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import torch

        if self.transaction is None:
            self.transaction = lmdb.open(self.path, readonly=True, lock=False, readahead=False).begin()
            self.rng = np.random.default_rng(index)
        datum = proto.Datum.FromString(self.transaction.get(b"%08d" % (index % IMAGES)))
        if datum.encoded:
            pixels = np.asarray(Image.open(io.BytesIO(datum.data)).convert("RGB")).transpose(2, 0, 1)
        else:
            pixels = np.frombuffer(datum.data, np.uint8).reshape(3, *self.size)
        y, x = self.rng.integers(0, self.size[0] - CROP + 1), self.rng.integers(0, self.size[1] - CROP + 1)
        crop = pixels[:, y : y + CROP, x : x + CROP]
        if self.rng.random() < 0.5:
            crop = crop[:, :, ::-1]
        return torch.from_numpy(np.ascontiguousarray(crop)), datum.label


def torch_rate(path: str, size: tuple[int, int], workers: int, seconds: float) -> float:
    """Return the images per second of PyTorch's DataLoader with `workers` processes."""
    import torch

    loader = torch.utils.data.DataLoader(Peer(path, size), BATCH, num_workers=workers, prefetch_factor=DEPTH)  # type: ignore[arg-type]
    batches = iter(loader)
    for _ in range(2 * DEPTH * workers):  # warm-up
        next(batches)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        next(batches)
        count += 1
    return count * BATCH / (time.perf_counter() - begin)


def measure(folder: str, row: str, options: argparse.Namespace) -> dict[str, float]:
    path = os.path.join(folder, row.replace(", ", "_"))
    if row == MASKS:
        make_masks(path)
        rate, busy = source_rate(masks_source(path, options.workers), options.seconds)
        return {"images_per_s": rate, "busy": busy}
    height, width, jpeg, shuffle = ROWS[row]
    values, size = make(path, row)
    rate, busy = source_rate(database_source(path, shuffle, options.workers), options.seconds)
    gc.collect()  # closes the database, which a process may open only once
    result = {"images_per_s": rate, "busy": busy, "KiB_per_image": size / IMAGES / 1024}
    if options.torch and not shuffle:
        result["torch_per_s"] = torch_rate(path, (height, width), options.workers, options.seconds)
    if options.train:
        result["wait"] = wait(path, shuffle, options.train)
    if jpeg:
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < options.seconds / 3:
            planes(open_image(proto.Datum.FromString(values[count % len(values)]).data), Color.UNCHANGED)
            count += 1
        result["bare_per_s"] = count / (time.perf_counter() - begin)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {', '.join((*ROWS, MASKS))}")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--torch", action="store_true", help="measure PyTorch's DataLoader too")
    parser.add_argument("--train", default="", metavar="DEVICE", help="train AlexNet on this device too, such as cpu")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    how = f"{options.workers} workers, batches of {BATCH}, crop {CROP}"
    columns = {"images_per_s": "images/s", "torch_per_s": "torch", "bare_per_s": "bare", "busy": "busy", "KiB_per_image": "KiB/image", "wait": "wait"}
    print(f"{'':<14}" + "".join(f"{title:>11}" for title in columns.values()) + f"   {how}")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for row in options.rows or (*ROWS, MASKS):
            found = results[row] = measure(folder, row, options)
            cells = (f"{found[name]:11.2f}" if name in found and found[name] < 1000 else f"{found.get(name, float('nan')):11.0f}" for name in columns)
            print(f"{row:<14}" + "".join(cells), flush=True)
    if options.json:
        facts = {"workers": options.workers, "processor": platform.machine(), "batch": BATCH, "crop": CROP, "wait_target": WAIT, "rows": results}
        pathlib.Path(options.json).write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
