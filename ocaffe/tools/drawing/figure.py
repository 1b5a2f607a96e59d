"""Figures of matplotlib as files. Only this module imports matplotlib."""
from __future__ import annotations

import io
from typing import Any

from ocaffe.errors import Error
from ocaffe.shown import markup, visible

_MOST = 200  # characters of a text; a name in a file can have millions
FORMATS = ("png", "svg", "pdf", "html")


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches. Raise Error if matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise Error("pictures of curves need matplotlib, which is not installed", place="ocaffe plot", fix="pip install matplotlib") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(name: str) -> str:
    """Return a name as matplotlib writes it: in one line of limited length. Text between two dollars would be a formula."""
    return visible(name if len(name) <= _MOST else name[: _MOST - 3] + "...").replace("$", r"\$")


def content(figure: Any, kind: str, title: str) -> bytes:
    """Return the file of a figure with a title above it, in one of FORMATS."""
    figure.suptitle(plain(title))
    out = io.BytesIO()
    figure.savefig(out, format="svg" if kind == "html" else kind)
    return _page(out.getvalue().decode(), title) if kind == "html" else out.getvalue()


def _page(svg: str, title: str) -> bytes:
    head = f'<!DOCTYPE html>\n<html><head><meta charset="utf-8"><title>{markup(title)}</title></head>'
    return f'{head}\n<body>\n{svg[svg.index("<svg"):]}</body></html>\n'.encode()
