"""The exchange of gradients through host memory, for devices of any kind (transport `mpi`).

A thread copies buckets to the host on a queue of its own, while the launches of backward run on the device. The device adds the chunks.
"""
from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ocaffe.cl.device import Device
from ocaffe.cl.feed import complete
from ocaffe.cl.pinned import pinned_in_place
from ocaffe.cl.program import ProgramKey
from ocaffe.cl.session import Session
from ocaffe.parallel.carriers import ALIGNMENT, ROUND, Carrier, carrier_of, describe, largest_chunk
from ocaffe.parallel.world import World

IN_FLIGHT = 48 << 20  # bytes of gradients that wait for their average while backward continues
_LOOK = 3e-4  # seconds between two looks at the device during a wait
_TYPES = {32: ("float", np.float32), 16: ("bfloat", np.uint16)}  # of the values that ranks send each other, by their bits: OpenCL's and numpy's


class Bucket(NamedTuple):
    """`length` floats of `buffer` from element `offset` on, which are valid once the event `filled` is complete."""

    filled: Any
    buffer: Any
    offset: int
    length: int
    bits: int  # of its values on their way
    done: threading.Event


class HostExchange:
    """Averages buckets over all ranks in the order in which they begin."""

    in_flight, late_rows = IN_FLIGHT, 0

    def __init__(self, session: Session, world: World, bits: int = 32) -> None:
        """Allocates buffers: for the chunks of the other ranks, and with 16 `bits` for a round in bfloat16."""
        kind = _TYPES[bits][0]
        self._bits = bits
        self._world, self._device = world, session.device
        self._carrier: Carrier = carrier_of(world, partial(pinned_in_place, session.device))
        cl = session.device.cl
        self._queue = cl.CommandQueue(session.device.context, session.device.cl_device)
        averages = {each: ProgramKey("exchange", (("WIRE", _TYPES[each][0]),)) for each in {32, bits}}
        pack, unpack = (ProgramKey("exchange", (("RESULT_T", result), ("SOURCE_T", source))) for source, result in (("float", kind), (kind, "float")))
        programs = session.programs.build_all([*averages.values(), pack, unpack])
        self._average = {each: cl.Kernel(programs[key], "average") for each, key in averages.items()}
        self._pack, self._unpack = (cl.Kernel(programs[key], "convert") for key in (pack, unpack))
        self._others = session.allocate((world.size - 1) * largest_chunk(world.size) * 4, "the gradients of other ranks")
        self._packed = session.allocate(ROUND * 2, "gradients in 16 bits") if bits == 16 else None
        self._open: list[Bucket] = []  # begun and not ended, for `end`
        self._work: deque[Bucket] = deque()  # for the thread
        self._changed = threading.Condition()
        self._closed = False
        self._problem: BaseException | None = None
        self.exposed = 0.0  # seconds during which the device had nothing to do but to wait for an exchange
        self._thread = threading.Thread(target=self._run, name="ocaffe exchange", daemon=True)
        self._thread.start()

    def __str__(self) -> str:
        return f"mpi ({describe(self._carrier)}{', 16 bits' * (self._bits == 16)})"

    @property
    def device_bytes(self) -> int:
        """Device memory of the exchange beside the plan."""
        return int(self._others.size) + (0 if self._packed is None else int(self._packed.size))

    def begin(self, filled: Any, buffer: Any, offset: int, count: int, exact: bool = False) -> None:
        bucket = Bucket(filled, buffer, offset, count, 32 if exact else self._bits, threading.Event())
        self._open.append(bucket)
        with self._changed:
            self._work.append(bucket)
            self._changed.notify()

    def end(self, buffer: Any, offset: int) -> None:
        index = next(i for i, bucket in enumerate(self._open) if (bucket.buffer, bucket.offset) == (buffer, offset))
        bucket = self._open.pop(index)
        if not bucket.done.is_set():
            self._wait(bucket, self._device)
        if self._problem is not None:
            raise self._problem

    def _wait(self, bucket: Bucket, device: Device) -> None:
        """Wait for a bucket. Count the time after the device has carried out all that was enqueued."""
        marker = device.cl.enqueue_marker(device.queue)
        device.queue.flush()
        idle: float | None = None
        while not bucket.done.wait(_LOOK):
            if idle is None and complete(device.cl, marker):
                idle = time.perf_counter()
        if idle is not None:
            self.exposed += time.perf_counter() - idle

    def close(self) -> None:
        """End the thread. If a bucket is open, the training has failed: the thread may wait for a rank that has ended, and the process ends without it."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if not self._open:
            self._thread.join()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._work)
                if not self._work:
                    return
                bucket = self._work.popleft()
            try:
                if self._problem is None:
                    bucket.filled.wait()
                    for begin in range(0, bucket.length, ROUND):
                        self._round(bucket, bucket.offset + begin, min(ROUND, bucket.length - begin))
            except BaseException as problem:  # `end` raises it on the thread of the training
                self._problem = problem
            bucket.done.set()

    def _round(self, bucket: Bucket, offset: int, count: int) -> None:
        """Average `count` floats from `offset` on."""
        if bucket.bits == 32:
            self._swap(32, bucket.buffer, offset, count)
        else:
            self._convert(self._pack, (bucket.buffer, offset), (self._packed, 0), count)
            self._swap(bucket.bits, self._packed, 0, count)
            self._convert(self._unpack, (self._packed, 0), (bucket.buffer, offset), count)
            self._queue.finish()

    def _convert(self, kernel: Any, source: tuple[Any, int], target: tuple[Any, int], count: int) -> None:
        zero = np.uint64(0)
        kernel.set_args(source[0], np.uint64(source[1]), zero, target[0], np.uint64(target[1]), zero, np.int32(count))
        self._device.cl.enqueue_nd_range_kernel(self._queue, kernel, (-(-count // ALIGNMENT) * ALIGNMENT,), None)

    def _swap(self, bits: int, buffer: Any, offset: int, count: int) -> None:
        """Average `count` values of so many bits from `offset` on. Rank r adds the chunks r of all."""
        rank, size, carrier, queue, copy = self._world.rank, self._world.size, self._carrier, self._queue, self._device.cl.enqueue_copy
        chunk = -(-count // (size * ALIGNMENT)) * ALIGNMENT
        first = [min(q * chunk, count) for q in range(size + 1)]
        lengths = [end - begin for begin, end in itertools.pairwise(first)]
        others = [q for q in range(size) if q != rank]
        own = lengths[rank]
        item, dtype, average = bits // 8, _TYPES[bits][1], self._average[bits]
        carrier.open(chunk * item // 4)
        for q in others:
            if lengths[q]:
                copy(queue, carrier.outgoing(q).view(dtype)[: lengths[q]], buffer, src_offset=item * (offset + first[q]), is_blocking=False)
        queue.finish()
        carrier.swap()
        if own:
            for place, q in enumerate(others):
                copy(queue, self._others, carrier.incoming(q).view(dtype)[:own], dst_offset=item * chunk * place, is_blocking=False)
            places = self._others, np.uint64(0), np.uint64(0), buffer, np.uint64(offset + first[rank]), np.uint64(0)
            average.set_args(*places, *map(np.int32, (size, rank, chunk, own)), np.float32(1 / size))
            self._device.cl.enqueue_nd_range_kernel(queue, average, (-(-own // ALIGNMENT) * ALIGNMENT,), None)
            copy(queue, carrier.result.view(dtype)[:own], buffer, src_offset=item * (offset + first[rank]), is_blocking=False)
        queue.finish()
        carrier.spread()
        for q in others:
            if lengths[q]:
                copy(queue, buffer, carrier.arrived(q).view(dtype)[: lengths[q]], dst_offset=item * (offset + first[q]), is_blocking=False)
        queue.finish()
