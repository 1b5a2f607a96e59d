"""The Rates of a device. Nothing is measured: a GPU has those of its row in families.py."""
from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ocaffe.cl.host_memory import has_host_memory
from ocaffe.ir.rates import Rates
from ocaffe.ir.target import Target
from ocaffe.kernels.matmul.families import family_of
from ocaffe.kernels.matmul.gemm_gpu import units

if TYPE_CHECKING:
    from ocaffe.cl.device import Device

LAUNCH = 8e-6  # seconds of a launch of an H100 (families.LAUNCH); the rows of GPUs give their clock by it
LINK = 2e10  # bytes/s of a link whose speed is not measured
HERTZ, PER_CORE, CORES = 2.5e9, 6e9, 8  # of a CPU: clock, bytes/s of a core, and cores that the memory keeps busy


def assumed(target: Target) -> Rates:
    """Return the Rates of a device that nothing was measured on. GPUs have those of their row in families.py."""
    if target.is_cpu:
        cores = target.compute_units
        return Rates(2 * cores * target.vector_width * HERTZ, PER_CORE * min(cores, CORES))
    family = family_of(target)
    cycles = units(target) * family.launch / LAUNCH
    link = 0.0 if target.unified_memory else LINK
    return Rates(2 * family.lanes * cycles, 4 * family.memory_floats * cycles, LAUNCH, link, link)


def rates_of(device: Device) -> Rates:
    """Return the Rates of a device. Without buffers in the host's memory that take none of its own, it has no link."""
    found = assumed(device.target)
    return found if not found.to_host or has_host_memory(device) else replace(found, to_host=0.0, from_host=0.0)
