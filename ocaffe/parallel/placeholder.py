"""A process that mpiexec starts in place of a rank that runs already (ocaffe/parallel/own_processes.py): `python placeholder.py FOLDER`.

It sends its MPI variables and its connection with mpiexec to the rank, and ends after it. It imports nothing of ocaffe, which scripts may have found
through a path of their own.
"""
from __future__ import annotations

import json
import os
import socket
import sys
import time

NUMBERS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")  # variables with the number of the rank: of MPICH and Intel MPI, of Open MPI
PREFIXES = ("PMI", "PRTE", "OMPI", "HYD", "MPI", "I_MPI")  # of the variables by which mpiexec tells a process its rank
CONNECTION = "PMI_FD"  # variable: the file descriptor of the connection with mpiexec, of MPICH and Intel MPI
FINISHED = b"finished"  # the rank has left MPI; its process ends
_SECONDS = 60


def main(folder: str) -> int:
    """Return 0 if the rank ended as it should."""
    number = next(os.environ[name] for name in NUMBERS if name in os.environ)
    variables = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
    with socket.socket(socket.AF_UNIX) as rank:
        end = time.monotonic() + _SECONDS
        while True:
            try:
                rank.connect(os.path.join(folder, number))
                break
            except OSError:  # the script has not started this rank yet
                if time.monotonic() > end:
                    return 1
                time.sleep(0.02)
        connections = [int(variables[CONNECTION])] if CONNECTION in variables else []
        socket.send_fds(rank, [json.dumps(variables).encode() + b"\n"], connections)
        said = rank.recv(len(FINISHED))
        while said and rank.recv(1):
            pass
    return 0 if said == FINISHED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
