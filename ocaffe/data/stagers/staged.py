"""The base of sources whose workers read and decode whole records: a few threads, or processes if the training waits for data (crew.py)."""
from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ocaffe.data.effort import Effort
from ocaffe.data.order import Order
from ocaffe.data.shared_buffers import SharedBuffers
from ocaffe.data.source import Source
from ocaffe.data.stagers.crew import FEWEST, POSSIBLE, Crew, Planned, Stage, buffers_ahead
from ocaffe.data.stores.store import Store
from ocaffe.data.workers import Workers
from ocaffe.errors import Error, Place
from ocaffe.support import log

# More threads wait for each other in the interpreter. Images/s of JPEG 256 x 256 on 16 cores of a Xeon:
#   threads   1     2     4     8     16
#   images/s  1552  2706  4512  3217  3394
THREADS = 4


class StagedSource(Source):
    """Batches of the images of a store. Several threads may fill batches at the same time."""

    reentrant = True
    effort: Effort
    _stager: Stage

    def __init__(self, store: Store, param: Any, workers: int | None, place: Place | None, layer: str | None) -> None:
        """`param` has batch_size, shuffle and rand_skip. `workers`: their number (default: one per core). The caller sets `_stager`."""
        super().__init__(place, layer)
        if not param.batch_size:
            raise Error(f"batch_size is {'0' if param.HasField('batch_size') else 'missing'}", fix="set batch_size of the layer to at least 1")
        self.store, self.batch = store, int(param.batch_size)
        self.order = Order(store.entries, bool(param.shuffle), int(param.rand_skip))
        self.workers, self.effort = Workers(workers), Effort()
        self._threads = Workers(min(self.workers.count, THREADS))
        self._finding = threading.Lock()
        self._crew: Crew | None = None
        self._hurried = False

    @property
    def worth_processes(self) -> bool:
        """Whether processes stage these images faster than threads."""
        return True

    @property
    @abstractmethod
    def space(self) -> int:
        """The bytes that processes write for a usual batch."""

    @abstractmethod
    def _plan(self, index: int) -> Planned:
        """Return the batch number `index` with the places of its records."""

    def _sender(self) -> Callable[[Any], Any]:
        """Return the function that prepares a found record for another process. It has no reference to this source, whose end ends the processes."""
        return self.store.sent

    def _find(self, records: Sequence[int]) -> list[Any]:
        with self._finding:
            return list(self.store.find(records))

    @property
    def spare_buffers(self) -> int:
        return buffers_ahead(self.workers.count, self.batch) if self._can_hurry and self.space == self.nbytes else 0

    @property
    def _can_hurry(self) -> bool:
        return POSSIBLE and self.worth_processes and self.store.portable and self.workers.count >= FEWEST

    def hurry(self, step: int = 1) -> None:
        """Let processes do the work of the threads, if that is faster. They start in the background."""
        if self._hurried or not self._can_hurry:
            return
        self._hurried = True
        try:
            buffers = self.shared or SharedBuffers(self.space, 0, buffers_ahead(self.workers.count, self.batch))
            self._crew = Crew(self._stager, self.workers.count, self.batch, buffers, self._sender(), self.effort, step)
        except OSError as problem:  # too many open files, or no memory
            log.warning("data_reader.cpp:80", f"No processes can decode images: {problem.strerror}. Threads do it")

    def unshare(self) -> None:
        """Use `shared` no longer. Processes that write to it end. Others start when the source is to hurry again."""
        if self.shared is not None and self._crew is not None:
            self._crew.close()
            self._crew, self._hurried = None, False
        self.shared = None

    def _taken(self, index: int) -> tuple[Any, Crew | None]:
        """Return the batch number `index`, and the processes if they are working."""
        crew = self._crew
        if crew is not None and not crew.ready:
            crew = None
        return (crew.take(index, self._plan) if crew is not None else self._plan(index)), crew

    def close(self) -> None:
        if self._crew is not None:
            self._crew.close()
        self._threads.close()
