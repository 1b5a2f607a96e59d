"""World: the ranks of a training, which MPI started as processes. Each rank has one device.

One rank without MPI is a World too, so commands and solvers need no second way.
"""
from __future__ import annotations

import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np

from ocaffe.cl.failure import device_failure
from ocaffe.data.source import Share
from ocaffe.errors import Error
from ocaffe.shown import Lines, lines_of
from ocaffe.support import log
from ocaffe.support.whole import whole

# Variables with the number of ranks, and with the number of this rank on its host, by the program that sets them. Slurm's variables come last, because
# mpiexec itself may use srun.
_STARTERS = {
    "Open MPI": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpiexec": ("PMI_SIZE", "MPI_LOCALRANKID"),
    "srun": ("SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
}
_LARGEST = 1 << 28  # elements of one message; older MPI libraries count in 32 bits
_POLITE, _PAUSE = 50, 3e-5  # tests of a request before the first pause, and the seconds of a pause
_GRACE = 2.0  # seconds before another rank than 0 reports an error, because rank 0 may report the same one
_EXIT = 4.0  # seconds in which all ranks exit
_SHOWN = 0.5  # seconds between a report and the end, because an mpiexec that ends may not show what it has received


class World:
    """`rank` of `size` ranks. `local_rank` of `local_size` ranks on this host. `hosts`: the host of each rank."""

    def __init__(self, comm: Any = None) -> None:
        """`comm`: the MPI communicator of all ranks. None: there is one rank."""
        self._comm = comm
        self._reports: Any = None if comm is None else comm.Dup()  # a message here tells that a rank has reported an error
        self.rank: int = 0 if comm is None else comm.rank
        self.size: int = 1 if comm is None else comm.size
        self.hosts: list[str] = self.gather(socket.gethostname())
        here = [rank for rank, host in enumerate(self.hosts) if host == self.hosts[self.rank]]
        self.local_rank, self.local_size = here.index(self.rank), len(here)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which logs and writes files."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.size > 1

    @property
    def name(self) -> str:
        return f"rank {self.rank} of {self.size} on {self.hosts[self.rank]}"

    @property
    def share(self) -> Share:
        """The records that this rank reads."""
        return Share(self.rank, self.size)

    # -- messages. All ranks call each of these methods in the same order. -------------------------------------------

    def duplicate(self) -> Any:
        """Return a communicator of its own for one thread."""
        return self._comm.Dup()

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value."""
        return value if self._comm is None else self._comm.bcast(value)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        return [value] if self._comm is None else self._comm.allgather(value)

    def broadcast_array(self, array: np.ndarray) -> None:
        """Overwrite `array` (contiguous) with rank 0's values."""
        flat = array.reshape(-1)
        for begin in range(0, len(flat) if self.several else 0, _LARGEST):
            self._comm.Bcast(flat[begin : begin + _LARGEST])

    def interleave(self, mine: list[Any]) -> list[Any]:
        """Return the values of all ranks in one list: the first of each rank in their order, then the second of each, and so on."""
        lists = self.gather(mine)
        return [each[n] for n in range(max(map(len, lists))) for each in lists if n < len(each)]

    def mean(self, array: np.ndarray) -> np.ndarray:
        """Return the mean over all ranks. It is added in the order of the ranks, so that the result is the same on every rank."""
        if not self.several:
            return array
        return np.asarray(sum(self.gather(array)) / np.float32(self.size), array.dtype)

    def check_equal(self, facts: Mapping[str, Any]) -> None:
        """Raise Error if a fact of another rank differs from that of rank 0. Facts are compared as pickled."""
        encoded = {name: pickle.dumps(value) for name, value in facts.items()}
        for rank, other in enumerate(self.gather(encoded)):
            if rank == 0:
                first = other
            different = [name for name in first if first[name] != other.get(name)]
            if different:
                fact = f"rank {rank} on {self.hosts[rank]} has another {different[0]} than rank 0 on {self.hosts[0]}"
                raise Error(fact, fix="start all ranks with the same files, flags, environment and version of ocaffe")

    # -- errors ------------------------------------------------------------------------------------------------------

    @contextmanager
    def together(self, before: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Context of a training. If this rank raises, its error is printed with its rank and host, and all ranks end. `before` is called before they end."""
        try:
            yield
        except BaseException as problem:
            if self.several and not (isinstance(problem, SystemExit) and not problem.code and self._all_exit()):
                self.abort(problem, before)
            raise

    def _all_exit(self) -> bool:
        """Return whether all ranks call this within some seconds, as all do after --help. Otherwise the others would wait for this rank."""
        request, end = self._reports.Ibarrier(), time.monotonic() + _EXIT
        while not request.Test() and time.monotonic() < end:
            time.sleep(_PAUSE)
        return bool(request.Test())

    def abort(self, problem: BaseException, before: Callable[[], None] = lambda: None) -> NoReturn:
        """Print the error of this rank, unless another rank has, and end all ranks."""
        if not self.first:
            time.sleep(_GRACE)
        if not self._reports.Iprobe():
            for rank in range(self.size):
                if rank != self.rank:
                    self._reports.isend(None, rank)
            log.tell(lines_of(f"error: {self.name}: {_text(problem)}"))
        before()
        time.sleep(_SHOWN)
        self._comm.Abort(1)
        os._exit(1)  # MPICH returns from Abort before it ends the process


def _text(problem: BaseException) -> str:
    error = device_failure(problem) or problem
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit):
        last = traceback.extract_tb(error.__traceback__)[-1]
        return Lines(f"sys.exit({error.code!r}) ends it before the others", f"  {last.filename}:{last.lineno}")
    return str(error) if isinstance(error, Error) else "".join(traceback.format_exception(problem))


ALONE = World()


class Agreement:
    """The largest request of all ranks. Every rank gets the same result, one call later, so no call waits for a message."""

    def __init__(self, world: World) -> None:
        self._comm = world.duplicate() if world.several else None
        self._mine, self._largest = np.zeros(1, np.int32), np.zeros(1, np.int32)
        self._sent: Any = None

    def __call__(self, request: int) -> int:
        """Send this rank's request. Return the largest one of the previous call, 0 for the first."""
        if self._comm is None:
            return request
        from mpi4py import MPI

        found = 0
        if self._sent is not None:
            wait(self._sent)
            found = int(self._largest[0])
        self._mine[0] = request
        self._sent = self._comm.Iallreduce(self._mine, self._largest, op=MPI.MAX)
        return found

    def finish(self) -> int:
        """Return the largest request of the last call, if no call has returned it."""
        if self._sent is None:
            return 0
        wait(self._sent)
        self._sent = None
        return int(self._largest[0])


def wait(request: Any) -> None:
    """Wait for an MPI request. After some tests it pauses between them, because ranks on a CPU device need the processor that MPI's own wait would take."""
    tests = 0
    while not request.Test():
        tests += 1
        if tests > _POLITE:
            time.sleep(_PAUSE)


def ranks_expected() -> tuple[int, str]:
    """Return the number of ranks that the environment announces, and the program that set it. One rank if it announces none."""
    for starter, (variable, _) in _STARTERS.items():
        text = os.environ.get(variable, "")
        if whole(text) > 1:
            return int(text), starter
    return 1, ""


def first_of_host() -> bool:
    """Return whether the environment says that this is the first rank of its host. It needs no MPI."""
    _, starter = ranks_expected()
    return not starter or os.environ.get(_STARTERS[starter][1], "0") == "0"


def join() -> World:
    """Return the World of this process. Raises Error if ranks were started that MPI cannot connect."""
    expected, starter = ranks_expected()
    if expected == 1:
        return ALONE
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as reason:  # RuntimeError: there is no MPI library
        fact = f"this process is one of {expected} ranks of {starter}, and MPI cannot be used: {reason}"
        raise Error(fact, fix="pip install mpi4py mpich") from reason
    comm = MPI.COMM_WORLD
    if comm.size != expected:
        library = MPI.Get_library_version().split("\n")[0].strip()
        fact = f"{starter} started {expected} ranks, and the MPI library ({library}) connects {comm.size}"
        fix = "start the ranks with the mpiexec of that library; `pip install mpi4py mpich` installs both"
        raise Error(fact, fix=f"srun --mpi=pmi2 for MPICH and Intel MPI, --mpi=pmix for Open MPI; or {fix}" if starter == "srun" else fix)
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise Error("the MPI library does not support several threads (MPI_THREAD_MULTIPLE)", fix="pip install mpi4py mpich")
    world = World(comm)
    if not world.first:
        log.quiet(2)  # rank 0 logs the same
    return world
