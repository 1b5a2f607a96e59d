"""The model of docs/scale-out.md: its limiting cases, and the committed figures."""
from __future__ import annotations

import dataclasses
import importlib.util
import json
import pathlib
import sys
from types import ModuleType

import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_out", FOLDER / "scale_out.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["scale_out"] = made  # dataclasses look the module up
    spec.loader.exec_module(made)
    return made


def test_without_latency_and_jitter(model: ModuleType) -> None:
    machine = model.Machine(latency=0.0, switch=0.0, jitter=0.0, hidden=0.0)
    net = model.Net("n", 0.1, 1e9, 8)
    assert model.efficiency(net, 1, machine, "ring") == 1
    assert model.flat_ring(net, 8, machine) == pytest.approx(2 * 7 / 8 * 1e9 / machine.link)
    assert model.flat_ring(net, 800, machine) == pytest.approx(2 * 799 / 800 * 1e9 / machine.network)
    assert model.flat_tree(net, 64, machine) == pytest.approx(2e9 / machine.network)
    inside, between = 2 * 7 / 8 * 1e9 / machine.link, 2 * 9 / 10 * 1e9 / 8 / machine.network
    assert model.hierarchy(net, 80, machine) == pytest.approx(inside + between)
    assert model.staged(net, 2, machine) == pytest.approx(2e9 / machine.bus)
    assert model.staged(net, 2, dataclasses.replace(machine, hidden=1.0)) == 0


def test_latency_grows_with_messages(model: ModuleType) -> None:
    machine = model.Machine(latency=1e-3, switch=0.0)
    nothing = model.Net("n", 0.1, 0.0, 8)
    assert model.flat_ring(nothing, 64, machine) == pytest.approx(2 * 63 * 1e-3) and model.flat_tree(nothing, 64, machine) == pytest.approx(2 * 6 * 1e-3)


def test_the_slowest_of_many(model: ModuleType) -> None:
    assert model.slowest(64, 0.0) == model.slowest(1, 0.5) == 1
    assert 1 < model.slowest(2, 0.02) < model.slowest(64, 0.02) < model.slowest(1000, 0.02) < 1.1
    assert model.slowest(2, 0.02) == pytest.approx(1 + 0.02 * 0.5642, abs=2e-3)  # the mean of the larger of two normal numbers is sigma / sqrt(pi)


def test_committed_figures(model: ModuleType) -> None:
    stored = json.loads((FOLDER / "scale_out.json").read_text())
    page = (FOLDER.parent / "docs" / "scale-out.md").read_text()
    for net in model.NETS:
        for kind in model.KINDS:
            values = [100 * model.efficiency(net, count, model.Machine(), kind) for count in model.COUNTS]
            assert values == pytest.approx(list(stored["nets"][net.name][kind].values()), abs=0.06)
            assert f"| {net.name} | {kind} | {' | '.join(f'{value:.0f} %' for value in stored['nets'][net.name][kind].values())} |" in page
