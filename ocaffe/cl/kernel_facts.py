"""Facts of a built kernel that a driver tells: limits of its work-group, and its memory."""
from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable
from typing import Any

from ocaffe.cl.device import Device
from ocaffe.cl.loader import loader_function

# Queries of clGetKernelWorkGroupInfo with a number as result, by the name in a report.
QUERIES = {
    "work_group_limit": 0x11B0,  # CL_KERNEL_WORK_GROUP_SIZE
    "multiple": 0x11B3,  # CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE
    "local_bytes": 0x11B2,  # CL_KERNEL_LOCAL_MEM_SIZE
    "private_bytes": 0x11B4,  # CL_KERNEL_PRIVATE_MEM_SIZE: AMD's scratch, the stack on a CPU
    "spill_bytes": 0x4109,  # CL_KERNEL_SPILL_MEM_SIZE_INTEL, of cl_intel_required_subgroup_size
}
# How compilers report spilled registers: NVIDIA's '12 bytes spill stores', Intel's 'spilled around 37' (registers).
_SPILLS = re.compile(r"\b([1-9]\d*) bytes spill stores|spilled around ([1-9]\d*)")


def kernel_facts(device: Device, program: Any, function: str) -> dict[str, int]:
    """Return the facts of QUERIES that the driver has for a function of a built program."""
    query = loader_function("clGetKernelWorkGroupInfo")
    if query is None:
        return {}
    query.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
    kernel = device.cl.Kernel(program, function)
    facts = {}
    for name, number in QUERIES.items():
        value = ctypes.c_ulonglong()  # a size_t of 32 bits fills its lower half
        if query(kernel.int_ptr, device.cl_device.int_ptr, number, ctypes.sizeof(value), ctypes.byref(value), None) == 0:
            facts[name] = value.value
    return facts


def messages_about(log: str, program: Any, function: str) -> list[str]:
    """Return the lines of a compiler's messages about a function. A line that names a function of the program begins its lines; before, they are of all."""
    names = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in program.kernel_names.split(";")))
    lines, about = [], ""
    for line in log.splitlines():
        named = names.search(line)
        about = named[0] if named else about
        if about in ("", function):
            lines.append(line.strip())
    return lines


def logged_spill(lines: Iterable[str]) -> int:
    """Return the largest number of spilled bytes or registers in these lines; 0 without a spill."""
    return max((int(found[1] or found[2]) for line in lines if (found := _SPILLS.search(line))), default=0)
