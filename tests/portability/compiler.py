"""The result of an offline compiler (amd.py, intel.py), the folder of the compilers, and the preprocessor."""
from __future__ import annotations

import os
import pathlib
import subprocess
from typing import NamedTuple

TOOLS = pathlib.Path(os.environ.get("PORTABILITY_TOOLS", "/tmp/portability-tools"))  # as in tools.sh
# AMD_CLANG replaces the clang of tools.sh by another command.
CLANG = os.environ.get("AMD_CLANG", f"{TOOLS}/clang-21 --rocm-device-lib-path={TOOLS}/root/usr/lib/llvm-21/lib/clang/21/amdgcn/bitcode").split()
# registers (VGPRs of a lane, or Intel's registers of a thread), spilled (AMD: scratch bytes of a lane; Intel: the compiler's count), local (bytes of a
# group), occupancy (AMD: waves of a SIMD unit), simd (Intel: work-items of a thread)
Kernel = dict[str, int]


class Built(NamedTuple):
    """`errors`: the compiler's; empty if it succeeded. `kernels`: by name."""

    errors: list[str]
    kernels: dict[str, Kernel]


def tokens(source: pathlib.Path) -> list[str]:
    """Return the words of a program after the preprocessor: programs with equal words and options have equal binaries."""
    command = [*CLANG, "-w", "-E", "-P", "-x", "cl", "-cl-std=CL1.2", "-target", "spir64", source]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
