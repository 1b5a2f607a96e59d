"""Rates: the speeds of a device, and the time of a launch that they predict. Plain data; nothing here touches a device."""
from __future__ import annotations

from dataclasses import dataclass

from ocaffe.ir.kernel import Access
from ocaffe.ir.launch import HOST, Launch, Upload

OF_FLOPS, OF_BANDWIDTH = 0.5, 0.6  # shares of a device's peaks that a kernel reaches


@dataclass(frozen=True, eq=False)
class Rates:
    """The speeds of one device in one arithmetic of products.

    `flops`: float multiply-adds in FLOP/s, two each. `bandwidth`: bytes/s of a copy in memory, which counts read and written bytes.
    `launch`: seconds of a launch that does nothing, in a sequence of launches. No launch takes less.
    `to_host`, `from_host`: bytes/s between the device and pinned memory of the host; 0: they share their memory.
    """

    flops: float = 5e10
    bandwidth: float = 1e10
    launch: float = 5e-6
    to_host: float = 0.0
    from_host: float = 0.0

    def seconds(self, launch: Launch) -> float:
        """Return the predicted time of a launch on the device, recorded or rewritten, in seconds. It does not depend on anything but the launch."""
        if isinstance(launch, HOST):
            moved = sum(operand.ref.nbytes for operand in launch.operands) if isinstance(launch, Upload) and self.from_host else 0
            return moved / self.from_host if moved else 0.0
        return self.launch + max(launch.flops / (OF_FLOPS * self.flops), moved_bytes(launch) / (OF_BANDWIDTH * self.bandwidth))


def moved_bytes(launch: Launch) -> int:
    """Return the bytes that a launch reads and writes. An operand that repeats another one counts once."""
    sizes = {operand.ref: operand.ref.nbytes * (2 if operand.access is Access.MODIFY else 1) for operand in launch.operands}
    return sum(sizes.values())


GENERIC_CPU = Rates()
