"""The confusion matrix: counts, shares, tables, and its picture."""
from __future__ import annotations

import io
import math

import numpy as np
import pytest
from PIL import Image

from ocaffe.evaluation.confusion import Confusion
from ocaffe.evaluation.picture import confusion_png

NAMES = ["cat", "dog", "狐狸"]


def filled() -> Confusion:
    """6 cats, of which 2 are taken for dogs; 4 dogs; no third class."""
    confusion = Confusion(3)
    labels = np.float32([0] * 6 + [1] * 4)
    scores = np.eye(3, dtype=np.float32)[[0, 0, 0, 0, 1, 1, 1, 1, 1, 1]]
    confusion.add(labels[:5], scores[:5])
    confusion.add(labels[5:], scores[5:])
    return confusion


def test_shares() -> None:
    confusion = filled()
    assert confusion.counts.tolist() == [[4, 2, 0], [0, 4, 0], [0, 0, 0]]
    assert (confusion.images, confusion.right, confusion.accuracy) == (10, 8, 0.8)
    assert confusion.precision()[:2] == pytest.approx([1, 4 / 6]) and confusion.recall()[:2] == pytest.approx([4 / 6, 1])
    assert math.isnan(confusion.precision()[2]) and math.isnan(confusion.recall()[2])
    record = confusion.record(NAMES)
    assert record["classes"][2] == {"name": "狐狸", "images": 0, "right": 0, "precision": None, "recall": None} and record["confusion"][0] == [4, 2, 0]


def test_the_first_of_equal_scores_wins() -> None:
    confusion = Confusion(2)
    confusion.add(np.float32([0, 1]), np.zeros((2, 2), np.float32))
    assert confusion.counts.tolist() == [[1, 0], [1, 0]]


def test_table() -> None:
    assert filled().table(NAMES) == [
        "class  images  right  precision   recall",
        "cat         6      4    100.0 %   66.7 %",
        "dog         4      4     66.7 %  100.0 %",
        "狐狸        0      0          -        -",
        "all        10      8              80.0 %",
    ]
    assert list(filled().mistakes(NAMES)) == ["2 of 6 images of cat are taken for dog"]


@pytest.mark.parametrize("classes", [2, 10, 100, 1000])
def test_picture(classes: int) -> None:
    confusion = Confusion(classes)
    confusion.add(np.arange(classes), np.eye(classes))
    image = Image.open(io.BytesIO(confusion_png(confusion, [f"class {n}" for n in range(classes)])))
    cells = np.asarray(image).reshape(-1, 3)
    assert image.width < 3000 and (cells == (20, 80, 150)).all(1).sum() > classes  # the diagonal is blue
