"""Damaged ONNX models are converted and verified on a device: `python -m tests.abuse.converts --count 20000 --device intel`.

A case ends with a net that equals its model, or with an Error. A net that differs is a fault, except where values overflow: that depends on the order
of operations. Models whose tensors take more than 256 MiB are refused before they reach the device.
"""
from __future__ import annotations

import math
import pathlib
import random

from ocaffe import log
from ocaffe.cl.device import select_device
from ocaffe.convert.import_model import is_training, to_caffe
from ocaffe.convert.import_verify import comparable, pixels
from ocaffe.convert.importer.read import read_model
from ocaffe.convert.verify import random_inputs, verify
from ocaffe.errors import Error
from tests.abuse.campaign import Tally, options
from tests.abuse.fuzz import CHUNK, of_messages
from tests.abuse.harness import Limits, Wrong, isolated
from tests.abuse.workplace import onnx_models, workplace

LIMIT = 256 << 20  # bytes of all tensors
LIMITS = Limits(seconds=60)  # a compiler may take long


def content(seed: int, number: int) -> bytes:
    return of_messages(random.Random(f"converts {seed} {number}"), onnx_models())


def convert(path: str, device: str) -> None:
    log.quiet(3)
    model = read_model(path)
    net, blobs = to_caffe(model, path)
    if any(map(is_training, model.graph.node)):
        return
    both = comparable(model, net, blobs, shapes={}, outputs=[])
    if 4 * sum(math.prod(blob.shape) for blob in both.graph.blobs.values()) > LIMIT:
        raise Error("its tensors are too large for the harness")
    opened = select_device(device or None)
    try:
        verify(both, [random_inputs(both.graph, pixels=pixels(model))], opened)
    except Error as problem:
        if "differs" in problem.fact and "by inf" not in problem.fact:
            raise Wrong(problem.fact) from problem
        raise
    finally:
        opened.close()


def main() -> int:
    chosen = options("converts", 100, device=True)
    tally = Tally("converts", chosen)
    numbers = range(chosen.first, chosen.first + chosen.count)

    def one(number: int) -> None:
        pathlib.Path("net.onnx").write_bytes(content(chosen.seed, number))
        convert("net.onnx", chosen.device)

    with workplace():
        for begin in range(0, len(numbers), CHUNK):
            for number, outcome in isolated(numbers[begin : begin + CHUNK], one, LIMITS):
                tally.add(outcome, number, content(chosen.seed, number), ".onnx")
                if tally.spent():
                    return tally.finish()
    return tally.finish()


if __name__ == "__main__":
    raise SystemExit(main())
