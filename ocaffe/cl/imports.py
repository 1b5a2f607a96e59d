"""Memory that CUDA's driver has made, as a buffer of OpenCL: the driver exports a file descriptor, which OpenCL imports (cl_khr_external_memory_opaque_fd)."""
from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from ocaffe.cl.loader import loader_function

if TYPE_CHECKING:
    from ocaffe.cl.device import Device

EXTENSION = "cl_khr_external_memory_opaque_fd"
_CREATE = "clCreateBufferWithProperties"  # of OpenCL 3.0
_OPAQUE_FD, _READ_WRITE = 0x2060, 1  # CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR, CL_MEM_READ_WRITE


def can_import() -> bool:
    """Return whether the OpenCL loader has the function that imports."""
    return loader_function(_CREATE) is not None


def import_memory(device: Device, descriptor: int, size: int) -> tuple[int, int]:
    """Return the handle of a buffer over the `size` bytes of a descriptor, or 0, and OpenCL's status. The descriptor is the driver's, or closed."""
    create = loader_function(_CREATE)
    assert create is not None
    create.restype = ctypes.c_void_p
    create.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    status = ctypes.c_int()
    made = create(device.context.int_ptr, (ctypes.c_uint64 * 3)(_OPAQUE_FD, descriptor, 0), _READ_WRITE, size, None, ctypes.byref(status))
    if status.value or not made:
        os.close(descriptor)  # the driver owns it only after an import
        return 0, status.value
    return int(made), 0


def pci_address(device: Device) -> bytes:
    """Return the PCI address of a device of NVIDIA, as CUDA's driver spells it."""
    found = device.cl_device
    return f"{found.pci_domain_id_nv:04x}:{found.pci_bus_id_nv:02x}:{found.pci_slot_id_nv:02x}.0".encode()
