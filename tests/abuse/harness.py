"""Run code and commands that may fail in any way, in processes of their own, and classify how they ended.

A process has limits of time and memory. It is the leader of a session, so its children count for its memory and end with it. Linux only.
"""
from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pathlib
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from ocaffe.errors import Error

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOOD = ("ok", "error")  # an error is one of class Error
KINDS = (*GOOD, "traceback", "signal", "hang", "memory", "wrong")  # wrong: data lost, or another result
PAUSE = 0.1  # seconds between two looks at the memory
_PAGE = os.sysconf("SC_PAGE_SIZE")
T = TypeVar("T")


class Outcome(NamedTuple):
    """How a case ended. `note` says more in one line; equal faults have equal notes."""

    kind: str
    note: str = ""


class Limits(NamedTuple):
    """Seconds for one case, and bytes of resident memory of its process with all children, without the memory of this process at the fork."""

    seconds: float = 10
    memory: int = 2 << 30


DEFAULT = Limits()


class Wrong(Exception):
    """Raised by a case whose result is wrong, although nothing failed."""


def failure(problem: BaseException) -> Outcome:
    """The outcome of an exception. The note of a traceback names the deepest line of ocaffe."""
    if isinstance(problem, Error):
        return Outcome("error", problem.fact)
    if isinstance(problem, SystemExit):
        return Outcome("error" if problem.code else "ok")
    if isinstance(problem, Wrong):
        return Outcome("wrong", str(problem))
    frames = traceback.extract_tb(problem.__traceback__)
    inner = next((frame for frame in reversed(frames) if f"{os.sep}ocaffe{os.sep}" in frame.filename), frames[-1])
    return Outcome("traceback", f"{type(problem).__name__} in {os.path.relpath(inner.filename, ROOT)}:{inner.name}")


# processes


class Process:
    """A child process that runs `work` and ends. `log` receives its output, `folder` is its working directory."""

    def __init__(self, work: Callable[[], object], log: pathlib.Path | None = None, folder: pathlib.Path | None = None) -> None:
        self.log = log
        self.outcome: Outcome | None = None  # set when it has ended
        self.begun = time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            _live(work, log, folder)
        self.inherited = _resident(self.pid)  # pages that a forked child shares with this process

    def wait(self, limits: Limits = DEFAULT) -> Outcome:
        """Wait for the end, at most as long as the limits allow, and return the outcome."""
        while not self.ended(limits):
            time.sleep(PAUSE / 10)
        assert self.outcome is not None
        return self.outcome

    def ended(self, limits: Limits = DEFAULT) -> bool:
        """Whether the process has ended. One above its limits is ended here."""
        if self.outcome is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self._finish(self._read(status))
            elif time.monotonic() - self.begun > limits.seconds:
                self.kill(Outcome("hang", f"more than {limits.seconds:g} s"))
            elif resident(self.pid) - self.inherited > limits.memory:
                self.kill(Outcome("memory", f"more than {limits.memory >> 20} MiB"))
        return self.outcome is not None

    def kill(self, outcome: Outcome | None = None) -> None:
        """End the process and its children with SIGKILL. `outcome`: the reason; default: the signal."""
        if self.outcome is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self._finish(outcome or self._read(status))

    def _finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # children that outlived it

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log is not None and self.log.exists() else ""

    def _read(self, status: int) -> Outcome:
        """The outcome of a process that ended with `status`, as os.waitpid returns it."""
        text = self.text()
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            return Outcome("signal", signal.Signals(-code).name)
        if "Traceback (most recent call last)" in text:
            return Outcome("traceback", _last_error(text))
        if code == 0:
            return Outcome("ok")
        said = [line for line in text.splitlines() if line.startswith("error: ")]
        return Outcome("error", said[-1]) if said else Outcome("traceback", f"status {code} without a reason")


