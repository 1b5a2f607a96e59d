"""Trainings are killed at random moments: `python -m tests.abuse.kills --count 1000 --section hdf5`.

A training writes a snapshot after every iteration. It is killed, its files are checked, and the next one resumes from the newest state. One case in ten
gets SIGTERM, which must end it with status 0 and a snapshot. Sections are kinds of snapshots.
"""
from __future__ import annotations

import collections
import os
import pathlib
import random
import signal
import time

from tests.abuse import training
from tests.abuse.campaign import Options, Tally, options
from tests.abuse.harness import Outcome, Process
from tests.abuse.workplace import workplace

MOMENTS = (0.1, 1.5)  # seconds after the start
POLITE = 0.1  # share of SIGTERM


def disturb(rng: random.Random, process: Process, kinds: collections.Counter[str]) -> Outcome:
    """Kill the training at a random moment, unless it ends before. Return the outcome of its end."""
    moment, polite = time.monotonic() + rng.uniform(*MOMENTS), rng.random() < POLITE
    while time.monotonic() < moment and not process.ended(training.LIMITS):
        time.sleep(0.002)
    if process.ended(training.LIMITS):
        kinds["finished"] += 1
    elif polite:
        kinds["SIGTERM"] += 1
        os.kill(process.pid, signal.SIGTERM)
        outcome = process.wait(training.LIMITS)
        started = "Starting Optimization" in process.text()
        return Outcome("ok") if outcome == ("signal", "SIGTERM") and not started else outcome  # it had no handler yet
    else:
        kinds["SIGKILL"] += 1
        process.kill()
        return Outcome("ok")
    return process.wait()


def kills(variant: str, chosen: Options, tally: Tally) -> None:
    training.prepare(variant)
    judge = training.Judge(variant)
    judge.learn()
    kinds: collections.Counter[str] = collections.Counter()
    iterations = 0
    for number in tally.numbers():
        state = training.newest()
        before = state.iteration if state else 0
        process = training.forked(training.arguments(state.path if state else None))
        outcome = disturb(random.Random(f"kill {variant} {chosen.seed} {number}"), process, kinds)
        if outcome.kind == "ok":
            outcome = judge.verdict(before)
        missing = [name for name in training.announced() if not pathlib.Path(name).exists()]
        if outcome.kind == "ok" and missing and "snapshot_keep" not in training.VARIANTS[variant]:
            outcome = Outcome("wrong", "a snapshot that the log announced is gone")
        now = training.newest()
        iterations += (now.iteration if now else 0) - before
        done = now is not None and now.iteration == training.ITERATIONS
        if outcome.kind == "ok" and done and process.outcome == ("ok", "") and training.strangers():
            outcome = Outcome("wrong", "a training that ended leaves temporary files of killed ones")
        tally.add(outcome, number, process.text().encode() + "\n".join(sorted(os.listdir(training.SNAPSHOTS))).encode(), ".log")
        if done or outcome.kind != "ok":
            training.clear()  # the next case begins a new training
    tally.extra |= {"ends": dict(kinds), "iterations": iterations}


def main() -> int:
    chosen = options("kills", 20, tuple(training.VARIANTS), device=True)
    sections = [chosen.section] if chosen.section else list(training.VARIANTS)
    chosen.seconds /= len(sections)
    training.use(chosen.device)
    training.load()
    status = 0
    for chosen.section in sections:
        with workplace():
            tally = Tally("kills", chosen)
            kills(chosen.section, chosen, tally)
            status |= tally.finish()
    return status


if __name__ == "__main__":
    raise SystemExit(main())
