#!/usr/bin/env python3
"""PyTorch's own means to save memory in a training step on an NVIDIA GPU, as peers of benchmarks/limits.py: ms of a step, and memory.

    benchmarks/torch_limits.py [--steps N] [--json FILE] NET:BATCH:WAY ...

A way is `all`, a number from 0 to 1, or `host`. A number is the activation memory budget of torch.compile: its partitioner recomputes values until the saved
ones take this share of all. `host` is eager mode with torch.autograd.graph.save_on_cpu, which copies saved values to pinned memory of the host. `all` saves
all values under torch.compile. Arithmetic is strict fp32. `mib` is the largest reserved memory of PyTorch's allocator in steps after the first ones, without
the context. Each row has a process of its own. All compile side by side, and are measured one at a time (turns.py).
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from resident import CLASSES, resident  # first: it makes ocaffe importable
from turns import in_turns, my_turn

from ocaffe import proto

WARM, ROUNDS = 5, 3
MIB = 1 << 20


def measure(net: str, batch: int, way: str, steps: int) -> dict[str, Any]:
    """Return the row of one way to run a net."""
    import torch
    import torch._functorch.config
    from torch_net import TorchNet, Way, made_step

    torch.manual_seed(0)
    if way not in ("all", "host"):
        torch._functorch.config.activation_memory_budget = float(way)
    message = resident(net, batch, proto.TRAIN)
    module = TorchNet(message, proto.TRAIN).cuda()
    shape = next(tuple(shape.dim) for layer in message.layer if layer.type == "Input" for shape in layer.input_param.shape)
    given = [torch.randn(shape).cuda(), (torch.arange(batch) % CLASSES).cuda()]
    plain = made_step(module, given, Way("strict", "nchw", "eager"))
    if way != "host":
        forward = torch.compile(module.forward)
        module.forward = forward  # type: ignore[method-assign]

    def step() -> None:
        if way == "host":
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                plain()
        else:
            plain()

    torch.backends.cudnn.benchmark = False  # others use the device
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    my_turn()
    torch.backends.cudnn.benchmark = True
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # without the workspaces of cuDNN's trials
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin) / steps)
    return {"net": net, "batch": batch, "way": way, "ms": round(statistics.median(times), 2), "mib": round(torch.cuda.max_memory_reserved() / MIB)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    if len(options.rows) == 1:
        net, batch, way = options.rows[0].split(":")
        found = [measure(net, int(batch), way, options.steps)]
        print(json.dumps(found[0]), flush=True)
    else:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # of each process
        found = in_turns([[sys.executable, __file__, "--steps", str(options.steps), row] for row in options.rows])
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
