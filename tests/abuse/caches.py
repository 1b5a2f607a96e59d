"""Damaged caches: `python -m tests.abuse.caches --count 100`.

Each case damages one file of a warm cache: changed, truncated, replaced, removed. The next training must succeed with the same snapshots.
"""
from __future__ import annotations

import os
import pathlib
import random
import shutil
from collections.abc import Callable

from tests.abuse import training
from tests.abuse.campaign import Options, Tally
from tests.abuse.harness import Outcome, command, ocaffe
from tests.abuse.mutate import damage

ITERATIONS = 3
WARM, DAMAGED = pathlib.Path("warm"), pathlib.Path("damaged")


def _change(rng: random.Random, path: pathlib.Path, other: pathlib.Path) -> None:
    path.write_bytes(damage(rng, path.read_bytes(), other.read_bytes()))


def _truncate(rng: random.Random, path: pathlib.Path, other: pathlib.Path) -> None:
    os.truncate(path, rng.randrange(max(path.stat().st_size, 1)))


def _remove(rng: random.Random, path: pathlib.Path, other: pathlib.Path) -> None:
    path.unlink()


def _replace(rng: random.Random, path: pathlib.Path, other: pathlib.Path) -> None:
    path.write_bytes(other.read_bytes())


def _folder(rng: random.Random, path: pathlib.Path, other: pathlib.Path) -> None:
    """Put a folder in the place of the file."""
    path.unlink()
    path.mkdir()


DAMAGES: tuple[Callable[[random.Random, pathlib.Path, pathlib.Path], None], ...] = (_change, _change, _truncate, _remove, _replace, _folder)


def train(cache: pathlib.Path) -> Outcome:
    training.clear()
    training.LOG.unlink(missing_ok=True)
    return command(ocaffe(*training.arguments()), training.LOG.absolute(), pathlib.Path.cwd(), {"OCAFFE_CACHE": str(cache.absolute())}).wait(training.LIMITS)


def caches(chosen: Options, tally: Tally) -> None:
    training.prepare("binary", ITERATIONS)
    judge = training.Judge("binary")
    judge.learn()
    outcome = train(WARM)
    if outcome.kind != "ok":
        raise RuntimeError(f"the training that fills the cache fails: {outcome}")
    files = sorted(path for path in WARM.rglob("*") if path.is_file())
    folders = sorted({path.parent for path in files})
    for number in tally.numbers():
        rng = random.Random(f"cache {chosen.seed} {number}")
        shutil.rmtree(DAMAGED, ignore_errors=True)
        shutil.copytree(WARM, DAMAGED)
        folder = rng.choice(folders)  # first the folder, because one of them has most of the files
        path, other = rng.choice([each for each in files if each.parent == folder]), rng.choice(files)
        way = rng.choice(DAMAGES)
        way(rng, DAMAGED / path.relative_to(WARM), other)
        outcome = train(DAMAGED)
        if outcome.kind == "error":
            outcome = Outcome("wrong", f"the training fails: {outcome.note}")
        elif outcome.kind == "ok":
            outcome = judge.verdict(ITERATIONS)
        note = f"{way.__name__[1:]} in {folder.relative_to(WARM).parts[0]}: {outcome.note}" if outcome.kind != "ok" else ""
        tally.add(Outcome(outcome.kind, note), number, training.LOG.read_bytes(), ".log")
    tally.extra["files"] = len(files)


def main() -> int:
    return training.run_part("caches", 10, caches, preload=False)


if __name__ == "__main__":
    raise SystemExit(main())
