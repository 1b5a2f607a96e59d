"""Trainings on full disks: `python -m tests.abuse.disks --count 50`.

The size of files is limited, or snapshots are in a small file system. Logs go to /dev/full, to a closed stream or to a full folder. A snapshot that
cannot be written is an Error that leaves earlier ones whole. A log or cache that cannot be written ends no training. The small file system needs root.
"""
from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pathlib
import random
import resource
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tests.abuse import training
from tests.abuse.campaign import Options, Tally
from tests.abuse.harness import Outcome, Process, command, ocaffe

ITERATIONS = 20
FULL = pathlib.Path("full")  # a file system without room


class Case(NamedTuple):
    """A disturbance: flags and environment of the training, a function that the child runs before it, and whether the training must succeed."""

    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    before: Callable[[int], object] = lambda size: None
    must_succeed: bool = True
    small: bool = False  # the folder of snapshots is a small file system
    needs_mount: bool = False
    needs_package: str = ""


def _limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # Python ignores SIGXFSZ, so a write fails with EFBIG


def _stderr_full(size: int) -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)


def _stderr_closed(size: int) -> None:
    os.close(2)


CASES = {
    "file size": Case(before=_limit, must_succeed=False),
    "small file system": Case(small=True, must_succeed=False, needs_mount=True),
    "stderr full": Case(before=_stderr_full),
    "stderr closed": Case(before=_stderr_closed),
    "JSON log": Case(flags=("--log_json", "/dev/full")),
    "JSON log, full disk": Case(flags=("--log_json", "full/log"), needs_mount=True),
    "TensorBoard": Case(flags=("--tensorboard", "full"), needs_mount=True, needs_package="tensorboardX"),
    "log files": Case(environment={"GLOG_log_dir": "full"}, needs_mount=True),
    "cache": Case(environment={"OCAFFE_CACHE": "full"}, needs_mount=True),
}


def _present(package: str) -> bool:
    return not package or importlib.util.find_spec(package) is not None


@contextlib.contextmanager
def mounted(path: pathlib.Path, size: int) -> Iterator[bool]:
    """Mount a file system of `size` bytes at `path`. Yield whether that was possible."""
    path.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, check=False).returncode == 0
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(folder: pathlib.Path) -> None:
    """Take all room of a file system."""
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as stream:
        while stream.write(bytes(4096)):
            pass


def disturbed(case: Case, rng: random.Random, judge: training.Judge) -> tuple[Process, Outcome]:
    """Run a training with a disturbance. Return it and the verdict."""
    largest = max(len(data) for data in judge.reference.values())
    size = rng.randrange(int(1.2 * largest)) if case.before is _limit else rng.randrange(4096, 2 * largest * ITERATIONS)
    training.LOG.unlink(missing_ok=True)
    with mounted(training.SNAPSHOTS, size) if case.small else contextlib.nullcontext():
        arguments = [*ocaffe(*training.arguments()), *case.flags]
        process = command(arguments, training.LOG.absolute(), pathlib.Path.cwd(), case.environment, lambda: case.before(size))
        outcome = process.wait(training.LIMITS)
        if case.before is _limit and outcome.kind == "traceback" and outcome.note.startswith("status 1"):
            outcome = Outcome("error", "the limit holds for the log too, so the reason may be missing")
        if case.must_succeed and outcome.kind == "error":
            outcome = Outcome("wrong", f"a training that should go on ended: {outcome.note}")
        now = training.newest()
        if outcome.kind in ("ok", "error"):
            whole = judge.verdict(ITERATIONS if outcome.kind == "ok" else 0)
            outcome = whole if whole.kind == "wrong" else outcome
        if outcome.kind in ("ok", "error") and training.strangers():
            outcome = Outcome("wrong", f"a failed write leaves files: {len(training.strangers())} beside state {now.iteration if now else 0}")
        if not case.small:
            training.clear()
    return process, outcome


def disks(chosen: Options, tally: Tally) -> None:
    training.prepare("binary", ITERATIONS)
    judge = training.Judge("binary")
    judge.learn()
    with mounted(FULL, 64 << 10) as root:
        fill(FULL)
        possible = [name for name, case in CASES.items() if (root or not case.needs_mount) and _present(case.needs_package)]
        tally.extra["left out"] = [name for name in CASES if name not in possible]
        cases = [chosen.section] if chosen.section else possible
        for number, name in zip(tally.numbers(), itertools.cycle(cases)):
            process, outcome = disturbed(CASES[name], random.Random(f"disk {chosen.seed} {number}"), judge)
            note = f"{name}: {outcome.note}" if outcome.kind not in ("ok", "error") else outcome.note
            tally.add(Outcome(outcome.kind, note), number, process.text().encode(), ".log")


def main() -> int:
    return training.run_part("disks", 9, disks, tuple(CASES), preload=False)


if __name__ == "__main__":
    raise SystemExit(main())
