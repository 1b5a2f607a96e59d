"""How work-groups of one launch order memory between them (Target.device_fence): the choice for a device, and the options and files of its programs.

OpenCL 1.2 has no such fence. PTX: inline assembly of NVIDIA's driver, from compute capability 7. SCOPE: acquire-release atomics of device scope, which
the memory models of OpenCL 2.0 and 3.0 guarantee. AMD: builtins of AMD's compiler. CPU: for tests on processors.
"""
from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ocaffe.errors import Error
from ocaffe.shown import Lines
from ocaffe.support.switches import OFF, VARIABLE, Switches, export_without

FILES = {"SCOPE": "fence_scope.h", "AMD": "fence_amd.h"}  # follow common.h in programs with a last-block reduction
ACQUIRE_RELEASE, DEVICE_SCOPE = 1 << 1, 1 << 5  # of CL_DEVICE_ATOMIC_MEMORY_CAPABILITIES
STANDARDS = ((3, 0), (2, 0))  # of OpenCL C with such atomics


def device_fence(device: Any, kind: str, runtime: str, capability: int) -> str:
    """Return the fence of a device, "" for none. The switch `fence` replaces the choice: off, SCOPE, or AMD on AMD's driver.

    `device`: pyopencl's. `capability`: NVIDIA's compute capability, else 0. Raises Error if the device lacks the fence of the switch.
    """
    if kind != "gpu":
        return ""
    able = {"PTX": capability >= 7, "SCOPE": not capability and bool(standard(device)), "AMD": runtime == "amd"}
    wanted = Switches.read().fence
    if wanted == OFF:
        return ""
    if not wanted:
        return next((name for name in ("PTX", "SCOPE") if able[name]), "")
    if not able.get(wanted):
        fact = f"{VARIABLE} has fence={wanted}, which '{device.name.strip()}' does not have"
        able_to = ", ".join(f"fence={name}" for name in ["off", *(name for name, has in able.items() if has)])
        raise Error(fact, fix=Lines(export_without("fence"), f"    the device has {able_to}"))
    return wanted


def standard(device: Any) -> str:
    """Return the OpenCL C version with acquire-release atomics of device scope that the device compiles, such as 'CL3.0'; else "".

    OpenCL 2.0 to 2.2 require these atomics. In OpenCL 3.0 they are optional, and the device says whether it has them.
    """
    found = re.match(r"OpenCL (\d+)\.(\d+)", device.version)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if (2, 0) <= version < (3, 0):
        return "CL2.0"
    if version < (3, 0) or ~device.atomic_memory_capabilities & (ACQUIRE_RELEASE | DEVICE_SCOPE):
        return ""
    compiles = {(each.version >> 22, each.version >> 12 & 1023) for each in device.opencl_c_all_versions}
    return next(("CL{}.{}".format(*each) for each in STANDARDS if each in compiles), "")


def uses(fence: str, source: str, defines: Iterable[tuple[str, str]]) -> bool:
    """Whether a program has a last-block reduction with a fence that has its own file."""
    return fence in FILES and (("DEVICE_FENCE", fence) in defines or f"IS_LAST_BLOCK({fence}," in source)
