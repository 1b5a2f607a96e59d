"""Prefetching: a thread that prepares the next batches of a source in order."""
from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ocaffe.data.source import BatchInfo, Source

Log = Callable[[str, str], None]
QUIET_WAITS = 1000  # one in this many waits for data is logged, as in Caffe


@dataclass(eq=False)
class Batch:
    """A filled block. `block` is exactly the batch; `memory` is the whole block that contains it."""

    index: int
    info: BatchInfo
    block: np.ndarray
    memory: np.ndarray


class Prefetcher:
    """Keeps up to `depth` batches of `source` ready, from batch `start` on.

    `blocks` are uint8 arrays, for example mapped device memory. If they are given, batches are written to them in turn, and the thread waits until
    one is free. Otherwise blocks are allocated as needed. A block belongs to the caller from `get` to `recycle`.
    """

    def __init__(
        self,
        source: Source,
        depth: int,
        start: int = 0,
        *,
        blocks: Sequence[np.ndarray] | None = None,
        log: Log = lambda source, text: None,
    ) -> None:
        self.source = source
        self.wait_seconds = 0.0  # the time that `get` spent waiting
        self.waits = 0
        self._log = log
        self._state = _State(source, max(depth, 1), start, blocks)
        self._thread = threading.Thread(target=_work, args=(self._state,), name="ocaffe prefetch", daemon=True)
        self._finalizer = weakref.finalize(self, _State.close, self._state)  # the thread must not reference the prefetcher, or the finalizer would never run
        self._thread.start()

    def get(self) -> Batch:
        """Return the next batch. Wait for it. An exception of the thread is raised here."""
        state = self._state
        with state.changed:
            self.peek()
            batch = state.ready.popleft()
            state.changed.notify_all()
        for note in batch.info.notes:
            self._log(*note)
        return batch

    def peek(self) -> Batch:
        """Return the batch that `get` returns next, without taking it. Wait and raise like `get`."""
        state = self._state
        with state.changed:
            if not state.ready and not state.problem and not state.closed:
                self._wait(state)
            if state.closed:
                raise RuntimeError("the prefetcher is closed")
            if not state.ready:
                assert state.problem is not None
                raise state.problem
            return state.ready[0]

    def ready(self) -> Batch | None:
        """Return the batch of `peek` if it is ready, else None. Do not wait."""
        state = self._state
        with state.changed:
            return state.ready[0] if state.ready and not state.closed else None

    def _wait(self, state: _State) -> None:
        if self.waits % QUIET_WAITS == 0:
            self._log("blocking_queue.cpp:49", "Waiting for data" if self.waits == 0 else "Data layer prefetch queue empty")
        self.waits += 1
        begin = time.perf_counter()
        state.changed.wait_for(lambda: state.ready or state.problem or state.closed)
        self.wait_seconds += time.perf_counter() - begin

    def recycle(self, batch: Batch, block: np.ndarray | None = None) -> None:
        """Return the block of `batch` to the prefetcher, or `block` in its place (the same memory, mapped again)."""
        state = self._state
        with state.changed:
            state.give_back(batch.memory, block)
            state.changed.notify_all()

    def seek(self, index: int) -> None:
        """Make `index` the next batch that `get` returns. A pending error is dropped."""
        state = self._state
        with state.changed:
            if state.upcoming == index and not state.problem:
                return
            state.generation += 1
            state.next, state.problem = index, None
            while state.ready:
                state.give_back(state.ready.popleft().memory)
            state.changed.notify_all()

    def close(self) -> None:
        """End the thread. After the return no thread writes to a block. The source stays open."""
        self._finalizer()
        if self._thread is not threading.current_thread():
            self._thread.join()


class _State:
    """State shared by the thread and the prefetcher. The condition variable `changed` protects it."""

    def __init__(self, source: Source, depth: int, start: int, blocks: Sequence[np.ndarray] | None) -> None:
        self.source, self.depth, self.next = source, depth, start
        self.fixed = {address(block) for block in blocks} if blocks is not None else None
        self.free: deque[np.ndarray] = deque(blocks or ())
        self.ready: deque[Batch] = deque()
        self.changed = threading.Condition()
        self.generation = 0  # `seek` starts a new generation; batches of earlier ones are dropped
        self.making = -1  # generation of the batch that the thread is filling; -1: none
        self.problem: BaseException | None = None
        self.closed = False

    @property
    def upcoming(self) -> int:
        """The batch that `get` returns next."""
        return self.ready[0].index if self.ready else self.next - (self.making == self.generation)

    def wanted(self) -> bool:
        return not self.problem and len(self.ready) < self.depth and (self.fixed is None or len(self.free) > 0)

    def give_back(self, memory: np.ndarray, block: np.ndarray | None = None) -> None:
        """Add `memory`, or `block` in its place, to the free blocks.

        If the caller supplied the blocks, other memory was allocated for one large batch. Such memory is dropped.
        """
        if self.fixed is None or address(memory) in self.fixed:
            if block is not None and self.fixed is not None:
                self.fixed.discard(address(memory))
                self.fixed.add(address(block))
            self.free.append(memory if block is None else block)

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def address(block: np.ndarray) -> int:
    return int(block.__array_interface__["data"][0])


def _work(state: _State) -> None:
    """The function of the thread: fill batches until the state is closed."""
    while True:
        with state.changed:
            state.changed.wait_for(lambda: state.closed or state.wanted())
            if state.closed:
                return
            index, generation = state.next, state.generation
            state.next, state.making = index + 1, generation
            memory = state.free.popleft() if state.free else None
        batch: Batch | None = None
        problem: BaseException | None = None
        try:
            batch = _fill(state, index, np.empty(state.source.nbytes, np.uint8) if memory is None else memory)
        except BaseException as caught:  # any exception must reach the training thread, so `get` raises it
            problem = caught
        with state.changed:
            if memory is not None and (batch is None or (state.fixed is not None and batch.memory is not memory)):
                state.give_back(memory)
            if generation == state.generation:
                state.problem = problem
                if batch is not None:
                    state.ready.append(batch)
            elif batch is not None:
                state.give_back(batch.memory)
            state.making = -1
            state.changed.notify_all()


def _fill(state: _State, index: int, memory: np.ndarray) -> Batch:
    """Fill batch `index` in `memory`, or in larger memory if its images are larger than those before."""
    info = state.source.fill(index, memory)
    if info.nbytes > memory.nbytes:
        memory = np.empty(info.nbytes, np.uint8)
        info = state.source.fill(index, memory)
    return Batch(index, info, memory[: info.nbytes], memory)
