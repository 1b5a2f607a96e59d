"""The outputs of runs: losses and net outputs in one ring on the device, and their way to the host."""
from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocaffe.cl.feed import complete
from ocaffe.cl.session import Session
from ocaffe.ir.tensor import Ref

OUTPUT_ALIGNMENT = 64  # in bytes, of each output in the common buffer
OUTPUT_SLOTS, OUTPUT_BYTES = 16, 1 << 14  # maximum number of runs whose outputs stay on the device, and their maximum size
LATE = 0.05  # seconds after which outputs are sent to the host although slots are free


class OutputRing:
    """One small buffer for losses and net outputs, with a slot for each of several runs. One transfer copies all slots to the host.

    Most runs then have no transfer, which would stall the device for as long as several small kernels take.
    `single`: all runs share one slot.
    """

    def __init__(self, session: Session, refs: list[Ref], single: bool) -> None:
        self.session = session
        self.offsets: dict[Ref, int] = {}
        size = 0
        for ref in refs:
            self.offsets[ref] = size
            size += -(-ref.nbytes // OUTPUT_ALIGNMENT) * OUTPUT_ALIGNMENT
        self._size = max(size, OUTPUT_ALIGNMENT)
        self.slots = OUTPUT_SLOTS if not single and OUTPUT_SLOTS * self._size <= OUTPUT_BYTES else 1
        self._transfer = Transfer()  # the next transfer
        self._fetched: set[int] = set()  # slots that the next transfer copies for a Fetched
        self._sent = 0.0  # time of the last transfer
        cl = session.device.cl
        self.buffer = session.allocate(self.slots * self._size, "the outputs", shared=True)
        cl.enqueue_fill_buffer(session.device.queue, self.buffer, np.uint32(0), 0, self.slots * self._size)

    def holds(self, ref: Ref) -> bool:
        """Return whether the value of a Ref is in the ring, so that a `Fetched` has it."""
        return ref.root in self.offsets

    def place(self, ref: Ref, slot: int) -> int:
        """Return the offset in bytes of an output of run number `slot`."""
        return slot % self.slots * self._size + self.offsets[ref.root] + ref.root_offset * ref.dtype.itemsize

    def locate(self, ref: Ref, slot: int) -> tuple[Any, int]:
        """Return buffer and offset in elements of an output of run number `slot`."""
        return self.buffer, self.place(ref, slot) // ref.dtype.itemsize

    def turn(self, run: int) -> None:
        """Make room for the outputs of run number `run`, which is enqueued next."""
        if run % self.slots in self._fetched:
            self.send()

    @property
    def late(self) -> bool:
        """Return whether the last transfer was so long ago that outputs are sent although slots are free."""
        return time.monotonic() - self._sent > LATE

    def fetch(self, run: int, last: Any, read: Callable[[Ref], np.ndarray]) -> Fetched:
        """Return the outputs of run number `run`, the last one. Later runs may share their transfer.

        `last`: the event of the run's last launch. `read` reads a value that is not in the ring.
        """
        fetched = Fetched(self, self._transfer, run, last, read)
        self._fetched.add(run % self.slots)
        if len(self._fetched) == self.slots or self.late:
            self.send()
        return fetched

    def send(self) -> None:
        """Start the transfer of the fetched outputs. Does not wait."""
        host = np.empty(self.slots * self._size, np.uint8)
        device = self.session.device
        self._transfer.host, self._transfer.event = host, device.cl.enqueue_copy(device.queue, host, self.buffer, is_blocking=False)
        self._transfer, self._sent = Transfer(), time.monotonic()
        self._fetched.clear()


@dataclass
class Transfer:
    """The transfer of the outputs of some runs to the host."""

    host: np.ndarray | None = None  # None: not sent yet
    event: Any = None  # None: not sent yet, or complete


@dataclass
class Fetched:
    """The outputs of one run. `value` waits for them."""

    ring: OutputRing
    transfer: Transfer
    run: int
    last: Any
    read: Callable[[Ref], np.ndarray]

    def finish(self) -> None:
        """Wait for the run, not for its outputs."""
        if self.last is not None:
            self.last.wait()
            self.last = None

    @property
    def arrived(self) -> bool:
        """Return whether `value` need not wait. Starts the transfer if it is late."""
        transfer = self.transfer
        if transfer.host is None and self.ring.late:
            self.ring.send()
        if transfer.event is not None and complete(self.ring.session.device.cl, transfer.event):
            transfer.event = None
        return transfer.host is not None and transfer.event is None

    def value(self, ref: Ref) -> np.ndarray:
        """Return a copy of one value. One that is not in the ring (`Network.reads_late`) is read from the device."""
        if not self.ring.holds(ref):
            return self.read(ref)
        transfer = self.transfer
        if transfer.host is None:
            self.ring.send()
        if transfer.event is not None:
            transfer.event.wait()
            transfer.event = None
        assert transfer.host is not None
        begin = self.ring.place(ref, self.run)
        return transfer.host[begin : begin + ref.nbytes].view(ref.dtype).reshape(ref.shape).copy()
