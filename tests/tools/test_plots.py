"""The curves of `ocaffe plot`."""
from __future__ import annotations

import pathlib
import re

import pytest

from ocaffe.tools.logs import Log
from ocaffe.tools.plots import panels, render


def test_rates_are_steps_and_curves_have_their_own_colors(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [{"NumIters": float(n), "Seconds": n / 10, "LearningRate": rate, "loss": 3.0 - n / 10} for n, rate in ((0, 0.1), (10, 0.1), (20, 0.01))]
    tests = [{**row, "loss": 2.0, "accuracy": 0.5, "accuracy5": 0.7} for row in rows]
    drawn = panels([("one", Log(rows, tests, rows, rows))])
    picture = render(drawn, "svg").decode()
    colors = set(re.findall(r"stroke: (#[0-9a-f]{6})", picture))
    assert {"#1f77b4", "#ff7f0e"} <= colors
    for title in ("one", "loss", "accuracy", "learning rate", "iterations"):
        assert f"<!-- {title} -->" in picture
    assert picture.count("<!-- iterations -->") == 1  # the panels share an axis
