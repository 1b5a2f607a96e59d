"""The prefetcher: order, waiting, errors, seeking, the lifetime of its thread."""
from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ocaffe.data.prefetch import Prefetcher
from ocaffe.data.source import BatchInfo, Source
from ocaffe.errors import Error, Place
from ocaffe.ir.tensor import Shape

pytestmark = pytest.mark.quick


class Counter(Source):
    """A source whose batch k is 64 bytes of k. `gate` delays batches, `bad` batches raise, `large` batches have 256 bytes."""

    def __init__(self, gate: threading.Event | None = None, bad: tuple[int, ...] = (), large: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.gate, self.bad, self.large = gate, bad, large
        self.filled: list[int] = []

    def shapes(self) -> list[Shape]:
        return [(64,)]

    @property
    def nbytes(self) -> int:
        return 64

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        if self.gate is not None:
            assert self.gate.wait(10)
        if index in self.bad:
            raise Error(f"batch {index} is bad", place=Place("net.prototxt", 7), fix="mend it")
        size = 256 if index in self.large else 64
        if size <= buffer.nbytes:
            buffer[:size] = index
            self.filled.append(index)
        return BatchInfo(((size,),), size, (("a.cpp:1", f"batch {index}"),) if index == 3 else ())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def alive() -> int:
    return sum(thread.name == "ocaffe prefetch" for thread in threading.enumerate())


def test_batches_come_in_order() -> None:
    prefetcher = Prefetcher(Counter(), 3, start=5)
    try:
        for index in range(5, 40):
            assert prefetcher.peek().index == index
            batch = prefetcher.get()
            assert batch.index == index and (batch.data == index).all() and batch.data.size == 64
            prefetcher.recycle(batch)
    finally:
        prefetcher.close()


def test_a_batch_that_is_ready_without_waiting() -> None:
    gate = threading.Event()
    prefetcher = Prefetcher(Counter(gate, bad=(1,)), 2)
    assert prefetcher.ready() is None
    gate.set()
    batch = prefetcher.peek()
    assert prefetcher.ready() is batch and prefetcher.get() is batch
    until(lambda: prefetcher._state.failed)
    assert prefetcher.ready() is None  # batch 1 raises
    prefetcher.seek(2)
    prefetcher.peek()
    prefetcher.close()
    assert prefetcher.ready() is None


def test_depth_is_kept() -> None:
    source = Counter()
    prefetcher = Prefetcher(source, 3)
    try:
        until(lambda: len(source.filled) == 3)
        time.sleep(0.02)
        assert source.filled == [0, 1, 2]
        batch = prefetcher.get()  # not recycled, so batch 3 gets a new buffer
        until(lambda: len(source.filled) == 4)
        assert (batch.data == 0).all()
    finally:
        prefetcher.close()


def test_own_buffers_are_used_in_turn() -> None:
    buffers = [np.zeros(64, np.uint8) for _ in range(3)]
    source = Counter()
    prefetcher = Prefetcher(source, 5, buffers=buffers)
    try:
        until(lambda: len(source.filled) == 3)
        batches = [prefetcher.get() for _ in range(3)]
        assert [batch.memory is buffer for batch, buffer in zip(batches, buffers)] == [True] * 3
        time.sleep(0.02)
        assert source.filled == [0, 1, 2]  # no buffer is free
        prefetcher.recycle(batches[0])
        assert prefetcher.get().memory is buffers[0]
    finally:
        prefetcher.close()


class Exchanger(Counter):
    """A source that keeps the buffer of each batch, and returns the buffer of the batch before."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = np.zeros(64, np.uint8)

    def fill(self, index: int, buffer: np.ndarray) -> BatchInfo:
        info = super().fill(index, self.kept)
        buffer, self.kept = self.kept, buffer
        return replace(info, buffer=buffer)


def test_a_source_may_exchange_a_buffer() -> None:
    source, buffers = Exchanger(), [np.zeros(64, np.uint8) for _ in range(2)]
    prefetcher = Prefetcher(source, 5, buffers=buffers)
    try:
        for turn in range(4):
            batches = [prefetcher.get() for _ in range(2)]
            time.sleep(0.01)
            assert len(source.filled) == 2 * turn + 2  # no buffer is free
            assert len({id(batch.memory) for batch in batches} | {id(source.kept)}) == 3
            assert [int(batch.data[0]) for batch in batches] == [2 * turn, 2 * turn + 1]
            prefetcher.seek(2 * turn + 2)  # nothing is ready, so that no buffer is lost or used twice
            for batch in batches:
                prefetcher.recycle(batch)
    finally:
        prefetcher.close()


@pytest.mark.parametrize("own", [False, True])
def test_larger_batches_get_larger_memory(own: bool) -> None:
    buffers = [np.zeros(64, np.uint8) for _ in range(2)]
    prefetcher = Prefetcher(Counter(large=(2, 5)), 1, buffers=buffers if own else None)
    try:
        for index in range(12):
            batch = prefetcher.get()
            assert (batch.data == index).all() and batch.data.size == batch.info.nbytes == (256 if index in (2, 5) else 64)
            if own and index not in (2, 5):
                assert any(batch.memory is buffer for buffer in buffers)
            prefetcher.recycle(batch)
    finally:
        prefetcher.close()


def test_errors_come_in_their_turn_and_whole() -> None:
    prefetcher = Prefetcher(Counter(bad=(2,)), 4)
    try:
        assert [prefetcher.get().index for _ in range(2)] == [0, 1]
        for _ in range(2):  # the error persists
            with pytest.raises(Error) as caught:
                prefetcher.get()
            assert (caught.value.place, caught.value.fact, caught.value.fix) == (Place("net.prototxt", 7), "batch 2 is bad", "mend it")
        prefetcher.seek(3)
        assert prefetcher.get().index == 3
    finally:
        prefetcher.close()


@pytest.mark.parametrize("target", [0, 1, 2, 100])
def test_seek(target: int) -> None:
    gate = threading.Event()
    source = Counter(gate)
    prefetcher = Prefetcher(source, 2)
    try:
        prefetcher.seek(target)  # while batch 0 is being filled
        gate.set()
        assert [prefetcher.get().index for _ in range(3)] == [target, target + 1, target + 2]
        prefetcher.seek(target)
        assert [prefetcher.get().index for _ in range(2)] == [target, target + 1]
        assert source.filled.count(0) <= 2
    finally:
        gate.set()
        prefetcher.close()


def test_seek_to_where_it_is_keeps_what_is_ready() -> None:
    source = Counter()
    prefetcher = Prefetcher(source, 2, start=4)
    try:
        until(lambda: len(source.filled) == 2)
        prefetcher.seek(4)
        assert prefetcher.get().index == 4 and source.filled.count(4) == 1
    finally:
        prefetcher.close()


def test_waiting_is_counted_and_logged_rarely() -> None:
    gate = threading.Event()
    lines: list[tuple[str, str]] = []
    prefetcher = Prefetcher(Counter(gate), 1, log=lambda *line: lines.append(line))
    try:
        threading.Timer(0.05, gate.set).start()
        prefetcher.recycle(prefetcher.get())
        assert prefetcher.wait_seconds > 0.02 and prefetcher.waits >= 1
        for _ in range(50):
            prefetcher.recycle(prefetcher.get())
        assert lines.count(("blocking_queue.cpp:49", "Waiting for data")) == 1
        assert lines.count(("a.cpp:1", "batch 3")) == 1  # warnings about a batch are logged when the batch is used
        assert len(lines) == 2
    finally:
        prefetcher.close()


def test_close_and_drop_end_the_thread() -> None:
    gc.collect()
    before = alive()
    closed = Prefetcher(Counter(), 2)
    closed.close()
    assert alive() == before
    with pytest.raises(RuntimeError):
        closed.get()
    dropped = [Prefetcher(Counter(), 2) for _ in range(3)]
    assert alive() == before + 3
    dropped.clear()
    until(lambda: alive() == before)
