#!/usr/bin/env python3
"""A model of data parallel training on up to 1,000 devices: the efficiency of a step by kind of exchange, and the traffic of data and snapshots.

    benchmarks/scale_out.py [--json FILE]

It measures nothing. Its inputs are the figures of NETS and MACHINE; those of one host are measured (docs/scale-out.md), the others are assumptions.
Efficiency is the time of a step on one device, divided by that on all. A step takes as long as its slowest rank; the times of ranks are log-normal.
"""
import argparse
import json
import math
import pathlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Net:
    """A training on one device: seconds of a step, bytes of gradients, images of a batch."""

    name: str
    step: float
    gradients: float
    batch: int


@dataclass(frozen=True)
class Machine:
    """Bandwidths in bytes/s, latencies in seconds."""

    devices: int = 8  # of a host
    link: float = 276e9  # between the devices of a host: NCCL, 100 MiB on two H200s
    network: float = 25e9  # of each device to other hosts: 200 Gbit/s
    bus: float = 54e9  # pinned copies between a device and its host
    latency: float = 10e-6  # of a message between hosts
    switch: float = 0.35e-3  # from OpenCL to NCCL and back
    hidden: float = 0.6  # share of an exchange through host memory that backward hides
    jitter: float = 0.02  # standard deviation of the logarithm of a rank's step time
    image: float = 60e3  # bytes of a stored image
    disk: float = 2e9  # of the file system, for one writer
    snapshot_every: int = 1000  # iterations


NETS = (Net("ResNet-50 bf16, 64", 21.7e-3, 102e6, 64), Net("VGG-16 bf16, 64", 27.8e-3, 553e6, 64), Net("AlexNet fp32, 256", 27.4e-3, 244e6, 256))
COUNTS = (1, 2, 8, 64, 512, 1000)


def ring(bytes_: float, ranks: int, bandwidth: float, latency: float) -> float:
    """Seconds of a reduce-scatter and an all-gather around a ring: each rank sends and receives its bytes almost twice."""
    return 2 * (ranks - 1) / ranks * bytes_ / bandwidth + 2 * (ranks - 1) * latency


def tree(bytes_: float, ranks: int, bandwidth: float, latency: float) -> float:
    """Seconds of a sum up and down two binary trees, each of half the bytes."""
    return (2 * bytes_ / bandwidth + 2 * math.ceil(math.log2(ranks)) * latency) if ranks > 1 else 0.0


def hosts_of(ranks: int, machine: Machine) -> int:
    return -(-ranks // machine.devices)


def flat_ring(net: Net, ranks: int, machine: Machine) -> float:
    """NCCL's ring over all devices: the slowest link sets its rate."""
    several = hosts_of(ranks, machine) > 1
    bandwidth = machine.network if several else machine.link
    return ring(net.gradients, ranks, bandwidth, machine.latency if several else 0.0) + machine.switch * (ranks > 1)


def flat_tree(net: Net, ranks: int, machine: Machine) -> float:
    several = hosts_of(ranks, machine) > 1
    bandwidth = machine.network if several else machine.link
    return tree(net.gradients, ranks, bandwidth, machine.latency if several else 0.0) + machine.switch * (ranks > 1)


def hierarchy(net: Net, ranks: int, machine: Machine) -> float:
    """Rings inside hosts. Each device then exchanges its part with the same device of all other hosts."""
    hosts, inside = hosts_of(ranks, machine), min(ranks, machine.devices)
    between = ring(net.gradients / inside, hosts, machine.network, machine.latency)
    return ring(net.gradients, inside, machine.link, 0.0) + between + machine.switch * (ranks > 1)


def staged(net: Net, ranks: int, machine: Machine) -> float:
    """Through host memory (transport mpi): parts go down and come up, twice. Backward hides a share of it."""
    if ranks == 1:
        return 0.0
    share = (ranks - 1) / ranks
    copies = 2 * net.gradients * (share + 1 / ranks) / machine.bus
    network = ring(net.gradients, ranks, machine.network, machine.latency) if hosts_of(ranks, machine) > 1 else 0.0
    return (1 - machine.hidden) * (copies + network)


KINDS: dict[str, Callable[[Net, int, Machine], float]] = {"ring": flat_ring, "tree": flat_tree, "hierarchy": hierarchy, "host memory": staged}


def slowest(ranks: int, jitter: float, draws: int = 400) -> float:
    """Mean of the largest of `ranks` log-normal times with median 1, divided by the mean of one."""
    if not jitter or ranks == 1:
        return 1.0
    rng = np.random.default_rng(ranks)
    largest = np.exp(jitter * rng.standard_normal((draws, ranks)).max(1)).mean()
    return float(largest / math.exp(jitter * jitter / 2))


def efficiency(net: Net, ranks: int, machine: Machine, kind: str) -> float:
    return net.step / (net.step * slowest(ranks, machine.jitter) + KINDS[kind](net, ranks, machine))


def traffic(net: Net, ranks: int, machine: Machine) -> dict[str, float]:
    """GB/s of stored images for all ranks, and the share of the time that all wait while rank 0 writes snapshots (weights and one history)."""
    images = ranks * net.batch / net.step * machine.image
    snapshot = 2 * net.gradients / machine.disk
    return {"images GB/s": images / 1e9, "snapshots %": 100 * snapshot / (machine.snapshot_every * net.step + snapshot)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    machine, results = Machine(), {}
    heads = " | ".join(f"{count:,}" for count in COUNTS)
    print(f"| net, batch per device | exchange | {heads} |\n|{'---|' * (len(COUNTS) + 2)}")
    for net in NETS:
        found: dict[str, Any] = results.setdefault(net.name, {})
        for kind in KINDS:
            found[kind] = {count: round(100 * efficiency(net, count, machine, kind), 1) for count in COUNTS}
            print(f"| {net.name} | {kind} | {' | '.join(f'{value:.0f} %' for value in found[kind].values())} |")
        found["traffic"] = {count: {name: round(value, 2) for name, value in traffic(net, count, machine).items()} for count in COUNTS}
    print(f"\n| net | images at {COUNTS[-1]:,} devices | snapshots |\n|---|---|---|")
    for net in NETS:
        at = traffic(net, COUNTS[-1], machine)
        print(f"| {net.name} | {at['images GB/s']:.0f} GB/s | {at['snapshots %']:.1f} % |")
    print("\nslowest of the ranks: " + ", ".join(f"{count:,}: {slowest(count, machine.jitter):.3f}" for count in COUNTS))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"machine": asdict(machine), "nets": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
