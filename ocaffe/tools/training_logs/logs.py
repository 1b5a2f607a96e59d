"""Parses training logs of Caffe and ocaffe by the rules of Caffe's parse_log.py."""
from __future__ import annotations

import csv
import datetime
import io
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from ocaffe.errors import Error

Row = dict[str, float]

_STAMP = re.compile(r"[IWEF](?:20(\d\d))?(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d+) ")  # newer glog writes the year too
_ITERATION = re.compile(r"Iteration (\d+)")
_RATE = re.compile(r"lr = ([-+]?[0-9]*\.?[0-9]+(?:[eE]?[-+]?[0-9]+)?)")
_VALUE = r"([\d.eE+-]+|[-+]?(?:nan|inf))"
_TRAIN = re.compile(rf"Train net output #\d+: (\S+) = {_VALUE}")
_TEST = re.compile(rf"Test net output #\d+: (\S+) = {_VALUE}")
_LOSS = re.compile(rf"Iteration \d+.*, loss = {_VALUE}")
_WEIGHTED = re.compile(r"net output #\d+: (\S+) = \S+ \(\* .* loss\)")
_BEST = re.compile(rf"Best (\S+) so far: {_VALUE} \(iteration (\d+)\)")  # of best_output


class Log(NamedTuple):
    """Rows of a log: NumIters, Seconds since the line with 'Solving', LearningRate, and the outputs of the TRAIN or TEST net by name.

    LearningRate in `train` and `test` is that of the display before, as in parse_log.py. `rates` has each rate at its own iteration. `loss` has the
    (smoothed) loss. `best` has the value of best_output at each test that was the best so far. `weighted`: names of outputs with a loss weight.
    """

    train: list[Row]
    test: list[Row]
    loss: list[Row]
    rates: list[Row]
    best: Sequence[Row] = ()
    weighted: frozenset[str] = frozenset()


class _Table:
    """Collects rows. A row is complete when the next iteration begins. Later rows are also complete when they have as many columns as the first."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._open: Row | None = None

    def add(self, start: Row, name: str, value: float) -> None:
        if self._open is None or self._open["NumIters"] != start["NumIters"]:
            self.close()
            self._open = dict(start)
        self._open[name] = value
        if self.rows and len(self._open) == len(self.rows[0]):
            self.close()

    def close(self) -> None:
        if self._open is not None:
            self.rows.append(self._open)
            self._open = None

    def finish(self) -> list[Row]:
        """Return all rows. The first rate is logged after the first outputs, so the first row gets the rate of the second."""
        self.close()
        if len(self.rows) > 1:
            self.rows[0]["LearningRate"] = self.rows[1]["LearningRate"]
        return self.rows


def read_log(path: str) -> Log:
    """Return the rows of the log `path`. Raise Error if it is not a training log."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = stream.read().splitlines()
        year = datetime.datetime.fromtimestamp(os.path.getctime(path)).year  # the log itself does not state it
    except OSError as problem:
        raise Error(f"cannot be read: {problem.strerror}", place=path, fix="give the log of a training (its stderr)") from None
    train, test = _Table(), _Table()
    losses: list[Row] = []
    rates: list[Row] = []
    best: list[Row] = []
    weighted: set[str] = set()
    start: datetime.datetime | None = None
    last = None
    iteration, rate = -1.0, float("nan")
    for line in lines:
        time = _time(line, year)
        if time is not None and last is not None and time.month < last.month:  # a new year
            year += 1
            time = _time(line, year)
        last = time or last
        if start is None and "Solving" in line:
            start = time
        if match := _ITERATION.search(line):
            iteration = float(match[1])
        if iteration < 0 or time is None:
            continue
        start = start or time
        found = _RATE.search(line)
        rate = float(found[1]) if found else rate
        head = {"NumIters": iteration, "Seconds": (time - start).total_seconds(), "LearningRate": rate}
        if found:
            rates.append(head)
        for table, pattern in ((train, _TRAIN), (test, _TEST)):
            if match := pattern.search(line):
                table.add(head, match[1], _number(match[2]))
        if match := _WEIGHTED.search(line):
            weighted.add(match[1])
        if match := _BEST.search(line):
            best.append({**head, "NumIters": float(match[3]), match[1]: _number(match[2])})
        if match := _LOSS.search(line):
            losses.append({**head, "loss": _number(match[1])})
    log = Log(train.finish(), test.finish(), losses, rates, best, frozenset(weighted))
    if not any(log):
        raise Error("has no lines with training output", place=path, fix="give the stderr of `caffe train`, and set display in the solver")
    return log


def _time(line: str, year: int) -> datetime.datetime | None:
    match = _STAMP.match(line)
    if match is None:
        return None
    year = 2000 + int(match[1]) if match[1] else year
    month, day, hour, minute, second = (int(match[n]) for n in range(2, 7))
    try:
        return datetime.datetime(year, month, day, hour, minute, second, int(match[7][:6].ljust(6, "0")))
    except ValueError:
        return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def csv_text(rows: list[Row], delimiter: str = ",") -> str:
    """Return the rows as CSV with a column for every name that occurs. Line ends are those of parse_log.py."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
