#!/usr/bin/env python3
"""Milliseconds per batch of an AnnotatedData layer's source alone, staged by threads and by processes. Needs no device.

    benchmarks/annotated.py [--workers N] [--images 512] [--batches 60] [--json FILE] [ROW ...]

A row is a net of the zoo, whose TRAIN layer reads scenes of `ocaffe dataset shapes` with its own transform_param and
batch samplers. `cpu_ms_per_image` is the processor time of one thread that stages the same batches.
"""
import argparse
import gc
import json
import pathlib
import platform
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ocaffe.data.changes.transform import Transform  # noqa: E402
from ocaffe.data.prefetch import Prefetcher  # noqa: E402
from ocaffe.data.source import key_of  # noqa: E402
from ocaffe.data.sources.annotated import TRANSFORM_FIELDS, AnnotatedSource  # noqa: E402
from ocaffe.data.workers import cores  # noqa: E402
from ocaffe.formats.text import read_net  # noqa: E402

ROWS = {"ssd_shapes": 128, "ssd300_vgg16": 300}  # net: height and width of the scenes
BATCH, DEPTH = 32, 5
GOALS = {"ssd_shapes": 10, "ssd300_vgg16": 25}  # ms per batch with 16 cores


def make(folder: pathlib.Path, size: int, images: int) -> str:
    """Write scenes and their database. Return its path."""
    commands = [
        ["shapes", str(folder / "scenes"), "--images", str(images), "--size", f"{size}x{size}"],
        ["voc", str(folder / "scenes"), str(folder / "data")],
    ]
    for command in commands:
        subprocess.run([sys.executable, "-m", "ocaffe", "dataset", *command], check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return str(folder / "data" / "train_lmdb")


def opened(net: str, path: str, workers: int) -> AnnotatedSource:
    layer = read_net(str(ROOT / "zoo" / net / "train_val.prototxt")).layer[0]
    layer.data_param.source, layer.data_param.batch_size = path, BATCH
    transform = Transform(layer.transform_param, True, TRANSFORM_FIELDS)
    source = AnnotatedSource(layer.data_param, layer.annotated_data_param, layer.transform_param, transform, True, workers=workers)
    source.key = key_of(1, "data")
    return source


def rate(source: AnnotatedSource, processes: bool, batches: int) -> float:
    """Return the milliseconds per batch through the prefetching threads."""
    if processes:
        source.hurry()
        deadline = time.monotonic() + 60
        while not (source._crew is not None and source._crew.ready):
            if time.monotonic() > deadline:
                raise SystemExit("the processes did not start: give --workers 3 or more")
            time.sleep(0.01)
    source.hurry = lambda step=1: None  # type: ignore[method-assign]  # threads stay threads
    prefetcher = Prefetcher(source, DEPTH)
    for _ in range(30):  # until the queue of requests is full
        prefetcher.recycle(prefetcher.get())
    begin = time.perf_counter()
    for _ in range(batches):
        prefetcher.recycle(prefetcher.get())
    elapsed = time.perf_counter() - begin
    prefetcher.close()
    return 1000 * elapsed / batches


def alone(source: AnnotatedSource, batches: int) -> float:
    """Return the milliseconds of processor time per image of one thread."""
    buffer = np.empty(source.nbytes, np.uint8)
    source.fill(0, buffer)
    begin = time.process_time()
    for index in range(1, 1 + batches):
        source.fill(index, buffer)
    return 1000 * (time.process_time() - begin) / batches / BATCH


def measure(net: str, options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"size": ROWS[net], "goal_ms": GOALS[net]}
    with tempfile.TemporaryDirectory() as folder:
        path = make(pathlib.Path(folder), ROWS[net], options.images)
        for name, workers, run in (
            ("cpu_ms_per_image", 1, lambda source: alone(source, max(1, options.batches // 6))),
            ("threads_ms_per_batch", options.workers, lambda source: rate(source, False, max(1, options.batches // 3))),
            ("processes_ms_per_batch", options.workers, lambda source: rate(source, True, options.batches)),
        ):
            source = opened(net, path, workers)
            result[name] = round(run(source), 3)
            source.close()
            del source
            gc.collect()  # closes the database, which a process may open only once
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {', '.join(ROWS)}")
    parser.add_argument("--workers", type=int, default=cores())
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--json", help="write the figures to this file too")
    options = parser.parse_args()
    rows = {net: measure(net, options) for net in options.rows or ROWS}
    text = json.dumps({"workers": options.workers, "cores": cores(), "processor": platform.machine(), "batch": BATCH, "rows": rows}, indent=1)
    print(text)
    if options.json:
        pathlib.Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
