"""The result of `ocaffe quantize` as a page: one file without scripts and without network."""
from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

from ocaffe.quantize.counts import Counts
from ocaffe.quantize.grid import Grid
from ocaffe.quantize.quantize import Quantized
from ocaffe.quantize.worst import Worst
from ocaffe.shown import markup
from ocaffe.support.diagram_page import STYLE as COMMON

FILE = "report.html"
LEAST = 1e-8  # the error at the left end of a bar; 1 is at the right end
BINS, WIDTH, HEIGHT = 120, 360, 56  # of a histogram
SIDE = 112  # pixels of the longer side of a picture
STYLE = COMMON + """h1 { overflow-wrap: anywhere } table { border-collapse: collapse } th { text-align: left }
td, th { padding: .2em .9em .2em 0; vertical-align: middle } td.number { text-align: right; white-space: nowrap }
td.bar { min-width: 7em } td.bar i { display: block; height: .9em; border-radius: 2px; background: #4c78a8 }
svg.counts { display: block; width: 360px; height: 56px; padding: 0; background: none; border-radius: 0 }
svg.counts rect { fill: #4c78a8 } svg.counts rect.cut { fill: #d62728 } svg.counts line { stroke: #e08214; stroke-width: 2 }
.pictures { display: flex; flex-wrap: wrap; gap: 1em } figure { margin: 0; width: 9em; font-size: .85em }
figure img { image-rendering: pixelated } .one { white-space: nowrap }"""


def page(title: str, made: Quantized, worst: Sequence[Worst]) -> str:
    """Return the page."""
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{markup(title)}</title>',
        f"<style>{STYLE}</style></head><body><h1>{markup(title)}</h1>",
        f"<p>{markup(made.table.scheme.title)}. {len(made.table.products):d} products compute with integers.</p>",
        *_steps(made),
        *_blobs(made),
        *_products(made),
        *_pictures(worst),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _steps(made: Quantized) -> Iterator[str]:
    if made.stages:
        yield "<h2>Error of the outputs</h2><p>The mean squared difference to the net in floats, as a share of the mean square.</p><table>"
        for name, error in made.stages:
            yield f'<tr><td>{markup(name)}</td><td class="number">{error:.2e}</td><td class="bar">{_bar(error)}</td></tr>'
        yield "</table>"


def _blobs(made: Quantized) -> Iterator[str]:
    yield "<h2>Blobs</h2><p>Blue: the values on the calibration images, by the logarithm of their number. Red: values outside of the range. Lines: the range. "
    yield "The error is that of the blob in the whole net that rounds.</p>"
    yield '<div class="wide"><table><tr><th>blob</th><th>layer</th><th>values</th><th>range</th><th>by</th><th>scale</th><th>error</th><th></th><th></th></tr>'
    for name, entry in made.table.values.items():
        error = made.errors.get(name)
        cells = [f"<td>{markup(text)}</td>" for text in (name, entry.layer)]
        texts = (f"{entry.low:.4g} to {entry.high:.4g}", f"{entry.grid.low:.4g} to {entry.grid.high:.4g}", entry.method, f"{entry.grid.scale:.4g}")
        cells += [f'<td class="number">{markup(text)}</td>' for text in (*texts, "" if error is None else f"{error:.1e}")]
        counts = made.counts.get(name)
        drawn, bar = histogram(counts, entry.grid) if counts is not None else "", _bar(error or 0.0)
        cells += [f'<td class="bar">{bar}</td>', f"<td>{drawn}</td>"]
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table></div>"


def _products(made: Quantized) -> Iterator[str]:
    if made.sensitivities:
        yield "<h2>Products</h2><p>The error of the outputs if one product alone rounds its input and its weights.</p><table>"
        for name, error in sorted(made.sensitivities.items(), key=lambda item: -item[1]):
            wide = "16 bits" if name in made.table.wide else ""
            yield f'<tr><td>{markup(name)}</td><td class="number">{error:.2e}</td><td class="bar">{_bar(error)}</td><td>{wide}</td></tr>'
        yield "</table>"


def _pictures(worst: Sequence[Worst]) -> Iterator[str]:
    if worst:
        yield "<h2>Images whose outputs change most</h2><p>The error of an image is a share of the mean square of all outputs.</p><div class=\"pictures\">"
        for item in worst:
            caption = f"<figcaption>image {item.number:d}: <span class=one>{item.error:.1e}</span>{_answer(item)}</figcaption>"
            yield f'<figure><img src="{_png(item.image)}" alt="image {item.number:d}">{caption}</figure>'
        yield "</div>"


def _answer(item: Worst) -> str:
    if not item.floats.size:
        return ""
    first, second = int(item.floats.argmax()), int(item.rounded.argmax())
    return f"; largest output {first}" if first == second else f"; largest output {first} in floats, {second} rounded"


def _bar(error: float) -> str:
    if error <= LEAST:
        return ""
    return f'<i style="width:{100 * min(1.0, 1 - math.log10(min(error, 1.0)) / math.log10(LEAST)):.0f}%"></i>'


def histogram(counts: Counts, on: Grid) -> str:
    """Return a histogram of the values from the smallest to the largest as SVG."""
    low, high = min(counts.low, 0.0), max(counts.high, 0.0)
    if not high > low:
        return ""
    ends = np.linspace(low, high, BINS + 1)
    numbers = np.diff(_cumulative(counts, ends))
    tall = np.log1p(np.maximum(numbers, 0))
    tall = tall / max(tall.max(), 1e-12) * HEIGHT
    step = WIDTH / BINS
    bars = []
    for index, bar in enumerate(tall):
        if bar > 0.2:
            middle = (ends[index] + ends[index + 1]) / 2
            kind = "" if on.low <= middle <= on.high else ' class="cut"'
            bars.append(f'<rect{kind} x="{index * step:.1f}" y="{HEIGHT - bar:.1f}" width="{step:.1f}" height="{bar:.1f}"/>')
    places = [(value - low) / (high - low) * WIDTH for value in (on.low, on.high)]
    lines = [f'<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{HEIGHT}"/>' for at in places if -0.5 <= at <= WIDTH + 0.5]
    text = f"values from {low:.4g} to {high:.4g}, range {on.low:.4g} to {on.high:.4g}"
    return f'<svg class="counts" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{text}">{"".join(bars)}{"".join(lines)}</svg>'


def _cumulative(counts: Counts, ends: np.ndarray) -> np.ndarray:
    """Return how many values are at most each of `ends`. Values are spread evenly over a bin."""
    bounds = counts.bounds()
    keep = np.concatenate([[True], np.diff(bounds) > 0])
    above, below = (np.concatenate([[0.0], np.cumsum(part)])[keep] for part in (counts.positive, counts.negative))
    return np.asarray(np.interp(ends, bounds[keep], above) - np.interp(-ends, bounds[keep], below))


def _png(image: np.ndarray) -> str:
    """Return an image as a net reads it, channels blue first, as the address of a PNG. Its values are spread over 0 to 255."""
    channels = image[:3][::-1] if len(image) >= 3 else image[:1]
    low, high = float(channels.min()), float(channels.max())
    pixels = ((channels - low) / max(high - low, 1e-12) * 255).astype(np.uint8).transpose(1, 2, 0)
    picture = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    factor = SIDE / max(picture.size)
    picture = picture.resize((max(1, round(picture.width * factor)), max(1, round(picture.height * factor))), Image.Resampling.NEAREST)
    stream = io.BytesIO()
    picture.save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
