"""Processes that stage images in shared memory, for a training that waits for data.

Threads of Python wait for each other: each must take the interpreter's lock several times per image, which takes about 40 us if another core has it.
Processes do not. They take chunks of batches from one socket, as fast as each can, and send results to another one.
"""
from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ocaffe.data.effort import COPY, Effort
from ocaffe.data.shared_buffers import SharedBuffers
from ocaffe.data.workers import Workers, cores
from ocaffe.errors import Error
from ocaffe.support import log

POSSIBLE = sys.platform == "linux" and bool(sys.executable) and not getattr(sys, "frozen", False)  # other systems lack sockets that keep messages whole
CHILD = Path(__file__).with_name("crew_child.py")
FEWEST = 3  # processes that are worth their start
_SPARED = 8  # one core in so many is left to the training itself; with all 16 cores of a Xeon the loader was a fifth slower than with 14
_LARGEST_CHUNK = 16  # images; a chunk takes milliseconds
_USUAL_CHUNK = 8  # images of a chunk of a small batch, half of it at most; the messages of a chunk take the parent a tenth of a millisecond
_QUEUED = 32  # images per process that are requested ahead
_PIXELS = 1 << 29  # of images that all processes decode at the same time; a pixel takes 3 bytes, or 7 in other formats than JPEG
_MESSAGE = 1 << 20  # bytes of a result at most
_LOOK = 0.2  # seconds between looks whether a process has died
_COPIERS, _PIECE = 4, 4 << 20  # threads that copy a batch to pinned memory, and bytes that each copies at a time; one copies 5 to 10 GB/s
_NONE = -(1 << 62)
_END = 2.0  # seconds that processes get to end


class Large(Error):
    """The image is too large to be decoded by several processes at the same time. A thread decodes it, which waits for others with large images."""


class Chunk(NamedTuple):
    """Images of a batch: their numbers in the batch, and where their records are."""

    images: tuple[int, ...]
    found: tuple[Any, ...]


class Planned(Protocol):
    """A batch of a source before it is staged."""

    @property
    def found(self) -> list[Any]:
        """Where the records of the images are."""

    @property
    def frame(self) -> Any:
        """The facts of the batch that each of its chunks needs. It is pickled."""

    @property
    def space(self) -> int | None:
        """The bytes of shared memory for the batch, or None if the caller stages it."""


class Staged(Protocol):
    """The result of staging a chunk. It is pickled for the source. `seconds`: of work by kind."""

    @property
    def seconds(self) -> dict[str, float]: ...


class Stage(Protocol):
    """Stages chunks of batches. It is pickled for the processes."""

    largest: int | None  # pixels of an image that is not Large; None: there are no other processes

    def write(self, frame: Any, chunk: Chunk, buffer: np.ndarray) -> Staged:
        """Write the images of a chunk to the memory of the batch. After an exception the caller stages the batch itself."""


