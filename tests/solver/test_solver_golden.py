"""Repeat training runs of real Caffe and compare rates, losses, test scores, parameters and history (tests/golden/solvers)."""
from __future__ import annotations

import pathlib
import re
import shutil
from typing import Any

import numpy as np
import pytest

from ocaffe.formats.text import read_net, read_solver
from ocaffe.formats.upgrade import upgrade_solver
from ocaffe.layers.base import registry
from ocaffe.solver.solver import Solver

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
TOLERANCE = 1e-4
CASES = sorted(path.name.removesuffix(".solver.prototxt") for path in (GOLDEN / "solvers").glob("*.solver.prototxt"))


@pytest.fixture
def golden(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Make a writable copy of golden/solvers the working directory."""
    shutil.copytree(GOLDEN / "solvers", tmp_path / "solvers")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def close(actual: np.ndarray, expected: np.ndarray, what: str, tolerance: float = TOLERANCE) -> None:
    scale = max(float(np.abs(expected).max(initial=0)), 1e-30)
    error = float(np.abs(np.asarray(actual, np.float64) - expected).max(initial=0)) / scale
    assert error <= tolerance, f"{what}: error {error:.3g} of {scale:.3g}"


def numbers(lines: list[str], pattern: str) -> np.ndarray:
    return np.array([float(match[1]) for match in (re.search(pattern, line) for line in lines) if match])


def need_layers(path: str) -> Any:
    """Return the solver's message. Skip the test if ocaffe lacks a layer of the net."""
    param = upgrade_solver(read_solver(path))
    absent = {layer.type for layer in read_net(param.net).layer} - set(registry())
    if absent:
        pytest.skip(f"layer not in the list: {', '.join(sorted(absent))}")
    return param


def compare(solver: Solver, arrays: Any, prefix: str) -> None:
    blobs = solver.network.parameter_arrays()
    keys = [key for key in arrays if key.startswith(prefix + "/")]
    assert keys
    for key in keys:
        _, layer, index = key.split("/")
        close(blobs[layer][int(index)], arrays[key], key)


@pytest.mark.parametrize("name", CASES)
def test_run(name: str, device: Any, golden: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = f"solvers/{name}.solver.prototxt"
    param = need_layers(path)
    arrays = dict(np.load(f"solvers/{name}.npz"))
    todo = {key for key in arrays if not key.startswith(("init", "resumed", "loss_last_pass"))}
    solver = Solver(param, device, file=path)
    try:
        solver.step(param.max_iter)  # as in the recorded run, without the last test and loss of solve
        compare(solver, arrays, "final")
        todo -= {key for key in todo if key.startswith("final")}
        if "history/0" in arrays:
            views = solver.history_views()
            for index, blob in enumerate(solver.history_arrays()):
                if views[index][1] is None:  # BatchNorm's statistics: Caffe stores an unused history of their weight decay
                    todo.discard(f"history/{index}")
                    continue
                close(blob, arrays[f"history/{index}"], f"history/{index}")
                todo.discard(f"history/{index}")
    finally:
        solver.close()
    lines = capsys.readouterr().err.splitlines()
    close(numbers(lines, r"Iteration \d+ \(.*loss = (\S+)"), arrays["log_loss"][: param.max_iter], "log_loss")
    rates = numbers(lines, r"Iteration \d+, lr = (\S+)")
    assert [f"{rate:g}" for rate in rates] == [f"{rate:g}" for rate in arrays["log_lr"]]
    if "lr" in arrays:
        assert [f"{rate:.6g}" for rate in rates] == [f"{rate:.6g}" for rate in arrays["lr"]]
    todo -= {"log_loss", "log_lr", "lr"}
    if "test_log" in arrays:
        compare_tests(lines, arrays["test_log"])
        todo.discard("test_log")
    assert not todo, f"not compared: {sorted(todo)}"


def compare_tests(lines: list[str], expected: np.ndarray) -> None:
    found = []
    iteration = 0
    for line in lines:
        if match := re.search(r"Iteration (\d+), Testing net", line):
            iteration = int(match[1])
        elif match := re.search(r"Test loss: (\S+)", line):
            found.append((iteration, -1, float(match[1])))
        elif match := re.search(r"Test net output #(\d+): \S+ = (\S+)", line):
            found.append((iteration, int(match[1]), float(match[2])))
    assert [row[:2] for row in found] == [(int(a), int(b)) for a, b, _ in expected]
    close(np.array([row[2] for row in found]), expected[:, 2], "test_log")


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("Snap-")])
def test_resume_from_caffes_snapshot(name: str, device: Any, golden: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_layers(f"solvers/{name}.solver.prototxt")
    arrays = dict(np.load(f"solvers/{name}.npz"))
    suffix = ".solverstate.h5" if "HDF5" in name else ".solverstate"
    solver = Solver(f"solvers/{name}.solver.prototxt", device, resume=f"solvers/{name}_iter_10{suffix}")
    try:
        solver.step(solver.param.max_iter - solver.iter)  # as in the recorded run; solve would run one more forward pass
        compare(solver, arrays, "resumed_final")
    finally:
        solver.close()
    lines = capsys.readouterr().err.splitlines()
    close(numbers(lines, r"Iteration \d+ \(.*loss = (\S+)"), arrays["resumed_log_loss"], "resumed_log_loss")


def test_ssd_training(device: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Twelve iterations of SSD's training.

    Matching and mining amplify rounding: noise of 3e-6 in the initial weights changes the final weights by 2e-4.
    """
    monkeypatch.chdir(GOLDEN)
    path = "forks/ssd_train.solver.prototxt"
    param = need_layers(path)
    arrays = dict(np.load("forks/ssd_train.npz"))
    solver = Solver(param, device, file=path)
    try:
        for key in [key for key in arrays if key.startswith("init/")]:
            _, layer, index = key.split("/")
            close(solver.network.parameter_arrays()[layer][int(index)], arrays[key], key, 0)
        solver.step(param.max_iter)
        final = solver.network.parameter_arrays()
    finally:
        solver.close()
    lines = capsys.readouterr().err.splitlines()
    close(numbers(lines, r"Iteration \d+ \(.*loss = (\S+)"), arrays["loss_last_pass"][: param.max_iter], "loss")
    for key in [key for key in arrays if key.startswith("final/")]:
        _, layer, index = key.split("/")
        close(final[layer][int(index)], arrays[key], key, 1e-3)
