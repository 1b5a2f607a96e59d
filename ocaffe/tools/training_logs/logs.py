"""Parses training logs of Caffe and ocaffe by the rules of Caffe's parse_log.py."""
from __future__ import annotations

import codecs
import datetime
import io
import math
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from ocaffe.errors import Error
from ocaffe.shown import write_table
from ocaffe.support.files import read_plain, to_read

Row = dict[str, float]
TEST_NET = "TestNet"  # the column with the number of the TEST net

_BEGIN = r"\s*(?:\[\d+\] )?"
_STAMP = re.compile(r"[IWEF](?:20(\d\d))?(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d+) ")  # newer glog writes the year too
# Records, after the source of the line. Names in other records may look like them, so each is searched at its begin; forks write a rank there.
_COUNT = r"(\d{1,18})"  # Python refuses thousands of digits
_ITERATION = re.compile(rf"{_BEGIN}(?:MultiStep Status: )?Iteration {_COUNT}(?!\d)")
_RATE = re.compile(rf"{_BEGIN}Iteration \d+.*, lr = ([-+]?[0-9]*\.?[0-9]+(?:[eE]?[-+]?[0-9]+)?)")
_VALUE = r"([-+]?(?:nan|inf)|[\d.eE+-]+)"
_TRAIN = re.compile(rf"{_BEGIN}Train net output #{_COUNT}: (\S+) = {_VALUE}")
_TEST = re.compile(rf"{_BEGIN}Test net output #{_COUNT}: (\S+) = {_VALUE}")
_TESTING = re.compile(rf"{_BEGIN}Iteration \d+, Testing net \(#{_COUNT}\)")
_LOSS = re.compile(rf"{_BEGIN}Iteration \d+.*, loss = {_VALUE}")
_WEIGHTED = re.compile(rf"{_BEGIN}(?:Train|Test) net output #\d+: (\S+) = \S+ \(\* .* loss\)")
_BEST = re.compile(rf"{_BEGIN}Best (\S+) so far: {_VALUE} \(iteration {_COUNT}\)")  # of best_output


class Log(NamedTuple):
    """Rows of a log: NumIters, Seconds since the line with 'Solving', LearningRate, and the outputs of the TRAIN or TEST net by name.

    Where parse_log.py would lose values, `test` has a row for each TEST net, with its number as TestNet. LearningRate in `train` and `test` is that of
    the display before, as in parse_log.py. `rates` has each rate at its own iteration. `loss` has the (smoothed) loss. `best` has the value of
    best_output at each test that was the best so far. `weighted`: names of outputs with a loss weight.
    """

    train: list[Row]
    test: list[Row]
    loss: list[Row]
    rates: list[Row]
    best: Sequence[Row] = ()
    weighted: frozenset[str] = frozenset()


class _Value(NamedTuple):
    """A line with a value of an output: the columns of its row so far, the pass over the net in which it stands, the number of the net."""

    head: Row
    part: int
    net: int
    name: str
    value: float


