"""The memory plan as a picture. Each tensor is a block: its width is its lifetime in steps, its height its bytes, its place that in the slabs."""
from __future__ import annotations

import html
from collections.abc import Sequence

from ocaffe.errors import shape_text
from ocaffe.ir.launch import Schedule
from ocaffe.ir.tensor import Ref, Role
from ocaffe.memory.plan import MemoryPlan
from ocaffe.memory.report import size_text

WIDTH, HEIGHT = 1200, 560  # pixels of the picture of one net
COLOURS = {
    Role.ACTIVATION: "#4c78a8", Role.DIFF: "#f58518", Role.SAVED: "#72b7b2", Role.SCRATCH: "#bab0ac", Role.GRADIENT: "#e45756",
}  # fmt: skip
STYLE = """body { font: 14px system-ui, sans-serif; margin: 2em; max-width: 1240px }
svg { border: 1px solid #ccc; background: #fafafa } rect { stroke: #fff; stroke-width: .3 } rect:hover { fill-opacity: .6 }
.key span { display: inline-block; padding: 0 .6em; margin-right: .5em; color: #fff } line { stroke: #000; stroke-dasharray: 4 3 }"""


def page(title: str, nets: Sequence[tuple[str, Schedule, MemoryPlan]]) -> str:
    """A page without scripts, with a picture for each net. The pointer shows the name and size of a tensor."""
    key = "".join(f'<span style="background:{colour}">{role.value}</span>' for role, colour in COLOURS.items())
    parts = [f"<!doctype html><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1>"]
    parts.append(f'<p class="key">{key} over the steps of a run, from left to right; the dashed lines: end of forward, peak</p>')
    for name, schedule, plan in nets:
        parts.append(f"<h2>{html.escape(name)}: {size_text(plan.total)} recycled, lower bound {size_text(plan.lower_bound)}</h2>")
        parts.append(picture(schedule, plan))
    return "\n".join(parts) + "\n"


def picture(schedule: Schedule, plan: MemoryPlan) -> str:
    """The lifetimes of one plan as SVG."""
    starts = [sum(plan.slabs[:index]) for index in range(len(plan.slabs))]
    wide, high = WIDTH / max(len(schedule), 1), HEIGHT / max(plan.total, 1)
    blocks = [f'<svg width="{WIDTH}" height="{HEIGHT}" role="img">']
    for life in plan.lives:
        slab, offset = plan.places[life.ref]
        y = HEIGHT - (starts[slab] + offset + life.size) * high
        place = f'x="{life.first * wide:.1f}" y="{y:.1f}" width="{(life.last - life.first + 1) * wide:.1f}" height="{life.size * high:.1f}"'
        blocks.append(f'<rect {place} fill="{COLOURS.get(life.ref.role, "#54a24b")}"><title>{html.escape(_label(life.ref, life.size))}</title></rect>')
    forward = next((step for step, launch in enumerate(schedule) if launch.phase != "forward"), len(schedule))
    for step in (forward, plan.peak_step):
        blocks.append(f'<line x1="{step * wide:.1f}" x2="{step * wide:.1f}" y1="0" y2="{HEIGHT}"/>')
    return "\n".join([*blocks, "</svg>"])


def _label(ref: Ref, size: int) -> str:
    return f"{ref.name} ({shape_text(ref.shape)}), {size_text(size)}, {ref.role.value}"
