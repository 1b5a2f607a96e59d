"""The page `report.html`: what a training has learned, in one file without scripts and without network. It shows what the task has."""
from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ocaffe.fit.curves import Curves, figures
from ocaffe.shown import markup
from ocaffe.support.diagram_page import STYLE as COMMON

FILE = "report.html"
SIDE = 240  # pixels of the longer side of a picture, at most
CELLS = 30  # classes of a confusion matrix in the page; a larger one is a picture
MISTAKES = 10  # lines about the most frequent ones
NAMED = 200  # files that are left out, by name
KEYS = {"iou": "IoU", "average_precision": "AP"}  # names of figures for people
STYLE = COMMON + """h1, h3 { overflow-wrap: anywhere } h3 { font-size: 1em; margin: 1em 0 .3em }
.sum { font-size: 1.1em } p, li { overflow-wrap: anywhere } th { text-align: left; font-weight: 600 }
td, th { padding: .2em .9em .2em 0; vertical-align: middle } td.number, th.number { text-align: right; white-space: nowrap }
td.name { overflow-wrap: anywhere; min-width: 5em } td.bar { min-width: 6em } td.bar i { display: block; height: .8em; border-radius: 2px; background: #4c78a8 }
.tall { max-height: 32em; overflow: auto } .charts { display: flex; flex-wrap: wrap; gap: 1em } .chart { flex: 1 1 320px; max-width: 560px }
figure { margin: 0 } .line { fill: none; stroke-width: 2 } .best { fill: none; stroke: var(--ink); stroke-width: 1.6 }
.pictures { display: flex; flex-wrap: wrap; gap: 1em } .pictures figure { flex: 0 1 auto; max-width: 240px; font-size: .9em; overflow-wrap: anywhere }
.pictures img { display: inline-block; vertical-align: top; max-width: 100%; border-radius: 3px; margin: 0 .2em .2em 0 } .pictures .pair { max-width: 320px }
.pair img { height: 112px }
.matrix td { text-align: right; padding: .25em .5em; border: 1px solid var(--paper); min-width: 1.6em } .matrix th { padding: .25em .5em; font-weight: 400 }
.matrix th.number { text-align: right } .matrix .side { min-width: 7em; max-width: 14em; overflow-wrap: anywhere }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--plot); padding: .6em .8em; border-radius: 4px; margin: .3em 0 }
img.whole { max-width: 100% }
@media (max-width: 560px) { body { margin: 1em auto } td, th { padding-right: .6em } td.bar { min-width: 3em }
.classes .bar, .classes th:empty:not(:first-child) { display: none } .pictures figure { max-width: 46% }
.pictures .pair { max-width: 100% } .pair img { height: auto; width: 48% } }
@media print { :root { --paper: #fff; --ink: #000; --plot: #fff; --faint: #bbb } body { margin: 0; max-width: none } .tall { max-height: none }
* { print-color-adjust: exact; -webkit-print-color-adjust: exact } .wide { overflow: visible } h2, h3, figure, tr { break-inside: avoid }
h2, h3 { break-after: avoid } }"""


class Shown(NamedTuple):
    """Pictures of one image, and the sentence below them."""

    pictures: Sequence[Image.Image]
    text: str


class Group(NamedTuple):
    """Images under one title, with an explanation. Without one they belong to the group before."""

    title: str
    text: str
    images: Sequence[Shown]


class Data(NamedTuple):
    """Counts of the data. `classes`: name, images for training and for testing. `sides`: the shorter sides of some images in pixels."""

    classes: Sequence[tuple[str, int, int]] = ()
    sides: Sequence[int] = ()


class Content(NamedTuple):
    """The parts of a page. `record`: the figures of results.json. `settings`, `commands`: words and texts. `left_out`: a file, and its lines."""

    title: str
    sentence: str
    record: Mapping[str, Any]
    curves: Curves
    groups: Sequence[Group]
    data: Data
    left_out: Sequence[tuple[str, Sequence[str]]]
    notes: Sequence[str]
    settings: Sequence[tuple[str, str]]
    commands: Sequence[tuple[str, str]]
    confusion: bytes = b""  # a PNG of a large matrix


