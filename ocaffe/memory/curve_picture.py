"""Curves of step time against memory as a picture and a table of an HTML page."""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ocaffe.memory.curve import Curve, Point, knee, percent_text, seconds_text, table
from ocaffe.memory.report import size_text
from ocaffe.shown import markup
from ocaffe.support.diagram_page import round_step

WIDTH, HEIGHT = 1160, 420  # pixels
LEFT, RIGHT, TOP, BOTTOM = 72, 24, 30, 44  # margins
LABEL = 130  # pixels for the text at a knee
MIB = 1 << 20
COLOURS = ("#2f6fb3", "#d9730d", "#2f8f5b", "#9a5fb5", "#b5473c", "#54a24b")  # readable on light and dark pages
STYLE = """.curve { fill: none; stroke-width: 2 } .knee { fill: none; stroke: var(--ink); stroke-width: 1.6 } .numbers { overflow-x: auto }
.numbers pre { font: 12px ui-monospace, monospace }
"""


def curve_section(curves: Sequence[Curve], device: str) -> Iterator[str]:
    """Yield the part of the page about the curves; nothing without one. `device`: for which the times are predicted."""
    if not curves:
        return
    key = "".join(f'<span><i style="background:{colour}"></i>{markup(curve.name)}</span>' for colour, curve in zip(itertools.cycle(COLOURS), curves))
    yield "<h2>Time with less memory</h2>"
    yield (
        f"<p>Each point is a plan. Its time is predicted for {markup(device)}. The last point on the right of a curve is the plan without a limit. A ring marks"
        " the knee, which is farthest below the line between both ends.</p>"
    )
    yield f'<p class="key">{key}</p><div class="wide">{picture(curves)}</div>'
    for curve in curves:
        lines = "\n".join(markup(line) for line in [f"{curve.name}:", *table(curve)])
        yield f'<div class="numbers"><pre>{lines}</pre></div>'


def picture(curves: Sequence[Curve]) -> str:
    """Return the curves as SVG: memory in MiB along the horizontal axis, milliseconds of an image along the other one, or of a step without images."""
    per_image = all(curve.images for curve in curves)

    def time(curve: Curve, point: Point) -> float:
        return 1e3 * point.seconds / (curve.images if per_image else 1)

    most_mib = 1.05 * max(point.bytes for curve in curves for point in curve.points) / MIB or 1.0
    most_ms = 1.1 * max(time(curve, point) for curve in curves for point in curve.points) or 1.0
    wide, high, floor = (WIDTH - LEFT - RIGHT) / most_mib, (HEIGHT - TOP - BOTTOM) / most_ms, HEIGHT - BOTTOM
    drawn = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="step time against memory">']
    for at, text in _ticks(most_ms, 6):
        y = floor - at * high
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for at, text in _ticks(most_mib, 10):
        drawn.append(f'<text x="{LEFT + at * wide:.1f}" y="{floor + 16}" text-anchor="middle">{text}</text>')
    axis = "ms for an image" if per_image else "ms for a step"
    drawn.append(f'<text x="6" y="{TOP - 12}">{axis}</text>')
    drawn.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">MiB on the device</text>')
    for colour, curve in zip(itertools.cycle(COLOURS), curves):
        best, free = knee(curve.points), curve.points[0]
        places = [(LEFT + point.bytes / MIB * wide, floor - time(curve, point) * high) for point in curve.points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline class="curve" stroke="{colour}" points="{line}"/>')
        for point, (x, y) in zip(curve.points, places):
            flag = f"--memory-limit {point.flag}" if point.flag else "no limit"
            told = f"{curve.name}, {flag}: {size_text(point.bytes)}, {seconds_text(point.seconds)} a step, {percent_text(point.slowdown(free))} more time"
            drawn.append(f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"><title>{markup(told)}</title></circle>')
            if point is best:
                drawn.append(f'<circle class="knee" cx="{x:.1f}" cy="{y:.1f}" r="8"/>')
                side, anchor = (10, "start") if x < WIDTH - LABEL else (-10, "end")
                drawn.append(f'<text x="{x + side:.1f}" y="{y - 8:.1f}" text-anchor="{anchor}">knee {markup(point.flag)}</text>')
    return "\n".join([*drawn, "</svg>"])


def _ticks(most: float, count: int) -> Iterator[tuple[float, str]]:
    """Yield about `count` round numbers from 0 to `most`, with their texts."""
    step = round_step(most / count)
    for index in range(int(most / step) + 1):
        yield index * step, f"{index * step:g}"
