"""Buffers in the host's memory that kernels of a device read and write over the bus.

NVIDIA's driver gives each pinned buffer of OpenCL as much memory on the device, 2,052 MiB for 2,048 on an H200, so it would free nothing there. Memory that
CUDA's driver makes on the host and OpenCL imports takes none. The call needs no context of CUDA, which would take 524 MiB of the device.

A small kernel copies, with few work-groups. On an H200 it runs beside other kernels, at 52 GB/s. Copies of buffers by the driver do not: they wait for
the kernels.
"""
from __future__ import annotations

import contextlib
import ctypes
from typing import TYPE_CHECKING, Any

from ocaffe.cl.failure import status_name
from ocaffe.cl.imports import EXTENSION, can_import, import_memory, pci_address
from ocaffe.cl.program import ProgramKey
from ocaffe.errors import NoRoom
from ocaffe.ir.target import Target

if TYPE_CHECKING:
    from ocaffe.cl.device import Device

_PINNED, _POSIX_FD, _HOST_NUMA = 1, 1, 3  # of CUmemAllocationType, CUmemAllocationHandleType and CUmemLocationType
_HOST_NUMA_ID = 134  # CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID
_TRIAL = 2 << 20
TRANSFER = ProgramKey("""
kernel void transfer(global const uint4* x, ulong x_begin, global uint4* y, ulong y_begin, ulong count) {
  x += x_begin, y += y_begin;
  for (ulong i = get_global_id(0); i < count; i += get_global_size(0)) y[i] = x[i];
}
""")
VECTOR = 16  # bytes that a work-item copies at a time
GROUPS, ITEMS = 32, 256  # work-groups of a copy, and work-items of each; on CPUs one for each compute unit
_FIX = "a higher --memory-limit keeps more values on the device; `free -m` shows the host's memory"


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Flags(ctypes.Structure):
    _fields_ = [("compression", ctypes.c_ubyte), ("rdma", ctypes.c_ubyte), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_ubyte * 4)]


class _Properties(ctypes.Structure):
    """CUmemAllocationProp of cuda.h."""

    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", _Location), ("windows", ctypes.c_void_p), ("flags", _Flags)]


def host_buffer(device: Device, size: int) -> Any:
    """Return a buffer of `size` bytes in the host's memory. Raises NoRoom."""
    cl = device.cl
    if device.target.runtime == "nvidia":
        return _imported(device, size)
    flags = cl.mem_flags.READ_WRITE | (0 if device.target.unified_memory else cl.mem_flags.ALLOC_HOST_PTR)
    try:
        return cl.Buffer(device.context, flags, size)
    except (cl.MemoryError, cl.RuntimeError, cl.LogicError) as reason:
        raise NoRoom(f"'{device.name}' refused a buffer of {size:,} bytes in the host's memory ({reason})", fix=_FIX) from reason


def copy_size(target: Target) -> tuple[int, int]:
    """Return the work-items of a copy, and those of a work-group."""
    return (target.compute_units, 1) if target.is_cpu else (GROUPS * target.group(ITEMS), target.group(ITEMS))


def has_host_memory(device: Device) -> bool:
    """Return whether the device can use buffers in the host's memory that take no memory of its own."""
    if device.target.unified_memory:
        return False
    try:
        host_buffer(device, _TRIAL).release()
    except NoRoom:
        return False
    return True


def _imported(device: Device, size: int) -> Any:
    """Return memory of the host that CUDA's driver makes and OpenCL imports."""
    if not can_import() or EXTENSION not in device.target.extensions:
        raise NoRoom(f"'{device.name}' has no {EXTENSION}, so it cannot use the host's memory", fix=_FIX)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as reason:
        raise NoRoom(f"'{device.name}': libcuda.so.1, a part of NVIDIA's driver, cannot be loaded: {reason}", fix=_FIX) from None

    def call(name: str, *args: Any) -> None:
        status = getattr(cuda, name)(*args)
        if status:
            raise NoRoom(f"'{device.name}': CUDA's {name} refused {size:,} bytes of the host's memory ({status})", fix=_FIX)

    call("cuInit", 0)
    properties = _Properties(type=_PINNED, handles=_POSIX_FD, location=_Location(_HOST_NUMA, _node(cuda, device)))
    granularity, handle, descriptor = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_int()
    call("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(properties), 0)
    size = -(-size // granularity.value) * granularity.value
    call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_uint64(0))
    try:
        call("cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, _POSIX_FD, ctypes.c_uint64(0))
        made, status = import_memory(device, descriptor.value, size)
        if not made:
            raise NoRoom(f"OpenCL on '{device.name}' cannot use {size:,} bytes of the host's memory ({status_name(status)})", fix=_FIX)
    finally:
        cuda.cuMemRelease(handle)  # an import holds the memory by itself
    return device.cl.Buffer.from_int_ptr(made, retain=False)


def _node(cuda: Any, device: Device) -> int:
    """Return the NUMA node of the host's memory that is nearest to the device."""
    ordinal, node = ctypes.c_int(), ctypes.c_int()
    with contextlib.suppress(Exception):  # attributes of NVIDIA's OpenCL
        if cuda.cuDeviceGetByPCIBusId(ctypes.byref(ordinal), pci_address(device)) == 0:
            cuda.cuDeviceGetAttribute(ctypes.byref(node), _HOST_NUMA_ID, ordinal)
    return max(node.value, 0)
