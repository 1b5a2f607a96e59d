"""A profile as an HTML page without scripts: the time of an iteration by launch, the roofline, and a table of all launches."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ocaffe.profiling.profile import LaunchTime, NetProfile, shortened
from ocaffe.shown import Lines, markup
from ocaffe.support.diagram_page import STYLE as COMMON
from ocaffe.support.diagram_page import round_step

WIDTH, HEIGHT = 1160, 460  # pixels of a diagram
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 16, 44  # margins of a diagram
MOVES = 0.25  # FLOPs per byte of a launch without a product: one operation per float
KINDS = {"product": "products", "generated": "pointwise and reductions", "other": "other kernels", "transfer": "transfers", "host": "steps on the host"}
LABEL = 7.0  # width of a letter in pixels
STYLE = COMMON + """:root { --product: #2f6fb3; --generated: #d9730d; --other: #2f8f5b; --transfer: #9a5fb5; --host: #b5473c }
@media (prefers-color-scheme: dark) { :root { --product: #6ba8e8; --generated: #f0a04b; --other: #62c08d; --transfer: #c596de; --host: #e8867c } }
p { margin: .3em 0 .6em } .roof { stroke: var(--ink); stroke-width: 1.6; fill: none } .lost { fill: var(--faint); fill-opacity: .5 }
circle { stroke: var(--plot); stroke-width: .8; fill-opacity: .72 } .key i { border-radius: 50% }
circle:hover, .launch:hover .area { fill-opacity: 1; stroke: var(--ink); stroke-width: 1.4 } svg .inside { fill: var(--plot); pointer-events: none }
table { width: 100% } th { text-align: right }
th { position: sticky; top: 0; background: var(--paper) }
td, th { padding: .15em .6em; border-bottom: 1px solid var(--faint) } td { text-align: right; white-space: nowrap } .text { text-align: left }
td.kernel { white-space: normal; font: 12px ui-monospace, monospace; word-break: break-word } summary { cursor: pointer; margin: 1em 0 }
""" + "\n".join(f".{kind} {{ fill: var(--{kind}) }} .key .{kind} {{ background: var(--{kind}) }}" for kind in KINDS)


def page(profile: NetProfile) -> str:
    """Return the whole document."""
    title = markup(profile.title)
    used = [kind for kind in KINDS if any(launch.kind == kind for launch in profile.launches)]
    key = "".join(f'<span><i class="{kind}"></i>{KINDS[kind]}</span>' for kind in used)
    summary = "<br>".join(markup(line) for line in profile.summary())
    return "\n".join([
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>',
        f"<style>{STYLE}</style></head><body><h1>{title}</h1><p>{summary}</p>",
        f'<p class="key">{key}</p>',
        "<h2>Where the time goes</h2>",
        "<p>Each launch is a rectangle, in the order of the iteration. Its width is its time. Its height is the share of its time that the device's"
        " measured peaks would allow. The empty area above the rectangles is time that could be saved.</p>",
        '<div class="wide">', *_skyline(profile), "</div>",
        "<h2>Roofline</h2>",
        "<p>Each launch is a point. Its area is its time. The slope is the limit of the memory, the level line that of the arithmetic: a launch on a limit"
        f" can only become faster by doing less. Launches without a product count as one operation per float, {MOVES:g} FLOP/byte.</p>",
        '<div class="wide">', *_roofline(profile), "</div>",
        "<h2>Launches</h2>",
        *_launches(profile),
        "<details><summary>By layer</summary>",
        *_layers(profile),
        "</details></body></html>",
    ]) + "\n"  # fmt: skip


def _title(launch: LaunchTime) -> str:
    rate = f"{launch.gflops:.1f} GFLOP/s, " if launch.flops else ""
    where = f"{launch.layer}, {launch.phase}", shortened(launch.kernel, 120)
    return f"<title>{markup(Lines(*where, f'{launch.ms:.3f} ms, {rate}{launch.gbytes:.1f} GB/s, {100 * launch.of_peak:.0f} % of peak'))}</title>"


def _svg(name: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">'


def _skyline(profile: NetProfile) -> Iterator[str]:
    """Yield the SVG of the launches in order. The width of a rectangle is its time, the height its share of the peak.

    The share is above 1 where caches, tensor cores or Winograd's algorithm are faster than the measured peaks.
    """
    highest = max([1.0, *(min(launch.of_peak, 1.5) for launch in profile.launches)])
    inside_w, inside_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    per_ms, floor = inside_w / (profile.device_ms or 1.0), HEIGHT - BOTTOM
    roof = floor - inside_h / highest
    yield _svg("time and share of the peak of each launch")
    for percent in range(0, int(100 * highest) + 1, 25):
        y = floor - inside_h * percent / 100 / highest
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent} %</text>'
    step = round_step(profile.device_ms / 8)
    for index in range(int(profile.device_ms / step) + 1 if step else 0):
        x = LEFT + index * step * per_ms
        yield f'<text x="{x:.1f}" y="{floor + 18}" text-anchor="middle">{index * step:g}</text>'
    yield f'<text x="{LEFT + inside_w / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">ms on the device</text>'
    x, borders = float(LEFT), []
    for index, launch in enumerate(profile.launches):
        wide, high = launch.ms * per_ms, inside_h * min(launch.of_peak, highest) / highest
        across = f'x="{x:.2f}" width="{wide:.2f}"'
        yield f'<g class="launch">{_title(launch)}<rect class="lost" {across} y="{roof:.1f}" height="{floor - roof:.1f}"/>'
        yield f'<rect class="area {launch.kind}" {across} y="{floor - high:.1f}" height="{high:.1f}"/></g>'
        if LABEL * len(launch.layer) + 6 < wide:
            place = ("inside", floor - high + 14) if high > 18 else ("outside", floor - high - 4)
            yield f'<text class="{place[0]}" x="{x + 4:.1f}" y="{place[1]:.1f}">{markup(launch.layer)}</text>'
        if index and _main_phase(launch) != _main_phase(profile.launches[index - 1]):
            borders.append((x, _main_phase(launch)))
        x += wide
    for x, phase in borders if len(borders) < 4 else ():
        yield f'<line class="roof" stroke-dasharray="4 4" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{floor}"/>'
        yield f'<text x="{x + 5:.1f}" y="{TOP + 10}">{phase}</text>'
    yield f'<line class="roof" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{roof:.1f}" y2="{roof:.1f}"/></svg>'


def _main_phase(launch: LaunchTime) -> str:
    """Return forward or else backward and update, because updates run between the launches of backward."""
    return "forward" if launch.phase == "forward" else "backward and update"


def _point(launch: LaunchTime) -> tuple[float, float]:
    """Return FLOP/byte and GFLOP/s of a launch in the diagram."""
    if not launch.bytes:
        return MOVES, 0.0
    intensity = launch.flops / launch.bytes if launch.flops else MOVES
    return intensity, launch.gbytes * intensity


def _roofline(profile: NetProfile) -> Iterator[str]:
    """Yield the SVG of the roofline. Both axes are logarithmic and cover whole decades."""
    peaks = profile.peaks
    drawn = [(launch, *_point(launch)) for launch in profile.launches if launch.kind not in ("transfer", "host") and launch.ms]
    drawn = [entry for entry in drawn if entry[2] > 0]
    ridge = peaks.gflops / peaks.gbytes
    x_low, x_high = _decades([MOVES / 2, ridge * 4, *(x for _, x, _ in drawn)])
    top = max([peaks.gflops * 1.2, *(y for _, _, y in drawn)])
    y_low, y_high = _decades([top, *(y for launch, _, y in drawn if launch.ms > 1e-3 * profile.device_ms), peaks.gbytes * MOVES / 4])

    def at(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - x_low) / (x_high - x_low)
        up = (math.log10(max(y, 10.0**y_low)) - y_low) / (y_high - y_low)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    yield _svg("roofline")
    for decade in range(x_low, x_high + 1):
        x, _ = at(10.0**decade, 1)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10.0**decade:g}</text>'
    for decade in range(y_low, y_high + 1):
        _, y = at(1, 10.0**decade)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>'
    yield f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">FLOP per byte</text><text x="{LEFT + 6}" y="{TOP + 12}">GFLOP/s</text>'
    begin = at(max(10.0**x_low, 10.0**y_low / peaks.gbytes), max(10.0**x_low * peaks.gbytes, 10.0**y_low))
    corner, end = at(ridge, peaks.gflops), at(10.0**x_high, peaks.gflops)
    yield f'<path class="roof" d="M{begin[0]:.1f} {begin[1]:.1f} L{corner[0]:.1f} {corner[1]:.1f} L{end[0]:.1f} {end[1]:.1f}"/>'
    yield f'<text x="{end[0] - 4:.1f}" y="{end[1] - 6:.1f}" text-anchor="end">{peaks.gflops:,.0f} GFLOP/s of float multiply-adds</text>'
    middle = at(math.sqrt(ridge * 10.0**x_low), math.sqrt(ridge * 10.0**x_low) * peaks.gbytes)
    angle = math.degrees(math.atan2(corner[1] - begin[1], corner[0] - begin[0]))
    yield f'<text transform="translate({middle[0]:.1f} {middle[1] - 7:.1f}) rotate({angle:.1f})" text-anchor="middle">{peaks.gbytes:,.1f} GB/s of a copy</text>'
    for launch, x, y in sorted(drawn, key=lambda entry: -entry[0].ms):  # draws small circles above large ones
        cx, cy = at(x, y)
        radius = max(2.5, 42 * math.sqrt(launch.ms / (profile.device_ms or 1.0)))
        yield f'<circle class="{launch.kind}" cx="{cx:.1f}" cy="{cy:.1f}" r="{radius:.1f}">{_title(launch)}</circle>'
    yield "</svg>"


def _decades(values: Sequence[float]) -> tuple[int, int]:
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))


def _table(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield an HTML table. `heads` are pairs (name, CSS class) of the columns."""
    yield "<table><thead><tr>" + "".join(f'<th class="{kind}">{name}</th>' for name, kind in heads) + "</tr></thead><tbody>"
    for row in rows:
        yield "<tr>" + "".join(f'<td class="{kind}">{markup(text)}</td>' for (_, kind), text in zip(heads, row)) + "</tr>"
    yield "</tbody></table>"


def _launches(profile: NetProfile) -> Iterator[str]:
    heads = (("ms", ""), ("of all", ""), ("GFLOP", ""), ("GFLOP/s", ""), ("MB", ""), ("GB/s", ""), ("of peak", ""), ("phase", "text"), ("layer", "text"),
             ("kernel", "text kernel"))  # fmt: skip
    whole = profile.device_ms or 1.0
    rows = [
        (f"{one.ms:.3f}", f"{100 * one.ms / whole:.1f} %", f"{1e-9 * one.flops:.3f}" if one.flops else "", f"{one.gflops:,.1f}" if one.flops else "",
         f"{1e-6 * one.bytes:,.2f}", f"{one.gbytes:,.1f}", f"{100 * one.of_peak:.0f} %", one.phase, one.layer, shortened(one.kernel, 160))
        for one in profile.by_time()
    ]  # fmt: skip
    return _table(heads, rows)


def _layers(profile: NetProfile) -> Iterator[str]:
    heads = (("layer", "text"), ("type", "text"), ("forward, ms", ""), ("backward, ms", ""))
    return _table(heads, [(layer.name, layer.type, f"{layer.forward_ms:.3f}", f"{layer.backward_ms:.3f}") for layer in profile.layers])
