"""The curves of `ocaffe plot`."""
from __future__ import annotations

import pathlib
import re

import pytest

from ocaffe.tools.drawing.plots import panels, render
from ocaffe.tools.training_logs.logs import Log, read_log

pytestmark = pytest.mark.quick


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


SCORES = """I1126 04:28:25.0 1 solver.cpp:347] Iteration 0, Testing net (#0)
I1126 04:28:25.0 1 solver.cpp:414]     Test net output #0: detection_eval = 0.25
I1126 04:28:25.0 1 solver.cpp:414]     Test net output #1: mbox = 2.5 (* 1 = 2.5 loss)
I1126 04:28:25.0 1 solver.cpp:414]     Test net output #2: seg_acc = 0.5
I1126 04:28:25.0 1 solver.cpp:414]     Test net output #3: seg_acc/mean_iou = 0.125
I1126 04:28:25.0 1 solver.cpp:430] Best detection_eval so far: 0.25 (iteration 0)
I1126 04:28:26.0 1 solver.cpp:347] Iteration 40, Testing net (#0)
I1126 04:28:26.0 1 solver.cpp:414]     Test net output #0: detection_eval = 0.75
I1126 04:28:26.0 1 solver.cpp:430] Best detection_eval so far: 0.75 (iteration 40)
I1126 04:28:27.0 1 solver.cpp:347] Iteration 80, Testing net (#0)
I1126 04:28:27.0 1 solver.cpp:414]     Test net output #0: detection_eval = 0.5
"""


def test_scores_have_a_panel(tmp_path: pathlib.Path) -> None:
    """The loss is the output with a loss weight, whatever its name. A star marks the best test."""
    (tmp_path / "made.log").write_text(SCORES)
    log = read_log(str(tmp_path / "made.log"))
    drawn = panels([("one", log)])
    assert {title: [curve.name for curve in curves] for title, curves in drawn.items()} == {
        "loss": ["mbox"], "accuracy": ["seg_acc"], "scores": ["detection_eval", "seg_acc/mean_iou"],
    }  # fmt: skip
    curve = drawn["scores"][0]
    assert (curve.x, curve.y, curve.best) == ([0, 40, 80], [0.25, 0.75, 0.5], (40, 0.75)) and drawn["scores"][1].best is None
    assert panels([("one", log)], seconds=True)["scores"][0].best == (1, 0.75)
    pytest.importorskip("matplotlib")
    assert "<!-- one: test detection_eval, best 0.75 -->" in render(drawn, "svg").decode()
