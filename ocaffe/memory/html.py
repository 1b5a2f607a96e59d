"""The memory plan as a picture. Each tensor is a rectangle: its width is its lifetime in steps, its height its bytes, its place that in the slabs."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ocaffe.errors import shape_text
from ocaffe.ir.launch import Schedule
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.curve import Curve
from ocaffe.memory.curve_picture import STYLE as CURVES
from ocaffe.memory.curve_picture import curve_section
from ocaffe.memory.plan import MemoryPlan
from ocaffe.memory.report import size_text
from ocaffe.shown import markup
from ocaffe.support.diagram_page import STYLE as COMMON
from ocaffe.support.diagram_page import round_step

WIDTH, HEIGHT = 1160, 600  # pixels of the picture of one net
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 26, 120  # margins: the axis in MiB, and the names of layers
LABEL = 14  # pixels along the axis for the name of a layer
MIB = 1 << 20
COLOURS = {
    Role.ACTIVATION: "#4c78a8", Role.DIFF: "#f58518", Role.SAVED: "#72b7b2", Role.SCRATCH: "#bab0ac", Role.GRADIENT: "#e45756",
}  # fmt: skip
OTHER = "#54a24b"
STYLE = COMMON + CURVES + """h1 { overflow-wrap: anywhere } .area:hover { fill-opacity: .6 }
.mark { stroke: var(--ink); stroke-dasharray: 4 3 } .bound { stroke: #d62728; stroke-width: 1.4 }
td { padding: .15em .6em .15em 0; white-space: nowrap } td.bar { width: 60% }
td.bar i { display: block; height: 1em; border-radius: 2px; background: #4c78a8 } .total { width: 100%; max-width: 720px }
@media (max-width: 560px) { td.bar { width: 35% } td { white-space: normal } td:last-child { white-space: nowrap } }
@media print { :root { --paper: #fff; --ink: #000; --plot: #fff; --faint: #bbb } body { margin: 0; max-width: none }
* { print-color-adjust: exact; -webkit-print-color-adjust: exact } .wide { overflow: visible } .wide svg { min-width: 0 } h2, svg { break-inside: avoid } }"""


class Total(NamedTuple):
    """A row of the bars at the top: a name and bytes."""

    name: str
    size: int


def page(
    title: str, nets: Sequence[tuple[str, Schedule, MemoryPlan]], totals: Sequence[Total] = (), curves: Sequence[Curve] = (), device: str = ""
) -> str:  # fmt: skip
    """Return a page without scripts, with a picture for each net. The pointer shows the name and size of a tensor.

    `curves`: step time against memory, predicted for `device`.
    """
    key = "".join(f'<span><i style="background:{colour}"></i>{role.value}</span>' for role, colour in COLOURS.items())
    texts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{markup(title)}</title>',
        f"<style>{STYLE}</style></head><body><h1>Memory of {markup(title)}</h1>",
        *_bars(totals),
        *curve_section(curves, device),
        f'<p class="key">{key}<span><i style="background:{OTHER}"></i>other</span></p>',
        "<p>A rectangle is a tensor: its width is its lifetime in steps, its height its bytes. The red line is the lower bound of every plan. The dashed lines"
        " are the end of forward and the peak.</p>",
    ]
    for name, schedule, plan in nets:
        texts.append(f"<h2>{markup(name)}: {size_text(plan.total)} recycled, lower bound {size_text(plan.lower_bound)}</h2>")
        texts.append(f'<div class="wide">{picture(schedule, plan)}</div>')
    return "\n".join([*texts, "</body></html>"]) + "\n"


def _bars(totals: Sequence[Total]) -> Iterator[str]:
    """Yield a table with a bar for each total."""
    if not totals:
        return
    largest = max(total.size for total in totals) or 1
    yield '<table class="total">'
    for name, size in totals:
        share = 100 * size / largest
        yield f'<tr><td>{markup(name)}</td><td class="bar"><i style="width:{share:.1f}%"></i></td><td>{size / MIB:,.0f} MiB</td></tr>'
    yield "</table>"


def picture(schedule: Schedule, plan: MemoryPlan) -> str:
    """Return the lifetimes of one plan as SVG, with an axis in MiB and the layers along the other one."""
    starts = [sum(plan.slabs[:index]) for index in range(len(plan.slabs))]
    wide, high = (WIDTH - LEFT - RIGHT) / max(len(schedule), 1), (HEIGHT - TOP - BOTTOM) / max(plan.total, 1)
    floor = HEIGHT - BOTTOM
    drawn = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="lifetimes of tensors">']
    step = round_step(plan.total / MIB / 8)
    for index in range(int(plan.total / MIB / step) + 1 if step else 0):
        y = floor - index * step * MIB * high
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{index * step:g}</text>')
    drawn.append(f'<text x="6" y="{TOP - 10}">MiB</text>')
    for life in plan.lives:
        slab, offset = plan.places[life.ref]
        y = floor - (starts[slab] + offset + life.size) * high
        place = f'x="{LEFT + life.first * wide:.1f}" y="{y:.1f}" width="{(life.last - life.first + 1) * wide:.1f}" height="{life.size * high:.1f}"'
        label = markup(_label(life.ref, life.size))
        drawn.append(f'<rect class="area" {place} fill="{COLOURS.get(life.ref.role, OTHER)}"><title>{label}</title></rect>')
    y = floor - plan.lower_bound * high
    drawn.append(f'<line class="bound" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    forward = next((step for step, launch in enumerate(schedule) if launch.phase != "forward"), len(schedule))
    for at, text in ((forward, "end of forward" if forward < len(schedule) else ""), (plan.peak_step, "peak")):
        x = LEFT + at * wide
        anchor = "end" if x > WIDTH - 100 else "start"
        drawn.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{floor}"/>')
        drawn.append(f'<text x="{x + (4 if anchor == "start" else -4):.1f}" y="{TOP - 10}" text-anchor="{anchor}">{text}</text>')
    last = -math.inf
    for number, launch in enumerate(schedule):
        x = LEFT + (number + 0.5) * wide
        if x >= last + LABEL and launch.layer and (not number or launch.layer != schedule[number - 1].layer):
            last = x
            turned = f'text-anchor="end" transform="rotate(-60 {x:.1f} {floor + 10})"'
            drawn.append(f'<text x="{x:.1f}" y="{floor + 10}" {turned}>{markup(launch.layer[:18])}</text>')
    return "\n".join([*drawn, "</svg>"])


def _label(ref: Ref, size: int) -> str:
    return f"{ref.name} ({shape_text(ref.shape)}), {size_text(size)}, {ref.role.value}"
