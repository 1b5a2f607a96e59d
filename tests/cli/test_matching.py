"""Weights of which no layer, or not every layer, has the name of a layer of the net."""
from __future__ import annotations

import pathlib
import shutil
from typing import Any

import pytest

from ocaffe.cli import main

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture
def net(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the text of files/train_net.prototxt, whose weights are files/init.caffemodel."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / "files", "files")
    return pathlib.Path("files/train_net.prototxt").read_text()


@pytest.fixture
def commands(device: Any) -> list[list[str]]:
    weights = ["--weights=files/init.caffemodel", f"--device={device.number}"]
    return [["train", "--solver=solver.prototxt", *weights], ["test", "--model=net.prototxt", "--iterations=1", *weights]]


def write(text: str) -> None:
    pathlib.Path("net.prototxt").write_text(text)
    pathlib.Path("solver.prototxt").write_text('net: "net.prototxt" test_iter: 1 test_interval: 2 base_lr: 0 lr_policy: "fixed" max_iter: 1')


def renamed(text: str, count: int) -> str:
    """Give the first `count` layers with parameters other names."""
    for name in ("conv1", "ip1")[:count]:
        assert f'name: "{name}"' in text
        text = text.replace(f'name: "{name}"', f'name: "{name}_new"')
    return text


def test_no_layer_matches(net: str, commands: list[list[str]], capfd: pytest.CaptureFixture[str]) -> None:
    write(renamed(net, 2))
    for command in commands:
        assert main(command) == 1
        error = capfd.readouterr().err
        assert "files/init.caffemodel\n  no layer of the file has the name of a layer of the net" in error
        assert "the file has 'conv1', 'ip1';" in error and "the net has 'conv1_new', 'ip1_new'" in error and "--allow-no-match" in error
        assert main([*command, "--allow-no-match"]) == 0
        assert "] 0 of the 2 layers with parameters" in capfd.readouterr().err
    assert pathlib.Path("solver_iter_1.caffemodel").exists()


def test_some_layers_match(net: str, commands: list[list[str]], capfd: pytest.CaptureFixture[str]) -> None:
    write(renamed(net, 1))
    for command in commands:
        assert main(command) == 0
        lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("W") and "layers with parameters" in line]
        fact = "1 of the 2 layers with parameters got them from files/init.caffemodel; these keep the values of their fillers: 'conv1_new'"
        assert [line.split("] ")[1] for line in lines] == [fact]


def test_all_layers_match(net: str, commands: list[list[str]], capfd: pytest.CaptureFixture[str]) -> None:
    write(net)
    for command in commands:
        assert main(command) == 0
        assert "layers with parameters" not in capfd.readouterr().err
