"""The page of `ocaffe plan --html`."""
from __future__ import annotations

import pathlib
import re
from html.parser import HTMLParser

import pytest

from ocaffe.cli import main


class Page(HTMLParser):
    """Collects the tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_page(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "lenet", "--out", "net"]) == 0
    assert main(["plan", "--solver", "net/solver.prototxt", "--shape", "1x28x28", "--html", "plan.html"]) == 0
    text = pathlib.Path("plan.html").read_text()
    page = Page()
    page.feed(text)
    assert not [attributes for _, attributes in page.tags if {"src", "href"} & set(attributes)]  # nothing is loaded
    for name in ("this plan", "lower bound", "BVLC Caffe"):
        assert re.search(rf"<td>{name}</td>.*?<td>[\d,]+ MiB</td>", text)
    assert text.count("<svg") == 2 and text.count('class="bound"') == 2
    for label in (">MiB<", ">conv1<", ">peak<", ">end of forward<"):
        assert label in text
    inside = [(float(a["x"] or 0), float(a["width"] or 0), float(a["y"] or 0), float(a["height"] or 0)) for tag, a in page.tags if tag == "rect"]
    assert inside and all(x >= 64 and x + w <= 1149 and y >= 25 and y + h <= 481 for x, w, y, h in inside)  # within the axes
