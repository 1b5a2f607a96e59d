"""Commands are killed at random moments and given again: `python -m tests.abuse.commands --count 300`.

A case gives a command up to three times, and kills it at a random moment. Then the command runs to its end. It must succeed, and leave what an undisturbed
run leaves: the same files, of the same bytes where these do not tell times or processes.
"""
from __future__ import annotations

import collections
import functools
import hashlib
import http.server
import os
import pathlib
import random
import shutil
import threading
import time
from collections.abc import Callable

import numpy as np
from PIL import Image

from ocaffe import proto
from ocaffe.cli import main as ocaffe
from ocaffe.zoo.fetch import download
from tests.abuse import training
from tests.abuse.campaign import Options, Tally, options
from tests.abuse.harness import Limits, Outcome, Process
from tests.abuse.workplace import workplace

OUT = pathlib.Path("out")
LIMITS = Limits(seconds=120)
MOST = 3  # kills of a case
FILE = random.Random(0).randbytes(3 << 20)  # what the server has
TOLD = {".log", ".html", ".mdb", ".png", ".svg", ".csv", ".md", ".txt", ".json", ".jsonl"}  # endings of files that may tell times, processes or folders
NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 32 dim: 32 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 64 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
"""
TRAINED = """
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 6 } shape { dim: 4 dim: 1 } data_filler { type: "gaussian" } data_filler { value: 1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


class _Slow(http.server.BaseHTTPRequestHandler):
    """Send FILE from the asked byte on, in a second."""

    def do_GET(self) -> None:
        start = int((self.headers.get("Range") or "bytes=0-").partition("=")[2].partition("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(FILE) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(FILE) - 1}/{len(FILE)}")
        self.end_headers()
        for at in range(start, len(FILE), 1 << 16):
            self.wfile.write(FILE[at : at + (1 << 16)])
            time.sleep(0.02)

    def log_message(self, *words: object) -> None:
        pass


@functools.cache
def _address() -> str:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Slow)
    server.handle_error = lambda *of: None  # type: ignore[method-assign]  # the other end was killed
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}/weights"


def _get() -> int:
    OUT.mkdir(exist_ok=True)
    if not (OUT / "w.caffemodel").exists():  # as `ocaffe zoo get` does; its names are those of public weights
        download(_address(), str(OUT / "w.caffemodel"), {"sha256": hashlib.sha256(FILE).hexdigest()})
    return 0


def prepare() -> None:
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        pathlib.Path("photos", kind).mkdir(parents=True)
        for number in range(20):
            Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(f"photos/{kind}/{number}.png")
    pathlib.Path("net.prototxt").write_text(NET)
    message = proto.NetParameter(name="net")
    for name, shapes in {"conv": ((64, 3, 3, 3), (64,)), "ip": ((10, 64 * 30 * 30), (10,))}.items():
        layer = message.layer.add(name=name)
        for shape in shapes:
            blob = layer.blobs.add(data=rng.normal(0, 0.1, shape).ravel())
            blob.shape.dim.extend(shape)
    pathlib.Path("net.caffemodel").write_bytes(message.SerializeToString())
    pathlib.Path("train.prototxt").write_text(TRAINED)
    solver = 'net: "train.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 20 display: 5 snapshot: 5 random_seed: 1 snapshot_prefix: "s"\n'
    pathlib.Path("solver.prototxt").write_text(solver)


def commands(device: str) -> dict[str, list[str] | Callable[[], int]]:
    on = ["--device", device] if device else []
    return {
        "dataset folder": ["dataset", "folder", "photos", "out", "--test", "0.5", "--resize-width", "80", "--resize-height", "80"],
        "dataset shapes": ["dataset", "shapes", "out", "--images", "8", "--size", "96x96"],
        "new": ["new", "lenet", "--data", "photos", "--out", "out"],
        "fit": ["fit", "photos", "--net", "lenet", "--out", "out", "--iterations", "40", "--batch", "4", *on],
        "sweep": ["sweep", "solver.prototxt", "--set", "base_lr=0.1,0.01", "--set", "momentum=0,0.9", "--out", "out", *on],
        "zoo get": _get,
        "convert": ["convert", "--noverify", "--force", "net.prototxt", "net.caffemodel", "out.onnx"],
    }


def tree() -> dict[str, bytes]:
    """Return the files that the command left, with their bytes unless these may differ."""
    found = [path for root in ("out", "out.onnx") for path in ([pathlib.Path(root)] if os.path.isfile(root) else sorted(pathlib.Path(root).rglob("*")))]
    return {str(path): b"" if path.suffix in TOLD else path.read_bytes() for path in found if path.is_file()}


def clear() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    pathlib.Path("out.onnx").unlink(missing_ok=True)


def case(work: Callable[[], int], wanted: dict[str, bytes], length: float, rng: random.Random, ends: collections.Counter[str]) -> tuple[Outcome, str]:
    """Kill the command, then run it to its end. Return the outcome and the log of the last process."""
    clear()
    there = {*os.listdir()}
    for _ in range(rng.randint(1, MOST)):
        process, moment = Process(work, log=pathlib.Path("run.log")), time.monotonic() + rng.uniform(0, 1.1) * length
        while time.monotonic() < moment and not process.ended(LIMITS):
            time.sleep(0.001)
        if process.ended(LIMITS):
            ends["finished"] += 1
            break
        ends["killed"] += 1
        process.kill()
    if tree() != wanted:  # a finished command may refuse to write again
        process = Process(work, log=pathlib.Path("run.log"))
        outcome = process.wait(LIMITS)
        if outcome.kind != "ok":
            return Outcome("wrong", f"the command again: {outcome.kind} {outcome.note}"), process.text()
    left, others = tree(), {*os.listdir()} - there - {"out", "out.onnx", "run.log"}
    differ = sorted(name for name in {*left, *wanted} if left.get(name) != wanted.get(name))
    differ = [name for name in differ if not name.endswith(".lock")]
    if differ or others:
        return Outcome("wrong", f"files differ: {differ[:3]}; files beside them: {sorted(others)[:3]}"), process.text()
    return Outcome("ok"), ""


def run(name: str, chosen: Options, tally: Tally) -> None:
    command = commands(chosen.device)[name]
    work = command if callable(command) else functools.partial(ocaffe, command)
    ends: collections.Counter[str] = collections.Counter()
    clear()
    begun = time.monotonic()
    first = Process(work, log=pathlib.Path("run.log"))
    outcome = first.wait(LIMITS)
    length, wanted = time.monotonic() - begun, tree()
    if outcome.kind != "ok" or not wanted:
        tally.add(Outcome("wrong", f"an undisturbed run: {outcome}"), -1, first.text().encode(), ".log")
        return
    for number in tally.numbers():
        outcome, log = case(work, wanted, length, random.Random(f"{name} {chosen.seed} {number}"), ends)
        tally.add(outcome, number, log.encode(), ".log")
    tally.extra |= {"ends": dict(ends)}


def main() -> int:
    names = tuple(commands(""))
    chosen = options("commands", 4, names, device=True)
    sections = [chosen.section] if chosen.section else names
    chosen.seconds /= len(sections)
    training.load()
    status = 0
    for chosen.section in sections:
        with workplace():
            prepare()
            _address()
            tally = Tally("commands", chosen)
            run(chosen.section, chosen, tally)
            status |= tally.finish()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
