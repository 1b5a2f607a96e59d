"""Trainings are killed at a random system call: `python -m tests.abuse.syscalls --count 50`. Needs strace.

strace kills a thread's process when it enters its N-th call of one kind. So death hits every step of a write: open, write, fsync, rename, unlink.
"""
from __future__ import annotations

import collections
import math
import pathlib
import random
import shutil
import sys

from tests.abuse import training
from tests.abuse.campaign import Options, Tally
from tests.abuse.harness import Outcome, command, ocaffe

CALLS = ("write", "openat", "fsync", "rename", "unlink", "close", "mmap", "ftruncate,pwrite64")  # HDF5 uses the last two
MOST = {"write": 2000, "openat": 3000, "close": 3000, "mmap": 1500}  # the highest N of a call; default 150
ITERATIONS = 40


def syscalls(chosen: Options, tally: Tally) -> None:
    ends: collections.Counter[str] = collections.Counter()
    for number in tally.numbers():
        rng = random.Random(f"call {chosen.seed} {number}")
        variant = tuple(training.VARIANTS)[number % len(training.VARIANTS)]
        call = rng.choice(CALLS)
        nth = int(math.exp(rng.uniform(0, math.log(MOST.get(call, 150)))))
        training.prepare(variant, ITERATIONS)
        judge = judges.setdefault(variant, training.Judge(variant))
        if not judge.reference:
            judge.learn()
        training.LOG.unlink(missing_ok=True)
        rule = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={nth}"]
        process = command(["strace", "-f", "-qq", "-o", "/dev/null", *rule, *ocaffe(*training.arguments())], training.LOG.absolute(), pathlib.Path.cwd())
        outcome = process.wait(training.LIMITS)
        killed = outcome == ("signal", "SIGKILL")
        ends[f"{call} killed" if killed else f"{call} {outcome.kind}"] += 1
        if killed or outcome.kind == "ok":
            outcome = judge.verdict(0)
        elif outcome.kind == "error":
            outcome = Outcome("wrong", f"the training ended because a child was killed: {outcome.note}")
        missing = [name for name in training.announced() if not pathlib.Path(name).exists()]
        if outcome.kind == "ok" and missing and "snapshot_keep" not in training.VARIANTS[variant]:
            outcome = Outcome("wrong", "a snapshot that the log announced is gone")
        state = training.newest()
        if outcome.kind == "ok" and state is not None:
            outcome = training.forked(training.arguments(state.path)).wait(training.LIMITS)
            outcome = judge.verdict(ITERATIONS) if outcome.kind == "ok" else Outcome("wrong", f"the resumed training fails: {outcome.note}")
        note = f"{variant}, {call}: {outcome.note}" if outcome.kind != "ok" else ""
        tally.add(Outcome(outcome.kind, note), number, training.LOG.read_bytes(), ".log")
        training.clear()
    tally.extra["ends"] = dict(ends)


judges: dict[str, training.Judge] = {}


def main() -> int:
    if shutil.which("strace") is None:
        print("strace is not installed: apt-get install strace", file=sys.stderr)
        return 2
    return training.run_part("syscalls", 6, syscalls)


if __name__ == "__main__":
    raise SystemExit(main())
