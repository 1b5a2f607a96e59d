"""The devices that the scripts of this folder imitate: a Target for each, as its OpenCL runtime would describe it, and the name of the compiler's target."""
from __future__ import annotations

from typing import NamedTuple

from ocaffe.ir.target import Target
from tests.zoo.counts import TARGETS


class Imitated(NamedTuple):
    """A device that is not here.

    `compiler`: amd, intel, or empty if no compiler of its maker runs without it. `standard`: as from ocaffe.cl.fences.standard.
    """

    target: Target
    compiler: str
    standard: str = ""


def _amd(name: str, units: int, memory: int) -> Imitated:
    """ROCm names a device by its instruction set. It counts a pair of compute units (WGP) as one unit on RDNA. It has OpenCL 2.0."""
    return Imitated(
        Target(kind="gpu", runtime="amd", name=name, compute_units=units, vector_width=4, max_work_group=256, local_memory=64 << 10,
               global_memory=memory << 30, free_memory=memory << 30, max_allocation=memory << 29, unified_memory=False, device_fence="SCOPE"), "amd", "CL2.0"
    )  # fmt: skip


def _intel(name: str, units: int, memory: int, group: int = 1024, local: int = 64, unified: bool = False) -> Imitated:
    """Intel's runtime counts vector engines as units. It has OpenCL 3.0 with atomics of device scope."""
    return Imitated(
        Target(kind="gpu", runtime="intel", name=name, compute_units=units, vector_width=4, max_work_group=group, local_memory=local << 10,
               global_memory=memory << 30, free_memory=memory << 30, max_allocation=4 << 30, unified_memory=unified, device_fence="SCOPE"), "intel", "CL3.0"
    )  # fmt: skip


DEVICES = {
    "gfx1030": _amd("gfx1030", 40, 16),  # Radeon RX 6900 XT
    "gfx1100": _amd("gfx1100", 48, 24),  # Radeon RX 7900 XTX
    "gfx1201": _amd("gfx1201", 32, 16),  # Radeon RX 9070 XT
    "gfx90a": _amd("gfx90a:sramecc+:xnack-", 104, 64),  # Instinct MI210
    "gfx942": _amd("gfx942:sramecc+:xnack-", 304, 192),  # Instinct MI300X
    "tgl": _intel("Intel(R) Iris(R) Xe Graphics", 96, 12, group=512, unified=True),
    "dg2": _intel("Intel(R) Arc(TM) A770 Graphics", 512, 16),
    "pvc": _intel("Intel(R) Data Center GPU Max 1550", 1024, 128, local=128),
    "bmg": _intel("Intel(R) Arc(TM) B580 Graphics", 160, 12),
    **{name.lower().replace(" ", "-"): Imitated(target, "") for name, target in TARGETS.items()},
}
