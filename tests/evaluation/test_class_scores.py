"""`ocaffe test --scores`: the points of the file have the printed average precision; and `ocaffe plot` draws it."""
from __future__ import annotations

import json
import pathlib
import re

import numpy as np
import pytest

from ocaffe.cli import main
from ocaffe.evaluation.class_plots import _curves, render_classes
from ocaffe.evaluation.class_scores import Detected, Segmented, class_scores, read_class_scores
from ocaffe.solver.average_precision import VERSIONS, Detections, average_precision
from ocaffe.tools.drawing.figure import new_figure
from tests.solver.test_scores import DETECTOR, SEGMENTER, command, maps


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def area(recall: list[float], precision: list[float], version: str) -> float:
    """Return the AP of points, from the definitions in docs/solvers.md."""
    largest = [max(precision[n:]) for n in range(len(precision))]
    if version == "11point":
        return sum(max((p for r, p in zip(recall, precision) if r >= level / 10), default=0) for level in range(11)) / 11
    return sum((r - before) * p for r, before, p in zip(recall, [0.0, *recall], precision if version == "Integral" else largest))


def made(version: str) -> Detections:
    """Random detections: class 1 with many, class 2 with few, class 3 without any, class 4 without true boxes."""
    rng, found = np.random.default_rng(1), Detections(version)
    for label, boxes, count in ((1, 60, 200), (2, 7, 9), (3, 5, 0), (4, 0, 3)):
        right = rng.permutation(np.arange(count) < min(boxes, count) * 0.7)
        rows = [[-1, label, boxes, -1, -1], *([0, label, rng.random(), hit, 1 - hit] for hit in right.astype(int))]
        found.add(np.array(rows, np.float32))
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_area_is_the_printed_precision(device: object, version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(DETECTOR, "--ap-version", version, "--scores", "made.json")) == 0
    printed = re.search(r"^detection_eval +([\d.]+) ", capsys.readouterr().out, re.M)
    found = json.loads(pathlib.Path("made.json").read_text())["detection_eval"]
    areas = [area(each["recall"], each["precision"], version) for each in found["classes"]]
    assert printed is not None and np.mean(areas) == pytest.approx(float(printed[1]), abs=1e-6) == pytest.approx(found["mean"], abs=1e-6)
    assert [each["ap"] for each in found["classes"]] == pytest.approx(areas, abs=1e-9) and areas[0] > 0
    counts = [(each["name"], each["boxes"], each["detections"], len(each["score"])) for each in found["classes"]]
    assert counts == [("1", 3, 3, 2), ("2", 2, 1, 1), ("3", 0, 0, 0)]


@pytest.mark.parametrize("version", VERSIONS)
def test_points_of_many_detections(version: str) -> None:
    detections = made(version)
    pathlib.Path("made.json").write_bytes(class_scores({"eval": detections}, {}, {2: "cat"}))
    found = read_class_scores("made.json")["eval"]
    assert isinstance(found, Detected) and [name for name, _ in found.classes] == ["1", "cat", "3", "4"]
    for (_, points), (_, _, precision) in zip(found.classes, detections.by_class().values()):
        assert average_precision(points, version) == precision == pytest.approx(area(list(points.recall), list(points.precision), version), abs=1e-12)
        assert (np.diff(points.score) <= 0).all() and (np.diff(points.recall) > 0).all()


def test_segmentation(device: object) -> None:
    """IoU of all pixels of the test. Class 4 does not occur."""
    assert main(command(SEGMENTER, "--scores", "made.json")) == 0
    found = read_class_scores("made.json")["seg/mean_iou"]
    assert isinstance(found, Segmented)
    scores, labels = (np.concatenate(each) for each in zip(*(maps(number) for number in range(3))))
    best, kept = scores.argmax(1)[:, None], labels != 255
    expected = [((best == c) & (labels == c) & kept).sum() / (((best == c) | (labels == c)) & kept).sum() for c in range(4)]
    assert [iou for _, iou in found.classes] == pytest.approx([*expected, np.nan], nan_ok=True) and found.mean == pytest.approx(np.mean(expected))


@pytest.mark.parametrize("version", VERSIONS)
def test_drawn_curves(version: str) -> None:
    """The area below each curve, or the mean of its 11 points, is the AP of the class. The first curve is that of the mean."""
    pytest.importorskip("matplotlib")
    detections = made(version)
    pathlib.Path("made.json").write_bytes(class_scores({"eval": detections}, {}, {}))
    found = read_class_scores("made.json")["eval"]
    assert isinstance(found, Detected)
    axes = new_figure(6, 6).subplots()
    _curves(axes, found)
    drawn = [line.get_data() for line in axes.lines]
    areas = [np.mean(y) if version == "11point" else np.diff(x) @ y[1:] for x, y in drawn]
    assert areas == pytest.approx([detections.mean, *(precision for _, _, precision in detections.by_class().values())])
    assert axes.get_legend().get_texts()[1].get_text() == f"{100 * areas[1]:.1f} % 1"


def test_plot() -> None:
    """Two files, with a detector and a segmentation. Names are not formulas."""
    pytest.importorskip("matplotlib")
    pathlib.Path("one.json").write_bytes(class_scores({"eval": made("Integral")}, {"seg/mean_iou": np.diag([3, 0, 2])}, {1: "_$a", 2: "b$_"}, ["sky"]))
    pathlib.Path("two.json").write_bytes(class_scores({"eval": made("11point")}, {}, {}))
    assert main(["plot", "one.json", "two.json", "-o", "out.svg"]) == 0
    picture = pathlib.Path("out.svg").read_text()
    for text in ("one: eval", "one: seg/mean_iou", "two: eval", "AP, Integral", "AP, 11point", "0.0 % 3", "100.0 % mean", "recall", "IoU", "sky", "2"):
        assert f"<!-- {text} -->" in picture, text
    assert render_classes({"many": Segmented(0.5, [(str(n), 0.5) for n in range(3)])}, "png", "t").startswith(b"\x89PNG")


def test_mistakes(device: object, capsys: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("none.json").write_text("{}")
    short = {"name": "b", "boxes": 1, "detections": 1, "score": [], "recall": [1], "precision": []}
    pathlib.Path("short.json").write_text(json.dumps({"a": {"ap_version": "Integral", "classes": [short]}}))
    for arguments, told in (
        (command("", "--scores", "made.json"), "no layer DetectionEvaluate or SegAccuracy"),
        (command("", "--scores", "no/made.json"), "its folder does not exist"),
        (["plot", "absent.json"], "cannot be read"),
        (["plot", "none.json"], "it has no classes"),
        (["plot", "short.json"], "class 'b' has 0 scores, 1 recalls and 0 precisions"),
        (["plot", "none.json", "a.log"], "none.json has the scores of a test, and a.log belongs to logs"),
        (["plot", "none.json", "--seconds"], "and --seconds belongs to logs"),
    ):
        assert main(arguments) == 1
        assert told in capsys.readouterr().err
    assert not pathlib.Path("made.json").exists()
