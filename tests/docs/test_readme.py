"""The README: its length, its sentences, and every command that it shows."""
from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from docs import make_performance
from tests.docs.commands import ROOT, commands
from tests.docs.readability import longest_sentence, reading_ease
from tests.zoo.digits import write_folders

README = ROOT / "README.md"
# The fresh clone of .ci/run executes these, and bin/test executes this test.
ELSEWHERE = {"bin/quickstart", "bin/test", "python3 -m venv .venv && . .venv/bin/activate", "pip install '.[cpu]'"}


def test_lines() -> None:
    lines = README.read_text().splitlines()
    assert len(lines) <= 150 and max(map(len, lines)) <= 120


def test_sentences() -> None:
    text = re.sub(r"<.*?>", "", README.read_text(), flags=re.DOTALL)
    assert longest_sentence(text) <= 30 and reading_ease(text) >= 50


def test_pages_exist() -> None:
    for page in re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", README.read_text()):
        assert (ROOT / (page[0] or page[1])).exists(), page


def test_tables_and_charts_are_those_of_the_benchmarks() -> None:
    assert make_performance.PAGE.read_text() == make_performance.page(), "python docs/make_performance.py"
    assert {path: path.read_text() for path in make_performance.CHARTS.glob("*.svg")} == make_performance.charts(), "python docs/make_performance.py"


def test_commands(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands in their order, in one folder with images, a net, a solver and a script."""
    write_folders(tmp_path / "photos", 8, classes=3)
    shutil.copy(next((tmp_path / "photos").rglob("*.png")), tmp_path / "image.jpg")
    monkeypatch.chdir(tmp_path)
    run = "import sys; from ocaffe.cli import main; sys.exit(main())"
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def ocaffe(*arguments: str) -> str:
        done = subprocess.run([sys.executable, "-c", run, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, (arguments, done.stderr[-2000:])
        return done.stdout

    ocaffe("new", "lenet", "--data", "photos", "--out", "old", "--iterations", "20", "--batch", "8")
    shutil.copy("old/train_val.prototxt", "train_val.prototxt")
    shutil.copy("old/deploy.prototxt", "deploy.prototxt")
    solver = pathlib.Path("old/solver.prototxt").read_text()
    pathlib.Path("solver.prototxt").write_text(re.sub(r'(net|snapshot_prefix): "[^"]*/', r'\1: "', solver))
    shown = commands(README)
    for command in shown:
        if command in ELSEWHERE:
            continue
        words = command.replace("'", "").split()
        assert words[0] == "ocaffe", f"{command}: this test does not run it"
        out = ocaffe(*words[1:])
        if words[1] == "train" and not pathlib.Path("net.caffemodel").exists():
            shutil.copy(next(pathlib.Path().glob("*_iter_20.caffemodel")), "net.caffemodel")
        if words[1] == "predict":
            assert out.startswith("image.jpg")
        if words[1] == "plan":
            assert "1900" in out or "MiB" in out
    assert set(shown) >= ELSEWHERE


def test_python_of_the_readme(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.M | re.S)
    import ocaffe

    monkeypatch.chdir(tmp_path)
    net = (ROOT / "zoo/lenet/deploy.prototxt").read_text()
    pathlib.Path("deploy.prototxt").write_text(net)
    ocaffe.Net("deploy.prototxt", ocaffe.TEST).save("net.caffemodel")
    variables = {"images": np.zeros((3, 1, 28, 28), np.float32)}
    exec(code, variables)
    assert np.asarray(variables["scores"]).shape == (3, 10)
