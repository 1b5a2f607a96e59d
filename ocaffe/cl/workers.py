"""Worker processes that build programs in parallel with this process.

Every runtime tested holds one lock per process around its compiler. Builds in threads therefore do not overlap, builds in
processes do. Seconds for four programs of one matrix product each, on two cores:

    runtime    in turn      two threads
    Intel      1.05         1.1 to 1.35
    PoCL 3.1   1.4 to 2.2   1.5 to 2.3

Two processes each build as fast as one alone.

On a GPU with its own memory each worker has a context, 529 MiB on an H100. There is no compiler for a device without a context.
Therefore workers run only before the plan's slabs exist, in as many contexts as fit (Session.bind, docs/adr/0018). With an empty cache
and without a limit they start before the plan (Session.expect).
"""
from __future__ import annotations

import collections
import contextlib
import os
import pickle
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ocaffe.cl import open_ptx
from ocaffe.cl.device import Device
from ocaffe.cl.discovery import discover, killed_from_outside, start_child
from ocaffe.support import log

# A process needs 0.3 to 0.5 s to start (NVIDIA: 0.8 to 2.2 s), too long for a few programs. Measured seconds:
#   H100, 16 cores, 36 programs:              10 alone, 4.0 with 2 workers, 3.2 with 5, 4.8 with 15
#   H100, ResNet-50's cold start (46 larger): 32 with 5 workers, 15 to 21 with 10
#   PoCL 5, two idle cores, 8 programs:       3.9 alone, 2.8 with a worker
#   Intel, two idle cores, LeNet's 7:         3.3 alone, 2.05 with a worker
#   Intel, two busy cores, 20 programs:       5.5 alone, 6.5 with a worker
# With 15 workers on an H100 their contexts wait for each other.
_FEWEST_PROGRAMS = 5
_FEW_WORKERS, _MAX_WORKERS = 5, 10
_PROGRAMS_EACH = 4  # per worker, if there are more than _FEW_WORKERS
_WAIT = 60  # seconds that early workers wait for their first program, then they end
SLACK = 32 << 20  # bytes by which contexts may exceed their room: half of the 64 MiB that docs/memory.md allows; built programs take the other half
_LOAD = Path("/proc/loadavg")  # Linux


class BuildRequest(NamedTuple):
    """A program to build."""

    key: Any  # ProgramKey
    text: str  # for the compiler
    options: str  # for the compiler
    entry: str  # name of the binary in the cache
    opens_ptx: bool = False  # built in two steps (open_ptx.py)


class Refusal(Exception):
    """A compiler rejected a text or a binary, or crashed. The argument is its message."""


IN_RUNTIME = b"in the cache of the runtime"  # in place of a binary


def caches_programs(device: Device) -> bool:
    """Return whether the runtime has a cache of programs that is better than ours.

    For a binary PoCL compiles all kernels for any size of a work-group, which takes four times as long as the rest of a build. At its first launch it
    compiles each kernel again, for the size of that launch (first_launches.py). Its own cache has these kernels.
    """
    return device.info.target.runtime == "pocl" and os.environ.get("POCL_KERNEL_CACHE") != "0"  # the variable switches its cache off


def identity(device: Device) -> tuple[str, str, int]:
    """Return how another process finds the device: the platform's version, the device's name, and its place among those of this name."""
    platform, name = device.cl_device.platform, device.cl_device.name
    return platform.version, name, [twin for twin in platform.get_devices() if twin.name == name].index(device.cl_device)


class BuildFailure(Exception):
    """A program that does not build. `text` is what the compiler read: OpenCL C, or PTX in the second step. `step`: which step, of a program with two."""

    def __init__(self, request: BuildRequest, message: str, text: str, step: str) -> None:
        super().__init__(message)
        self.request, self.message, self.text, self.step = request, message, text, step


Program = TypeVar("Program")
Build = Callable[["str | bytes", str], tuple[Program, bytes]]  # from a text or a binary, with options, to a program and its binary; raises Refusal


