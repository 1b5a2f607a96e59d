"""The Rates of a device: its speeds, measured or assumed, and the costs of kernels that ocaffe ships (kernels/rates_*.json, by benchmarks/rates.py).

Speeds are measured once per device and driver, in about a second, and only if a plan needs predicted times. The cache folder keeps them. They are rounded
to two digits, so that a new measurement seldom changes a plan.
"""
from __future__ import annotations

import functools
import importlib.resources
import json
import math
from typing import TYPE_CHECKING, Any

from ocaffe.cl.host_memory import has_host_memory
from ocaffe.cl.peaks import COPIED, launch_seconds, link_rates, measure_peaks
from ocaffe.cl.program import Programs
from ocaffe.ir.rates import Cost, Rates
from ocaffe.ir.target import SIXTEEN_BITS, Target
from ocaffe.kernels.matmul.families import family_of
from ocaffe.kernels.matmul.gemm_gpu import units
from ocaffe.support.cache import Entries, digest

if TYPE_CHECKING:
    from ocaffe.cl.device import Device

FORMAT = "rates 2"  # of the stored speeds
FILES = {"cpu": "rates_intel.json", "gpu": "rates_nvidia.json"}
SPEEDS = ("flops", "bandwidth", "launch", "to_host", "from_host")
LINKS = SPEEDS[3:]  # 0 without memory of the host beside that of the device
LAUNCH = 8e-6  # seconds of a launch of an H100 (families.LAUNCH); the rows of GPUs give their clock by it
HERTZ, PER_CORE, CORES = 2.5e9, 6e9, 8  # of a CPU: clock, bytes/s of a core, and cores that the memory keeps busy
CPU_LAUNCH = 2e-6  # seconds
_here: dict[str, dict[str, float]] = {}  # speeds that this process has measured or read, by key


def assumed(target: Target) -> Rates:
    """Return the Rates of a device on which nothing is measured, without a link. GPUs have the speeds of their row in families.py."""
    if target.is_cpu:
        cores = target.compute_units
        return _rates(target, flops=2 * cores * target.vector_width * HERTZ, bandwidth=PER_CORE * min(cores, CORES), launch=CPU_LAUNCH)
    family = family_of(target)
    cycles = units(target) * family.launch / LAUNCH
    return _rates(target, flops=2 * family.lanes * cycles, bandwidth=4 * family.memory_floats * cycles, launch=LAUNCH)


def rates_of(device: Device, room: float = math.inf) -> Rates:
    """Return the Rates of a device by its measured speeds. The first call for a device and driver measures them, after the commands in its queue.

    If the measurement takes more than `room` bytes of the device, return those that ocaffe assumes.
    """
    target = device.target
    key = digest(FORMAT, target.kind, *device.info.facts)
    if key not in _here:
        entries = Entries("rates")
        speeds = _parsed(entries.load(key))
        if speeds is None and room < COPIED:
            return assumed(target)
        if speeds is None:
            speeds = measured(device)
            entries.store(key, json.dumps(speeds).encode())
        _here[key] = speeds
    return _rates(target, COPIED, **_here[key])


def measured(device: Device) -> dict[str, float]:
    """Measure the speeds of a device: SPEEDS, as fields of Rates, with two digits."""
    programs = device.programs or Programs(device)
    peaks = measure_peaks(device, programs)
    links = link_rates(device) if has_host_memory(device) else (0.0, 0.0)
    found = (1e9 * peaks.gflops, 1e9 * peaks.gbytes, launch_seconds(device, programs), *links)
    return {name: float(f"{value:.2g}") for name, value in zip(SPEEDS, found, strict=True)}


def _parsed(stored: bytes | None) -> dict[str, float] | None:
    """Return stored speeds, None if they are missing or damaged."""
    try:
        found = json.loads(stored or b"")
    except ValueError:
        return None
    fits = isinstance(found, dict) and found.keys() == set(SPEEDS) and all(isinstance(value, float) and math.isfinite(value) for value in found.values())
    return found if fits and all(found[name] > 0 or (name in LINKS and found[name] == 0) for name in SPEEDS) else None


def _rates(target: Target, room: int = 0, **speeds: float) -> Rates:
    table = _table(FILES[target.kind])
    enqueue, operand = table["host"]
    # Costs that were not fitted in the arithmetic of the target are those in another one.
    first, second = ("fp32", "bf16") if target.math in SIXTEEN_BITS else ("bf16", "fp32")
    costs = table["costs"].get(first, {}) | table["costs"].get(second, {})
    return Rates(room=room, enqueue=enqueue, operand=operand, costs={name: Cost(*values) for name, values in costs.items()}, **speeds)


@functools.cache
def _table(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((importlib.resources.files("ocaffe") / "kernels" / name).read_text(encoding="utf-8"))
    return found
