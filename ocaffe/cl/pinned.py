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

from ocaffe.data.workers import Workers, cores

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
        buffer = cl.Buffer(device.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, math.prod(shape) * dtype.itemsize)
        # Mapped permanently. The map is the array's base: it keeps buffer and queue alive, and is released with the array.
        array, _ = cl.enqueue_map_buffer(device.upload_queue, buffer, cl.map_flags.READ | cl.map_flags.WRITE, 0, shape, dtype, is_blocking=True)
    except (cl.MemoryError, cl.RuntimeError, cl.LogicError):
        return np.zeros(shape, dtype)
    array[...] = 0
    return np.asarray(array)


def pinned_in_place(device: Device, memory: np.ndarray) -> np.ndarray:
    """Pin existing memory, for example memory that several processes share. Return an array over it, which keeps it alive and pinned.

    Returns `memory` itself for a device without its own memory, and if the driver refuses or maps it elsewhere.
    """
    return pinner(device)(memory)


def pinner(device: Device) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function that pins existing memory in place. It also works after the device is closed, as the memory of `pinned` does."""
    cl, context, queue, unified = device.cl, device.context, device.upload_queue, device.target.unified_memory

    def pin(memory: np.ndarray) -> np.ndarray:
        if unified or not memory.size:
            return memory
        try:
            buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=memory)
            flags = cl.map_flags.READ | cl.map_flags.WRITE
            array, _ = cl.enqueue_map_buffer(queue, buffer, flags, 0, memory.shape, memory.dtype, is_blocking=True)
        except (cl.MemoryError, cl.RuntimeError, cl.LogicError):
            return memory
        return np.asarray(_InPlace(array, buffer)) if array.ctypes.data == memory.ctypes.data else memory

    return pin


class _InPlace:
    """The base of an array over memory that is pinned in place.

    A map of PyOpenCL does not keep the memory below it alive, but the buffer does. The driver must have unmapped the memory before it is freed.
    """

    def __init__(self, array: np.ndarray, buffer: Any) -> None:
        self.__array_interface__ = array.__array_interface__
        self._map: Any = array.base
        self._buffer = buffer

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the context may be lost
            unmapped = self._map.release()
            if not sys.is_finalizing():  # a wait gives the interpreter's lock away, and a thread never gets it back then
                unmapped.wait()


def is_pinned(device: Device, array: np.ndarray) -> bool:
    """Return whether an array came from `pinned` or `pinned_in_place`, or is a view of such an array."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, (device.cl.MemoryMap, _InPlace))


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
        cl, queue = self.device.cl, self.device.queue

        def copy(chunks: Sequence[np.ndarray], first: int) -> None:
            sent: deque[Any] = deque()
            for at, chunk in zip(range(first, source.nbytes, self.count * self.chunk), itertools.cycle(chunks)):
                if len(sent) == len(chunks):
                    sent.popleft().wait()
                part = chunk[: min(self.chunk, source.nbytes - at)]
                part[...] = source[at : at + part.nbytes]
                sent.append(cl.enqueue_copy(queue, buffer, part, dst_offset=begin + at, is_blocking=False))
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
