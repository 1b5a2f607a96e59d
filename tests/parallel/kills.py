"""Random ranks are killed at random moments: `python -m tests.parallel.kills --count 200 --section "2 mpiexec"`.

A training on several ranks writes a snapshot after every iteration. After a kill, all processes must end within 10 seconds. The next training resumes
from the newest snapshot, and all of its snapshots must equal those of a training without kills to the bit. Linux only.
"""
from __future__ import annotations

import collections
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from ocaffe.parallel.mpiexec import ENVIRONMENT, find_mpiexec
from tests.abuse import training
from tests.abuse.campaign import Options, Tally, options
from tests.abuse.harness import ROOT, Outcome
from tests.abuse.workplace import workplace

SECTIONS = ("2 mpiexec", "2 device", "4 mpiexec", "4 device")  # number of ranks, and the way to start them
MOMENTS = (0.2, 4.0)  # seconds after the start
ENDED = 10  # seconds from a kill to the end of all processes
LONGEST = 300  # seconds of a training
_TOKEN = "OCAFFE_KILLS"  # variable that marks the processes of a training
_RANK = re.compile(rb"(?:^|\0)(?:PMI_RANK|OMPI_COMM_WORLD_RANK)=(\d+)")


class Training:
    """A training on several ranks that has been started."""

    def __init__(self, section: str, device: str, state: pathlib.Path | None) -> None:
        ranks, way = section.split()
        self.token = f"{_TOKEN}={os.getpid()}-{time.monotonic_ns()}"
        command = [sys.executable, "-m", "ocaffe", *training.arguments(state)]
        command = [*find_mpiexec(), "-n", ranks, *command] if way == "mpiexec" else [*command, "--device", ",".join([device] * int(ranks))]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        variables = {**os.environ, **ENVIRONMENT, "PYTHONPATH": path, _TOKEN: self.token.partition("=")[2]}
        variables.pop("OCAFFE_DEVICE", None)
        if way == "mpiexec":
            variables["OCAFFE_DEVICE"] = device
        with training.LOG.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def processes(self) -> Iterator[tuple[int, int | None]]:
        """Yield all processes of the training that run, each with its rank. mpiexec and its helpers have none."""
        token = self.token.encode()
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                variables = (folder / "environ").read_bytes()
                if token in variables.split(b"\0") and (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                    rank = _RANK.search(variables)
                    yield int(folder.name), int(rank[1]) if rank else None
            except OSError:
                continue

    def finish(self, seconds: float) -> Outcome:
        """Wait for the end of all processes. End them after `seconds`."""
        end = time.monotonic() + seconds
        while (self.process.poll() is None or any(self.processes())) and time.monotonic() < end:
            time.sleep(0.02)
        left = list(self.processes())
        for process, _ in left:
            os.kill(process, signal.SIGKILL)
        status = self.process.wait()
        if left:
            return Outcome("hang", f"{len(left)} processes run {seconds:g} s later")
        return Outcome("ok") if status == 0 else Outcome("error", f"status {status}")


def learn(section: str, chosen: Options, judge: training.Judge) -> None:
    """Train without kills and keep the files as reference."""
    outcome = Training(section, chosen.device, None).finish(LONGEST)
    if outcome.kind != "ok":
        raise RuntimeError(f"the training without kills fails: {outcome}\n{training.LOG.read_text(errors='replace')[-2000:]}")
    judge.reference = {file.path.name: file.path.read_bytes() for file in training.files() if not file.best}
    training.clear()


def kills(section: str, chosen: Options, tally: Tally) -> None:
    training.prepare("binary")
    judge = training.Judge("binary")
    learn(section, chosen, judge)
    kinds: collections.Counter[str] = collections.Counter()
    iterations, slowest = 0, 0.0
    for number in tally.numbers():
        rng = random.Random(f"{section} {chosen.seed} {number}")
        state = training.newest()
        before = state.iteration if state else 0
        started = Training(section, chosen.device, state.path if state else None)
        moment = time.monotonic() + rng.uniform(*MOMENTS)
        while time.monotonic() < moment and started.process.poll() is None:
            time.sleep(0.002)
        victims = [(rank, process) for process, rank in started.processes() if rank is not None]
        if victims:
            rank, process = rng.choice(sorted(victims))
            kinds[f"rank {rank}"] += 1
            begin = time.monotonic()
            os.kill(process, signal.SIGKILL)
            outcome = started.finish(ENDED)
            slowest = max(slowest, time.monotonic() - begin)
            if outcome.kind == "ok" and training.newest() is not None and "Optimization Done." not in training.LOG.read_text(errors="replace"):
                outcome = Outcome("wrong", "status 0 after a kill")
        else:
            kinds["no rank"] += 1
            outcome = started.finish(LONGEST)
        if outcome.kind in ("ok", "error"):
            outcome = judge.verdict(before)
        now = training.newest()
        iterations += (now.iteration if now else 0) - before
        text = training.LOG.read_bytes()
        if b"Traceback" in text:
            outcome = Outcome("traceback", "a rank prints a traceback")
        tally.add(outcome, number, text + "\n".join(sorted(os.listdir(training.SNAPSHOTS))).encode(), ".log")
        if (now is not None and now.iteration == training.ITERATIONS) or outcome.kind != "ok":
            training.clear()  # the next case begins a new training
    tally.extra |= {"ends": dict(kinds), "iterations": iterations, "slowest end, s": round(slowest, 2)}


def main() -> int:
    chosen = options("kills of ranks", 20, SECTIONS, device=True)
    sections = [chosen.section] if chosen.section else list(SECTIONS)
    chosen.seconds /= len(sections)
    status = 0
    for chosen.section in sections:
        with workplace():
            tally = Tally("kills of ranks", chosen)
            kills(chosen.section, chosen, tally)
            status |= tally.finish()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
