"""The comparison with a dump as text and as a page."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ocaffe.errors import shape_text
from ocaffe.shown import markup
from ocaffe.support.diagram_page import STYLE as COMMON
from ocaffe.tools.dumps.values import MISSING, Row

LEAST = 1e-8  # the difference at the left end of the bars; 1 is at the right end
STYLE = COMMON + """h1 { overflow-wrap: anywhere } table { width: 100% } th { text-align: left } td, th { padding: .15em .8em .15em 0; vertical-align: top }
td.number { text-align: right; white-space: nowrap } td.bar { width: 18% } td.bar i { display: block; height: 1em; border-radius: 2px; background: #4c78a8 }
tr.wrong td.bar i { background: #d62728 } tr.wrong td:first-child { font-weight: 600 } tr.missing { opacity: .55 }"""


def text(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table, and which layer is the first that differs."""
    cells = [("layer", "blob", "in the dump", "cosine", "difference", ""), *((*_cells(row), _mark(row) + row.note) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    for line in cells:
        begin = "  ".join(f"{cell:>{width}}" if column > 2 else f"{cell:<{width}}" for column, (cell, width) in enumerate(zip(line, widths)))
        yield f"{begin}  {line[5]}".rstrip()
    yield ""
    yield from result(rows)


def result(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the sentences below the table."""
    wrong, missing = [row for row in rows if row.wrong], [row for row in rows if row.note == MISSING]
    compared = sum(bool(row.name) for row in rows)
    if missing:
        row = missing[0]
        yield f"{len(missing)} of {len(rows)} values are not in the dump; the first: layer {row.title}, blob '{row.value.blob}'"
    if not wrong:
        yield f"no difference above the tolerance in {compared} values"
        return
    row = wrong[0]
    yield f"{len(wrong)} of {compared} values differ; the first: layer {row.title}, blob '{row.value.blob}'" + (f", {row.value.line}" if row.value.line else "")
    if row.error is None:
        limit = f"its cosine is {row.cosine:.6f}, and the least is {row.bound:g}; " if row.cosine is not None else ""
    else:
        limit = f"off by {row.error:.2g} of its largest magnitude, and the tolerance is {row.bound:g}; "
    yield f"  {limit}{row.note}"


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    likeness = "" if row.cosine is None else f"{row.cosine:.6f}"
    return row.title, row.value.blob, row.name, likeness, "" if row.error is None else f"{row.error:.1e}"


def _mark(row: Row) -> str:
    return "<-- " if row.wrong else ""


def page(title: str, rows: Sequence[Row]) -> str:
    """Return a page without scripts: a row with a bar for each value. The length of a bar is the logarithm of the difference."""
    texts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{markup(title)}</title>',
        f"<style>{STYLE}</style></head><body><h1>{markup(title)}</h1>",
        *(f"<p>{markup(line.strip())}</p>" for line in result(rows)),
        f"<p>A bar is the largest difference as a share of the largest magnitude in the blob, from {LEAST:g} to 1 or more, by its logarithm.</p>",
        '<div class="wide"><table><tr><th>layer</th><th>blob</th><th>shape</th><th>in the dump</th><th>cosine</th><th>difference</th><th></th><th></th></tr>',
    ]
    for row in rows:
        layer, blob, name, *numbers = _cells(row)
        kind = "wrong" if row.wrong else "equal" if row.name else "missing"
        cells = [f"<td>{markup(cell)}</td>" for cell in (layer, blob, shape_text(row.shape), name)]
        cells += [f'<td class="number">{markup(cell)}</td>' for cell in numbers]
        texts.append(f'<tr class="{kind}">{"".join(cells)}<td class="bar">{_bar(row)}</td><td>{markup(row.note)}</td></tr>')
    return "\n".join([*texts, "</table></div></body></html>"]) + "\n"


def _bar(row: Row) -> str:
    if row.error is None or row.error <= LEAST:
        return ""
    share = min(1.0, 1 - math.log10(min(row.error, 1.0)) / math.log10(LEAST))
    return f'<i style="width:{100 * share:.0f}%"></i>'
