"""Buffers that host and device share: fine-grained shared virtual memory of OpenCL 2.0, on devices that work in the host's memory.

A transfer is a command, which a thread of the runtime has to carry out. For LeNet with one image, two of them took a third of the time. The host reads
and writes these buffers itself, while no command runs.
"""
from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from ocaffe.cl.device import Device


def can_share(device: Device) -> bool:
    """Whether the device has such buffers and no memory of its own."""
    cl = device.cl
    with contextlib.suppress(cl.Error, AttributeError):  # runtimes of OpenCL 1.2 do not know the query
        return device.info.target.unified_memory and bool(device.cl_device.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_BUFFER)
    return False


def shared_buffer(device: Device, size: int) -> Any:
    """Return a buffer whose `hostbuf` is an array over its bytes. A buffer over SVM has the memory as its storage (OpenCL 2.0, clCreateBuffer)."""
    cl = device.cl
    memory = cl.fsvm_empty(device.context, (size,), np.uint8, queue=device.queue)  # the queue frees it after the commands that use it
    return cl.Buffer(device.context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=memory)


def write_shared(device: Device, buffer: Any, offset: int, data: np.ndarray) -> bool:
    """Write a contiguous array at `offset` bytes of a shared buffer, after all commands. Return False if the buffer is not shared."""
    if buffer.hostbuf is None:
        return False
    device.queue.finish()
    buffer.hostbuf[offset : offset + data.nbytes] = data.reshape(-1).view(np.uint8)
    return True


def read_shared(device: Device, buffer: Any, offset: int, result: np.ndarray) -> bool:
    """Fill a contiguous array from `offset` bytes of a shared buffer on, after all commands. Return False if the buffer is not shared."""
    if buffer.hostbuf is None:
        return False
    device.queue.finish()
    result.reshape(-1).view(np.uint8)[...] = buffer.hostbuf[offset : offset + result.nbytes]
    return True
