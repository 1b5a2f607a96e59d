"""`ocaffe sweep`: the grid, the trainings as processes, the table, a second call, signals."""
from __future__ import annotations

import csv
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.cli.sweep import _criterion
from ocaffe.formats.text import parse
from ocaffe.support.lock import FileLock
from ocaffe.tools.sweep.training_queue import LOG, RECORDS, SOLVER

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "golden" / "files"


@pytest.fixture
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    shutil.copytree(FILES, tmp_path / "files")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sweep(device: Any, *flags: str, solver: str = "files/solver.prototxt", status: int = 0) -> dict[str, Any]:
    """Run a sweep in the folder out. Return results.json."""
    assert main(["sweep", solver, "--out=out", f"--device={device.number},{device.number}", *flags]) == status
    return dict(json.loads(pathlib.Path("out/results.json").read_text()))


def rows() -> list[dict[str, str]]:
    with open("out/results.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    assert main(["sweep", *args]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    return told


# -- whole sweeps ------------------------------------------------------------------------------------------------------


def test_a_grid_with_a_training_that_fails(device: Any, workplace: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rate of 1e30 diverges. The other one finishes, a second call trains only the failed one, and numbers are those of a training alone."""
    settings = ("--set", "base_lr=1e30,0.05", "--set=max_iter=20", "--by=loss")
    found = sweep(device, *settings, status=1)
    told = capsys.readouterr().out
    by_rate = {each["settings"]["base_lr"]: each for each in found["trainings"]}
    assert [by_rate[rate]["state"] for rate in ("0.05", "1e+30")] == ["finished", "failed"]
    assert "NaN or infinite" in by_rate["1e+30"]["error"] and by_rate["1e+30"]["error"].splitlines()[0] in told
    assert "1 of 2 trainings are not finished, 1 of them failed" in told
    folder = pathlib.Path(by_rate["0.05"]["folder"])
    assert folder == pathlib.Path("out/base_lr=0.05_max_iter=20") and (folder / "train_iter_20.caffemodel").exists()

    alone = pathlib.Path("alone.prototxt")
    text = (FILES / "solver.prototxt").read_text().replace("max_iter: 16", "max_iter: 20").replace("files/train\"", "alone\"")
    alone.write_text(text)
    assert main(["train", f"--solver={alone}", f"--device={device.number}", "--log_json=alone.jsonl"]) == 0
    records = [json.loads(line) for line in pathlib.Path("alone.jsonl").read_text().splitlines()]
    tests = {record["iteration"]: record["outputs"]["loss"][0] for record in records if record["phase"] == "test"}
    row = rows()[0]
    assert float(row["loss"]) == tests[20] == by_rate["0.05"]["last"]["loss"] and row["iteration"] == "20"
    assert float(row["best_loss"]) == min(tests.values()) and tests[int(row["best_iteration"])] == min(tests.values())
    assert pathlib.Path("alone_iter_20.caffemodel").read_bytes() == (folder / "train_iter_20.caffemodel").read_bytes()

    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = sweep(device, *settings, status=1)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before  # a finished training is left alone
    assert [each["state"] for each in again["trainings"]] == ["finished", "failed"]


def test_a_second_sweep_with_more_values_or_another_solver(device: Any, workplace: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = sweep(device, "--set=random_seed=1", "--set=max_iter=4")
    more = sweep(device, "--set=random_seed=1,2", "--set=max_iter=4")
    times = {each["settings"]["random_seed"]: each["seconds"] for each in more["trainings"]}
    assert times["1"] == first["trainings"][0]["seconds"] and set(times) == {"1", "2"}
    solver, net = pathlib.Path("files/solver.prototxt"), pathlib.Path("files/train_net.prototxt")
    flags = ["--out=out", "--set=random_seed=1", "--set=max_iter=4"]
    solver.write_text(solver.read_text().replace("momentum: 0.9", "momentum: 0.8"))
    assert "the solver had momentum: 0.9, it has momentum: 0.8" in refused(capsys, str(solver), *flags)
    solver.write_text(solver.read_text().replace("momentum: 0.8", "momentum: 0.9"))
    assert "the flags were none, they are --weights=files/init.caffemodel" in refused(capsys, str(solver), *flags, "--weights=files/init.caffemodel")
    net.write_text(net.read_text().replace("num_output: 4", "num_output: 5", 1))
    assert "its nets were other ones" in refused(capsys, str(solver), *flags)
    pathlib.Path("out/random_seed=1_max_iter=4/training.json").write_text("{")
    assert "is not the state of a training" in refused(capsys, str(solver), *flags)
    lock = FileLock(pathlib.Path("out/sweep.lock"))
    assert lock.acquire() is None
    assert "another sweep runs in this folder" in refused(capsys, str(solver), *flags)
    lock.release()


@pytest.mark.skipif(sys.platform != "linux", reason="signals of POSIX, and processes that end with their parent")
def test_signals_and_a_kill(device: Any, workplace: pathlib.Path) -> None:
    """Ctrl-C leaves a snapshot of each training, from which the same command continues. After a kill no training runs on."""
    command = [sys.executable, "-m", "ocaffe", "sweep", "files/solver.prototxt", "--out=out", "--set=base_lr=0.05,0.01,0.001", "--set=max_iter=100000000"]
    command += ["--set=snapshot=0", f"--device={device.number}", "--jobs-per-device=2"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    folders = [pathlib.Path(f"out/base_lr={rate}_max_iter=100000000_snapshot=0") for rate in ("0.05", "0.01")]
    begun: list[int] = []
    for number in (signal.SIGINT, signal.SIGKILL):
        sizes = [path.stat().st_size if (path := folder / "train.log").exists() else 0 for folder in folders]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            deadline = time.monotonic() + 60
            while not all(re.search(r"Iteration [1-9][0-9]* \(", _since(folder / "train.log", size)) for folder, size in zip(folders, sizes)):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(number)
            told = process.communicate(timeout=60)[0]
        finally:
            process.kill()
        assert process.returncode == (1 if number != signal.SIGKILL else -signal.SIGKILL), told
        for folder, size in zip(folders, sizes):
            text = _since(folder / "train.log", size)
            assert ("Resuming from" in text) == bool(begun)
            _wait_for(folder / "train.lock")
            if number != signal.SIGKILL:
                assert "Optimization stopped early." in text
        if number != signal.SIGKILL:
            assert [row["state"] for row in rows()] == ["stopped", "stopped", "waiting"] and "3 of 3 trainings are not finished, 0 of them failed" in told
            begun.append(min(int(row["iteration"]) for row in rows()[:2]))
    assert begun[0] > 0


def _since(path: pathlib.Path, size: int) -> str:
    return path.read_text()[size:] if path.exists() else ""


def _wait_for(path: pathlib.Path) -> None:
    """Wait until no process holds the lock of a training."""
    deadline = time.monotonic() + 10
    lock = FileLock(path)
    while lock.acquire() is not None:
        assert time.monotonic() < deadline, f"{path}: a training runs on"
        time.sleep(0.05)
    lock.release()


# -- errors before anything starts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, fact",
    [
        ([], "no --set is given"),
        (["--set", "base_lr"], "not of the form FIELD=VALUE,VALUE"),
        (["--set", "base_lr=0.1,fast"], "'base_lr' needs a number, found fast"),
        (["--set", "base_lr=0.1,,0.2"], "an empty value"),
        (["--set", "base_lr=0.1,1e-1"], "base_lr has the values 0.1 and 1e-1, which are equal"),
        (["--set", "base_lr=1 momentum: 2"], "1 momentum: 2 sets more than base_lr"),
        (["--set", "base_lr=1", "--set", "base_lr=2"], "--set gives base_lr 2 times"),
        (["--set", "base_rl=1"], "did you mean 'base_lr'?"),
        (["--set", "base_lr.x=1"], "base_lr has no fields"),
        (["--set", "train_state=1"], "train_state is a message"),
        (["--set", "snapshot_prefix=a,b"], "a sweep sets snapshot_prefix itself"),
        (["--set", "iter_size=1,0"], "files/solver.prototxt with iter_size=0\n  iter_size is 0"),
        (["--set", "lr_policy=step,steps"], "unknown lr_policy 'steps'"),
        (["--set", "net=files/train_net.prototxt,files/none.prototxt"], "files/none.prototxt"),
        (["--set", "base_lr=1", "--by=acuracy"], "--by is 'acuracy', the outputs are accuracy, loss, train_loss"),
        (["--set", "base_lr=1", "--jobs-per-device=0"], "--jobs-per-device is 0"),
        (["--set", "base_lr=1", "--gpu=0,,1"], "--gpu is '0,,1'"),
        (["--set", "base_lr=1", "--device=voodoo"], "--device voodoo matches no device"),
    ],
)
def test_mistakes(flags: list[str], fact: str, workplace: pathlib.Path, capsys: pytest.CaptureFixture[str], device: Any) -> None:
    assert fact in refused(capsys, "files/solver.prototxt", "--out=out", *flags)
    assert not pathlib.Path("out").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right")
@pytest.mark.parametrize("name", ["results.csv", "results.json", "base_lr=0.1", *(f"base_lr=0.1/{name}" for name in (SOLVER, LOG, RECORDS))])
def test_links_in_the_folder(name: str, workplace: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder may be that of a stranger."""
    victim, link = workplace / "thesis.txt", workplace / "out" / name
    victim.write_text("precious")
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    assert "it is a link" in refused(capsys, "files/solver.prototxt", "--out=out", "--set", "base_lr=0.1")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    "by, fields, outputs, name, lower",
    [
        ("", "", {"loss": True, "accuracy": False}, "accuracy", False),
        ("", "best_output: 'loss'", {"loss": True, "accuracy": False}, "loss", True),
        ("", "best_output: 'iou' best_is: LOWER", {"iou": False}, "iou", True),
        ("accuracy", "best_output: 'loss' best_is: LOWER", {"loss": True, "accuracy": False}, "accuracy", False),
        ("", "", {"loss": True, "iou": False}, "loss", True),
        ("", "", {}, "train_loss", True),
        ("train_loss", "", {"accuracy": False}, "train_loss", True),
    ],
)
def test_order_of_the_results(by: str, fields: str, outputs: dict[str, bool], name: str, lower: bool) -> None:
    assert _criterion(by, parse(fields, proto.SolverParameter), outputs) == (name, lower)
