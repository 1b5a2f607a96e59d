"""Batches that are sent ahead: the right batch is in the right buffer in any order of calls, and never too early."""
from __future__ import annotations

import mmap
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.cl.device import Device
from ocaffe.cl.feed import BUFFERS, Feed
from ocaffe.cl.host_memory import EXTENSION
from ocaffe.cl.pinned import is_pinned
from ocaffe.data.prefetch import Prefetcher
from ocaffe.data.shared_buffers import address
from ocaffe.data.source import BatchInfo
from ocaffe.errors import Error
from tests.data.test_prefetch import Counter, until
from tests.harness import of_its_own

LARGEST = 256  # bytes of a batch of Counter


class Runs:
    """The steps of a command list: take a batch, read it on the device, send the next one ahead."""

    def __init__(self, device: Device, source: Counter) -> None:
        self.device, self.source, self.feed = of_its_own(device), source, Feed()
        cl = self.device.cl
        self.buffers = [cl.Buffer(self.device.context, cl.mem_flags.READ_WRITE, LARGEST) for _ in range(2)]
        self.results: list[tuple[Any, int]] = []
        self.start(0)

    def start(self, index: int) -> None:
        self.prefetcher = Prefetcher(self.source, 5, index, buffers=self.feed.buffers(self.device, self.source))

    def run(self, slot: int, ahead: bool = True) -> None:
        """Do one run; its batch is copied to a separate buffer."""
        device = self.device
        self.feed.take(device, self.prefetcher, self.buffers[slot % 2])
        result = device.cl.Buffer(device.context, device.cl.mem_flags.READ_WRITE, LARGEST)
        device.cl.enqueue_copy(device.queue, result, self.buffers[slot % 2])
        self.results.append((result, self.feed._open[-1][1].data.nbytes))
        device.queue.flush()
        if ahead:
            self.ahead(slot)

    def ahead(self, slot: int) -> None:
        self.feed.send_ahead(self.device, self.prefetcher, self.buffers[slot % 2], self.buffers[(slot + 1) % 2])

    def seen(self) -> list[int]:
        """Return the batches that the runs read; each must be complete."""
        found = []
        for result, nbytes in self.results:
            buffer = np.empty(LARGEST, np.uint8)
            self.device.cl.enqueue_copy(self.device.queue, buffer, result)
            assert (buffer[:nbytes] == buffer[0]).all()
            found.append(int(buffer[0]))
        return found

    def wait_for_next(self) -> None:
        until(lambda: self.prefetcher.ready() is not None)

    def close(self) -> None:
        self.prefetcher.close()
        self.feed.close()


@pytest.fixture
def made() -> Any:
    opened: list[Runs] = []
    yield opened
    for runs in opened:
        runs.close()


def start(made: list[Runs], device: Device, source: Counter | None = None) -> Runs:
    made.append(Runs(device, source or Counter()))
    return made[-1]


def test_in_order_from_pinned_buffers(device: Device, made: list[Runs]) -> None:
    runs = start(made, device)
    assert len(runs.feed._buffers) == BUFFERS and all(map(is_pinned, runs.feed._buffers))
    for slot in range(50):
        runs.run(slot)
    assert runs.seen() == list(range(50))


def test_a_ready_batch_is_sent_before_its_run(device: Device, made: list[Runs]) -> None:
    runs = start(made, device)
    runs.run(0)
    runs.wait_for_next()
    runs.ahead(0)
    ahead = runs.feed._ahead
    assert ahead is not None and ahead.batch.index == 1 and ahead.buffer is runs.buffers[1]
    ahead.event.wait()
    buffer = np.empty(64, np.uint8)
    device.cl.enqueue_copy(runs.device.queue, buffer, runs.buffers[1])
    assert (buffer == 1).all()
    runs.run(1)
    assert runs.seen() == [0, 1]


def test_none_is_sent_where_it_would_be_wrong(device: Device, made: list[Runs]) -> None:
    gate = threading.Event()
    gate.set()
    runs = start(made, device, Counter(gate, large=(1,)))
    runs.run(0)
    runs.wait_for_next()
    runs.feed._ahead = None
    runs.ahead(1)  # run 1 has not taken its batch
    assert runs.feed._ahead is None
    runs.feed.send_ahead(runs.device, runs.prefetcher, runs.buffers[0], runs.buffers[0])  # the only buffer
    assert runs.feed._ahead is None
    small = device.cl.Buffer(runs.device.context, device.cl.mem_flags.READ_WRITE, 64)
    runs.feed.send_ahead(runs.device, runs.prefetcher, runs.buffers[0], small)  # batch 1 has larger images
    assert runs.feed._ahead is None
    gate.clear()
    runs.prefetcher.seek(5)
    runs.ahead(0)  # no batch is ready, and the call does not wait
    assert runs.feed._ahead is None
    gate.set()


def test_what_was_sent_ahead_is_dropped_where_another_batch_comes(device: Device, made: list[Runs]) -> None:
    runs = start(made, device)
    expected = []
    random = np.random.default_rng(3)
    following = 0
    for slot in range(120):
        if random.random() < 0.3:
            following = int(random.integers(200))
            runs.prefetcher.seek(following)
        elif random.random() < 0.2:
            runs.prefetcher.close()  # as in net.set_input_arrays: another prefetcher gets the buffers
            following = int(random.integers(200))
            runs.start(following)
        if random.random() < 0.5:
            runs.wait_for_next()
            runs.ahead(slot - 1)
        runs.run(slot)
        expected.append(following)
        following += 1
    assert runs.seen() == expected


