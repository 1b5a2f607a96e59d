#!/usr/bin/env python3
"""Bytes that a training step in bfloat16 moves on an H100, by a walk of the planned schedule, beside a lower bound. Needs no device.

    benchmarks/bytes_moved.py [NET ...] [--batch 64] [--counters FILE] [--json FILE]

`moved`: the operands of all launches, once for each read and each write. `bound`: only products, poolings, LRN and losses, each image in two bytes and each
parameter and gradient in four. It assumes that every expression (BatchNorm, Scale, ReLU, sums) is fused into them, with no byte of its own, and that filters
need no packing. Both are computed. Caches can make the real traffic smaller, and the copies of tiles inside a kernel can make it larger. So `measured` has the
DRAM bytes of the longest launches in their place, from a file of benchmarks/counters.py.
"""
from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from resident import ROOT, resident  # first: it makes ocaffe importable

from ocaffe import log, proto
from ocaffe.compiler.compile import compile_net
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.launch import HOST, Access, Launch
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Role
from ocaffe.support.switches import Switches

NETS = ("alexnet", "googlenet", "resnet18", "resnet50", "vgg16", "mobilenet_v2")
H100 = Target(
    kind="gpu", runtime="nvidia", compute_units=132, tensor_cores=True, math="bf16", wgmma=True, global_memory=80 << 30, free_memory=80 << 30,
    max_allocation=80 << 30, local_memory=48 << 10, device_fence="PTX", unified_memory=False,
)  # fmt: skip
HELPERS = ("pack", "split_sum", "sum_parts", "image")  # launches that only some kernels need
IMAGES = (Role.ACTIVATION, Role.DIFF)


def schedule(net: str, batch: int, target: Target, switches: Switches) -> list[Launch]:
    graph = build(resident(net, batch, proto.TRAIN), proto.TRAIN, lambda *_: None)
    compiled = compile_net(graph, ParameterGroup(graph.params), target, NetOptions(backward=True), switches)
    return [launch for launch in compiled.recording.schedule if not isinstance(launch, HOST)]


def moved(launches: list[Launch]) -> int:
    return sum(operand.ref.nbytes * (2 if operand.access is Access.MODIFY else 1) for launch in launches for operand in launch.operands)


def bound(launches: list[Launch]) -> int:
    """Return the bytes of the launches that no fusion removes. `launches`: without any fusion."""
    total = 0
    for launch in launches:
        if launch.call is None or launch.call.generated or launch.call.function in HELPERS:
            continue
        for operand in launch.operands:
            if operand.ref.root.role in IMAGES:
                total += 2 * operand.ref.count
            elif operand.ref.root.role is not Role.SCRATCH:
                total += operand.ref.nbytes
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=list(NETS), metavar="NET")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--counters", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    log.quiet(2)
    found: dict[str, Any] = {}
    launches = json.loads(options.counters.read_text())["nets"] if options.counters else {}
    print("| net | mma.sync, GB | blocks, GB | measured, GB | bound, GB | blocks / bound | measured / bound |\n|---|---|---|---|---|---|---|")
    for net in options.nets:
        before = moved(schedule(net, options.batch, replace(H100, wgmma=False), Switches()))
        now = moved(schedule(net, options.batch, H100, Switches()))
        least = bound(schedule(net, options.batch, replace(H100, wgmma=False), Switches(fuse=False, share=False)))
        found[net] = {"mma.sync": before, "blocks": now, "bound": least}
        real = ""
        if net in launches:
            found[net]["measured"] = now + sum(int(row["read"] + row["written"]) - row["operands"] for row in launches[net])
            real = f"{found[net]['measured'] / least:.2f}"
        columns = (f"{value / 1e9:.1f}" if value else "" for value in (before, now, found[net].get("measured"), least))
        print(f"| {net} | {' | '.join(columns)} | {now / least:.2f} | {real} |", flush=True)
    if options.json:
        (ROOT / options.json).write_text(json.dumps({"batch": options.batch, "bytes": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
