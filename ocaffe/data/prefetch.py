"""Prefetching: threads that prepare the next batches of a source. Batches are taken in order."""
from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ocaffe.data.shared_buffers import address
from ocaffe.data.source import BatchInfo, Source

Log = Callable[[str, str], None]
QUIET_WAITS = 1000  # one in this many waits for data is logged, as in Caffe
_PATIENCE = 0.5  # seconds of waiting after which the source is to hurry; a short run is over before that helps
_FILLERS = 2  # batches of a reentrant source that are filled at the same time, so that workers do not wait for the last image of a batch


@dataclass(eq=False)
class Batch:
    """A filled batch buffer. `data` is exactly the batch; `memory` is the whole buffer that contains it."""

    index: int
    info: BatchInfo
    data: np.ndarray
    memory: np.ndarray


class Prefetcher:
    """Keeps up to `depth` batches of `source` ready: the batches `start`, `start + step`, `start + 2 * step` and so on.

    `buffers` are uint8 arrays, for example mapped device memory. If they are given, batches are written to them in turn, and the thread waits until
    one is free. Otherwise buffers are allocated as needed. A buffer belongs to the caller from `get` to `recycle`.
    """

    def __init__(
        self,
        source: Source,
        depth: int,
        start: int = 0,
        step: int = 1,
        *,
        buffers: Sequence[np.ndarray] | None = None,
        log: Log = lambda source, text: None,
    ) -> None:
        self.source = source
        self.wait_seconds = 0.0  # the time that `get` spent waiting
        self.waits = 0
        self._log = log
        self._state = _State(source, max(depth, 1), start, step, buffers)
        count = _FILLERS if source.reentrant else 1
        self._threads = [threading.Thread(target=_work, args=(self._state,), name="ocaffe prefetch", daemon=True) for _ in range(count)]
        self._finalizer = weakref.finalize(self, _State.close, self._state)  # a thread must not reference the prefetcher, or the finalizer would never run
        for thread in self._threads:
            thread.start()

    @property
    def next(self) -> int:
        """The number of the batch that `get` returns next."""
        return self._state.first

    def get(self) -> Batch:
        """Return the next batch. Wait for it. An exception of the thread is raised here."""
        state = self._state
        with state.changed:
            batch = self.peek()
            del state.ready[batch.index]
            state.first += state.step
            state.changed.notify_all()
        for note in batch.info.notes:
            self._log(*note)
        return batch

    def peek(self) -> Batch:
        """Return the batch that `get` returns next, without taking it. Wait and raise like `get`."""
        state = self._state
        with state.changed:
            if state.first not in state.ready and not state.closed:
                self._wait(state)
            if state.closed:
                raise RuntimeError("the prefetcher is closed")
            batch = state.ready[state.first]
            if isinstance(batch, BaseException):
                raise batch
            return batch

    def ready(self) -> Batch | None:
        """Return the batch of `peek` if it is ready, else None. Do not wait."""
        state = self._state
        with state.changed:
            batch = state.ready.get(state.first)
            return batch if isinstance(batch, Batch) and not state.closed else None

    def _wait(self, state: _State) -> None:
        if self.waits % QUIET_WAITS == 0:
            self._log("blocking_queue.cpp:49", "Waiting for data" if self.waits == 0 else "Data layer prefetch queue empty")
        self.waits += 1
        begin = time.perf_counter()
        state.changed.wait_for(lambda: state.first in state.ready or state.closed)
        self.wait_seconds += time.perf_counter() - begin
        if self.wait_seconds > _PATIENCE:
            self.source.hurry(state.step)

    def recycle(self, batch: Batch) -> None:
        """Return the buffer of `batch` to the prefetcher."""
        state = self._state
        with state.changed:
            state.recycle(batch.memory)
            state.changed.notify_all()

    def seek(self, index: int) -> None:
        """Make `index` the next batch that `get` returns. A pending error is dropped."""
        state = self._state
        with state.changed:
            if state.first == index and not state.failed:
                return
            state.generation += 1
            state.first = state.next = index
            state.failed = False
            for batch in state.ready.values():
                if isinstance(batch, Batch):
                    state.recycle(batch.memory)
            state.ready.clear()
            state.changed.notify_all()

    def close(self) -> None:
        """End the threads. After the return no thread writes to a buffer. The source stays open."""
        self._finalizer()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


class _State:
    """State shared by the threads and the prefetcher. The condition variable `changed` protects it."""

    def __init__(self, source: Source, depth: int, start: int, step: int, buffers: Sequence[np.ndarray] | None) -> None:
        self.source, self.depth, self.step = source, depth, step
        self.first = self.next = start  # the batch that `get` returns next, and the one that a thread fills next
        self.fixed = {address(buffer) for buffer in buffers} if buffers is not None else None
        self.free: deque[np.ndarray] = deque(buffers or ())
        self.ready: dict[int, Batch | BaseException] = {}  # by number; an exception takes the place of its batch
        self.changed = threading.Condition()
        self.generation = 0  # `seek` starts a new generation; batches of earlier ones are dropped
        self.failed = False  # a batch of this generation raised, and none after it is filled
        self.closed = False

    def wanted(self) -> bool:
        return not self.failed and len(self.ready) < self.depth and (self.fixed is None or len(self.free) > 0)

    def recycle(self, memory: np.ndarray) -> None:
        """Add `memory` to the free buffers.

        If the caller supplied the buffers, other memory was allocated for one large batch. Such memory is dropped.
        """
        if self.fixed is None or address(memory) in self.fixed:
            self.free.append(memory)

    def exchange(self, memory: np.ndarray, other: np.ndarray) -> None:
        """The source has kept buffer `memory`, and `other` is in its place."""
        if self.fixed is not None:
            self.fixed.discard(address(memory))
            self.fixed.add(address(other))

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def _work(state: _State) -> None:
    """The function of a thread: fill batches until the state is closed."""
    while True:
        with state.changed:
            state.changed.wait_for(lambda: state.closed or state.wanted())
            if state.closed:
                return
            index, generation = state.next, state.generation
            state.next += state.step
            memory = state.free.popleft() if state.free else None
        batch: Batch | BaseException
        try:
            batch = _fill(state, index, np.empty(state.source.nbytes, np.uint8) if memory is None else memory)
        except BaseException as problem:  # any exception must reach the training thread, so `get` raises it
            batch = problem
        with state.changed:
            used = batch.memory if isinstance(batch, Batch) else None
            if memory is not None and isinstance(batch, Batch) and batch.info.buffer is not None:
                state.exchange(memory, batch.info.buffer)
            elif memory is not None and (used is None or (state.fixed is not None and used is not memory)):
                state.recycle(memory)
            if generation == state.generation:
                state.ready[index] = batch
                state.failed |= used is None
            elif used is not None:
                state.recycle(used)
            state.changed.notify_all()


def _fill(state: _State, index: int, memory: np.ndarray) -> Batch:
    """Fill batch `index` in `memory`, or in larger memory if its images are larger than those before."""
    info = state.source.fill(index, memory)
    if info.nbytes > memory.nbytes:
        memory = np.empty(info.nbytes, np.uint8)
        info = state.source.fill(index, memory)
    if info.buffer is not None:
        memory = info.buffer
    return Batch(index, info, memory[: info.nbytes], memory)
