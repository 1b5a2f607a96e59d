"""A long training keeps its memory and descriptors: `python -m tests.abuse.endurance --count 100000`. The count is that of LeNet's iterations.

Memory is read after half of the iterations, at most 10,000, and at the end. It may grow by 5 MiB, the number of descriptors not at all.
"""
from __future__ import annotations

import contextlib
import os
import pathlib
import re
import time
from collections.abc import Sequence

import numpy as np

from ocaffe import proto
from tests.abuse import training
from tests.abuse.campaign import Options, Tally
from tests.abuse.harness import PAUSE, ROOT, Limits, Outcome, Process, resident
from tests.abuse.workplace import database

WARM = 10_000  # iterations
FEW = 10  # samples at the beginning and at the end
GROWTH = 5 << 20  # bytes
SOLVER = (
    'net: "lenet.prototxt" test_iter: 2 test_interval: 500 base_lr: 0.001 lr_policy: "fixed" momentum: 0.9 display: 100 max_iter: {0} snapshot: {1} '
    'snapshot_prefix: "lenet" snapshot_keep: 2 random_seed: 7 best_output: "accuracy" ema_decay: 0.99\n'
)


def prepare(iterations: int) -> None:
    """Write LeNet, its solver and random digits."""
    rng = np.random.default_rng(0)
    digits = (proto.Datum(channels=1, height=28, width=28, label=number % 10, data=rng.bytes(784)).SerializeToString() for number in range(1000))
    database(pathlib.Path("digits"), digits)
    net = (ROOT / "zoo/lenet" / "train_val.prototxt").read_text()
    pathlib.Path("lenet.prototxt").write_text(re.sub(r'source: "[^"]*"', 'source: "digits"', net))
    pathlib.Path("solver.prototxt").write_text(SOLVER.format(iterations, max(iterations // 20, 1)))


def descriptors(process: Process) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def least(samples: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The least memory and the least number of descriptors. A snapshot that is being written has more."""
    found = [sample for sample in samples if sample[0]] or [(0, 0)]
    return min(memory for memory, _ in found), min(count for _, count in found)


def iteration(log: str) -> int:
    """The last iteration that the log displays."""
    found = re.findall(r"Iteration (\d+) \(", log)
    return int(found[-1]) if found else 0


def endurance(chosen: Options, tally: Tally) -> None:
    prepare(chosen.count)
    process = training.forked(["train", "--solver", "solver.prototxt"])
    limits = Limits(seconds=max(60.0, chosen.count * 0.1))
    warm = min(WARM, chosen.count // 2)
    samples: list[tuple[int, int]] = []
    reached = 0
    while not process.ended(limits):
        time.sleep(PAUSE)
        reached = iteration(_tail(training.LOG))
        if warm <= reached < chosen.count:
            with contextlib.suppress(OSError):  # it has just ended
                samples.append((resident(process.pid), descriptors(process)))
        if tally.spent():
            process.kill(Outcome("ok"))
    outcome = process.wait(limits)
    (first, before), (last, after) = least(samples[:FEW]), least(samples[-FEW:])
    grown = last - first, after - before
    if outcome.kind == "error":
        outcome = Outcome("wrong", outcome.note)
    if outcome.kind == "ok" and (grown[0] > GROWTH or grown[1] > 0):
        outcome = Outcome("wrong", f"grew by {grown[0] >> 10} KiB and {grown[1]} descriptors")
    tally.add(outcome, 0, process.text().encode(), ".log")
    tally.extra |= {"iterations": reached, "resident MiB": round(last / 2**20, 1), "grown KiB": grown[0] >> 10, "grown descriptors": grown[1]}


def _tail(path: pathlib.Path) -> str:
    if not path.exists():
        return ""
    with open(path, "rb") as stream:
        stream.seek(max(path.stat().st_size - 8192, 0))
        return stream.read().decode(errors="replace")


def main() -> int:
    return training.run_part("endurance", 2000, endurance)


if __name__ == "__main__":
    raise SystemExit(main())
