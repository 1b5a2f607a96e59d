"""The loss and the measure of a training over its iterations, from its log, as SVG."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ocaffe.errors import Error
from ocaffe.shown import markup
from ocaffe.support.diagram_page import round_step
from ocaffe.tools.training_logs.logs import Row, read_log

WIDTH, HEIGHT = 420, 230  # pixels
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 16, 38  # margins
MOST = 600  # points of a line
COLOURS = ("#2f6fb3", "#d9730d")  # readable on light and dark pages


class Line(NamedTuple):
    """A name, and its values by iteration."""

    name: str
    values: dict[float, float]


class Curves(NamedTuple):
    """The lines of a training: losses, and the measure of the tests."""

    losses: list[Line]
    measure: list[Line]


def curves_of(log: str, output: str, name: str) -> Curves:
    """Return the lines in the log of a training. `output`: of the TEST net, the measure; `name`: its name for people. Empty if the log has none."""
    try:
        found = read_log(log)
    except Error:
        return Curves([], [])
    losses = [Line("loss in training", _column(found.loss, "loss")), Line("loss in tests", _column(found.test, "loss"))]
    return Curves([line for line in losses if line.values], [line for line in [Line(name, _column(found.test, output))] if line.values])


def _column(rows: Sequence[Row], name: str) -> dict[float, float]:
    """Return the values of a column by iteration. A training that went on repeats iterations: the last value counts."""
    return {row["NumIters"]: row[name] for row in rows if math.isfinite(row.get(name, math.nan))}


def chart(title: str, lines: Sequence[Line], percent: bool) -> str:
    """Return lines as SVG. `percent`: values are shares; the best one gets a ring."""
    factor = 100 if percent else 1
    most_x = max(max(line.values) for line in lines) or 1
    most_y = max(max(line.values.values()) for line in lines) * factor * 1.05 or 1.0
    most_y = min(most_y, 100.0) if percent else most_y
    wide, high, floor = (WIDTH - LEFT - RIGHT) / most_x, (HEIGHT - TOP - BOTTOM) / most_y, HEIGHT - BOTTOM
    drawn = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{markup(title)} by iteration">']
    for at in _ticks(most_y, 5):
        y = floor - at * high
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{at:g}</text>')
    for at in _ticks(most_x, 5):
        drawn.append(f'<text x="{LEFT + at * wide:.1f}" y="{floor + 16}" text-anchor="middle">{at:g}</text>')
    drawn.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">iteration</text>')
    for colour, line in zip(COLOURS, lines):
        points = sorted(line.values.items())
        points = [*points[:: math.ceil(len(points) / MOST)], points[-1]]
        places = " ".join(f"{LEFT + x * wide:.1f},{floor - min(max(value * factor, 0), most_y) * high:.1f}" for x, value in points)
        drawn.append(f'<polyline class="line" stroke="{colour}" points="{places}"/>')
        if percent:
            x, value = max(sorted(line.values.items()), key=lambda item: item[1])
            drawn.append(f'<circle class="best" cx="{LEFT + x * wide:.1f}" cy="{floor - max(value * factor, 0) * high:.1f}" r="5"><title>best</title></circle>')
    return "".join([*drawn, "</svg>"])


def _ticks(most: float, count: int) -> Iterator[float]:
    """Yield about `count` round numbers from 0 to `most`."""
    step = round_step(most / count)
    return (index * step for index in range(int(most / step + 1e-9) + 1))


def figures(curves: Curves) -> Iterator[str]:
    """Yield the charts with their keys."""
    for lines, percent in ((curves.losses, False), (curves.measure, True)):
        if lines:
            unit, drawn = " in %" if percent else "", chart(lines[0].name, lines, percent)
            key = "".join(f'<span><i style="background:{colour}"></i>{markup(line.name)}{unit}</span>' for colour, line in zip(COLOURS, lines))
            yield f'<figure class="chart"><figcaption class="key">{key}</figcaption>{drawn}</figure>'
