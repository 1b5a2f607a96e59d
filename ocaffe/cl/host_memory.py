"""Buffers in the host's memory, which commands of a device read and write over the bus.

NVIDIA's driver gives each pinned buffer of OpenCL as much memory on the device, so it would free nothing there. A buffer of its extension cl_nv_create_buffer
with both flags takes none. The driver's copy between it and a buffer of the device runs in a copy engine, beside kernels and in both directions at once. On an
H200 the device took 0 MiB for 1,024, and a step of ResNet-50 took 1 ms longer with 512 MiB copied each way. Other kinds of host memory do not have all of
this: a copy waits for kernels, takes work-groups from them, or its memory counts on the device.
"""
from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ocaffe.cl.failure import status_name
from ocaffe.cl.loader import loader_function
from ocaffe.errors import NoRoom

if TYPE_CHECKING:
    from ocaffe.cl.device import Device

EXTENSION = "cl_nv_create_buffer"
_READ_WRITE = 1 << 0  # of cl_mem_flags
_ON_HOST, _PINNED = 1 << 0, 1 << 1  # CL_MEM_LOCATION_HOST_NV, CL_MEM_PINNED_NV
_TRIAL = 2 << 20
_FIX = "a higher --memory-limit keeps more values on the device; `free -m` shows the host's memory"
_CREATE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)
)  # fmt: skip


def host_buffer(device: Device, size: int) -> Any:
    """Return a buffer of `size` bytes in the host's memory. Raises NoRoom."""
    cl = device.cl
    if device.target.runtime == "nvidia":
        return nvidia_buffer(device, size)
    flags = cl.mem_flags.READ_WRITE | (0 if device.target.unified_memory else cl.mem_flags.ALLOC_HOST_PTR)
    try:
        return cl.Buffer(device.context, flags, size)
    except (cl.MemoryError, cl.RuntimeError, cl.LogicError) as reason:
        raise NoRoom(f"'{device.name}' refused a buffer of {size:,} bytes in the host's memory ({reason})", fix=_FIX) from reason


def has_host_memory(device: Device) -> bool:
    """Return whether the device can use buffers in the host's memory that take no memory of its own."""
    if device.target.unified_memory:
        return False
    try:
        host_buffer(device, _TRIAL).release()
    except NoRoom:
        return False
    return True


def nvidia_buffer(device: Device, size: int) -> Any:
    """Return `size` bytes of pinned memory of the host as a buffer of NVIDIA's driver. Raises NoRoom."""
    find = loader_function("clGetExtensionFunctionAddressForPlatform")
    if EXTENSION not in device.target.extensions or find is None:
        raise NoRoom(f"'{device.name}' has no {EXTENSION}, so it cannot use the host's memory", fix=_FIX)
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
    function, status = find(device.cl_device.platform.int_ptr, b"clCreateBufferNV"), ctypes.c_int()
    made = _CREATE(function)(device.context.int_ptr, _READ_WRITE, _ON_HOST | _PINNED, size, None, ctypes.byref(status)) if function else None
    if not made:
        raise NoRoom(f"'{device.name}' refused a buffer of {size:,} bytes in the host's memory ({status_name(status.value)})", fix=_FIX)
    return device.cl.Buffer.from_int_ptr(made, retain=False)
