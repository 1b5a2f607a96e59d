"""What `ocaffe plan` says beside the plan for a GPU with its own memory: the driver's context, a first start, and the host's memory."""
from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from ocaffe.cl.workers import most_contexts
from ocaffe.cli import plan
from ocaffe.solver.planning import Machine

MIB = 1 << 20
NET = """
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "missing" backend: LMDB batch_size: 8 } transform_param { crop_size: 32 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 4 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = 'train_net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1'


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver, and a device with a context of 500 MiB and room for four compilers."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("net.prototxt").write_text(NET)
    pathlib.Path("solver.prototxt").write_text(SOLVER)
    machine = plan._machine

    def with_driver(options: Any, timed: bool) -> Machine:
        return machine(options, timed)._replace(context=500 * MIB, compilers=2000 * MIB)

    monkeypatch.setattr(plan, "_machine", with_driver)


def planned(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[str, dict[str, Any]]:
    plan.main(["--solver", "solver.prototxt", "--json", "plan.json", *flags])
    return capsys.readouterr().out, json.loads(pathlib.Path("plan.json").read_text())


def test_a_first_start_shows_more(capsys: pytest.CaptureFixture[str]) -> None:
    said, numbers = planned(capsys)
    fixed = sum(size for name, size in numbers["categories"].items() if name != "recycled")
    assert "while a first start builds programs it shows up to 2.4 GiB" in said
    assert numbers["first_start_bytes"] == 2500 * MIB + fixed


def test_with_a_limit_it_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    said, numbers = planned(capsys, "--memory-limit", "50M")
    assert "first start" not in said and "with the driver's context of 500 MiB" in said
    assert numbers["first_start_bytes"] == 500 * MIB + numbers["total_bytes"]


def test_batches_are_in_the_hosts_memory(capsys: pytest.CaptureFixture[str]) -> None:
    said, numbers = planned(capsys)
    assert "memory of the host for batches: " in said
    assert 6 * 8 * 3 * 32 * 32 <= numbers["batches_bytes"] < 6 * 8 * 3 * 32 * 32 + 6 * 4096


@pytest.mark.parametrize(("room", "contexts"), [(0, 0), (499, 1), (1000, 2), (100_000, 10)])
def test_room_for_contexts(room: int, contexts: int) -> None:
    """A context may exceed the room by 32 MiB, and there are ten at most."""
    assert most_contexts(room * MIB, 500 * MIB) == contexts * 500 * MIB


def test_a_device_without_a_context_has_no_such_memory() -> None:
    assert most_contexts(1 << 40, 0) == 0
