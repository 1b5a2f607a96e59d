"""Free memory of a device, and the memory of a context. OpenCL has no such queries, so each kind of device needs its own method."""
from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

# Contexts of GPUs with their own memory. An empty one takes 529 MiB on an H100, less on smaller GPUs. The lower bound applies if another process
# freed memory during the measurement.
UNKNOWN_CONTEXT, LEAST_CONTEXT = 600 << 20, 256 << 20

_CGROUP = (  # limit and usage of a container, for cgroup version 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_memory(device: Any, kind: str, extensions: frozenset[str]) -> int | None:
    """Return the free bytes of a pyopencl device, or None if they are unknown."""
    if kind == "cpu":
        return _host()
    if "cl_nv_device_attribute_query" in extensions:
        return _nvidia(device)
    if "cl_amd_device_attribute_query" in extensions:
        with contextlib.suppress(Exception):  # kilobytes: (all free memory, largest free range)
            return int(device.global_free_memory_amd[0]) * 1024
    return _host() if device.host_unified_memory else None  # of Intel's, Arm's and Qualcomm's GPUs without memory of their own


def context_bytes(before: int | None, after: int | None) -> int:
    """Return the device memory of a context, from the free bytes before and after this process made one."""
    if before is None or after is None:
        return UNKNOWN_CONTEXT
    return max(before - after, LEAST_CONTEXT)


def _host() -> int | None:
    """Return the free bytes of the host, within the limits of a container. Only Linux and Android have the files that tell it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return None
    for limit, usage in _CGROUP:
        with contextlib.suppress(OSError, ValueError):  # 'max' = no limit
            available = min(available, max(int(Path(limit).read_text()) - int(Path(usage).read_text()), 0))
    return available


class _NvmlMemory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def _nvidia(device: Any) -> int | None:
    """Return the free bytes from NVML, by PCI address."""
    with contextlib.suppress(Exception):
        # The slot is the device number (6 for 00:06.0 with driver 580).
        address = f"{device.pci_domain_id_nv:08x}:{device.pci_bus_id_nv:02x}:{device.pci_slot_id_nv:02x}.0"
        nvml = ctypes.CDLL("nvml.dll" if os.name == "nt" else "libnvidia-ml.so.1")
        handle, memory = ctypes.c_void_p(), _NvmlMemory()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByPciBusId_v2(address.encode(), ctypes.byref(handle)):
            return None
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
            return int(memory.free)
    return None