def page(content: Content) -> str:
    """Return the page."""
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{markup(content.title)}</title>',
        f"<style>{STYLE}</style></head><body><h1>{markup(content.title)}</h1>",
        f'<p class="sum">{markup(content.sentence)}</p>',
        *_curves(content.curves),
        *_by_class(content.record),
        *_confusion(content.record, content.confusion),
        *_groups(content.groups),
        *_texts(content.record),
        *_data(content.data),
        *_left_out(content.left_out),
        *_pairs("Settings", content.settings),
        *_notes(content.notes),
        *_commands(content.commands),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _curves(curves: Curves) -> Iterator[str]:
    drawn = list(figures(curves))
    if drawn:
        yield "<h2>Training</h2><p>The ring marks the best test, whose weights are kept.</p><div class=\"charts\">"
        yield from drawn
        yield "</div>"


def _rows(record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return next((record[key] for key in ("classes", "tags") if record.get(key)), [])


def _by_class(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table of the figures by class: shares with bars, and numbers."""
    rows = _rows(record)
    if not rows:
        return
    keys = [key for key in rows[0] if key != "name"]
    shares = {key for key in keys if any(isinstance(row[key], float) for row in rows)}
    head = "".join(f'<th class="number">{markup(KEYS.get(key, key.replace("_", " ")))}</th>' + "<th></th>" * (key in shares) for key in keys)
    yield f'<h2>By class</h2><div class="wide tall"><table class="classes"><tr><th></th>{head}</tr>'
    for row in rows:
        cells = "".join(_cell(row[key], key in shares) for key in keys)
        yield f'<tr><td class="name">{markup(str(row["name"]))}</td>{cells}</tr>'
    yield "</table></div>"


def _cell(value: float | None, share: bool) -> str:
    if not share:
        return f'<td class="number">{markup("-" if value is None else str(value))}</td>'
    width = 100 * (value or 0.0)
    return f'<td class="number">{markup("-" if value is None else f"{width:.1f} %")}</td><td class="bar"><i style="width:{width:.0f}%"></i></td>'


def _confusion(record: Mapping[str, Any], picture: bytes) -> Iterator[str]:
    """Yield the confusion matrix and its most frequent mistakes. Of pixels it has shares of the rows."""
    if not record.get("confusion"):
        return
    counts, names = np.array(record["confusion"]), [str(row["name"]) for row in _rows(record)]
    totals = counts.sum(1, keepdims=True)
    shares, pixels = counts / np.maximum(totals, 1), counts.sum() != record.get("images")
    unit = ", in % of the pixels of a row" if pixels else ""
    yield f"<h2>Confusion</h2><p>Rows are the true classes, columns those that the net gives{unit}.</p>"
    if len(counts) <= CELLS:
        numbers = "".join(f'<th class="number">{number + 1:d}</th>' for number in range(len(counts)))
        yield f'<div class="wide"><table class="matrix"><tr><th></th>{numbers}</tr>'
        for true, name in enumerate(names):
            cells = "".join(_colored(counts[true, best], shares[true, best], true == best, pixels) for best in range(len(counts)))
            yield f'<tr><th class="side">{true + 1:d}: {markup(name)}</th>{cells}</tr>'
        yield "</table></div>"
    elif picture:
        yield f'<div class="wide"><img class="whole" src="{_address(picture, "png")}" alt="confusion matrix"></div>'
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MISTAKES]
    lines = [(int(wrong[place]), int(totals[place[0], 0]), *place) for place in zip(*np.unravel_index(order, wrong.shape)) if wrong[place]]
    if lines and not pixels:
        yield "<ul>"
        for count, total, true, best in lines:
            yield f"<li>{count:d} of {total:d} images of {markup(names[true])} are taken for {markup(names[best])}</li>"
        yield "</ul>"


def _colored(count: int, share: float, right: bool, pixels: bool) -> str:
    text = (f"{100 * share:.1f}" if pixels else f"{count:d}") if count else ""
    color = f"rgba({'76,120,168' if right else '214,39,40'},{0.6 * share**0.5:.2f})"
    return f'<td style="background:{color}">{text}</td>'


def _groups(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        if group.images:
            yield f'<h2>{markup(group.title)}</h2>' if group.text else f'<h3>{markup(group.title)}</h3>'
            yield f'<p>{markup(group.text)}</p><div class="pictures">' if group.text else '<div class="pictures">'
            for image in group.images:
                pictures = "".join(f'<img src="{_address(*_small(picture))}" alt="">' for picture in image.pictures)
                kind = "pair" if len(image.pictures) > 1 else "single"
                yield f'<figure class="{kind}">{pictures}<figcaption>{markup(image.text)}</figcaption></figure>'
            yield "</div>"


def _texts(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of text that are read wrong."""
    if wrong := record.get("wrong"):
        yield '<h2>Texts that are read wrong</h2><div class="wide tall"><table><tr><th>text</th><th>read</th><th>file</th></tr>'
        for row in wrong[:NAMED]:
            yield f"<tr><td>{markup(row['text'])}</td><td>{markup(row['read'])}</td><td>{markup(row['file'])}</td></tr>"
        yield "</table></div>"


def _data(data: Data) -> Iterator[str]:
    if data.classes:
        most = max(max(train + test for _, train, test in data.classes), 1)
        yield '<h2>Data</h2><div class="wide tall"><table><tr><th>images of</th><th class="number">training</th><th class="number">testing</th><th></th></tr>'
        for name, train, test in data.classes:
            bar = f'<td class="bar"><i style="width:{100 * (train + test) / most:.0f}%"></i></td>'
            yield f'<tr><td class="name">{markup(name)}</td><td class="number">{train:d}</td><td class="number">{test:d}</td>{bar}</tr>'
        yield "</table></div>"
    if data.sides:
        ends = [0, *(2**power for power in range(4, 14)), 10**9]
        counts = np.histogram(data.sides, ends)[0]
        places = np.flatnonzero(counts)
        yield f"<h2>Sizes of images</h2><p>The shorter side of {len(data.sides):d} images for training.</p><table>"
        for place in range(int(places[0]), int(places[-1]) + 1):
            text = f"{ends[place]} to {ends[place + 1] - 1} pixels" if place + 2 < len(ends) else f"{ends[place]} pixels or more"
            bar = f'<td class="bar"><i style="width:{100 * counts[place] / counts.max():.0f}%"></i></td>'
            yield f'<tr><td>{markup(text)}</td><td class="number">{counts[place]:d}</td>{bar}</tr>'
        yield "</table>"


def _left_out(files: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    for name, lines in files:
        text = "\n".join(markup(line) for line in lines[:NAMED])
        more = len(lines) - NAMED
        yield f"<h2>Left out: {len(lines):d}</h2><p>{markup(name)} names {markup('them all' if more > 0 else 'them')} too.</p><pre class=\"tall\">"
        yield f"{text}</pre>"


def _pairs(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield f"<h2>{markup(title)}</h2><table>"
    for name, text in rows:
        yield f'<tr><td>{markup(name)}</td><td class="name">{markup(text)}</td></tr>'
    yield "</table>"


def _notes(notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield "<ul>"
        yield from (f"<li>{markup(note)}</li>" for note in notes)
        yield "</ul>"


def _commands(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield "<h2>Next</h2>"
    for name, text in rows:
        yield f"<p>{markup(name)}</p><pre>{markup(text)}</pre>"


def _small(picture: Image.Image) -> tuple[bytes, str]:
    """Return a small file of a picture, and its format. Tiny pictures are enlarged without smoothing."""
    picture = picture.convert("RGB")
    factor = SIDE / max(picture.size)
    method = Image.Resampling.NEAREST if factor >= 2 else Image.Resampling.LANCZOS
    if factor < 1 or factor >= 2:
        picture = picture.resize((max(1, round(picture.width * factor)), max(1, round(picture.height * factor))), method)
    stream = io.BytesIO()
    picture.save(stream, "PNG" if factor >= 2 else "JPEG", quality=85)
    return stream.getvalue(), "png" if factor >= 2 else "jpeg"


def _address(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
