"""parse_log and plot: golden logs of real Caffe, and logs that Caffe's parse_log.py does not handle."""
from __future__ import annotations

import math
import pathlib
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.tools.drawing.plots import panels
from ocaffe.tools.training_logs.logs import csv_text, read_log

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
        (["parse_log", LOG, ".", "--delimiter=ab"], ["--delimiter is 'ab', 2 characters", "--delimiter 'a'"]),
        (["parse_log", LOG, ".", r"--delimiter=\t"], ["a backslash and the letter t", r"--delimiter=$'\t', which is a tab in bash and zsh"]),
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
    assert "pip install matplotlib" in capfd.readouterr().err


SECOND = "I0221 10:00:{:02d}.000000  1 solver.cpp:10] {}\n"


def made_log(tests: list[list[list[str]]], train: list[str]) -> str:
    """A log in which each iteration tests nets with these outputs (repeated names are elements of one blob). All values differ."""
    values = iter(range(1, 1 << 20))
    text = SECOND.format(0, "Solving Net")
    for index, nets in enumerate(tests):
        lines = []
        for net, names in enumerate(nets):
            lines += [f"Iteration {20 * index}, Testing net (#{net})"]
            lines += [f"    Test net output #{number}: {name} = {next(values)}" for number, name in enumerate(names)]
        lines += [f"Iteration {20 * index} (1 iter/s, 1s/20 iters), loss = 0.5"]
        lines += [f"    Train net output #{number}: {name} = {next(values)} (* 1 = 1 loss)" for number, name in enumerate(train)]
        text += "".join(SECOND.format(index, line) for line in [*lines, f"Iteration {20 * index}, lr = 0.1"])
    return text


def parsed(text: str) -> tuple[list[str], list[str]]:
    """The lines of the CSV files of TEST and TRAIN."""
    pathlib.Path("made.log").write_text(text)
    assert main(["parse_log", "made.log", "."]) == 0
    files = [pathlib.Path(f"made.log.{name}") for name in ("test", "train")]
    test, train = (file.read_text().splitlines() if file.exists() else [] for file in files)
    return test, train


ALIKE = [["accuracy", "loss"], ["accuracy", "loss"]]
KEPT = [  # the outputs of the TEST nets in each test, the CSV
    ([ALIKE, ALIKE], ["TestNet,accuracy,loss", "0,1.0,2.0", "1,3.0,4.0", "0,6.0,7.0", "1,8.0,9.0"]),
    ([[["a"], ["a", "b"]]] * 2, ["TestNet,a,b", "0,1.0,", "1,2.0,3.0", "0,5.0,", "1,6.0,7.0"]),
    ([[["c", "c", "c"]]] * 2, ["c,c[1],c[2]", "1.0,2.0,3.0", "5.0,6.0,7.0"]),
    ([[["a"]], [["a", "b"]]], ["a,b", "1.0,", "3.0,4.0"]),  # parse_log.py ends with an exception
    ([[["a"], ["b"]]] * 2, ["a,b", "1.0,2.0", "4.0,5.0"]),  # parse_log.py loses none: the same CSV
    ([[["a", "b"]], [["a"]], [["a", "b"]]], ["a,b", "1.0,2.0", "4.0,", "6.0,7.0"]),
]


@pytest.mark.parametrize(("tests", "wanted"), KEPT)
def test_every_number_of_every_test_net_is_kept(tests: list[list[list[str]]], wanted: list[str]) -> None:
    """Caffe's script writes the outputs of two TEST nets over each other, and the elements of an output too."""
    lines, _ = parsed(made_log(tests, ["loss"]))
    assert [line.split(",", 3)[3] for line in lines] == wanted
    assert all(line.split(",")[2] == "0.1" for line in lines[1:]), "no rate is missing"


def test_random_logs_lose_nothing() -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        tests = [[rng.choice(["a", "b", "c"], rng.integers(1, 4)).tolist() for _ in range(rng.integers(1, 4))] for _ in range(rng.integers(1, 4))]
        text = made_log(tests, rng.choice(["x", "y"], rng.integers(1, 3)).tolist())
        for lines, kind in zip(parsed(text), ("Test", "Train")):
            numbers = [float(line.split(" = ")[1].split()[0]) for line in text.splitlines() if f"{kind} net output" in line]
            columns = [number for number, name in enumerate(lines[0].split(",")) if name not in ("NumIters", "Seconds", "LearningRate", "TestNet")]
            found = [float(cell) for line in lines[1:] for number, cell in enumerate(line.split(",")) if number in columns and cell]
            assert sorted(found) == numbers, text


def test_a_training_that_was_resumed_in_the_same_log() -> None:
    """The last test of the first run and the first test of the second one have the same iteration and are two rows."""
    text = made_log([[["a"]]], ["loss"])
    lines, _ = parsed(text + text.replace("= 1\n", "= 7\n"))
    assert [line.split(",")[3] for line in lines] == ["a", "1.0", "7.0"]


def test_infinite_values_and_utf_16() -> None:
    """PowerShell's `>` writes UTF-16."""
    text = made_log([[["a"]], [["a"]]], ["loss"]).replace("a = 1\n", "a = -inf\n")
    pathlib.Path("wide.log").write_text(text, encoding="utf-16")
    assert [row["a"] for row in read_log("wide.log").test] == [-math.inf, 3]
    pathlib.Path("marked.log").write_text(text, encoding="utf-8-sig")
    assert read_log("marked.log").train == read_log("wide.log").train


def test_panels_of_two_test_nets() -> None:
    pathlib.Path("made.log").write_text(made_log([ALIKE, ALIKE], ["loss"]))
    drawn = panels([("m", read_log("made.log"))])
    assert [(curve.name, curve.y) for curve in drawn["accuracy"]] == [("accuracy (net 0)", [1, 6]), ("accuracy (net 1)", [3, 8])]


def test_numbers_of_thousands_of_digits_are_no_records() -> None:
    long = "9" * 5000
    lines = [f"Iteration {long}, loss = 1", f"Iteration {long}, Testing net (#{long})", f"    Train net output #{long}: loss = 1", "Iteration 5, loss = 2"]
    pathlib.Path("long.log").write_text("".join(f"I1129 02:10:58.441526  6101 solver.cpp:327] {line}\n" for line in lines))
    log = read_log("long.log")
    assert [(row["NumIters"], row["loss"]) for row in log.loss] == [(5, 2)] and not log.train and not log.test


def test_a_table_that_is_nearly_empty_is_refused() -> None:
    """Else a log of a megabyte with other names in each line would become a table of gigabytes."""
    names = 3000
    rows = [{"NumIters": float(number), f"output {number}": 1.0} for number in range(names)]
    with pytest.raises(Error, match="3,000 rows and 3,001 columns for 6,000 values"):
        csv_text(rows)
    full = [{"NumIters": float(number)} | {f"output {name}": 1.0 for name in range(300)} for number in range(4000)]
    assert csv_text(full).count("\r\n") == 4001


def test_parse_log_keeps_its_input(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = pathlib.Path(LOG).read_bytes()
    pathlib.Path("a.log").write_bytes(text)
    pathlib.Path("a.log.train").hardlink_to("a.log")
    assert main(["parse_log", "a.log", "."]) == 1
    assert "a.log.train is the input a.log" in capsys.readouterr().err
    assert pathlib.Path("a.log").read_bytes() == text
