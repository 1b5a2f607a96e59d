"""Ranks whose processes a script has started by itself, as pycaffe's train.py does, and not mpiexec.

MPI connects only processes that mpiexec has started. So rank 0 runs mpiexec with a placeholder for each rank (placeholder.py). Each placeholder sends its
MPI variables and its connection with mpiexec to the process of the rank, which then joins MPI in its place. If a process ends without leaving MPI, its
placeholder ends with status 1, mpiexec ends the other placeholders, and their ranks end.
"""
from __future__ import annotations

import json
import multiprocessing.util
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from ocaffe.errors import Error
from ocaffe.parallel import placeholder
from ocaffe.parallel.mpiexec import ENVIRONMENT, ends_with, find_mpiexec
from ocaffe.support import log, parent
from ocaffe.support.interpreter import interpreter

_SECONDS = 120  # until all processes of the script have created their solvers
_MESSAGE = 1 << 20  # bytes, at most
_folders: list[tempfile.TemporaryDirectory[str]] = []  # they are removed at the end of the process


def new_group() -> str:
    """Return a name for the ranks of the processes that this process will start. They find it in their environment."""
    made = tempfile.TemporaryDirectory(prefix="ocaffe-")
    _folders.append(made)
    parent.tell(processes=made.name)
    return made.name


def announced() -> bool:
    """Whether a script has called `new_group` in this process or in its parent."""
    return bool(parent.told("processes"))


def become_rank(rank: int, ranks: int) -> None:
    """Make this process rank `rank` of `ranks` for MPI, which it must not have initialized. Raises Error if mpiexec or the other processes fail."""
    if not hasattr(socket, "AF_UNIX"):  # Windows
        raise Error("processes of a script cannot become ranks on this system", fix="one process for each device by mpiexec: mpiexec -n 2 python script.py")
    folder = Path(parent.told("processes"))
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(folder / str(rank)))
        door.listen(1)
        door.settimeout(_SECONDS)
        output = folder / "mpiexec"
        if rank == 0:
            _start(ranks, folder, output)
        try:
            link = door.accept()[0]
            message, connections, _, _ = socket.recv_fds(link, _MESSAGE, 1)
            while not message.endswith(b"\n"):
                if not (more := link.recv(_MESSAGE)):
                    raise ConnectionError
                message += more
        except OSError as reason:
            said = output.read_text(errors="replace").strip() if output.exists() else ""
            fact = f"mpiexec gave process {os.getpid()}, rank {rank} of {ranks}, no place in {_SECONDS} s{': ' * bool(said)}{said[-500:]}"
            raise Error(fact, fix=f"start {ranks} processes that create a solver each, or use `mpiexec -n {ranks} python script.py`") from reason
    variables = json.loads(message)
    if connections:
        variables[placeholder.CONNECTION] = str(connections[0])
    os.environ.update(variables)
    left = threading.Event()
    threading.Thread(target=_watch, args=(link, left, rank, ranks), name="ocaffe placeholder", daemon=True).start()
    # A process of `multiprocessing` ends without Python's exit functions.
    multiprocessing.util.Finalize(None, _leave, (link, left, os.getpid()), exitpriority=100)


def _start(ranks: int, folder: Path, output: Path) -> None:
    mpiexec = find_mpiexec()
    if not mpiexec:
        raise Error(f"{ranks} processes train together, and there is no mpiexec that connects them", fix="pip install mpi4py mpich")
    command = [*mpiexec, "-n", str(ranks), interpreter(), placeholder.__file__, str(folder)]
    with output.open("wb") as stream:
        subprocess.Popen(
            command, env={**os.environ, **ENVIRONMENT}, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=ends_with(os.getpid()),
        )  # fmt: skip


def _watch(link: socket.socket, left: threading.Event, rank: int, ranks: int) -> None:
    """End this process when its placeholder ends before it has left MPI."""
    link.recv(1)
    if not left.is_set():
        log.tell(f"error: rank {rank} of {ranks} ends, because another rank has ended")
        os._exit(1)  # the main thread may be waiting for the other rank


def _leave(link: socket.socket, left: threading.Event, process: int) -> None:
    """Leave MPI at the end of the process, unless an exception ends it. Then the placeholder ends the other ranks."""
    if os.getpid() != process or sys.exc_info()[0] not in (None, SystemExit):
        return
    from mpi4py import MPI

    left.set()
    link.sendall(placeholder.FINISHED)
    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()
