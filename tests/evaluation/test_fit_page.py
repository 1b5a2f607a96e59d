"""The page of `ocaffe fit`, its curves and its worst images."""
from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest
from PIL import Image

from ocaffe.fit.curves import Curves, Line, curves_of
from ocaffe.fit.page import CELLS, Content, Data, Group, Shown, page
from ocaffe.fit.worst import Scores, confused, worst

BAD = "<script>alert('1')</script>\x1b\u202e"
CLASSES = [{"name": BAD, "images": 4, "precision": 0.5, "recall": None}, {"name": "b", "images": 4, "precision": 0.25, "recall": 1.0}]


def content(record: object, confusion: bytes = b"") -> Content:
    assert isinstance(record, dict)
    curves = Curves([Line("loss in training", {0: 2.0, 10: 1.0})], [Line(BAD, {0: 0.1, 10: 0.5})])
    groups = [Group(BAD, BAD, [Shown([Image.new("RGB", (9, 7)), Image.new("L", (900, 7))], BAD)]), Group("none", "", [])]
    data = Data([(BAD, 6, 2), ("b", 0, 0)], [3, 100, 5000])
    return Content(BAD, BAD, record, curves, groups, data, [(BAD, [BAD] * 300)], [BAD], [("net", BAD)], [("predict", BAD)], confusion)


@pytest.mark.parametrize(
    "record",
    [
        {"images": 8, "classes": CLASSES, "confusion": [[2, 2], [1, 3]]},  # classes
        {"images": 2, "classes": [{"name": BAD, "iou": 0.5}, {"name": "b", "iou": None}], "confusion": [[200, 0], [0, 0]]},  # masks
        {"images": 2, "classes": [{"name": BAD, "boxes": 3, "detections": 0, "average_precision": 0.0}]},
        {"images": 2, "tags": [{"name": BAD, "images": 0, "precision": None}]},
        {"images": 2, "wrong": [{"file": BAD, "text": BAD, "read": BAD}]},
        {"images": 2},
    ],
)
def test_page_escapes_names(record: dict[str, object]) -> None:
    made = page(content(record))
    assert "<script" not in made and "\x1b" not in made and "\u202e" not in made
    assert "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;\\x1b\\u202e" in made
    assert not re.search(r"https?:|//|\burl\(|@import", re.sub(r"base64,[\w+/=]+", "", made).replace("&lt;/script", ""))
    assert [text for text in re.findall("<h2>(.*?)</h2>", made) if text.startswith("Left out")] == ["Left out: 300"]
    assert made.count("<table") == made.count("</table>") and made.count("<div") == made.count("</div>")


def test_large_matrix_is_a_picture() -> None:
    classes = [{"name": str(number), "recall": 0.0} for number in range(CELLS + 1)]
    counts = np.eye(CELLS + 1, dtype=int).tolist()
    record = {"images": CELLS + 1, "classes": classes, "confusion": counts}
    assert "confusion matrix" in page(content(record, b"PNG")) and "confusion matrix" not in page(content(record))
    assert 'class="matrix"' not in page(content(record))


def test_curves_of_a_log(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "train.log"
    assert curves_of(str(log), "accuracy", "accuracy") == Curves([], [])
    stamp = "I1130 00:00:00.000000     1 solver.cpp:1] "
    lines = ["Solving x", "Iteration 0, Testing net (#0)", "    Test net output #0: accuracy = 0.25", "Iteration 0, loss = 2.5", "Iteration 10, loss = nan",
             "Iteration 10, Testing net (#0)", "    Test net output #0: accuracy = 0.5"]  # fmt: skip
    log.write_text("".join(f"{stamp}{line}\n" for line in lines))
    assert curves_of(str(log), "accuracy", "share") == Curves([Line("loss in training", {0: 2.5})], [Line("share", {0: 0.25, 10: 0.5})])


def test_worst_images() -> None:
    scores = Scores()
    scores.add(np.array([0, 1]), np.array([[0.9, 0.1, 0.0], [0.6, 0.3, 0.1]]))  # probabilities
    scores.add(np.array([1, 2]), np.log(np.array([[0.5, 0.25, 0.25], [0.3, 0.3, 0.4]])) + 7)  # before a Softmax
    rows = scores.rows()
    assert np.allclose(rows[:, 2:], [[0.9, 0.9], [0.3, 0.6], [0.25, 0.5], [0.4, 0.4]])
    assert [(each.number, each.true, each.best) for each in worst(rows)] == [(2, 1, 0), (1, 1, 0), (3, 2, 2), (0, 0, 0)]
    assert [[each.number for each in group] for group in confused(rows)] == [[1, 2]]
    assert worst(Scores().rows()) == [] and confused(rows[:1]) == []
