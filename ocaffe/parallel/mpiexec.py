"""The program mpiexec: where it is, its options, and a process that ends with its parent."""
from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # of Linux
# Options by a text of `mpiexec --version`. All ranks are on this host: in the allocation of a batch scheduler, mpiexec would start them by srun, on all hosts.
_HERE = ("-launcher", "fork", "-rmk", "user", "-hosts", "localhost")
_OPTIONS = {
    "Open MPI": ("--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "--mca", "ras", "^slurm,pbs,tm,lsf,gridengine", "--mca", "plm", "^slurm,pbs,tm,lsf"),
    "HYDRA": _HERE,  # MPICH
    "MPI Library for Linux": _HERE,  # Intel
}
# A rank needs all processors for its data and a CPU device. Open MPI refuses root, which containers run as.
ENVIRONMENT = {"I_MPI_PIN": "0", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def find_mpiexec() -> list[str]:
    """Return the mpiexec of this Python environment, else of the PATH, with the options that ranks of this host need. Empty: there is none."""
    found = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    if found is None:
        return []
    text = subprocess.run([found, "--version"], capture_output=True, text=True, env={**os.environ, **ENVIRONMENT}).stdout
    return [found, *next((options for name, options in _OPTIONS.items() if name in text), ())]


def ends_with(parent: int) -> Callable[[], None] | None:
    """Return a function for the new process: it gets SIGTERM when this process ends, even if this one is killed. None: the system cannot do that."""
    if sys.platform not in ("linux", "android"):
        return None
    prctl = ctypes.CDLL(None).prctl

    def arrange() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:  # it has ended already
            os.kill(os.getpid(), signal.SIGTERM)

    return arrange
