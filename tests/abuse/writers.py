"""A database is written while trainings read it: `python -m tests.abuse.writers --count 20`.

A reader of LMDB sees the database of one moment, so the training must compute the same as without the writer. It may also end with an Error, for example
after it was told that the database changed. It must not compute something else, and no signal may end it.
"""
from __future__ import annotations

import pathlib
import random
import time
from collections.abc import Callable, Iterator

import lmdb

from ocaffe import proto
from tests.abuse import training
from tests.abuse.campaign import Options, Tally
from tests.abuse.harness import PAUSE, Outcome

ITERATIONS = 400
ROUNDS = 30  # of changes during a training
DATABASE = pathlib.Path("db")
Records = dict[bytes, bytes]


def _add(rng: random.Random, records: Records) -> Iterator[tuple[bytes, bytes | None]]:
    """Records after the others."""
    for number in range(500):
        yield b"a%08d" % rng.randrange(10**8), records[b"%08d" % (number % training.RECORDS)]


def _rewrite(rng: random.Random, records: Records) -> Iterator[tuple[bytes, bytes | None]]:
    """The same values, which move to other pages."""
    for _ in range(5):
        yield from records.items()


def _delete(rng: random.Random, records: Records) -> Iterator[tuple[bytes, bytes | None]]:
    for key in rng.sample(sorted(records), len(records) // 3):
        yield key, None


def _replace(rng: random.Random, records: Records) -> Iterator[tuple[bytes, bytes | None]]:
    """Other pixels, of the same size."""
    for key in records:
        yield key, proto.Datum(channels=2, height=8, width=8, label=0, data=rng.randbytes(128)).SerializeToString()


def _grow(rng: random.Random, records: Records) -> Iterator[tuple[bytes, bytes | None]]:
    """Values of many pages."""
    for key in records:
        yield b"z" + key, rng.randbytes(50_000)


WAYS: tuple[Callable[[random.Random, Records], Iterator[tuple[bytes, bytes | None]]], ...] = (_add, _rewrite, _delete, _replace, _grow)


def write(changes: Iterator[tuple[bytes, bytes | None]], rng: random.Random) -> None:
    """Commit the changes in transactions of random sizes, as another program does."""
    left = list(changes)
    with lmdb.open(str(DATABASE), map_size=1 << 30, sync=False) as environment:
        while left:
            with environment.begin(write=True) as transaction:
                for key, value in [left.pop() for _ in range(min(len(left), rng.randrange(1, 60)))]:
                    transaction.delete(key) if value is None else transaction.put(key, value)


def writers(chosen: Options, tally: Tally) -> None:
    judges: dict[bool, training.Judge] = {}
    for number in tally.numbers():
        rng = random.Random(f"writer {chosen.seed} {number}")
        shuffled = rng.random() < 0.3
        training.prepare("keep", ITERATIONS)
        if shuffled:
            net = pathlib.Path("net.prototxt")
            net.write_text(net.read_text().replace("backend: LMDB", "backend: LMDB shuffle: true"))
        judge = judges.setdefault(shuffled, training.Judge("keep"))
        if not judge.reference:
            judge.learn()
        with lmdb.open(str(DATABASE), readonly=True, lock=False) as environment, environment.begin() as transaction:
            records = dict(transaction.cursor())
        way = WAYS[number % len(WAYS)]
        process = training.forked(training.arguments())
        while not (process.ended(training.LIMITS) or "Iteration 1 " in process.text()):
            time.sleep(PAUSE / 10)
        for _ in range(ROUNDS):  # the reader's slot keeps old pages, so the database grows
            if not process.ended(training.LIMITS):
                write(way(rng, records), rng)
        outcome = process.wait(training.LIMITS)
        if outcome.kind in ("ok", "error"):
            whole = judge.verdict(ITERATIONS if outcome.kind == "ok" else 0)
            outcome = whole if whole.kind == "wrong" else outcome
        note = f"{way.__name__[1:]}{', shuffled' if shuffled else ''}: {outcome.note}"
        tally.add(Outcome(outcome.kind, note), number, process.text().encode(), ".log")
        training.clear()


def main() -> int:
    return training.run_part("writers", 5, writers)


if __name__ == "__main__":
    raise SystemExit(main())
