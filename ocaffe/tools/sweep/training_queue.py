"""Runs the trainings of a sweep from a queue, each as a process `ocaffe train` with a folder of its own.

A folder has `solver.prototxt`, `train.log` (stderr), `records.jsonl` (--log_json), the snapshots, and `training.json`: the state for the next sweep.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ocaffe.errors import Error
from ocaffe.formats.json_file import read_json
from ocaffe.shown import lines_of, visible
from ocaffe.support import log
from ocaffe.support.files import atomic_write, open_plain, output_no_link, read_plain
from ocaffe.support.parsing import parsing
from ocaffe.tools.training_logs.history import History

WAITING, RUNNING, FINISHED, STOPPED, FAILED = "waiting", "running", "finished", "stopped", "failed"
STATE, SOLVER, LOG, RECORDS = "training.json", "solver.prototxt", "train.log", "records.jsonl"
SOURCE = "sweep:0"  # of lines in the log
_POLL = 0.1  # seconds
_END = 60.0  # seconds for snapshots, when an error of the sweep itself stops its trainings
_START = (  # `ocaffe train`, as a process that ends with this one; its modules are found where this process finds them
    "import sys; sys.path[:] = {path!r}; from ocaffe.cl.child import end_with_parent; end_with_parent({parent}); "
    "from ocaffe.cli import main; sys.exit(main())"
)


# the types of the file in which a sweep keeps the state of a training
_SAVED = {"state": str, "device": str, "error": str, "seconds": float, "stopped_early": bool, "nets": object, "flags": [str]}


@dataclass
class Training:
    """One training of a sweep."""

    settings: dict[str, str]
    folder: Path
    solver: str  # the text of its solver file
    nets: str  # a digest of its nets
    flags: tuple[str, ...]  # flags of `ocaffe train` that decide on its results
    max_iter: int
    state: str = WAITING
    device: str = ""
    seconds: float = 0.0  # of all its processes
    error: str = ""
    stopped_early: bool = False  # by early_stopping
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.history = History(self.folder / RECORDS)

    def __str__(self) -> str:
        return " ".join(f"{name}={text}" for name, text in self.settings.items())

    @property
    def iteration(self) -> int:
        """The iterations that are known to be done."""
        return self.max_iter if self.state == FINISHED and not self.stopped_early else self.history.iteration

    def load(self) -> None:
        """Take over the state that an earlier sweep has left. Raises Error if that sweep trained with another solver, net or flag."""
        path = self.folder / STATE
        if not path.exists():
            return
        fix = f"remove the folder {self.folder} to train it again"
        found = read_json(path, _SAVED, "the state of a training", fix)
        with parsing("the solver of the training cannot be read", str(self.folder / SOLVER), fix):
            earlier = read_plain(self.folder / SOLVER).decode()
        nets, flags = found["nets"], found["flags"]
        self.state, self.device, self.error = found["state"], found["device"], found["error"]
        self.seconds, self.stopped_early = float(found["seconds"]), found["stopped_early"]
        before, now = ([line for line in text.splitlines() if not line.startswith("snapshot_prefix")] for text in (earlier, self.solver))
        changed = [f"the solver had {' '.join(_without(before, now)) or 'less'}, it has {' '.join(_without(now, before)) or 'less'}"] if before != now else []
        changed += [f"the flags were {' '.join(flags) or 'none'}, they are {' '.join(self.flags) or 'none'}"] if list(flags) != list(self.flags) else []
        changed += ["its nets were other ones"] if nets != self.nets else []
        if changed:
            fix = f"another folder for this sweep (--out), or remove {self.folder} to train again"
            raise Error(f"an earlier sweep trained this with other settings: {'; '.join(changed)}", place=str(self.folder), fix=fix)
        if self.state != FINISHED:
            self.state = WAITING
        self.history.read()

    def paths(self, above: Path) -> Iterator[Path]:
        """Yield the folders below `above` and the files that a sweep writes for it."""
        yield from (each for each in (self.folder, *self.folder.parents) if above in each.parents)
        yield from (self.folder / name for name in (SOLVER, LOG, RECORDS))  # STATE is read before, and must be one of a sweep

    def save(self) -> None:
        content = {
            "settings": self.settings, "state": self.state, "device": self.device, "seconds": round(self.seconds, 3), "stopped_early": self.stopped_early,
            "error": self.error, "nets": self.nets, "flags": list(self.flags),
        }  # fmt: skip
        with atomic_write(self.folder / STATE) as out:
            out.write((json.dumps(content, indent=1) + "\n").encode())


def _without(lines: Sequence[str], others: Sequence[str]) -> list[str]:
    return [line.strip() for line in lines if line not in others]


class _Child:
    """The process of a training on a device. `device` is '' for the one that `ocaffe train` chooses."""

    def __init__(self, training: Training, device: str, flags: Sequence[str]) -> None:
        training.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(training.folder / SOLVER) as out:
            out.write(training.solver.encode())
        training.state, training.device, training.error = RUNNING, device, ""
        training.save()
        self.training, self._begin = training, time.monotonic()
        self._log: IO[bytes] = open(training.folder / LOG, "ab", opener=output_no_link)
        self._log_begin = self._log.tell()
        arguments = ["train", f"--solver={training.folder / SOLVER}", "--snapshot=auto", f"--log_json={training.folder / RECORDS}", *flags]
        arguments += [f"--device={device}"] if device else []
        start = _START.format(path=sys.path, parent=os.getpid())
        environment = {**os.environ, "GLOG_minloglevel": "0"}  # `_outcome` reads the log
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", start, *arguments], stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=environment,
                start_new_session=True,  # Ctrl-C in a terminal signals the whole group: the sweep alone passes it on, because a second one ends a training
            )  # fmt: skip
        except BaseException:
            self._log.close()
            raise

    def finish(self, stopping: bool) -> None:
        """Record the end of the process, which has ended."""
        self._log.close()
        training = self.training
        training.seconds += time.monotonic() - self._begin
        training.history.read()
        with open_plain(training.folder / LOG) as stream:
            stream.seek(self._log_begin)
            text = stream.read().decode(errors="replace")
        training.state, training.error = _outcome(self.process.returncode, text, stopping)
        training.stopped_early = training.state == FINISHED and _EARLY in text
        training.save()


_EARLY, _STOPPED = "] Early stopping: ", "] Optimization stopped early."


def _outcome(status: int, text: str, stopping: bool) -> tuple[str, str]:
    """Return the state of a training and its error, from the exit status and the log of its last process."""
    if status == 0:
        return (STOPPED, "") if _STOPPED in text and _EARLY not in text else (FINISHED, "")
    if status < 0:
        with contextlib.suppress(ValueError):  # a number without a name
            return (STOPPED, "") if stopping else (FAILED, f"its process was ended by {signal.Signals(-status).name}")
    told = re.findall(r"^error: (.*?)(?=^\w\d{4} |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if line.strip()]
    return FAILED, (told[-1] if told else f"its process ended with status {status}: {lines[-1] if lines else 'it wrote nothing'}").strip()


def run(
    trainings: Sequence[Training], devices: Sequence[str], flags: Sequence[str], request: Callable[[], str], changed: Callable[[], None],
    advanced: Callable[[], None],
) -> None:  # fmt: skip
    """Run every training that is not finished, at most one at a time for each entry of `devices`. `flags` go to every `ocaffe train`.

    A training that fails does not stop the others. `request` returns 'stop' when a signal requires it: then the running trainings write snapshots and
    stop. At the second 'stop' they are killed. `changed` is called after the state of a training has changed, `advanced` several times a second.
    """
    waiting = deque(training for training in trainings if training.state != FINISHED)
    children: dict[int, _Child] = {}
    stopping = False
    try:
        while children or (waiting and not stopping):
            if request() == "stop":
                for child in children.values():
                    if stopping:
                        child.process.kill()
                    elif os.name != "nt":  # Windows has no SIGTERM, and its Ctrl-C reaches the trainings too
                        child.process.terminate()
                if children and not stopping:
                    log.info(SOURCE, f"Stopping: {len(children)} trainings write snapshots. A second signal ends them at once")
                stopping = True
            for place in [place for place, child in children.items() if child.process.poll() is not None]:
                child = children.pop(place)
                child.finish(stopping)
                reason = f": {child.training.error}" if child.training.error else ""
                log.emit(2 if reason else 0, SOURCE, lines_of(f"{visible(str(child.training))}: {child.training.state}{reason}"))
                changed()
            for place, device in enumerate(devices):
                if waiting and place not in children and not stopping:
                    training = waiting.popleft()
                    log.info(SOURCE, f"{training}: training {trainings.index(training) + 1} of {len(trainings)} starts{' on ' * bool(device)}{device}")
                    try:
                        children[place] = _Child(training, device, flags)
                    except (OSError, Error) as problem:
                        training.state, training.error = FAILED, f"it cannot start: {getattr(problem, 'strerror', None) or problem}"
                        log.error(SOURCE, lines_of(f"{visible(str(training))}: {training.error}"))
                    changed()
            for child in children.values():
                child.training.history.read()
            advanced()
            time.sleep(_POLL)
    finally:
        _end([*children.values()])


def _end(children: Iterable[_Child]) -> None:
    """Stop the processes that an error of the sweep has left."""
    for child in children:
        child.process.terminate()
    deadline = time.monotonic() + _END
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, deadline - time.monotonic()))
        child.process.kill()
        child.process.wait()
        with contextlib.suppress(OSError, Error):  # the first error is raised
            child.finish(stopping=True)
