"""Rates: the speeds of a device, and the time of a launch that they predict. Plain data; nothing here touches a device.

The time of a launch is a sum: a start, its work in the arithmetic units, and its bytes. Each kernel has factors for these, fitted to measured nets
(benchmarks/rates.py). They are relative to the peaks of the device, so they hold for other devices of its kind too.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ocaffe.ir.kernel import Access
from ocaffe.ir.launch import HOST, Launch, Upload

PRODUCT, OTHER = "product", "other"  # the costs of kernels without some of their own
FACTORS, IMAGES = ("a", "b", "c"), ("x", "y", "dx", "dy")  # operands of matrix products, and of convolutions
# Variants of a kernel: an expression whose images have their channels in blocks, or some of them; and the products of Winograd's algorithm.
BLOCKS, MIXED, WINOGRAD = "/blocks", "/mixed", "/winograd"
DIRECT = 1.1  # the direct algorithm has more FLOPs than Winograd's by this factor at least


class Work(NamedTuple):
    """The work of a launch. `flops`: of a product, as its kernel computes them. `narrow`: these, divided by the narrower side of its result.

    The narrower side of a convolution is the smaller number of channels. `reads`, `writes`: bytes.
    """

    flops: float
    narrow: float
    reads: int
    writes: int


class Cost(NamedTuple):
    """Factors of one kernel.

    `start`: of `Rates.launch`. `flops`, `narrow`: of the time of that work at `Rates.flops`. `reads`, `writes`: of that of the bytes at `Rates.bandwidth`.
    """

    start: float = 0.5
    flops: float = 2.0
    narrow: float = 0.0
    reads: float = 1.5
    writes: float = 1.5


@dataclass(frozen=True, eq=False)
class Rates:
    """The speeds of one device in one arithmetic of products.

    `flops`: float multiply-adds in FLOP/s, two each. `bandwidth`: bytes/s of a copy in memory, which counts read and written bytes.
    `launch`: seconds of a launch that does nothing, in a sequence of launches. `enqueue`, `operand`: as multiples of `launch`, the time that the host
    takes to enqueue a launch of a net, and more for each operand. `to_host`, `from_host`: bytes/s between the device and pinned memory of the host;
    0: they share their memory. `room`: bytes that measuring them took; plans with a lower limit have the speeds that ocaffe assumes of the device.
    `costs`: by the name of a kernel and its variant. Others have those of PRODUCT if they have FLOPs, else those of OTHER.
    """

    flops: float = 5e10
    bandwidth: float = 1e10
    launch: float = 5e-6
    enqueue: float = 1.0
    operand: float = 0.1
    to_host: float = 0.0
    from_host: float = 0.0
    room: int = 0
    costs: Mapping[str, Cost] = field(default_factory=dict)

    def step(self, schedule: Iterable[Launch]) -> float:
        """Return the predicted seconds of a step on one queue: the time of its launches, or that of the host to enqueue them if it is longer."""
        device = host = 0.0
        for launch in schedule:
            device += self.seconds(launch)
            host += self.host_seconds(launch)
        return max(device, host)

    def host_seconds(self, launch: Launch) -> float:
        """Return the predicted time that the host takes to enqueue a launch, in seconds. The device runs earlier launches meanwhile."""
        return (self.enqueue + self.operand * len(launch.operands)) * self.launch

    def seconds(self, launch: Launch) -> float:
        """Return the predicted time of a launch on the device, recorded or rewritten, in seconds. It depends on nothing but the launch."""
        if isinstance(launch, HOST):
            return launch.operands[0].ref.nbytes / self.from_host if isinstance(launch, Upload) and self.from_host else 0.0
        work = work_of(launch)
        name = name_of(launch, work)
        cost = self.costs.get(name) or self.costs.get(name.partition("/")[0]) or self.costs.get(PRODUCT if work.flops else OTHER) or Cost()
        units = (cost.flops * work.flops + cost.narrow * work.narrow) / self.flops
        return cost.start * self.launch + units + (cost.reads * work.reads + cost.writes * work.writes) / self.bandwidth


GENERIC_CPU = Rates()


def work_of(launch: Launch) -> Work:
    """Return the work of a launch. An operand that repeats another one counts once."""
    sizes = {operand.ref: (operand.ref.nbytes, operand.access) for operand in launch.operands}
    reads = sum(size for size, access in sizes.values() if access is not Access.WRITE)
    writes = sum(size for size, access in sizes.values() if access is not Access.READ)
    if not launch.flops:
        return Work(0.0, 0.0, reads, writes)
    named, flops, call = {operand.name: operand.ref for operand in launch.operands}, float(launch.flops), launch.call
    if not all(name in named for name in FACTORS):
        channels = [ref.shape[1] for name, ref in named.items() if name in IMAGES]
        return Work(flops, flops / min(channels) if channels else 0.0, reads, writes)
    a, b, c = (named[name] for name in FACTORS)
    batches = 1
    if call is not None and len(call.size) == 3:
        batches = max(1, call.size[2] // (named["parts"].shape[1] if "parts" in named else 1))
    flops = 2.0 * math.sqrt(a.count * b.count * c.count / batches)  # with Winograd's algorithm, launch.flops are those of the direct one
    return Work(flops, flops / max(1, min(c.shape[-1], c.count // c.shape[-1] // batches)), reads, writes)


def name_of(launch: Launch, work: Work) -> str:
    """Return the name of the costs of a launch: that of its kernel, perhaps with a variant."""
    name = launch.kernel.name
    if launch.lower is not None:
        orders = {operand.ref.root.blocked for operand in launch.operands if len(operand.ref.shape) > 2}
        return name + (MIXED if len(orders) > 1 else BLOCKS if True in orders else "")
    return name + WINOGRAD if launch.flops > DIRECT * work.flops else name
