"""Host memory that a device with memory of its own copies at the full rate of its bus: the driver has locked its pages.

Copies from other memory go through the driver's small buffer, page by page: on an H100 8 to 12 GB/s, against 54 GB/s.
"""
from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ocaffe.data.workers import Workers, cores

if TYPE_CHECKING:
    from ocaffe.cl.device import Device

THREADS = 8  # that fill chunks, if there are as many cores: one copies 5 to 10 GB/s
CHUNK = 2 << 20  # bytes that one of them copies and sends at a time
CHUNKS = 2  # of a thread: it fills one while another is on its way


def pinned(device: Device, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros in pinned memory, which lives as long as the array or a part of it, whatever becomes of the device.

    In ordinary memory where the device has none of its own, which then reads any memory at the same rate, or where the driver refuses.
    """
    cl, dtype = device.cl, np.dtype(dtype)
    if device.target.unified_memory or not math.prod(shape):
        return np.zeros(shape, dtype)
    try:
        buffer = cl.Buffer(device.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, math.prod(shape) * dtype.itemsize)
        # Mapped for good: the map, which keeps buffer and queue, is the base of the array and ends with it.
        array, _ = cl.enqueue_map_buffer(device.upload_queue, buffer, cl.map_flags.READ | cl.map_flags.WRITE, 0, shape, dtype, is_blocking=True)
    except (cl.MemoryError, cl.RuntimeError, cl.LogicError):
        return np.zeros(shape, dtype)
    array[...] = 0
    return np.asarray(array)


def is_pinned(device: Device, array: np.ndarray) -> bool:
    """Whether an array is one of `pinned`, or a part of it."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, device.cl.MemoryMap)


class Staging:
    """Brings arrays from ordinary memory to a device through pinned chunks, which several threads fill while others are on their way."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.count = min(THREADS, cores())
        self._workers = Workers(self.count, "ocaffe send")
        self._chunks: list[list[np.ndarray]] = []  # of each thread; made when something is sent
        self._lock = threading.Lock()

    @property
    def helps(self) -> bool:
        """Whether it is faster than the driver alone: not with one thread, which would copy and wait in turn."""
        return self.count > 1

    def send(self, buffer: Any, begin: int, data: np.ndarray) -> None:
        """Copy a dense array to `buffer` from byte `begin` on; waits for it, and for what was enqueued before."""
        source = data.reshape(-1).view(np.uint8)
        cl, queue = self.device.cl, self.device.queue

        def copy(chunks: Sequence[np.ndarray], first: int) -> None:
            sent: deque[Any] = deque()
            for at, chunk in zip(range(first, source.nbytes, self.count * CHUNK), itertools.cycle(chunks)):
                if len(sent) == len(chunks):
                    sent.popleft().wait()
                part = chunk[: min(CHUNK, source.nbytes - at)]
                part[...] = source[at : at + part.nbytes]
                sent.append(cl.enqueue_copy(queue, buffer, part, dst_offset=begin + at, is_blocking=False))
                queue.flush()
            for event in sent:
                event.wait()

        with self._lock:
            if not self._chunks:
                self._chunks = [[pinned(self.device, (CHUNK,), np.uint8) for _ in range(CHUNKS)] for _ in range(self.count)]
            self._workers.run([partial(copy, chunks, index * CHUNK) for index, chunks in enumerate(self._chunks)])

    def close(self) -> None:
        """End the threads and let go of the chunks."""
        self._workers.close()
        self._chunks = []