def processes(most: int) -> int:
    """Return the number of processes of a crew of at most `most`."""
    return max(FEWEST, min(most, cores() - cores() // _SPARED))


def buffers_ahead(most: int, batch: int) -> int:
    """Return the number of batches that a crew of at most `most` processes writes at the same time."""
    return 2 + -(-_QUEUED * processes(most) // batch)


class Crew:
    """Processes for a source. Several threads may call the methods. If a process dies, the caller stages the images itself."""

    def __init__(self, stage: Stage, most: int, batch: int, buffers: SharedBuffers, sent: Callable[[Any], Any], effort: Effort, step: int = 1) -> None:
        """There are at most `most` processes, and one per core less one core in eight.

        A batch has `batch` images. Processes write batches to spare `buffers`; larger batches are left to the caller. `sent` prepares a found record for
        another process. `effort` counts the work. Every `step`-th batch is requested ahead. Raises OSError.
        """
        self._state = _State(stage, processes(most), batch, buffers, sent, effort, step)
        self._finalizer = weakref.finalize(self, _State.stop, self._state)  # the thread must not reference the crew, or the finalizer would never run
        self._state.thread = threading.Thread(target=self._state.run, name="ocaffe crew", daemon=True)
        self._state.thread.start()

    @property
    def ready(self) -> bool:
        """Whether all processes have started and are alive."""
        return self._state.working

    def take(self, index: int, plan: Callable[[int], Planned]) -> Any:
        """Return batch number `index`, made by `plan`. It is requested from the processes, and so are the next ones while there is space."""
        return self._state.take(index, plan)

    def results(self, index: int) -> list[Any] | None:
        """Wait for a batch that was taken. Return the results of its chunks in order, or None if the caller must stage the batch."""
        return self._state.results_of(index)

    def copy(self, index: int, buffer: np.ndarray, size: int) -> bool:
        """Copy the first `size` bytes of a batch that has results to `buffer`, and free its memory. Return False if the caller must stage the batch."""
        with self._state.held(index) as slot:
            if slot is not None:
                self._state.copy(slot, buffer, size)
        return slot is not None

    @contextlib.contextmanager
    def staged(self, index: int, buffer: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, list[Any] | None]]:
        """Wait for a batch of `size` bytes that was taken. The context's values are the memory for the batch, and the results of its chunks in order.

        If there are no results, the memory is `buffer`, and the caller must stage the batch. If processes cannot write to `buffer`, the batch is copied
        to it. Otherwise the memory is exchanged for `buffer` when the context ends without an exception: the caller then has this memory, not `buffer`.
        """
        results, state = self.results(index), self._state
        with state.held(index) as slot:
            if slot is None or results is None:
                yield buffer, None
            elif state.buffers.place(buffer) is None:
                state.copy(slot, buffer, size)
                yield buffer, results
            else:
                state.count(slot)
                memory = slot.memory
                yield memory, results
                state.buffers.exchange(buffer, memory)
                slot.memory = buffer

    def close(self) -> None:
        """End the processes."""
        self._finalizer()


class _Slot:
    """The shared memory of one batch."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.index = _NONE  # of its batch
        self.batch: Planned | None = None
        self.missing = 0  # chunks that processes still write, or 1 while it is copied or exchanged. Until it is 0 no other batch uses the memory
        self.failed = False  # a process raised an exception
        self.staged: list[Any] = []  # the results of the chunks


class _State:
    """State shared by the thread and the crew. The condition variable `changed` protects it."""

    def __init__(self, stage: Stage, count: int, batch: int, buffers: SharedBuffers, sent: Callable[[Any], Any], effort: Effort, step: int) -> None:
        self.processes, self.buffers, self.sent, self.effort, self.step = count, buffers, sent, effort, step
        theirs = copy.copy(stage)
        theirs.largest = _PIXELS // count
        self.recipe = pickle.dumps(theirs)
        self.copiers = Workers(max(1, min(_COPIERS, cores() // _SPARED)), "ocaffe copy")
        self.chunk = max(1, min(_LARGEST_CHUNK, -(-batch // count)), min(_USUAL_CHUNK, -(-batch // 2)))
        self.changed = threading.Condition()
        self.children: list[subprocess.Popen[bytes]] = []
        self.working = self.closed = False
        self.reason = ""  # of the end of the processes, for the log
        self.thread: threading.Thread | None = None  # that runs `run`
        self.tasks, their_tasks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.results, their_results = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.slots = [_Slot(buffer) for buffer in buffers.spare]
        self._theirs = their_tasks, their_results

    # -- requests ----------------------------------------------------------------------------------------------------

    def take(self, index: int, plan: Callable[[int], Planned]) -> Any:
        with self.changed:
            messages: list[bytes] = []
            slot = self._of(index) or self._request(index, plan, messages, index)
            batch = slot.batch if slot is not None else plan(index)
            with contextlib.suppress(Error):  # of a later batch: it is raised when that batch is taken
                for later in range(index + self.step, index + self.step * len(self.slots), self.step):
                    if self._of(later) is None and self._request(later, plan, messages, index) is None:
                        break
        try:
            for message in messages:
                self.tasks.sendall(message)
        except OSError as problem:  # a process has died, or a message is too long for a socket: thousands of labels per image
            self.reason = self.reason or f": {problem.strerror}"
            self._break()
            self.tasks.close()  # a process ends when it finds that
        return batch

    def _of(self, index: int) -> _Slot | None:
        return next((slot for slot in self.slots if slot.index == index), None)

    def _request(self, index: int, plan: Callable[[int], Planned], messages: list[bytes], now: int) -> _Slot | None:
        """Put batch `index` into a slot, and its requests into `messages`. Return None if there is no slot. `now` is the batch that is taken."""
        reach = len(self.slots) * self.step
        unused = (slot for slot in self.slots if not slot.missing and not now - reach <= slot.index < now + reach)
        slot = next(unused, None)
        if slot is None or not self.working:
            return None
        batch = plan(index)
        if batch.space is None or batch.space > self.buffers.size:
            return None
        starts, frame = range(0, len(batch.found), self.chunk), pickle.dumps(batch.frame)
        place = self.slots.index(slot), self.buffers.place(slot.memory)
        slot.index, slot.batch, slot.failed, slot.missing, slot.staged = index, batch, False, len(starts), [None] * len(starts)
        for number, start in enumerate(starts):
            images = tuple(range(start, min(start + self.chunk, len(batch.found))))
            chunk = Chunk(images, tuple(self.sent(batch.found[n]) for n in images))
            messages.append(pickle.dumps((place, number, frame, chunk)))
        return slot

    def results_of(self, index: int) -> list[Any] | None:
        with self.changed:
            slot = self._of(index)
            if slot is None:
                return None
            self.changed.wait_for(lambda: not slot.missing or not self.working)
            if slot.missing or slot.failed:
                slot.index = _NONE
                return None
            return slot.staged

    @contextlib.contextmanager
    def held(self, index: int) -> Iterator[_Slot | None]:
        """Keep the memory of a batch that has results until the context ends. It is free then. The value is None if other batches were taken meanwhile."""
        with self.changed:
            slot = self._of(index)
            if slot is not None and not slot.missing and not slot.failed:
                slot.missing = 1
            else:
                slot = None
        try:
            yield slot
        finally:
            if slot is not None:
                with self.changed:
                    slot.index, slot.missing, slot.batch, slot.staged = _NONE, 0, None, []

    def copy(self, slot: _Slot, buffer: np.ndarray, size: int) -> None:
        begin = time.perf_counter()
        pieces = [slice(start, min(start + _PIECE, size)) for start in range(0, size, _PIECE)]
        self.copiers.run([partial(np.copyto, buffer[piece], slot.memory[piece]) for piece in pieces])
        self.count(slot)
        self.effort.add({COPY: time.perf_counter() - begin})

    def count(self, slot: _Slot) -> None:
        for each in slot.staged:
            self.effort.add(each.seconds)

    # -- processes ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The function of the thread: start the processes, and receive their results until they are to end."""
        try:
            self._start()
            message, looked = memoryview(bytearray(_MESSAGE)), -_LOOK
            while not self.closed:
                # Not for each message: a look at 14 processes takes the interpreter's lock 14 times, for which this thread may wait each time.
                if time.monotonic() - looked >= _LOOK:
                    if any(child.poll() is not None for child in self.children):
                        break
                    looked = time.monotonic()
                if select.select([self.results], [], [], _LOOK)[0]:
                    self._receive(message[: self.results.recv_into(message)])
        except (OSError, ValueError, EOFError, pickle.UnpicklingError) as problem:  # ValueError: the socket was closed
            self.reason = self.reason or f": {problem}"
        finally:
            if not self.closed:
                log.warning("data_reader.cpp:80", f"A process that decodes images ended{self.reason}. Threads decode from now on")
            self.stop()
            self.results.close()

    def _start(self) -> None:
        theirs = [*(end.fileno() for end in self._theirs), self.buffers.file]
        places = [*map(str, sys.path), str(CHILD.parents[3])]  # the last one has this package: an editable install is found by a hook, not by a path
        command = [sys.executable, "-I", "-S", str(CHILD), json.dumps(places), *map(str, theirs), str(self.buffers.size)]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        for _ in range(self.processes):
            if not self.closed:
                self.children.append(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=theirs, env=environment)
                )
        for child in self.children:
            assert child.stdin is not None
            child.stdin.write(self.recipe)
            child.stdin.close()
        self._close_theirs()
        self._waiting = len(self.children)
        for slot in self.slots:  # before there is a request; it takes 25 ms for 40 MB
            slot.memory = self.buffers.pin(slot.memory)

    def _close_theirs(self) -> None:
        """Close what only the processes use, so that they find out when this process ends."""
        for end in self._theirs:
            end.close()

    def _receive(self, message: memoryview) -> None:
        number, chunk, result = pickle.loads(message) if message else (-1, 0, None)
        with self.changed:
            if not message:
                raise EOFError("it closed its socket")
            if number < 0:  # a process has started
                self._waiting -= 1
                self.working = not self._waiting and not self.closed
                return
            slot = self.slots[number]
            slot.missing -= 1
            slot.staged[chunk] = result
            slot.failed |= result is None  # the caller's own try will raise the exception
            if not slot.missing:
                self.changed.notify_all()

    def _break(self) -> None:
        """Let callers stage their batches themselves."""
        with self.changed:
            self.working = False
            self.changed.notify_all()

    def stop(self) -> None:
        self.closed = True
        self._break()
        self.tasks.close()  # a process ends when it finds that
        self._close_theirs()
        self.copiers.close()
        deadline = time.monotonic() + _END
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            child.kill()
            with contextlib.suppress(OSError):  # unsent data is lost
                child.__exit__(None, None, None)
        # Pinned memory must not be freed by a thread that still runs when the interpreter ends: PyOpenCL would then end the process by a signal.
        if self.thread is not None and self.thread is not threading.current_thread():
            with contextlib.suppress(OSError):  # it is closed already
                self.results.shutdown(socket.SHUT_RDWR)
            self.thread.join(_END)
