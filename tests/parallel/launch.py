"""Start ranks for tests. Tests with the mark `needs_mpi` skip where mpi4py or mpiexec is missing."""
from __future__ import annotations

import contextlib
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ocaffe.parallel.mpiexec import ENVIRONMENT, find_mpiexec
from tests.abuse.harness import ROOT

MPIEXEC = find_mpiexec()
SECONDS = 300  # for the end of all ranks
needs_mpi = pytest.mark.skipif(not MPIEXEC or importlib.util.find_spec("mpi4py") is None, reason="needs MPI: pip install mpi4py mpich")


def environment(device: Any) -> dict[str, str]:
    """Return the environment of ranks on the device of a test, which must be a CPU: ranks share it."""
    if not device.target.is_cpu:
        pytest.skip("ranks share a device, so it is a CPU")
    python = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": python, "OCAFFE_DEVICE": device.number}


def python(ranks: int, *arguments: str) -> list[str]:
    """Return the command that runs Python as so many ranks."""
    return [*(MPIEXEC if ranks > 1 else ()), *(("-n", str(ranks)) if ranks > 1 else ()), sys.executable, *arguments]


def finished(command: list[str], folder: pathlib.Path, variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. `stdout` has stderr too."""
    return subprocess.run(
        command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS
    )


class Training:
    """A training of two ranks in `folder`, which has been started. `flags`: of `ocaffe train`. `mpiexec`: start it by mpiexec, not by --device."""

    def __init__(self, folder: pathlib.Path, device: Any, *, mpiexec: bool, ranks: int = 2, flags: Sequence[str] = ()) -> None:
        self.log = folder / "log"
        command = ["-m", "ocaffe", "train", "--solver", "solver.prototxt", *flags]
        variables = environment(device)
        if not mpiexec:
            command += ["--device", ",".join([variables.pop("OCAFFE_DEVICE")] * ranks)]
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                python(ranks if mpiexec else 1, *command), cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [self.process.pid, *self.ranks()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def ranks(self) -> list[int]:
        """Return the processes of the ranks, as the log names them."""
        return [int(number) for number in re.findall(r"Rank \d+ is process (\d+) on ", self.text)]

    def wait_for(self, text: str) -> None:
        """Wait until the log has `text`."""
        end = time.monotonic() + SECONDS
        while text not in self.text:
            assert self.process.poll() is None and time.monotonic() < end, self.text[-4000:]
            time.sleep(0.02)

    def status(self, seconds: float = SECONDS) -> int:
        """Wait until all processes have ended, and return the exit status. Fails if that takes longer than `seconds`."""
        end = time.monotonic() + seconds
        status = self.process.wait(seconds)
        while any(map(_alive, self.ranks())):
            assert time.monotonic() < end, f"after {seconds} s the ranks have not ended"
            time.sleep(0.02)
        return status


def _alive(process: int) -> bool:
    """Whether a process runs. One that has ended may wait for its parent to notice."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
