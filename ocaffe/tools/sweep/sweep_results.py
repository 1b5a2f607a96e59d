"""The results of a sweep: a table of the trainings as text, CSV and JSON, the best one first."""
from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ocaffe.shown import Lines, lines_of, visible
from ocaffe.support.files import atomic_write
from ocaffe.support.log import number
from ocaffe.tools.sweep.training_queue import Training
from ocaffe.tools.training_logs.history import Score
from ocaffe.tools.training_logs.logs import csv_text

CSV, JSON = "results.csv", "results.json"


class Criterion(NamedTuple):
    """The value that orders trainings: an output of the TEST nets, or the loss of the TRAIN net."""

    name: str
    lower: bool  # whether a lower value is better

    def best(self, training: Training) -> Score | None:
        return training.history.best(self.name, self.lower)

    def order(self, trainings: Sequence[Training]) -> list[Training]:
        """Return the trainings, the best first. Those without a value come last."""
        sign = 1 if self.lower else -1
        scores = {id(training): self.best(training) for training in trainings}
        return sorted(trainings, key=lambda training: sign * score.value if (score := scores[id(training)]) else math.inf)


def write_results(folder: Path, solver: str, trainings: Sequence[Training], by: Criterion) -> None:
    """Write results.csv and results.json, each by a complete new file. Raises Error."""
    ordered = by.order(trainings)
    with atomic_write(folder / CSV) as out:
        out.write(csv_text([_row(training, by) for training in ordered]).encode())
    content = {"solver": solver, "by": by.name, "better": "lower" if by.lower else "higher", "trainings": [_record(training, by) for training in ordered]}
    with atomic_write(folder / JSON) as out:
        out.write((json.dumps(content, indent=1, allow_nan=False) + "\n").encode())


def table(trainings: Sequence[Training], by: Criterion) -> Lines:
    """Return the results as a table of text. Errors follow below it."""
    left = ("folder", "device", "error")
    rows = [{name: _text(value) for name, value in _row(training, by).items() if name not in left} for training in by.order(trainings)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [dict(zip(columns, columns)), *rows]
    widths = {name: max(len(line.get(name, "")) for line in lines) for name in columns}
    text = ["  ".join(f"{line.get(name, ''):>{widths[name]}}" for name in columns).rstrip() for line in lines]
    failed = [Lines("", lines_of(f"{visible(str(each))}: {each.error}"), f"  its folder: {each.folder}") for each in trainings if each.error]
    return Lines(*text, *failed)


def _row(training: Training, by: Criterion) -> dict[str, Any]:
    best = by.best(training)
    row: dict[str, Any] = {**training.settings, "state": training.state, "iteration": training.iteration}
    for name, value in training.history.last().items():
        row.setdefault(name, value)
    if best is not None:
        row |= {f"best_{by.name}": best.value, "best_iteration": best.iteration}
    return row | {"seconds": round(training.seconds, 1), "device": training.device, "folder": str(training.folder), "error": training.error}


def _record(training: Training, by: Criterion) -> dict[str, Any]:
    best = by.best(training)
    return {
        "settings": training.settings, "state": training.state, "iteration": training.iteration,
        "last": {name: value if math.isfinite(value) else None for name, value in training.history.last().items()},  # JSON has no NaN
        "best": None if best is None or not math.isfinite(best.value) else best._asdict(),
        "seconds": round(training.seconds, 1), "device": training.device, "folder": str(training.folder), "error": training.error,
    }  # fmt: skip


def _text(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)
