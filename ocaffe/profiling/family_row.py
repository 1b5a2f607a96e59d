"""A row of ocaffe/kernels/matmul/families.py for the user's GPU, which `ocaffe tune --report` writes: that of its family, with rates measured on the device.

A maintainer pastes the text before the row of the family. Tiles and registers are those of the family: they follow from its compiler.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, replace

from ocaffe.cl.peaks import Peaks, launch_seconds, measure_peaks
from ocaffe.cl.session import Session
from ocaffe.ir.target import Target
from ocaffe.kernels.matmul import families
from ocaffe.kernels.matmul.families import FAMILIES, Family, family_of
from ocaffe.kernels.matmul.gemm_gpu import units

CONSTANTS = ("COMMON", "WAVES_OF_32", "WAVES_OF_64", "HALF_SUMS")  # tiles in families.py
MAKERS = ("NVIDIA", "AMD", "INTEL")  # patterns of runtimes there
WIDTH = 160  # characters of a line
UNKNOWN = FAMILIES[-1]


@dataclass(frozen=True)
class Measured:
    """Peak rates of a device, and the seconds of a launch in a sequence of launches that do nothing. `clock`: MHz; 0: the driver does not tell it."""

    peaks: Peaks
    launch: float
    clock: int

    def hertz(self, family: Family) -> float:
        """Return the clock; if it is not known, that of the family's card, whose launch takes 8 us."""
        return 1e6 * self.clock or family.launch / 8e-6


def measured(session: Session, clock: int) -> Measured:
    """Measure a device. This takes a few seconds."""
    return Measured(measure_peaks(session.device, session.programs), launch_seconds(session.device, session.programs), clock)


def row(target: Target, found: Measured) -> Family:
    """Return the row for a device. A device of no family gets the measured number of lanes."""
    base = family_of(target)
    hertz = found.hertz(base)
    name = target.name.split(":")[0]  # AMD's runtime adds the modes of the instruction set
    cycles = units(target) * hertz
    lanes = max(1, round(found.peaks.gflops * 1e9 / 2 / cycles)) if base is UNKNOWN else base.lanes
    return replace(base, name=name, runtime=base.runtime or re.escape(target.runtime), device=f"^{re.escape(name)}", lanes=lanes,
                   memory_floats=round(found.peaks.gbytes * 1e9 / 4 / cycles, 1), launch=max(1, round(found.launch * hertz / 1000)) * 1000)  # fmt: skip


def text(target: Target, found: Measured) -> str:
    """Return the lines for families.py: a comment with the measurements, and the row."""
    peaks, clock = found.peaks, f"{found.hertz(family_of(target)) / 1e9:.3g} GHz, {'by its driver' if found.clock else 'assumed'}"
    fact = f"{units(target)} units at {clock}. Measured: {peaks.gflops:.0f} GFLOP/s, a copy {peaks.gbytes:.0f} GB/s, a launch "
    lines, line = [f"    # {target.name}: {fact}{1e6 * found.launch:.1f} us. Otherwise as {family_of(target).name}."], "    Family("
    for argument in _arguments(row(target, found)):
        if len(line) + len(argument) + 2 > WIDTH:
            lines, line = [*lines, line.rstrip()], " " * 11
        line += f"{argument}, "
    return "\n".join([*lines, line.removesuffix(", ") + "),"]) + "\n"


def _arguments(family: Family) -> Iterator[str]:
    """Yield the arguments of Family in Python. Those with their default are left out."""
    named = {id(getattr(families, name)): name for name in CONSTANTS}
    makers = {getattr(families, name): name for name in MAKERS}
    for field in fields(family):
        value = getattr(family, field.name)
        if field.name == "tiles":
            yield named[id(value)]
        elif field.name == "runtime":
            yield makers.get(value, repr(value))
        elif field.default is MISSING:
            yield f'r"{value}"' if field.name == "device" else repr(value)
        elif value != field.default:
            yield f"{field.name}={value}"