class _Table:
    """Collects the lines of outputs of the TRAIN net or of the TEST nets."""

    def __init__(self) -> None:
        self._values: list[_Value] = []
        self._part = self._net = 0
        self._next = (-1.0, 0)  # the iteration and the smallest number of an output in the same pass

    def begin(self, net: int = 0) -> None:
        """Begin a pass over the net of this number."""
        self._part, self._net = self._part + 1, net

    def add(self, head: Row, number: int, name: str, value: float) -> None:
        """Add a value. `number` is that of the line, which counts from 0 in each pass."""
        if head["NumIters"] != self._next[0] or number < self._next[1]:
            self._part += 1
        self._next = head["NumIters"], number + 1
        self._values.append(_Value(head, self._part, self._net, name, value))

    def rows(self) -> list[Row]:
        """Return the rows of Caffe's script. If values would be lost in them, return a row for each pass over a net instead."""
        return self._as_caffe() or self._by_pass()

    def _as_caffe(self) -> list[Row]:
        """Return rows by the rules of parse_log.py, [] if a value replaces another one or has no column in the first row.

        A row is complete when the next iteration begins. Later rows are also complete when they have as many columns as the first one. The first rate is
        logged after the first outputs, so the first row gets the rate of the second.
        """
        rows: list[Row] = []
        row: Row | None = None
        for head, _, _, name, value in self._values:
            if row is not None and row["NumIters"] != head["NumIters"]:
                rows.append(row)
                row = None
            row = dict(head) if row is None else row
            if name in row or (rows and name not in rows[0]):
                return []
            row[name] = value
            if rows and len(row) == len(rows[0]):
                rows.append(row)
                row = None
        rows += [row] if row is not None else []
        if len(rows) > 1:
            rows[0]["LearningRate"] = rows[1]["LearningRate"]
        return rows

    def _by_pass(self) -> list[Row]:
        """Return a row for each pass over a net. TestNet is the net's number, if there are several. Element n > 0 of an output has the column NAME[n]."""
        several = len({each.net for each in self._values}) > 1
        rows: dict[int, Row] = {}
        for head, part, net, name, value in self._values:
            row = rows.setdefault(part, {**head, TEST_NET: net} if several else dict(head))
            element = sum(key == name or key.startswith(f"{name}[") for key in row)
            row[f"{name}[{element}]" if element else name] = value
        rates = [row["LearningRate"] for row in rows.values() if not math.isnan(row["LearningRate"])]
        for row in rows.values():
            row["LearningRate"] = rates[0] if rates and math.isnan(row["LearningRate"]) else row["LearningRate"]
        return list(rows.values())


def read_log(path: str) -> Log:
    """Return the rows of the log `path`. Raise Error if it is not a training log."""
    try:
        content = read_plain(path)
        year = datetime.datetime.fromtimestamp(os.path.getctime(path)).year  # the log itself does not state it
    except OSError as problem:
        raise Error(f"cannot be read: {problem.strerror}", place=path, fix=to_read(path, problem, "give the log of a training (its stderr)")) from None
    wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # PowerShell's `>` writes UTF-16
    text = content.decode("utf-16" if wide else "utf-8-sig", "replace")
    lines = re.split("\r?\n|\r", text)  # other marks of lines belong to names
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
        if time is None:
            continue
        text = line.partition("] ")[2]
        if match := _ITERATION.match(text):
            iteration = float(match[1])
        if iteration < 0:
            continue
        start = start or time
        found = _RATE.match(text)
        rate = float(found[1]) if found else rate
        head = {"NumIters": iteration, "Seconds": (time - start).total_seconds(), "LearningRate": rate}
        if found:
            rates.append(head)
        for table, pattern in ((train, _TRAIN), (test, _TEST)):
            if match := pattern.match(text):
                table.add(head, int(match[1]), match[2], _number(match[3]))
        if match := _WEIGHTED.match(text):
            weighted.add(match[1])
        if match := _BEST.match(text):
            best.append({**head, "NumIters": float(match[3]), match[1]: _number(match[2])})
        if match := _TESTING.match(text):
            test.begin(int(match[1]))
        if match := _LOSS.match(text):
            train.begin()
            losses.append({**head, "loss": _number(match[1])})
    log = Log(train.rows(), test.rows(), losses, rates, best, frozenset(weighted))
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


MOST_CELLS, EMPTIEST = 1_000_000, 16  # cells of any table, and of a larger one for each of its values


def csv_text(rows: list[Row], delimiter: str = ",") -> str:
    """Return the rows as CSV with a column for every name that occurs. Line ends are those of parse_log.py. Raise Error for a table that is
    nearly empty: its size would grow with the square of the log's."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells, values = len(rows) * len(columns), sum(map(len, rows))
    if cells > max(MOST_CELLS, EMPTIEST * values):
        fact = f"the table would have {len(rows):,} rows and {len(columns):,} columns for {values:,} values"
        raise Error(fact, place="the log", fix="remove the lines that are not of one training")
    text = io.StringIO()
    write_table(text, [columns, *([row.get(name, "") for name in columns] for row in rows)], delimiter, "\r\n")
    return text.getvalue()