def _last_error(text: str) -> str:
    """The line of the exception that ends the last traceback in `text`."""
    lines = text[text.rindex("Traceback (most recent call last)") :].splitlines()[1:]
    return next((line for line in lines if line and not line.startswith((" ", "\t"))), "")


def _live(work: Callable[[], object], log: pathlib.Path | None, folder: pathlib.Path | None) -> None:
    """Be the child: run `work` and end with its status, without the parent's cleanup."""
    status = 1
    try:
        os.setsid()
        faulthandler.disable()  # a signal is an outcome, not a fault of the tests
        signal.signal(signal.SIGINT, signal.default_int_handler)
        nowhere = os.open(os.devnull, os.O_RDWR)
        out = nowhere if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for number, target in enumerate((nowhere, out, out)):
            os.dup2(target, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, errors="backslashreplace", closefd=False) for number in (1, 2))
        if folder is not None:
            os.chdir(folder)
        warnings.simplefilter("ignore")
        status = int(work() or 0)  # type: ignore[call-overload]
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def command(
    arguments: Sequence[str], log: pathlib.Path, folder: pathlib.Path, environment: Mapping[str, str] | None = None, before: Callable[[], object] = lambda: None
) -> Process:
    """Start a program. `environment` is added to this process's; `before` runs in the child before the program."""
    added = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **(environment or {})}

    def work() -> None:
        before()
        os.execvpe(arguments[0], list(arguments), {**os.environ, **added})

    process = Process(work, log, folder)
    process.inherited = 0  # a new program shares no pages
    return process


def ocaffe(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ocaffe", *arguments]


def resident(session: int) -> int:
    """Bytes of resident memory of all processes of a session."""
    return sum(_resident(pid) for pid in members(session))


def members(session: int) -> Iterator[int]:
    """The living processes of a session."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                if int(pathlib.Path("/proc", name, "stat").read_bytes().rpartition(b")")[2].split()[3]) == session:
                    yield int(name)


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError):
        return int(pathlib.Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    return 0


# many cases


def isolated(cases: Sequence[T], run: Callable[[T], object], limits: Limits = DEFAULT, folder: pathlib.Path | None = None) -> Iterator[tuple[T, Outcome]]:
    """Run every case in a child process, and yield it with its outcome.

    One child runs many cases, because forking takes longer than most of them. After a crash, a hang or too much memory the next child goes on with
    the next case. A case that returns an Outcome has that outcome.
    """
    done = 0
    while done < len(cases):
        for outcome in _chunk(cases[done:], run, limits, folder):
            yield cases[done], outcome
            done += 1


def _chunk(cases: Sequence[T], run: Callable[[T], object], limits: Limits, folder: pathlib.Path | None) -> Iterator[Outcome]:
    """Yield outcomes from one child. The last one is that of the case which ended the child, if it ended early."""
    receive, send = os.pipe()

    def work() -> None:
        os.close(receive)
        for case in cases:
            os.write(send, json.dumps(_outcome(run, case, limits)).encode() + b"\n")

    child = Process(work, None, folder)
    os.close(send)
    left, rest = len(cases), b""
    looked = time.monotonic()
    try:
        while left:
            ready, _, _ = select.select([receive], [], [], PAUSE)
            data = os.read(receive, 1 << 16) if ready else None
            if data:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    left -= 1
                    yield Outcome(*json.loads(line))
                if lines:
                    child.begun = time.monotonic()  # of the next case
            if data == b"" or time.monotonic() - looked > PAUSE:
                looked = time.monotonic()
                if data == b"" and left:
                    yield child.wait(limits)
                    return
                if left and child.ended(limits) and not select.select([receive], [], [], 0)[0]:
                    assert child.outcome is not None
                    yield child.outcome
                    return
        child.wait(limits)
    finally:
        child.kill()
        os.close(receive)


def _outcome(run: Callable[[T], object], case: T, limits: Limits) -> Outcome:
    try:
        result: Any = run(case)
    except BaseException as problem:
        return failure(problem)
    return result if isinstance(result, Outcome) else Outcome("ok")
