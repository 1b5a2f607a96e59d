"""Compares all kernel families with numpy on one device.

The comparisons run in a separate process. If a driver crashes or hangs, the table has a row for that, and a new process continues with the next family.
"""
from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from ocaffe.cl.device import Device
from ocaffe.cl.program import ProgramKey
from ocaffe.errors import Error
from ocaffe.ir.launch import HOST, Schedule
from ocaffe.ir.target import Target
from ocaffe.selftest import boxes, exchange, flow, layers, quantization, updates
from ocaffe.selftest.case import ROUNDED, TOLERANCE, Finding
from ocaffe.shown import lines_of
from ocaffe.support import parent

ROOT = Path(__file__).resolve().parents[2]
BUILD = "all programs"  # the name under which a process builds the programs of all its families, several at a time
TAIL = 6  # last lines of the stderr of a crashed process that are shown


class AnyCase(Protocol):
    """A comparison: a name, and `run`."""

    @property
    def name(self) -> str: ...
    def launches(self, target: Target) -> Schedule: ...
    def run(self, device: Device) -> list[Finding]: ...


PRODUCTS = ("conv", "deconv", "matrix product")  # the names of families that multiply matrices begin so


def all_cases() -> list[AnyCase]:
    return [*layers.cases(), *boxes.cases(), *flow.cases(), *quantization.cases(), *updates.cases(), *exchange.cases()]


def product_cases() -> list[AnyCase]:
    return [case for case in all_cases() if case.name.startswith(PRODUCTS)]


def program_keys(case: AnyCase, target: Target) -> set[ProgramKey]:
    """Return the programs of a case."""
    calls = [launch.final() for launch in case.launches(target) if not isinstance(launch, HOST)]
    generated = sorted({call.program for call in calls if call.generated})
    own = {ProgramKey(call.program, call.defines) for call in calls if not call.generated}
    return own | ({ProgramKey.generated(generated)} if generated else set())


@dataclass
class Row:
    """The result of one family. `word` is passed, FAILED, CRASHED or HANGS. `error` is the largest error of its arrays; None without a result."""

    name: str
    word: str
    seconds: float = 0.0
    error: float | None = None
    detail: str = ""


def selftest(
    names: Sequence[str],
    spec: str | None,
    gpu: str | None,
    math: str | None,
    timeout: float,
    on_device: Callable[[str], None],
    command: Sequence[str] = (),
    kind: str | None = None,
    built: Callable[[int, int], None] = lambda done, wanted: None,
) -> Iterator[Row]:
    """Yield a row for each of `names` as soon as it is known. Raise Error if the device does not exist.

    `math`: the precision of products (None: float32). `timeout`: seconds without an answer after which the process is killed.
    `kind`: the class of kernels (None: the device's own). `command` replaces `python -m ocaffe.selftest` (for tests).
    `built` gets the number of compiled programs, and of those to compile. A program that does not build is a matter of its family's row.
    """
    left, known, build = list(names), False, True
    while left:
        with tempfile.TemporaryFile("w+") as said:
            request = json.dumps([spec, gpu, math, left, os.getpid(), kind, build])
            child = _Child([*(command or (sys.executable, "-m", "ocaffe.selftest")), request], said, timeout)
            build = False
            begun = ""
            for answer in child.answers():
                if "refused" in answer:
                    raise Error(lines_of(answer["refused"]))
                if "device" in answer and not known:
                    on_device(answer["device"])
                    known = True
                if "built" in answer:
                    built(*answer["built"])
                begun = answer.get("begin", begun)
                if "name" in answer:
                    yield _row(answer, ROUNDED.get(math or "", TOLERANCE))
                    left.remove(answer["name"])
                    begun = ""
            if begun == BUILD:
                continue
            if begun or not known:
                word, detail = child.end()
                yield Row(begun or "opening the device", word, detail="\n".join([detail, *_tail(said)]))
                if not begun:
                    return
                left.remove(begun)


def _row(answer: dict[str, Any], tolerance: float) -> Row:
    if "problem" in answer:
        return Row(answer["name"], "FAILED", answer["seconds"], detail=answer["problem"])
    findings = [Finding(*finding) for finding in answer["findings"]]
    wrong = [finding for finding in findings if not finding.error <= tolerance]
    detail = "\n".join(finding.text() for finding in wrong)
    return Row(answer["name"], "FAILED" if wrong else "passed", answer["seconds"], max(finding.error for finding in findings), detail)


class _Child:
    """The process and its answers. It is killed if no answer arrives within the timeout."""

    def __init__(self, command: Sequence[str], said: IO[str], timeout: float) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.timeout, self.late = timeout, False
        environment = {**os.environ, "PYTHONPATH": path, **parent.telling(unit_trial="1")}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment)
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def answers(self) -> Iterator[dict[str, Any]]:
        try:
            while (line := self._lines.get(timeout=self.timeout)) is not None:
                yield json.loads(line)
        except queue.Empty:
            self.late = True
        finally:
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()

    def end(self) -> tuple[str, str]:
        """Return the word and the detail for a process that ended in the middle of a comparison."""
        if self.late:
            return "HANGS", f"no answer for {self.timeout:g} s"
        return "CRASHED", ending(self.process.returncode)


def ending(status: int) -> str:
    """Return how a process ended, by its exit status: by a signal, or with which status. Windows' statuses of crashes are known as hexadecimal numbers."""
    known = -status in signal.Signals.__members__.values()
    return f"signal {signal.Signals(-status).name}" if known else f"exit status {status if status < 1 << 31 else hex(status)}"


def _tail(said: IO[str]) -> list[str]:
    said.seek(0)
    return [f"  {line.rstrip()}" for line in said.readlines()[-TAIL:]]
