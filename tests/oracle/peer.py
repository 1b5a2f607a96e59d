"""A worker process of one Caffe: it runs jobs, has a time limit, and starts again after a death."""
from __future__ import annotations

import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
VARIABLE = "OCAFFE_CAFFE_PYTHON"
START, LIMIT = 120.0, 240.0  # seconds
JOBS = 200  # of a process, which keeps compiled programs in its memory


@dataclass
class Result:
    """The outcome of a job. `refusal`: stage, error and message, or None. `arrays`: '<part> <step>/<name>' -> values."""

    refusal: dict[str, str] | None
    facts: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    folder: str = ""

    @property
    def stage(self) -> str:
        return self.refusal["stage"] if self.refusal else "end"


class Peer:
    """A program that runs the worker. `program` is 'caffe' or 'ocaffe'; `python` its interpreter."""

    def __init__(self, program: str, python: str = sys.executable, fault: str = "") -> None:
        self.program = program
        self.command = [python, "-m", "tests.oracle.worker", program, *filter(None, [fault])]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "GLOG_minloglevel": "2"}
        for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
            self.environment[threads] = "1"
        if program == "ocaffe":
            self.environment.setdefault("OCAFFE_DEBUG", "verify")
            self.environment.setdefault("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")  # compilers take most of the time
        self.home = tempfile.mkdtemp(prefix=f"oracle-{program}-")
        self.jobs = 0
        self.used = 0.0  # processor time of jobs in seconds
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def run(self, order: dict[str, Any], limit: float = LIMIT) -> Result:
        """Run a job. A process that dies or takes too long is a refusal, and the next job starts another one."""
        self.jobs += 1
        folder = os.path.join(self.home, str(self.jobs))
        os.mkdir(folder)
        if self.jobs % JOBS == 0:
            self.stop()
        if self.process is None:
            self._start()
        assert self.process and self.process.stdin
        try:
            self.process.stdin.write(json.dumps({**order, "folder": folder}) + "\n")
            self.process.stdin.flush()
            facts = json.loads(self._line(limit))
        except (TimeoutError, EOFError, BrokenPipeError) as error:
            self.stop()
            message = f"the process of {self.program} died or took over {limit:.0f} s"
            facts = {"refusal": {"stage": _stage(folder), "error": type(error).__name__, "message": message}}
        self.used += facts.pop("seconds", 0.0)
        arrays = {}
        for path in sorted(pathlib.Path(folder).glob("*.npz")):
            with np.load(path) as part:
                arrays.update(part)
        return Result(facts.pop("refusal"), facts, arrays, folder)

    def forget(self, result: Result) -> None:
        """Delete the files of a result."""
        shutil.rmtree(result.folder, ignore_errors=True)

    def _start(self) -> None:
        with open(os.path.join(self.home, "errors"), "a") as errors:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=self.environment, cwd=self.home
            )
        try:
            self._line(START)
        except (TimeoutError, EOFError):
            self.stop()
            with open(os.path.join(self.home, "errors"), errors="replace") as errors:
                raise RuntimeError(f"{' '.join(self.command)} does not start: {errors.read()[-600:]}") from None

    def _line(self, limit: float) -> str:
        assert self.process and self.process.stdout
        if not select.select([self.process.stdout], [], [], limit)[0]:
            raise TimeoutError
        line = self.process.stdout.readline()
        if not line:
            raise EOFError
        return line


def _stage(folder: str) -> str:
    path = os.path.join(folder, "stage")
    return json.loads(pathlib.Path(path).read_text())["stage"] if os.path.exists(path) else "build"