def build_in_steps(request: BuildRequest, build: Build[Program]) -> tuple[Program, bytes]:
    """Build a program, in one step or two. Return it, and the binary for the cache: of two steps the opened PTX. Raises BuildFailure."""
    first, second = (open_ptx.FIRST, open_ptx.SECOND) if request.opens_ptx else ("", "")
    try:
        program, binary = build(request.text, request.options)
        if not request.opens_ptx:
            return program, binary
        ptx = open_ptx.opened(binary)
    except (Refusal, open_ptx.PTXError) as problem:
        raise BuildFailure(request, str(problem), request.text, first) from None
    try:
        return build(ptx, request.options)[0], ptx
    except Refusal as problem:
        raise BuildFailure(request, str(problem), ptx.decode(errors="replace"), second) from None


Built = Callable[[BuildRequest, bytes, str], None]  # gets a program's request, its binary and the compiler's messages


class _Killed(Exception):
    """A signal from outside ended a worker."""


class Cores(NamedTuple):
    """The processor cores of a machine."""

    total: int
    ours: int  # that this process may use
    load: float = 0.0  # threads that ran, the mean of the last minute
    running: int | None = None  # threads that run now, with the one that asks; None: the system does not say

    @classmethod
    def of_this_machine(cls) -> Cores:
        total = os.cpu_count() or 1
        ours = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
        return cls(total, ours, os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, running_threads(_LOAD))

    @property
    def busy(self) -> int:
        """The number of cores that other threads use: the mean of the last minute, or the present number if it is smaller.

        The mean alone keeps counting a process that has just ended, such as the previous training.
        """
        mean = round(self.load)
        return mean if self.running is None else min(mean, max(self.running - 1, 0))


