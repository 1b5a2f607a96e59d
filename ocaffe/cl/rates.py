"""The Rates of a device: its speeds, assumed or measured, with the efficiencies of kernels that ocaffe ships (kernels/rates_*.json)."""
from __future__ import annotations

import functools
import importlib.resources
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ocaffe.cl.host_memory import has_host_memory
from ocaffe.ir.rates import Efficiency, Rates
from ocaffe.ir.target import Target
from ocaffe.kernels.matmul.families import family_of
from ocaffe.kernels.matmul.gemm_gpu import units

if TYPE_CHECKING:
    from ocaffe.cl.device import Device

FILES = {"intel": "rates_intel.json", "pocl": "rates_pocl.json", "nvidia": "rates_nvidia.json"}  # by runtime, of the kind that the file is for
BY_KIND = {"cpu": "intel", "gpu": "nvidia"}  # the runtime whose file other runtimes get
LAUNCH = 8e-6  # seconds of a launch of an H100 (families.LAUNCH); the rows of GPUs give their clock by it
LINK = 2e10  # bytes/s of a link whose speed is not measured
HERTZ, PER_CORE, CORES = 2.5e9, 6e9, 8  # of a CPU: clock, bytes/s of a core, and cores that the memory keeps busy


def assumed(target: Target) -> Rates:
    """Return the Rates of a device that nothing was measured on. GPUs have those of their row in families.py."""
    found = efficiencies(target)
    if target.is_cpu:
        cores = target.compute_units
        return Rates(2 * cores * target.vector_width * HERTZ, PER_CORE * min(cores, CORES), efficiencies=found)
    family = family_of(target)
    cycles = units(target) * family.launch / LAUNCH
    link = 0.0 if target.unified_memory else LINK
    return Rates(2 * family.lanes * cycles, 4 * family.memory_floats * cycles, LAUNCH, link, link, found)


def rates_of(device: Device) -> Rates:
    """Return the Rates of a device. Without buffers in the host's memory that take none of its own, it has no link."""
    found = assumed(device.target)
    return found if not found.to_host or has_host_memory(device) else replace(found, to_host=0.0, from_host=0.0)


def with_rates(target: Target, rates: Rates | None = None) -> Target:
    """Return a target with its Rates; default: assumed ones."""
    return replace(target, rates=rates or assumed(target))


def efficiencies(target: Target) -> dict[str, Efficiency]:
    """Return the efficiencies of kernels in the arithmetic of a target. Those that were not fitted in it are those in fp32."""
    tables = _tables(FILES[target.runtime if target.runtime in FILES and _is_cpu(target.runtime) == target.is_cpu else BY_KIND[target.kind]])
    found = tables.get("fp32", {}) | tables.get(target.math, {})
    return {name: Efficiency(*values) for name, values in found.items()}


def _is_cpu(runtime: str) -> bool:
    return runtime != "nvidia"


@functools.cache
def _tables(name: str) -> dict[str, dict[str, Any]]:
    path = importlib.resources.files("ocaffe") / "kernels" / name
    if not path.is_file():
        return {}
    tables: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["efficiencies"]
    return tables