def test_tapes_that_count_their_runs_apart(device: Device, made: list[Runs]) -> None:
    """Two command lists of a net read one source, so the next run may need its batch in either buffer, even the one in use."""
    runs = start(made, device)
    for slot in np.random.default_rng(1).integers(0, 2, 100):
        runs.wait_for_next()
        runs.run(int(slot))
    assert runs.seen() == list(range(100))


def test_larger_batches_and_errors(device: Device, made: list[Runs]) -> None:
    runs = start(made, device, Counter(bad=(9,), large=(2, 3, 7)))
    for slot in range(9):
        runs.run(slot)
    for _ in range(2):
        with pytest.raises(Error, match="batch 9 is bad"):
            runs.run(9)
    runs.prefetcher.seek(10)
    for slot in range(9, 40):
        runs.run(slot)
    assert runs.seen() == [*range(9), *range(10, 41)]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("slots", [(0, 1, 2, 3), (0, 0, 1, 1, 0)])
def test_a_buffer_is_not_overwritten_while_a_run_reads_it(device: Device, made: list[Runs], slots: tuple[int, ...], ahead: bool) -> None:
    runs = start(made, device)
    cl, queue = device.cl, runs.device.queue
    gate = cl.UserEvent(runs.device.context)
    opened = threading.Timer(0.2, lambda: gate.set_status(cl.command_execution_status.COMPLETE))
    opened.start()
    try:
        cl.enqueue_barrier(queue, wait_for=[gate])  # no run continues before it
        for slot in slots:
            runs.wait_for_next()
            if ahead:
                runs.ahead(slot - 1)
            runs.run(slot, ahead)
        assert runs.seen() == list(range(len(slots)))
    finally:
        opened.join()


def test_nothing_reads_the_buffers_of_a_new_prefetcher(device: Device, made: list[Runs]) -> None:
    runs = start(made, device)
    for slot in range(3):
        runs.run(slot)
    runs.prefetcher.close()
    buffers = runs.feed.buffers(runs.device, runs.source)
    assert runs.feed.buffers(runs.device, runs.source) is buffers and not runs.feed._open and runs.feed._ahead is None
    assert runs.feed.buffers(runs.device, Larger())[0].nbytes == 128
    assert runs.seen() == [0, 1, 2]


class Larger(Counter):
    """A source of larger batches."""

    @property
    def nbytes(self) -> int:
        return 128


class Sharing(Counter):
    """A source whose processes have buffers. It exchanges each buffer for the one before."""

    spare_buffers = 1

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        assert self.shared is not None
        if not self.filled:
            self.kept = self.shared.pin(self.shared.spare[0])
        info = super().fill(index, self.kept)
        self.shared.exchange(buffer, self.kept)
        self.kept, kept = buffer, self.kept
        return replace(info, buffer=kept)


def test_pinned_buffers_are_shared_with_processes(device: Device, made: list[Runs]) -> None:
    if EXTENSION in device.target.extensions:
        pytest.skip("pinned in place, memory takes as much of the device")
    source = Sharing()
    runs = start(made, device, source)
    for slot in range(7):
        runs.run(slot)
        assert is_pinned(runs.feed._open[-1][1].data)
    runs.prefetcher.close()
    assert source.shared is not None
    buffers = runs.feed.buffers(runs.device, source)
    assert len({address(buffer) for buffer in (*buffers, source.kept)}) == BUFFERS + 1
    assert {source.shared.place(buffer) for buffer in (*buffers, source.kept)} == {mmap.PAGESIZE * n for n in range(BUFFERS + 1)}
    assert runs.seen() == list(range(7))
    runs.feed.close()
    assert source.shared is None


def test_a_driver_that_does_not_pin_shared_memory(device: Device, made: list[Runs], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocaffe.cl.feed.pinner", lambda device: lambda memory: memory)
    source = Sharing()
    buffers = Feed().buffers(of_its_own(device), source)
    assert source.shared is None and len(buffers) == BUFFERS and all(map(is_pinned, buffers))


def test_closing_with_a_batch_on_its_way(device: Device) -> None:
    runs = Runs(device, Counter())
    runs.run(0)
    runs.wait_for_next()
    runs.ahead(0)
    runs.close()
    runs.device.close()


def test_timed_transfers_have_times(device: Device, made: list[Runs]) -> None:
    runs = start(made, device)
    own = runs.device
    own.queue = own.cl.CommandQueue(own.context, own.cl_device, properties=own.cl.command_queue_properties.PROFILING_ENABLE)
    runs.run(0)
    runs.feed._ahead = None
    for slot, sent in ((1, False), (2, True)):
        runs.wait_for_next()
        if sent:
            runs.ahead(slot - 1)
        event = runs.feed.take(own, runs.prefetcher, runs.buffers[slot % 2], timed=True)
        own.queue.finish()
        assert event.profile.end >= event.profile.start
