"""The result of an offline compiler (amd.py, intel.py), and the folder of the compilers."""
from __future__ import annotations

import os
import pathlib
from typing import NamedTuple

TOOLS = pathlib.Path(os.environ.get("PORTABILITY_TOOLS", "/tmp/portability-tools"))  # as in tools.sh
# registers (VGPRs of a lane, or Intel's registers of a thread), spilled (AMD: scratch bytes of a lane; Intel: the compiler's count), local (bytes of a
# group), occupancy (AMD: waves of a SIMD unit), simd (Intel: work-items of a thread)
Kernel = dict[str, int]


class Built(NamedTuple):
    """`errors`: the compiler's; empty if it succeeded. `kernels`: by name."""

    errors: list[str]
    kernels: dict[str, Kernel]
