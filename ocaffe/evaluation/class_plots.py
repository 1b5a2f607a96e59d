"""Plots of the scores of classes: curves of precision over recall, and bars of IoU."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ocaffe.evaluation.class_scores import Detected, Segmented
from ocaffe.evaluation.confusion import percent
from ocaffe.solver.average_precision import LEVELS, average_precision, precision_at
from ocaffe.tools.drawing.figure import content, new_figure, plain

_STYLES = ("-", "--", ":", "-.")  # of ten colors each
_LISTED = 24  # classes in a column of a legend
_BAR = 0.25  # inches


def render_classes(drawn: Mapping[str, Detected | Segmented], kind: str, title: str) -> bytes:
    """Draw a panel for each scored output, by its title, in one of FORMATS. Raise Error if matplotlib is missing."""
    heights = [5.5 if isinstance(each, Detected) else 1 + _BAR * len(each.classes) for each in drawn.values()]
    columns = max(-(-(len(each.classes) + 1) // _LISTED) for each in drawn.values())
    figure = new_figure(6 + 2.5 * columns, sum(heights) + 0.4)
    rows = figure.subplots(len(drawn), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, each) in zip(rows, drawn.items()):
        _curves(axes, each) if isinstance(each, Detected) else _bars(axes, each)
        axes.set_title(plain(name))
        axes.grid(alpha=0.3)
    return content(figure, kind, title)


def _curves(axes: Any, found: Detected) -> None:
    """Draw the mean of all classes, and a curve for each class. The area below a curve is its AP; with 11point the AP is the mean of its 11 points."""
    sampled = found.version == "11point"
    style: dict[str, Any] = {"marker": "o", "markersize": 3} if sampled else {"drawstyle": "steps-pre"}
    all_points = [points for _, points in found.classes]
    recalls = LEVELS if sampled else np.unique(np.concatenate([[0.0], *(points.recall for points in all_points)]))
    mean = np.mean([precision_at(points, found.version, recalls) for points in all_points], 0)
    mean_ap = float(np.mean([average_precision(points, found.version) for points in all_points]))
    axes.plot(recalls, mean, color="black", linewidth=2.2, zorder=3, label=f"{percent(mean_ap)} mean", **style)
    for index, (name, points) in enumerate(found.classes):
        recalls = LEVELS if sampled else np.append(0, points.recall)
        label = f"{percent(average_precision(points, found.version))} {plain(name)}"
        line = _STYLES[index // 10 % len(_STYLES)]
        axes.plot(recalls, precision_at(points, found.version, recalls), line, color=f"C{index % 10}", linewidth=1.2, label=label, **style)
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1.01), ylim=(0, 1.03))
    _legend(axes, f"AP, {found.version}", -(-(len(found.classes) + 1) // _LISTED))


def _bars(axes: Any, found: Segmented) -> None:
    """Draw a bar for each class, the first one on top, and a line at the mean."""
    values = [iou for _, iou in found.classes]
    bars = axes.barh([plain(name) for name, _ in found.classes], np.nan_to_num(values), color="C0")
    axes.bar_label(bars, [percent(value) for value in values], padding=3, fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})
    axes.axvline(found.mean, color="black", linestyle="--", label=f"{percent(found.mean)} mean")
    axes.set(xlabel="IoU", ylabel="class", xlim=(0, 1.08))
    axes.set_axisbelow(True)
    axes.invert_yaxis()
    _legend(axes, "IoU", 1)


def _legend(axes: Any, title: str, columns: int) -> None:
    axes.legend(title=title, ncols=columns, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, fontsize=8)
