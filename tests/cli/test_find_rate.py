"""`ocaffe train --find-lr`: a short training with rising rates, and a base_lr."""
from __future__ import annotations

import os
import pathlib
import re
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.solver.rate_range import HIGHEST, LOWEST, STEPS, RateRange, ranged

NET = """
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param { shape { dim: 16 dim: 8 } shape { dim: 16 }
        data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" PARAM inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = 'base_lr: 5 lr_policy: "step" stepsize: 3 gamma: 0.5 max_iter: 9 momentum: 0.9 snapshot: 2 snapshot_prefix: "snap" random_seed: 1 '
TESTS = "test_iter: 1 test_interval: 2 ema_decay: 0.9 warmup_iter: 4 "


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def find(device: Any, param: str = "", *more: str) -> int:
    pathlib.Path("net.prototxt").write_text(NET.replace("PARAM", param))
    pathlib.Path("solver.prototxt").write_text(f'net: "net.prototxt" {SOLVER}{TESTS}')
    return main(["train", "--solver", "solver.prototxt", "--find-lr", "--device", str(device.number), *more])


def test_it_suggests_a_rate_and_writes_nothing(device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert find(device) == 0
    told = capfd.readouterr().out
    rate = float(re.search(r"ocaffe train --solver solver.prototxt --set base_lr=(\S+)\n$", told)[1])  # type: ignore[index]
    rows = [tuple(map(float, line.split()[:2])) for line in told.splitlines() if re.match(r"\s*\d", line)]
    assert rows[0][0] == pytest.approx(LOWEST, rel=0.05) and min(loss for _, loss in rows) < 0.9 * rows[0][1]
    assert LOWEST < rate < HIGHEST and sorted(os.listdir(".")) == ["net.prototxt", "solver.prototxt"]
    assert main(["train", "--solver", "solver.prototxt", "--set", f"base_lr={rate:g}", "--device", str(device.number)]) == 0


def test_a_net_that_no_rate_helps(device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert find(device, "param { lr_mult: 0 } param { lr_mult: 0 }") == 1
    told = capfd.readouterr().err
    assert "no rate from 1e-06" in told and "solver.prototxt" in told and "fix: " in told


@pytest.mark.parametrize("flags, fact", [
    (["--snapshot", "auto"], "--snapshot resumes one"), (["--gpu", "all"], "one device"),
])  # fmt: skip
def test_flags_that_have_no_meaning(flags: list[str], fact: str, device: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ocaffe.cli.train.listed", lambda options: [device.info] if options.gpu == "all" else [])
    assert find(device, "", *flags) == 1
    assert fact in capfd.readouterr().err


def test_the_solver_of_the_test_keeps_the_update_alone() -> None:
    param = proto.SolverParameter(type="Adam", momentum=0.8, weight_decay=0.1, test_iter=[3], best_output="a", snapshot=3, warmup_iter=2, iter_size=2)
    made = ranged(param)
    kept = (made.type, made.weight_decay, made.iter_size, made.max_iter, made.lr_policy)
    assert kept == ("Adam", pytest.approx(0.1), 2, STEPS, "exp")
    assert not made.test_iter and not made.best_output and not made.snapshot and not made.warmup_iter and not made.snapshot_after_train
    assert made.base_lr * made.gamma**STEPS == pytest.approx(HIGHEST, rel=1e-3)


def test_a_loss_that_is_not_finite() -> None:
    found = RateRange()
    found.record({"phase": "train", "loss": float("nan"), "lr": 1e-6})
    with pytest.raises(Error, match="no loss is finite"):
        found.suggestion()
