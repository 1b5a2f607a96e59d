"""The style and functions of all pages with diagrams: the plan's (ocaffe/memory/html.py) and the profile's (ocaffe/profiling/roofline.py)."""
from __future__ import annotations

import math

# Colors for light and dark pages, text, and diagrams, which scroll sideways on a phone.
STYLE = """:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --faint: #d4d8dd; --plot: #f7f8fa }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e4e7ea; --faint: #3a4048; --plot: #1b1f24 } }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1180px; padding: 0 1em; background: var(--paper); color: var(--ink) }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin: 1.6em 0 .3em } .wide { overflow-x: auto } .wide svg { min-width: 760px }
svg { width: 100%; height: auto; background: var(--plot); border-radius: 4px } svg text { font: 12px system-ui, sans-serif; fill: var(--ink) }
.grid { stroke: var(--faint); stroke-width: 1 } .area { stroke: var(--plot); stroke-width: .3 }
.key span { display: inline-block; margin-right: 1.2em } .key i { display: inline-block; width: .8em; height: .8em; margin-right: .4em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
"""


def round_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten that is at least `least`; 0 for 0."""
    if least <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
