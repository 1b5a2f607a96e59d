"""Pinned host memory: a device with its own memory copies it at the full rate of the bus, because the driver has locked its pages.

Copies from other memory pass through a small buffer of the driver, page by page: 8 to 12 GB/s instead of 54 GB/s on an H100.
"""
from __future__ import annotations

import contextlib
import itertools
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ocaffe.cl.host_memory import EXTENSION, nvidia_buffer
from ocaffe.data.workers import Workers, cores
from ocaffe.errors import NoRoom

if TYPE_CHECKING:
    from ocaffe.cl.device import Device

THREADS = 8  # maximum number of threads that fill chunks, one per core; a thread copies 5 to 10 GB/s
CHUNK = 2 << 20  # bytes that a thread copies and sends at a time
CHUNKS = 2  # per thread, so that it fills one while the device copies the other


def pinned(device: Device, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an array of zeros in pinned memory. The memory is freed with the last view of the array, even after the device is closed.

    A device without its own memory reads any memory at the same rate; the array is then in ordinary memory. This also
    holds if the driver refuses pinned memory.
    """
    cl, dtype = device.cl, np.dtype(dtype)
    if device.target.unified_memory or not math.prod(shape):
        return np.zeros(shape, dtype)
    try:
        size, flags = math.prod(shape) * dtype.itemsize, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        buffer = nvidia_buffer(device, size) if EXTENSION in device.target.extensions else cl.Buffer(device.context, flags, size)
        array = _Pinned(cl, device.upload_queue, buffer, shape, dtype).array()
    except (NoRoom, cl.MemoryError, cl.RuntimeError, cl.LogicError):
        return np.zeros(shape, dtype)
    array[...] = 0
    return array


def pinned_in_place(device: Device, memory: np.ndarray) -> np.ndarray:
    """Pin existing memory, for example memory that several processes share. Return an array over it, which keeps it alive and pinned.

    Returns `memory` itself for a device without its own memory, and if the driver refuses or maps it elsewhere.
    """
    return pinner(device)(memory)


def pinner(device: Device) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that pins existing memory in place. It also works after the device is closed, as the memory of `pinned` does.

    NVIDIA's driver would take as much memory of the device, so there it pins nothing: such memory is in no plan.
    """
    cl, context, queue = device.cl, device.context, device.upload_queue
    pins = not device.target.unified_memory and EXTENSION not in device.target.extensions

    def pin(memory: np.ndarray) -> np.ndarray:
        if not pins or not memory.size:
            return memory
        try:
            buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=memory)
            array = _Pinned(cl, queue, buffer, memory.shape, memory.dtype).array()
        except (cl.MemoryError, cl.RuntimeError, cl.LogicError):
            return memory
        return array if array.ctypes.data == memory.ctypes.data else memory

    return pin


class _Pinned:
    """The base of an array over pinned memory. It keeps the buffer, and memory below it, alive and mapped.

    A map of PyOpenCL keeps neither alive. The driver must have unmapped memory that is pinned in place before it is freed.
    """

    def __init__(self, cl: Any, queue: Any, buffer: Any, shape: tuple[int, ...], dtype: Any) -> None:
        mapped, _ = cl.enqueue_map_buffer(queue, buffer, cl.map_flags.READ | cl.map_flags.WRITE, 0, shape, dtype, is_blocking=True)
        self.__array_interface__ = mapped.__array_interface__
        self.buffer, self.begin = buffer, int(mapped.ctypes.data)
        self._map: Any = mapped.base

    def array(self) -> np.ndarray:
        return np.asarray(self)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the context may be lost
            unmapped = self._map.release()
            if not sys.is_finalizing():  # a wait gives the interpreter's lock away, and a thread never gets it back then
                unmapped.wait()


def _base(array: np.ndarray) -> Any:
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base


def is_pinned(array: np.ndarray) -> bool:
    """Return whether an array came from `pinned` or `pinned_in_place`, or is a view of such an array."""
    return isinstance(_base(array), _Pinned)


def upload(device: Device, queue: Any, buffer: Any, data: np.ndarray, begin: int = 0, after: Any = None) -> Any:
    """Enqueue the copy of a dense array to a buffer of the device, from byte `begin` on, once the event `after` is complete. Return its event.

    Does not wait. With an NVIDIA driver a copy from a buffer of the host runs beside kernels. A write from the mapped memory of the same buffer, which
    OpenCL has for this, waits for kernels on other queues: 512 MiB beside a step of ResNet-50 take 0.7 ms of its time instead of 10 on an H200.
    """
    cl, base, wait = device.cl, _base(data), None if after is None else [after]
    if isinstance(base, _Pinned) and EXTENSION in device.target.extensions:
        offset = int(data.ctypes.data) - base.begin
        return cl.enqueue_copy(queue, buffer, base.buffer, src_offset=offset, dst_offset=begin, byte_count=data.nbytes, wait_for=wait)
    return cl.enqueue_copy(queue, buffer, data, dst_offset=begin, is_blocking=False, wait_for=wait)


class Staging:
    """Send arrays from ordinary memory to a device through pinned chunks. Several threads fill chunks while the device copies others."""

    def __init__(self, device: Device, threads: int | None = None, chunk: int = CHUNK) -> None:
        """`threads`: that fill chunks; None: one per core, at most THREADS. `chunk`: its size in bytes."""
        self.device, self.chunk = device, chunk
        self.count = min(THREADS, cores()) if threads is None else threads
        self._workers = Workers(self.count, "ocaffe send")
        self._chunks: list[list[np.ndarray]] = []  # of each thread; allocated by the first send
        self._lock = threading.Lock()

    @property
    def helps(self) -> bool:
        """Return whether this is faster than the driver's copy. With one thread it is not, because copying and waiting alternate."""
        return self.count > 1

    def send(self, buffer: Any, begin: int, data: np.ndarray) -> None:
        """Copy a dense array to `buffer`, starting at byte `begin`. Waits for the copy and all commands enqueued before."""
        source = data.reshape(-1).view(np.uint8)
        queue = self.device.queue

        def copy(chunks: Sequence[np.ndarray], first: int) -> None:
            sent: deque[Any] = deque()
            for at, chunk in zip(range(first, source.nbytes, self.count * self.chunk), itertools.cycle(chunks)):
                if len(sent) == len(chunks):
                    sent.popleft().wait()
                part = chunk[: min(self.chunk, source.nbytes - at)]
                part[...] = source[at : at + part.nbytes]
                sent.append(upload(self.device, queue, buffer, part, begin + at))
                queue.flush()
            for event in sent:
                event.wait()

        with self._lock:
            if not self._chunks:
                self._chunks = [[pinned(self.device, (self.chunk,), np.uint8) for _ in range(CHUNKS)] for _ in range(self.count)]
            self._workers.run([partial(copy, chunks, index * self.chunk) for index, chunks in enumerate(self._chunks)])

    def close(self) -> None:
        """Stop the threads and free the chunks."""
        self._workers.close()
        self._chunks = []
