"""Processes that stage images in shared memory, for a training that waits for data.

Threads of Python wait for each other: each must take the interpreter's lock several times per image, which takes about 40 us if another core has it.
Processes do not. They take parts of batches from one socket, as fast as each can, and send results to another one.
"""
from __future__ import annotations

import contextlib
import copy
import json
import mmap
import os
import pickle
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from ocaffe import log
from ocaffe.data.effort import COPY, Effort
from ocaffe.data.stager import Frame, Part, Result, Stager
from ocaffe.data.transform import Layout
from ocaffe.errors import Error

POSSIBLE = sys.platform == "linux" and bool(sys.executable) and not getattr(sys, "frozen", False)  # other systems lack sockets that keep messages whole
CHILD = Path(__file__).with_name("crew_child.py")
_LARGEST_PART = 16  # images; a part takes milliseconds, its messages a tenth of one
_QUEUED = 32  # images per process that are requested ahead
_PIXELS = 1 << 29  # of images that all processes decode at the same time; a pixel takes 3 bytes, or 7 in other formats than JPEG
_LOOK = 0.2  # seconds between looks whether a process has died
_NONE = -(1 << 62)
_END = 2.0  # seconds that processes get to end

Planned = Any  # a batch of the source: it has `frame`, `found` and `alike`


class Crew:
    """`count` processes. Several threads may call the methods. If a process dies, the caller stages the images itself."""

    def __init__(self, stager: Stager, count: int, layout: Layout, sent: Callable[[Any], Any], step: int = 1) -> None:
        """`layout` is that of the usual batch; larger ones are left to the caller. `sent` prepares a found record for another process.

        Every `step`-th batch is requested ahead.
        """
        self._state = _State(stager, count, layout, sent, step)
        self._finalizer = weakref.finalize(self, _State.stop, self._state)  # the thread must not reference the crew, or the finalizer would never run
        threading.Thread(target=self._state.run, name="ocaffe crew", daemon=True).start()

    @property
    def ready(self) -> bool:
        """Whether all processes have started and are alive."""
        return self._state.working

    def take(self, index: int, plan: Callable[[int], Planned]) -> Planned:
        """Return batch number `index`, made by `plan`. It is requested from the processes, and so are the next ones while there is space."""
        return self._state.take(index, plan)

    def finish(self, index: int, block: np.ndarray, effort: Effort) -> list[tuple[int, Error]] | None:
        """Wait for a batch that was taken, and copy it to `block`. Return the images that cannot be used, or None if the caller must stage the batch."""
        return self._state.finish(index, block, effort)

    def close(self) -> None:
        """End the processes."""
        self._finalizer()


class _Slot:
    """The shared memory of one batch."""

    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.index = _NONE  # of its batch
        self.batch: Planned = None
        self.missing = 0  # parts that processes still write, or a copy that reads; until there are none, the memory is not used for another batch
        self.failed = False  # a process raised an exception
        self.problems: list[tuple[int, Error]] = []
        self.seconds: list[dict[str, float]] = []


class _State:
    """State shared by the thread and the crew. The condition variable `changed` protects it."""

    def __init__(self, stager: Stager, count: int, layout: Layout, sent: Callable[[Any], Any], step: int) -> None:
        self.count, self.sent, self.step = count, sent, step
        theirs = copy.copy(stager)
        theirs.largest = _PIXELS // count
        self.recipe = pickle.dumps(theirs)
        self.part = max(1, min(_LARGEST_PART, -(-layout.batch // count)))
        self.size, slots = layout.nbytes, 2 + -(-_QUEUED * count // layout.batch)
        self.changed = threading.Condition()
        self.children: list[subprocess.Popen[bytes]] = []
        self.working = self.closed = False
        self.reason = ""  # of the end of the processes, for the log
        self.tasks, their_tasks = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.results, their_results = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        memory = _shared(slots * self.size)
        shared = np.frombuffer(mmap.mmap(memory.fileno(), slots * self.size), np.uint8)
        self.slots = [_Slot(shared[at : at + self.size]) for at in range(0, slots * self.size, self.size)]
        self._theirs = their_tasks, their_results, memory

    # -- requests ----------------------------------------------------------------------------------------------------

    def take(self, index: int, plan: Callable[[int], Planned]) -> Planned:
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
        frame: Frame = batch.frame
        if batch.alike is not None or frame.layout.nbytes > self.size:
            return None
        slot.index, slot.batch, slot.failed, slot.problems, slot.seconds = index, batch, False, [], []
        starts = range(0, frame.layout.batch, self.part)
        slot.missing = len(starts)
        for start in starts:
            images = tuple(range(start, min(start + self.part, frame.layout.batch)))
            part = Part(images, tuple(self.sent(batch.found[n]) for n in images))
            messages.append(pickle.dumps((self.slots.index(slot), frame, part)))
        return slot

    def finish(self, index: int, block: np.ndarray, effort: Effort) -> list[tuple[int, Error]] | None:
        with self.changed:
            slot = self._of(index)
            if slot is None:
                return None
            self.changed.wait_for(lambda: not slot.missing or not self.working)
            if slot.missing or slot.failed:
                slot.index = _NONE
                return None
            slot.missing = 1
            size, problems, work = slot.batch.frame.layout.nbytes, slot.problems, slot.seconds
        begin = time.perf_counter()
        block[:size] = slot.memory[:size]
        for seconds in (*work, {COPY: time.perf_counter() - begin}):
            effort.add(seconds)
        with self.changed:
            slot.index, slot.missing, slot.batch = _NONE, 0, None
        return problems

    # -- processes ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The function of the thread: start the processes, and receive their results until they are to end."""
        try:
            self._start()
            while not self.closed and all(child.poll() is None for child in self.children):
                if select.select([self.results], [], [], _LOOK)[0]:
                    self._receive(self.results.recv(1 << 20))
        except (OSError, ValueError, EOFError, pickle.UnpicklingError) as problem:  # ValueError: the socket was closed
            self.reason = self.reason or f": {problem}"
        if not self.closed:
            log.warning("data_reader.cpp:80", f"A process that decodes images ended{self.reason}. Threads decode from now on")
        self.stop()
        self.results.close()

    def _start(self) -> None:
        theirs = [end.fileno() for end in self._theirs]
        places = [*map(str, sys.path), str(CHILD.parents[2])]  # the last one has this package: an editable install is found by a hook, not by a path
        command = [sys.executable, "-I", "-S", str(CHILD), json.dumps(places), *map(str, theirs), str(self.size)]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        for _ in range(self.count):
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

    def _close_theirs(self) -> None:
        """Close what only the processes use, so that they find out when this process ends."""
        for end in self._theirs:
            end.close()

    def _receive(self, message: bytes) -> None:
        number, result = pickle.loads(message) if message else (-1, None)
        with self.changed:
            if not message:
                raise EOFError("it closed its socket")
            if number < 0:  # a process has started
                self._waiting -= 1
                self.working = not self._waiting and not self.closed
                return
            slot = self.slots[number]
            slot.missing -= 1
            if isinstance(result, Result):
                slot.problems += result.problems
                slot.seconds.append(result.seconds)
            else:
                slot.failed = True  # the caller's own try will raise the exception
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
        deadline = time.monotonic() + _END
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
            child.kill()
            with contextlib.suppress(OSError):  # unsent data is lost
                child.__exit__(None, None, None)


def _shared(size: int) -> BinaryIO:
    """Return a file in memory that other processes can map. The system frees it with the last process that has it."""
    file: Any = open(os.memfd_create("ocaffe"), "r+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()
    file.truncate(size)
    return cast(BinaryIO, file)
