"""Compile a program for an AMD GPU by clang, and read what its kernels need. No GPU is needed.

tests/portability/tools.sh fetches clang 21. The variable AMD_CLANG names another command: 'clang-15 --rocm-device-lib-path=FOLDER', with Debian 12's package
rocm-device-libs, compiles for gfx1030 and gfx90a.
"""
from __future__ import annotations

import functools
import pathlib
import re
import subprocess

from tests.portability.compiler import CLANG, Built, Kernel

# Options of AMD's runtime for OpenCL C 1.2. Without the list of extensions clang enables all that the instruction set has.
FIXED = (
    "-x", "cl", "-O3", "-target", "amdgcn-amd-amdhsa", "-Xclang", "-cl-ext=-all,+cl_khr_fp64,+cl_khr_byte_addressable_store,+cl_khr_global_int32_base_atomics",
    "-Rpass-analysis=kernel-resource-usage",
)  # fmt: skip
REMARK = re.compile(r"remark: +(Function Name|VGPRs|ScratchSize \[bytes/lane\]|Occupancy \[waves/SIMD\]|LDS Size \[bytes/block\]): (\S+)")


@functools.cache
def version() -> str:
    """Return the first line of `clang --version`."""
    return subprocess.run([*CLANG, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[0]


def build(source: pathlib.Path, device: str, options: str) -> Built:
    """Compile one file. `device` is the name of the instruction set, gfx1100 for example."""
    command = [*CLANG, *FIXED, f"-mcpu={device}", *options.split(), "-c", source, "-o", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    kernels: dict[str, Kernel] = {}
    facts: dict[str, str] = {}
    for name, value in REMARK.findall(done.stderr):
        if name == "Function Name":
            facts = {}
        facts[name] = value
        if name.startswith("LDS"):  # the last remark of a kernel
            kernels[facts["Function Name"]] = {
                "registers": int(facts["VGPRs"]), "spilled": int(facts["ScratchSize [bytes/lane]"]), "local": int(value),
                "occupancy": int(facts["Occupancy [waves/SIMD]"]),
            }  # fmt: skip
    return Built(re.findall(r"error: (.*)", done.stderr) or (["exit status " + str(done.returncode)] if done.returncode else []), kernels)
