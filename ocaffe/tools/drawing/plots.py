"""Curves of training logs: loss, accuracy, other scores, and learning rate, each in its own color."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ocaffe.tools.drawing.figure import content, new_figure, plain
from ocaffe.tools.training_logs.logs import TEST_NET, Log, Row

_KEYS = ("NumIters", "Seconds", "LearningRate", TEST_NET)


class Curve(NamedTuple):
    """The values of one output of a run; `test`: of a TEST net. `best`: the point of the best test, if the solver has chosen it by this output."""

    run: str
    name: str
    test: bool
    x: list[float]
    y: list[float]
    best: tuple[float, float] | None = None


def panels(runs: Sequence[tuple[str, Log]], seconds: bool = False) -> dict[str, list[Curve]]:
    """Return the curves by panel title; panels without curves are left out. The x axis has iterations, or seconds if `seconds`."""
    found: dict[str, list[Curve]] = {"loss": [], "accuracy": [], "scores": [], "learning rate": []}
    at = "Seconds" if seconds else "NumIters"
    for run, log in runs:
        found["loss"].append(_curve(run, "loss (smoothed)", False, log.loss, at, "loss"))
        for test, net, rows in ((False, "", log.train), *((True, *each) for each in _by_net(log.test))):
            for name in dict.fromkeys(name for row in rows for name in row if name not in _KEYS):
                if not test and _same(rows, name, log.loss):
                    continue
                curve = _curve(run, name + net, test, rows, at, name)
                chosen = [(row[at], row[name]) for row in log.best if name in row] if test else []
                found[_panel(name, log)].append(curve._replace(best=chosen[-1]) if chosen else curve)
        found["learning rate"].append(_curve(run, "lr", False, log.rates, at, "LearningRate"))
    return {title: kept for title, curves in found.items() if (kept := [curve for curve in curves if curve.x])}


def _by_net(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Return the rows of each TEST net with a text for the names of its curves, '' if the rows do not name nets."""
    nets = dict.fromkeys(row.get(TEST_NET) for row in rows)
    return [("" if net is None else f" (net {net:.0f})", [row for row in rows if row.get(TEST_NET) == net]) for net in nets]


def _panel(name: str, log: Log) -> str:
    """Return the panel of an output. Scores, such as the mean AP or the mean IoU, are outputs without a loss weight."""
    lower = name.lower()
    if lower.endswith("/mean_iou"):
        return "scores"
    if "acc" in lower or "top" in lower:
        return "accuracy"
    return "loss" if name in log.weighted or "loss" in lower else "scores"


def _curve(run: str, name: str, test: bool, rows: Sequence[Row], at: str, key: str) -> Curve:
    points = [(row[at], row[key]) for row in rows if key in row and math.isfinite(row[key])]
    return Curve(run, name, test, [x for x, _ in points], [y for _, y in points])


def _same(rows: Sequence[Row], name: str, losses: Sequence[Row]) -> bool:
    """Whether an output equals the solver's logged loss up to rounding. Then one curve is enough."""
    logged = {row["NumIters"]: row["loss"] for row in losses}
    return all(math.isclose(logged.get(row["NumIters"], math.nan), row.get(name, math.nan), rel_tol=1e-4) for row in rows)


def render(drawn: dict[str, list[Curve]], kind: str, seconds: bool = False) -> bytes:
    """Draw the panels one below the other, in one of FORMATS. Raise Error if matplotlib is missing."""
    figure = new_figure(9, 3.2 * len(drawn))
    runs = list(dict.fromkeys(curve.run for curves in drawn.values() for curve in curves))
    rows = figure.subplots(len(drawn), sharex=True, squeeze=False)[:, 0]
    for axes, (title, curves) in zip(rows, drawn.items()):
        _draw(axes, title, curves)
    rows[-1].set_xlabel("seconds" if seconds else "iterations")
    return content(figure, kind, ", ".join(runs))


def _draw(axes: Any, title: str, curves: list[Curve]) -> None:
    """Draw the curves of a panel. A learning rate is constant between its points, so it is drawn in steps."""
    for index, curve in enumerate(curves):
        label = plain(f"{curve.run}: {'test ' if curve.test else ''}{curve.name}") + (f", best {curve.best[1]:.4g}" if curve.best else "")
        style = {"linestyle": "--", "marker": "o", "markersize": 3} if curve.test else {"linestyle": "-", "marker": "." if len(curve.x) == 1 else ""}
        steps = "steps-post" if title == "learning rate" else "default"
        axes.plot(curve.x, curve.y, color=f"C{index % 10}", drawstyle=steps, linewidth=1.2, label=label, **style)
        if curve.best:
            axes.plot(*curve.best, color=f"C{index % 10}", marker="*", markersize=12)
    values = [y for curve in curves for y in curve.y]
    if title in ("loss", "learning rate") and min(values) > 0 and max(values) > 50 * min(values):
        axes.set_yscale("log")
    axes.set_title(plain(title))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
