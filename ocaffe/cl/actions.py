"""Actions of a command list: the launches that are more than one kernel. An action gets the number of the run, and returns an event or None."""
from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from ocaffe.cl.device import Device
from ocaffe.cl.feed import complete
from ocaffe.cl.pinned import upload
from ocaffe.cl.session import POISON, Session
from ocaffe.data.prefetch import Prefetcher
from ocaffe.ir.launch import BeginExchange, EndExchange, HostCall, Launch, Measure, Upload
from ocaffe.ir.tensor import Ref


class Commands(Protocol):
    """The interface of a command list that actions use (ocaffe/cl/command_list.py)."""

    session: Session
    prefetchers: dict[Any, Prefetcher]

    def locate(self, ref: Ref, slot: int = 0) -> tuple[Any, int]:
        """Return buffer and offset in elements."""


class UploadAction:
    """Send the next batch of the prefetcher to its slot. Waits only for data, or for the oldest upload if the ring is full."""

    def __init__(self, commands: Commands, launch: Upload) -> None:
        self.commands = commands
        self.source = launch.source
        self.buffers = commands.session.buffers(launch.operands[0].ref.root)
        self.open: deque[tuple[Any, Any]] = deque()

    def __call__(self, slot: int) -> Any:
        device = self.commands.session.device
        prefetcher = self.commands.prefetchers[self.source]
        while self.open and (len(self.open) >= len(self.buffers) or complete(device.cl, self.open[0][0])):
            event, batch = self.open.popleft()
            event.wait()
            prefetcher.recycle(batch)
        batch = prefetcher.get()
        buffer = self.buffers[slot % len(self.buffers)]
        self.open.append((upload(device, device.queue, buffer, batch.data), batch))
        return self.open[-1][0]


class StreamAction:
    """Send large batches to a device with its own memory. The transfer overlaps with the kernels of the previous run."""

    def __init__(self, commands: Commands, launch: Upload) -> None:
        self.commands = commands
        self.source = launch.source
        self.buffers = commands.session.buffers(launch.operands[0].ref.root)

    def __call__(self, slot: int) -> Any:
        session = self.commands.session
        feed, prefetcher = session.feed(self.source), self.commands.prefetchers[self.source]
        return feed.take(session.device, prefetcher, self.buffers[slot % len(self.buffers)], timed=session.timeline is not None)

    def ahead(self, slot: int) -> None:
        """Send the next batch ahead, after run `slot` or a part of it was enqueued."""
        session, prefetcher = self.commands.session, self.commands.prefetchers.get(self.source)
        if prefetcher is not None and session.timeline is None:
            now, following = (self.buffers[number % len(self.buffers)] for number in (slot, slot + 1))
            session.feed(self.source).send_ahead(session.device, prefetcher, now, following)


class PrepackAction:
    """Pack or transform weights if parameters have changed since the last time."""

    def __init__(self, commands: Commands, made: Ref, action: tuple[Any, ...]) -> None:
        self.session, self.made, self.action = commands.session, made, action

    def __call__(self, slot: int) -> None:
        if self.session.prepacked.get(self.made) != self.session.written:
            self.session.device.cl.enqueue_nd_range_kernel(self.session.device.queue, *self.action)
            self.session.prepacked[self.made] = self.session.written


class HostAction:
    """Wait for the device, then run a Python step on the host."""

    def __init__(self, commands: Commands, launch: HostCall, step: int) -> None:
        self.commands, self.launch = commands, launch

    def __call__(self, slot: int) -> None:
        assert self.launch.run is not None
        self.commands.session.device.queue.finish()
        self.launch.run(self.commands)


class BeginExchangeAction:
    """Let the exchange of a bucket begin once the launches before have run. Does not wait."""

    def __init__(self, commands: Commands, launch: BeginExchange, step: int) -> None:
        self.session, self.bucket, self.exact = commands.session, launch.operands[0].ref, launch.exact
        self.buffer, self.offset = commands.locate(self.bucket)

    def __call__(self, slot: int) -> None:
        exchange, device = self.session.exchange, self.session.device
        assert exchange is not None
        filled = device.cl.enqueue_marker(device.queue)
        device.queue.flush()
        exchange.begin(filled, self.buffer, self.offset, self.bucket.count, self.exact)


class EndExchangeAction:
    """Wait until a bucket holds the average over all ranks."""

    def __init__(self, commands: Commands, launch: EndExchange, step: int) -> None:
        self.session = commands.session
        self.buffer, self.offset = commands.locate(launch.operands[0].ref)

    def __call__(self, slot: int) -> None:
        assert self.session.exchange is not None
        self.session.device.queue.flush()  # the launches since the begin run during the exchange
        self.session.exchange.end(self.buffer, self.offset)


class Measured(Exception):
    """A layer's top shapes differ from those that the command list was recorded for. The run stopped after `step`."""

    def __init__(self, step: int, layer: Any, extent: tuple[Any, ...]) -> None:
        super().__init__(step, layer, extent)
        self.step, self.layer, self.extent = step, layer, extent


class MeasureAction:
    """Wait for the device. Compare the measured extent with the one that the command list was recorded for."""

    def __init__(self, commands: Commands, launch: Measure, step: int) -> None:
        self.commands, self.launch, self.step = commands, launch, step

    def __call__(self, slot: int) -> None:
        assert self.launch.run is not None
        self.commands.session.device.queue.finish()
        extent = self.launch.run(self.commands)
        if extent != self.launch.measured.extent:
            raise Measured(self.step, self.launch.measured, extent)


ON_HOST: dict[type[Launch], Any] = {HostCall: HostAction, Measure: MeasureAction, BeginExchange: BeginExchangeAction, EndExchange: EndExchangeAction}


def enqueue(device: Device, action: Any, slot: int) -> Any:
    """Perform one action. Return the event of the command that it enqueued, if any."""
    if type(action) is not tuple:
        return action(slot)
    kernel, size, local = action
    return device.cl.enqueue_nd_range_kernel(device.queue, kernel[slot % len(kernel)] if type(kernel) is list else kernel, size, local)


def nothing(slot: int) -> None:
    """Action of a launch over no elements."""


class PoisonAction:
    """Perform an action, then fill all Refs that no later launch reads with NaN (OCAFFE_DEBUG=poison)."""

    def __init__(self, commands: Commands, action: Any, dying: list[Ref]) -> None:
        self.commands, self.action = commands, action
        self.places = [(*commands.locate(ref), ref) for ref in dying]

    def __call__(self, slot: int) -> Any:
        device = self.commands.session.device
        event = enqueue(device, self.action, slot)
        for buffer, offset, ref in self.places:
            if ref.nbytes >= 4:
                device.cl.enqueue_fill_buffer(device.queue, buffer, POISON, offset * ref.dtype.itemsize, ref.nbytes // 4 * 4)
        return event
