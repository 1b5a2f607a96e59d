"""Overhead of `net.forward()` of the Python API over the commands alone, for LeNet with a batch of 1: the worst case, because no kernel takes long.

    python benchmarks/api_overhead.py [device]

Prints the median and the fastest tenth of each in microseconds, and the ratio of the fastest tenths. Passes alternate,
so that a busy machine slows all. The aim is a ratio under 1.5 for net.forward() on a CPU.
"""
from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ocaffe as caffe

ROUNDS, AIM = 1500, 1.5


def main() -> int:
    model = Path(__file__).resolve().parents[1] / "zoo/lenet" / "deploy.prototxt"
    net = caffe.Net(str(model), caffe.TEST, device=sys.argv[1] if len(sys.argv) > 1 else None)
    name = net.inputs[0]
    net.blobs[name].reshape(1, *net.blobs[name].shape[1:])
    image = np.zeros(net.blobs[name].shape, np.float32)
    net.forward()
    variant, queue = net._engine.current(), net._network.session.device.queue

    def commands() -> None:
        variant.commands.run(0, variant.recording.forward_end)
        queue.finish()

    def keywords() -> None:
        net.forward(**{name: image})  # type: ignore[arg-type]

    def blobs() -> None:
        net.blobs[name].data[...] = image
        net.forward()

    passes: dict[str, Callable[[], object]] = {
        "the commands alone": commands, "net.forward()": net.forward, f"net.forward({name}=...)": keywords, "data[...] = x; forward()": blobs,
    }  # fmt: skip
    times: dict[str, list[float]] = {what: [] for what in passes}
    for _ in range(ROUNDS):
        for what, run in passes.items():
            begin = time.perf_counter()
            run()
            times[what].append(1e6 * (time.perf_counter() - begin))
    base = float(np.percentile(times["the commands alone"], 10))
    print(f"LeNet, batch 1, {net._network.session.device.name}")
    for what, found in times.items():
        low, middle = np.percentile(found, [10, 50])
        print(f"{what:<26}{middle:9.0f} us median{low:9.0f} us fastest tenth   x {low / base:.2f}")
    ratio = float(np.percentile(times["net.forward()"], 10)) / base
    print(f"net.forward() takes {ratio:.2f} times the commands, aim {AIM}: {'reached' if ratio < AIM else 'MISSED'}")
    return int(ratio >= AIM)


if __name__ == "__main__":
    sys.exit(main())
