"""README.md of each net, and the table of docs/zoo.md, are those that docs/make_zoo.py writes. The commands run in a checkout."""
from __future__ import annotations

import json
import pathlib
import re
import shutil
from typing import Any

import pytest
from PIL import Image

from docs import make_zoo
from ocaffe.cli import main
from ocaffe.zoo import FOLDER
from ocaffe.zoo.about import ABOUT
from ocaffe.zoo.templates import names
from tests.cli.test_dataset import FILES
from tests.harness import switch


def test_every_net_has_sentences() -> None:
    assert sorted(ABOUT) == names()


def test_files_are_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plans of all nets are made for this. They are not verified, because other tests do that."""
    switch(monkeypatch, "verify=0")
    for path, text in make_zoo.readmes().items():
        assert path.read_text(encoding="utf-8") == text, f"run `python docs/make_zoo.py`: {path.parent.name}"
        assert len(text.splitlines()) == 10
    assert make_zoo.PAGE.read_text(encoding="utf-8") == make_zoo.page(), "run `python docs/make_zoo.py`"


def test_times(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of nets on one of two devices, with another batch. Those of a busy machine are left out."""
    monkeypatch.setattr(make_zoo, "BENCHMARKS", tmp_path)
    monkeypatch.setattr(make_zoo, "names", lambda: ["lenet", "lenet_digits"])
    row = {"forward_ms": 0.0512, "batch": 8, "train_ms": 12.34, "busy": False}
    table = {"device": "a device", "threads": 2, "nets": {"lenet": row, "lenet_digits": {**row, "busy": True}}}
    (tmp_path / "zoo_cpu.json").write_text(json.dumps(table))
    for cached in (make_zoo.measured, make_zoo.net):
        cached.cache_clear()
    try:
        texts, lines = [make_zoo.readme(name) for name in make_zoo.names()], list(make_zoo.table())
    finally:
        for cached in (make_zoo.measured, make_zoo.net):
            cached.cache_clear()
    assert "; 0.051 ms on the CPU\n" in texts[0] and "of memory; 12.3 ms on the CPU, batches of 8 images\n" in texts[0]
    assert " ms on the " not in texts[1]
    assert lines[2].startswith("| lenet | 431,080 | ") and lines[2].endswith(" | 64 | 8.8 MiB | 0.051 | 12.3 (8) |  |  |")
    assert lines[3].endswith(" | 64 | 8.8 MiB |  |  |  |  |") and lines[5:] == ["CPU: a device, 2 processor cores.\n"]


def test_commands_run_in_a_checkout(tmp_path: pathlib.Path, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of LeNet's README.md, from the data to a prediction, with few images and iterations."""
    shutil.copytree(FOLDER, tmp_path / "zoo")
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        pathlib.Path(name).write_bytes(content)
    Image.new("L", (28, 28)).save("image.jpg")
    commands = [line.split() for line in re.findall(r"`ocaffe ([^`]+)`", pathlib.Path("zoo/lenet/README.md").read_text()) if not line.startswith("new ")]
    on, short = ["--device", device.number], ["--set", "max_iter=3", "--set", "test_iter=1"]
    more = {"dataset": ["--from", "."], "train": [*on, *short], "test": on, "predict": on}
    assert [command[0] for command in commands] == list(more)
    for command in commands:
        assert main([*command, *more[command[0]]]) == 0, command
        if command[0] == "train":
            pathlib.Path("examples/mnist/lenet_iter_3.caffemodel").rename("examples/mnist/lenet_iter_10000.caffemodel")
