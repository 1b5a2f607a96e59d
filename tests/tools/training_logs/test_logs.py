"""parse_log and plot: golden logs of real Caffe, and logs that Caffe's parse_log.py does not handle."""
from __future__ import annotations

import math
import pathlib
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

from ocaffe.cli import main
from ocaffe.tools.drawing.plots import panels
from ocaffe.tools.training_logs.logs import read_log

pytestmark = pytest.mark.quick

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden" / "files"
LOG = str(GOLDEN / "caffe_train.log")


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_golden_csv(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["parse_log", LOG, str(tmp_path), "--verbose"]) == 0
    for name in ("caffe_train.log.train", "caffe_train.log.test"):
        assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()
        assert f"Wrote {tmp_path / name}" in capfd.readouterr().out or name.endswith("test")


def test_delimiter(tmp_path: pathlib.Path) -> None:
    assert main(["parse_log", LOG, ".", "--delimiter=;"]) == 0
    assert (tmp_path / "caffe_train.log.test").read_bytes() == (GOLDEN / "caffe_train.log.test").read_bytes().replace(b",", b";")


MADE = """I1231 23:59:59.500000  1 solver.cpp:289] Solving Net
I1231 23:59:59.600000  1 solver.cpp:347] Iteration 0, Testing net (#0)
I1231 23:59:59.700000  1 solver.cpp:414]     Test net output #0: accuracy = 0.5
I0101 00:00:01.000000  1 solver.cpp:239] Iteration 0 (0 iter/s, 1.5s/10 iters), loss = 2.5
I0101 00:00:01.000000  1 solver.cpp:258]     Train net output #0: loss = 2.25 (* 1 = 2.25 loss)
Iteration 5 in a line of some Python layer, accuracy = 3
I0101 00:00:01.000001  1 sgd_solver.cpp:112] Iteration 0, lr = 1e-3
I0101 00:00:02.500000  1 solver.cpp:239] Iteration 10 (10 iter/s, 1s/10 iters), loss = nan
I0101 00:00:02.500000  1 solver.cpp:258]     Train net output #0: loss = nan (* 1 = nan loss)
I0101 00:00:02.500001  1 sgd_solver.cpp:112] Iteration 10, lr = 0.0005
"""


@pytest.mark.parametrize("dates", [("I1231", "I0101"), ("I20231231", "I20240101")])
def test_new_year_nan_and_a_single_test(dates: tuple[str, str]) -> None:
    pathlib.Path("made.log").write_text(MADE.replace("I1231", dates[0]).replace("I0101", dates[1]))
    log = read_log("made.log")
    assert [(row["NumIters"], row["Seconds"]) for row in log.train] == [(0, 1.5), (10, 3)] and math.isnan(log.train[1]["loss"])
    assert len(log.test) == 1 and log.test[0]["accuracy"] == 0.5 and log.test[0]["Seconds"] == 0.2
    assert [row["LearningRate"] for row in log.rates] == [1e-3, 5e-4] and [row["loss"] for row in log.loss][:1] == [2.5]


def test_log_without_test(capfd: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    pathlib.Path("made.log").write_text("".join(line for line in MADE.splitlines(True) if "Test" not in line))
    assert main(["parse_log", "made.log", ".", "--verbose"]) == 0
    assert "Not writing ./made.log.test; no lines to write" in capfd.readouterr().out and not (tmp_path / "made.log.test").exists()


def test_panels() -> None:
    drawn = panels([("a", read_log(LOG)), ("b", read_log(str(GOLDEN / "caffe_train_resume.log")))])
    assert {title: [(curve.run, curve.name, curve.test) for curve in curves] for title, curves in drawn.items()} == {
        "loss": [("a", "loss (smoothed)", False), ("a", "loss", True), ("b", "loss (smoothed)", False), ("b", "loss", True)],
        "accuracy": [("a", "accuracy", True), ("b", "accuracy", True)],
        "learning rate": [("a", "lr", False), ("b", "lr", False)],
    }
    rate = drawn["learning rate"][0]
    assert dict(zip(rate.x, rate.y)) == {0: 0.05, 2: 0.05, 4: 0.05, 6: 0.05, 8: 0.025, 10: 0.025, 12: 0.025, 14: 0.025}
    seconds = panels([("a", read_log(LOG))], seconds=True)["learning rate"][0]
    assert len(seconds.x) == 8 and max(seconds.x) < 1
    pathlib.Path("made.log").write_text(MADE)
    made = panels([("m", read_log("made.log"))])["loss"]
    assert [(curve.name, curve.x, curve.y) for curve in made] == [("loss (smoothed)", [0], [2.5]), ("loss", [0], [2.25])]  # nan is not plotted


@pytest.mark.parametrize("kind", ["png", "svg", "pdf", "html"])
def test_plot(kind: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "caffe_train.log").write_text(MADE)
    assert main(["plot", LOG, "other/caffe_train.log", "-o", f"out.{kind}", "--seconds"]) == 0
    content = (tmp_path / f"out.{kind}").read_bytes()
    if kind == "png":
        with Image.open("out.png") as image:
            assert image.size == (900, 960)
    elif kind == "pdf":
        assert content.startswith(b"%PDF")
    else:
        text = content.decode()
        root = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
        paths = [each for each in root.iter("{http://www.w3.org/2000/svg}g") if each.get("id", "").startswith("line2d")]
        assert len(paths) > 8
        assert ("<html>" in text) == (kind == "html")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["parse_log", "none.log", "."], ["none.log", "No such file"]),
        (["parse_log", "empty.log", "."], ["empty.log", "no lines with training output"]),
        (["parse_log", LOG, "no/folder"], ["no/folder", "make the folder"]),
        (["parse_log", LOG, ".", "--delimiter=ab"], ["--delimiter is 'ab'"]),
        (["plot", LOG, "-o", "out.gif"], ["out.gif", ".html"]),
        (["plot", "-o", "out.png"], ["FILE"]),
    ],
)
def test_refused(arguments: list[str], told: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    pathlib.Path("empty.log").write_text("nothing\n")
    assert main(arguments) == 1
    said = capfd.readouterr().err
    assert all(text in said for text in told), said


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    assert main(["plot", LOG, "--output=out.png"]) == 1
    assert "ocaffe[plot]" in capfd.readouterr().err
