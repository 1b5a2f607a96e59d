"""The tables of Caffe's parse_log.sh, and the charts of its plot_training_log.py."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ocaffe.tools.training_logs.logs import TEST_NET, Log, Row

_HEAD = ("NumIters", "Seconds", "LearningRate", TEST_NET)


class Chart(NamedTuple):
    """The values that a chart shows: those of the TRAIN or of the TEST net, over iterations or seconds."""

    value: str
    seconds: bool

    @property
    def title(self) -> str:
        return f"{self.value} vs. {'Seconds' if self.seconds else 'Iters'}"


# By the numbers of plot_training_log.py.
CHARTS = [Chart(value, seconds) for value in ("Test accuracy", "Test loss", "Train learning rate", "Train loss") for seconds in (False, True)]


def train_table(log: Log) -> str:
    """Return iterations, seconds, the smoothed loss and the learning rate of each display. The last display has no rate, as in Caffe's log."""
    rates = {row["NumIters"]: [row["LearningRate"]] for row in log.rates}
    return _table("#Iters Seconds TrainingLoss LearningRate", [(row, [row["loss"], *rates.get(row["NumIters"], [])]) for row in log.loss])


def test_table(log: Log) -> str:
    """Return iterations, seconds and the first two outputs of each test. Caffe's example nets have accuracy and loss there."""
    return _table("#Iters Seconds TestAccuracy TestLoss", [(row, _outputs(row)[:2]) for row in log.test])


def points(log: Log, chart: Chart) -> tuple[list[float], list[float]]:
    """Return x and y of a chart."""
    index = "Seconds" if chart.seconds else "NumIters"
    if chart.value == "Train loss":
        found = [(row[index], row["loss"]) for row in log.loss]
    elif chart.value == "Train learning rate":
        found = [(row[index], row["LearningRate"]) for row in log.rates]
    else:
        number = ("Test accuracy", "Test loss").index(chart.value)
        found = [(row[index], values[number]) for row in log.test if len(values := _outputs(row)) > number]
    return [x for x, _ in found], [y for _, y in found]


def _outputs(row: Row) -> list[float]:
    return [value for name, value in row.items() if name not in _HEAD]


def _table(head: str, rows: Sequence[tuple[Row, list[float]]]) -> str:
    """Return a table with columns of equal widths, as `column -t` makes them."""
    body = [[f"{row['NumIters']:.0f}", f"{row['Seconds']:f}", *(f"{value:g}" for value in values)] for row, values in rows]
    widths = [max(len(line[column]) for line in body if len(line) > column) for column in range(max(map(len, body), default=0))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in body]
    return "\n".join([head, *lines, ""])
