"""A solver reads each file of weights once, and upgrades each net once."""
from __future__ import annotations

import pathlib
from collections import Counter
from typing import Any

import numpy as np
import pytest

from ocaffe.cl.device import Device
from ocaffe.cli import main
from ocaffe.formats import upgrade, wire
from ocaffe.solver.solver import Solver

NET = """
layer { name: "in" type: "DummyData" top: "x" top: "t" dummy_data_param {
  shape { dim: 4 dim: 3 } shape { dim: 4 } data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "loss" }
"""
SOLVER = """net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 2 test_iter: 1 test_iter: 1 test_interval: 1 test_initialization: false random_seed: 1
snapshot_prefix: "snap" """


@pytest.fixture(autouse=True)
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("net.prototxt").write_text(NET)
    pathlib.Path("solver.prototxt").write_text(SOLVER)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of times that each file of weights was read."""
    found: Counter[str] = Counter()
    original = wire.map_file

    def map_file(path: Any) -> Any:
        found[str(path)] += 1
        return original(path)

    monkeypatch.setattr(wire, "map_file", map_file)
    return found


def trained(device: Device, **settings: Any) -> np.ndarray:
    solver = Solver("solver.prototxt", device, **settings)
    try:
        solver.solve()
        return solver.network.parameter_arrays()["ip"][0]
    finally:
        solver.close()


def test_weights_are_read_once(device: Device, reads: Counter[str]) -> None:
    """A training with two TEST nets reads the file that it starts from, or that it resumes from, once."""
    trained(device)
    assert not reads
    trained(device, weights=["snap_iter_2.caffemodel"])
    assert reads == {"snap_iter_2.caffemodel": 1}
    reads.clear()
    trained(device, resume="snap_iter_2.solverstate")
    assert reads["snap_iter_2.caffemodel"] == 1


def test_nets_are_upgraded_once(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The TRAIN net and two TEST nets, also with another batch size."""
    upgraded: list[Any] = []
    original = upgrade._check_layers
    monkeypatch.setattr(upgrade, "_check_layers", lambda net, say: (upgraded.append(net), original(net, say))[1])
    trained(device, batch=2)
    assert len(upgraded) == 3


@pytest.mark.parametrize("command", ["test", "compare"])
def test_commands_read_weights_once(device: Device, reads: Counter[str], command: str, capsys: pytest.CaptureFixture[str]) -> None:
    trained(device)
    more = ["--iterations=1"] if command == "test" else []
    assert main([command, "--model=net.prototxt", "--weights=snap_iter_2.caffemodel", f"--device={device.number}", *more]) == 0
    assert reads == {"snap_iter_2.caffemodel": 1}