def running_threads(file: Path) -> int | None:
    """Return how many threads run now, with this one, from a file as proc(5) describes /proc/loadavg. None: there is no such file."""
    try:
        return int(file.read_text(encoding="ascii").split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return None


def worker_count(programs: int, room: int, context: int, cores: Cores | None = None) -> int:
    """Return the number of workers to start for `programs` programs. This process builds too.

    `room` are the bytes of device memory for their contexts, `context` the bytes of one. `cores`: None for those of this machine. On a busy machine workers
    would only take time from this process.
    """
    if programs < _FEWEST_PROGRAMS:
        return 0
    cores = cores or Cores.of_this_machine()
    fitting = most_contexts(room, context) // context if context else _MAX_WORKERS
    return max(0, min(cores.ours - 1, cores.total - cores.busy, programs // 2, max(_FEW_WORKERS, programs // _PROGRAMS_EACH), fitting))


def most_contexts(room: int, context: int) -> int:
    """Return the bytes of the contexts of as many workers as `room` bytes of device memory allow."""
    return context * min(_MAX_WORKERS, (room + SLACK) // context) if context else 0


class Worker:
    """A process that builds programs from the shared queue and returns binaries. A thread of this process communicates with it.

    If a signal from outside ends the process, its present request is put back into the queue.
    """

    def __init__(self, device: Device, queue: collections.deque[BuildRequest], begun: threading.Event, options: str, built: Built) -> None:
        """`begun`: is set when the queue has requests. `options`: for the compiler, in addition to a program's. `built` runs in a thread of its own."""
        self._queue, self._begun, self._options, self._built = queue, begun, options, built
        self._results: list[tuple[BuildRequest, bytes]] = []
        self._failure: BuildFailure | None = None
        self._busy = self._closed = False
        self._lock = threading.Lock()
        self._process = start_child("build", dict(os.environ), discover().folder, stderr=subprocess.DEVNULL)
        self._stored = not caches_programs(device)
        self._thread = threading.Thread(target=self._serve, args=((identity(device), self._stored),), daemon=True)
        self._thread.start()

    def runs(self) -> bool:
        """Whether the worker starts, waits or builds."""
        return self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the queue is empty, or until this worker has ended."""
        self._thread.join()

    def _end(self) -> None:
        """End a process that has no request."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def finish(self) -> list[tuple[BuildRequest, bytes]]:
        """Wait for the present program, then return the requests of all that the worker built, with their binaries.

        Call this when the queue is empty; afterwards it may hold requests again. Raises BuildFailure.
        """
        with self._lock:
            if not self._busy and self._process is not None:
                self._process.kill()  # still starting, and no request is left
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._results

    def close(self) -> None:
        """Kill the process and wait for its end, so that its context is gone."""
        if self._process is not None:
            self._closed = True
            self._process.kill()
            self._thread.join()
            with contextlib.suppress(OSError):  # unsent data is lost
                self._process.__exit__(None, None, None)

    def _serve(self, first: tuple) -> None:
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):  # if it does not start, the other processes build its programs
            self._send(first)
            self._receive()
            if not self._begun.wait(_WAIT):
                self._end()
            while (request := self._next()) is not None:
                try:
                    said, binary = build_in_steps(request, self._build)
                except _Killed:
                    self._queue.append(request)
                    return
                except BuildFailure as failure:
                    self._failure = failure
                    return
                self._results.append((request, binary))
                self._built(request, binary, said)
                self._busy = False

    def _build(self, source: str | bytes, options: str) -> tuple[str, bytes]:
        """Return the compiler's messages in place of a program, which only the process has."""
        try:
            self._send((source, options + self._options))
            fine, answer = self._receive()
        except (OSError, EOFError, pickle.UnpicklingError):
            if self._killed():
                raise _Killed from None
            fine, answer = False, "the compiler ended its process"
        if not fine:
            raise Refusal(answer)
        binary, said = answer
        return said, binary if self._stored else IN_RUNTIME

    def _killed(self) -> bool:
        """Wait for the end of a process that does not answer any more. Return whether a signal from outside ended it."""
        assert self._process is not None
        self._process.wait()
        if killed_from_outside(self._process) and not self._closed:
            name = signal.Signals(-self._process.returncode).name
            log.warning("opencl:0", f"a compiler process was killed by {name}; another process builds its program")
        return killed_from_outside(self._process)

    def _next(self) -> BuildRequest | None:
        with self._lock:
            try:
                request = self._queue.popleft()
            except IndexError:
                return None
            self._busy = True
            return request

    def _send(self, message: tuple) -> None:
        if self._process is None or self._process.stdin is None:
            raise EOFError
        pickle.dump(message, self._process.stdin)
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process is not None and self._process.stdout is not None
        return pickle.load(self._process.stdout)


class Team:
    """Workers with one queue. They may start before the programs are known: a context takes 1.6 to 2.6 s on an H100, the plan of a net about as long.

    Early workers end if no request comes, because the net has an error for example.
    """

    def __init__(self, device: Device, options: str, built: Built) -> None:
        """The arguments are as those of a Worker."""
        self.queue: collections.deque[BuildRequest] = collections.deque()
        self._begun = threading.Event()
        self._workers: list[Worker] = []
        self._start = lambda: Worker(device, self.queue, self._begun, options, built)

    def grow(self, count: int) -> None:
        """Start workers until `count` of them run."""
        running = sum(worker.runs() for worker in self._workers)
        self._workers += [self._start() for _ in range(count - running)]

    def begin(self, requests: Iterable[BuildRequest]) -> None:
        """Give the workers their requests. Each takes the next one when it is free."""
        self.queue.extend(requests)
        self._begun.set()

    def wait(self) -> None:
        """Wait until the queue is empty. It still holds requests if all workers have ended."""
        for worker in self._workers:
            worker.wait()

    def finish(self) -> Iterator[tuple[BuildRequest, bytes]]:
        """Wait until no program is being built, and return the requests of the built ones. The queue may hold requests again. Raises BuildFailure."""
        for worker in self._workers:
            yield from worker.finish()

    def close(self) -> None:
        """End all processes, so that their contexts are gone."""
        self._begun.set()
        for worker in self._workers:
            worker.close()
