"""COCO's score by pycocotools, compared with its definition where true boxes do not overlap; the flag --coco of `ocaffe test`."""
from __future__ import annotations

import pathlib
import re
import sys
from typing import Any

import numpy as np
import pytest

from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.evaluation.coco import OVERLAPS, Boxes, coco_scores
from tests.layers.test_detection_evaluate import CLASSES, apart, box, judge
from tests.solver.test_scores import DETECTOR, command

pytestmark = pytest.mark.filterwarnings("ignore")


def precision_at_101(rows: list[list[float]], label: int) -> float:
    """Return the mean, over the recalls 0, 0.01, .. 1, of the largest precision at this or a larger recall."""
    positives = sum(row[2] for row in rows if row[0] < 0 and row[1] == label)
    right = [row[3] for row in sorted((row for row in rows if row[0] >= 0 and row[1] == label), key=lambda row: -row[2])]
    points = [(sum(right[: n + 1]) / positives, sum(right[: n + 1]) / (n + 1)) for n in range(len(right))]
    return sum(max((p for r, p in points if r >= level), default=0) for level in np.linspace(0, 1, 101)) / 101


def test_against_the_definition() -> None:
    pytest.importorskip("pycocotools")
    rng = np.random.default_rng(4)
    for _ in range(10):
        boxes, true, found, images = Boxes(), [], [], 3
        for batch in range(2):
            truth = list(apart(rng, images))
            seen = [[t[0], t[1], float(rng.random()), *np.array(t[2:]) + rng.normal(0, 0.01, 4)] for t in truth for _ in range(rng.integers(0, 3))]
            seen += [[float(rng.integers(0, images)), float(rng.integers(1, CLASSES)), float(rng.random()), *box(rng, 8)] for _ in range(4)]
            seen.append([images - 1, -1, -1, -1, -1, -1, -1])
            seen.sort(key=lambda d: (d[0], d[1], -d[2]))
            rows = [[t[0], t[1], 0, *t[2:], 0] for t in truth]
            boxes.add(np.array(seen), np.array(rows), True)
            true += [[row[0] + images * batch, *row[1:]] for row in rows]
            found += [[row[0] + images * batch, *row[1:]] for row in seen]
        labels = sorted({row[1] for row in true})
        table = [[precision_at_101(judge(found, true, threshold, True), label) for label in labels] for threshold in OVERLAPS]
        expected = [np.mean(table), np.mean(table[0]), np.mean(table[5])]
        assert list(coco_scores(boxes).values()) == pytest.approx(expected, abs=1e-9)


def test_crowds() -> None:
    """A detection of a difficult box is neither right nor wrong."""
    pytest.importorskip("pycocotools")
    found = np.array([[0, 1, 0.9, 0, 0, 1, 1], [0, 1, 0.8, 2, 2, 3, 3]])
    true = np.array([[0, 1, 0, 0, 0, 1, 1, 1], [0, 1, 0, 2, 2, 3, 3, 0], [-1] * 8])
    for crowds in (True, False):
        boxes = Boxes()
        boxes.add(found, true, crowds)
        assert [box["iscrowd"] for box in boxes.truth] == [int(crowds), 0]
        assert list(coco_scores(boxes).values()) == pytest.approx([1, 1, 1])
    only = Boxes()
    only.add(found[:1], true[1:2], True)
    assert list(coco_scores(only).values()) == [0, 0, 0]
    nothing = Boxes()
    nothing.add(np.array([[0] + [-1] * 6]), true[:1], True)
    assert list(coco_scores(nothing).values()) == [0, 0, 0]


def test_without_pycocotools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(Error, match=r"pycocotools cannot be imported.*\n(.*\n)*.*pip install pycocotools"):
        coco_scores(Boxes())


def test_the_command(device: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pycocotools")
    monkeypatch.chdir(tmp_path)
    assert main(command(DETECTOR, "--coco")) == 0
    assert re.search(r"^COCO\nAP, overlap 0.50:0.95 +0\.\d{4}\nAP, overlap 0.50 +0\.\d{4}\nAP, overlap 0.75 +0\.\d{4}$", capsys.readouterr().out, re.M)
    assert main(command("", "--coco")) == 1
    assert "no DetectionEvaluate layer" in capsys.readouterr().err
