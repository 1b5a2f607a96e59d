"""A cluster's restarts: `--snapshot auto`, snapshots by time, one training per prefix, the remains of killed ones."""
from __future__ import annotations

import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ocaffe.api.pysolver import Solver
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.formats.state import read_state
from ocaffe.solver import snapshot
from ocaffe.solver.solver import Solver as Training
from ocaffe.support.files import temporary_name
from ocaffe.support.lock import FileLock

FILES = pathlib.Path(__file__).resolve().parents[1] / "golden" / "files"
Train = Callable[..., list[str]]


@pytest.fixture
def train(device: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Train:
    """Return a function that trains to `max_iter` with flags and further fields of the solver. It returns what was logged."""
    shutil.copytree(FILES, tmp_path / "files")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)

    def run(max_iter: int, *flags: str, fields: str = "", status: int = 0) -> list[str]:
        text = pathlib.Path("files/solver.prototxt").read_text().replace("max_iter: 16", f"max_iter: {max_iter}").replace("files/train\"", "out/a\"")
        pathlib.Path("solver.prototxt").write_text(text.replace("snapshot: 8", "snapshot: 4") + fields)
        capsys.readouterr()
        ended = main(["train", "--solver=solver.prototxt", f"--device={device.number}", *flags])
        lines = re.sub(r"^([IWE])\d{4} .*?\] ", r"\1 ", capsys.readouterr().err, flags=re.MULTILINE).splitlines()
        assert ended == status, lines[-3:]
        return lines

    return run


def resumed(lines: list[str]) -> str:
    """Return the state from which a run began, '' for a new training."""
    told = [line for line in lines if line.startswith(("I Resuming from ", "I No complete snapshot of out/a: starting at iteration 0"))]
    (line,) = told
    return line.removeprefix("I Resuming from ") if "Resuming" in line else ""


def weights(iteration: int, ending: str = "") -> bytes:
    return pathlib.Path(f"out/a_iter_{iteration}.caffemodel{ending}").read_bytes()


@pytest.mark.parametrize("ending", ["", ".h5"])
def test_auto(train: Train, ending: str) -> None:
    fields = f"snapshot_format: {'HDF5' if ending else 'BINARYPROTO'} ema_decay: 0.9 snapshot_keep: 2 best_output: 'loss'"
    assert resumed(train(12, "--snapshot=auto", "--weights=files/init.caffemodel", fields=fields)) == ""
    whole = weights(12, ending)
    for path in pathlib.Path("out").iterdir():
        path.unlink()
    assert resumed(train(6, "--snapshot=auto", "--weights=files/init.caffemodel", fields=fields)) == ""
    assert resumed(train(12, "--snapshot", "auto", "--weights=files/init.caffemodel", fields=fields)) == f"out/a_iter_6.solverstate{ending}"
    assert weights(12, ending) == whole  # bit for bit, as with --snapshot FILE
    assert resumed(train(12, "--snapshot=auto", fields=fields)) == f"out/a_iter_12.solverstate{ending}"  # nothing is left to do


def test_auto_takes_the_best_snapshot_if_it_is_the_newest(train: Train) -> None:
    train(12, fields="best_output: 'loss'")
    (best,) = (path for path in pathlib.Path("out").glob("a_best_iter_*.solverstate"))
    for path in pathlib.Path("out").glob("a_iter_*.solverstate"):
        if int(path.stem.rpartition("_")[2]) >= read_state(best).iter:
            path.unlink()
    assert resumed(train(12, "--snapshot=auto", fields="best_output: 'loss'")) == str(best)


def test_auto_leaves_the_files_of_a_whole_training(train: Train) -> None:
    """A state that a user names stays; one that `auto` found is a snapshot like others."""
    fields = "snapshot_keep: 1 best_output: 'loss'"
    train(12, fields=fields)
    whole = {path.name for path in pathlib.Path("out").iterdir()}
    for path in pathlib.Path("out").iterdir():
        path.unlink()
    train(6, fields=fields)
    found = resumed(train(12, "--snapshot=auto", fields=fields))
    assert found and not pathlib.Path(found).exists() and {path.name for path in pathlib.Path("out").iterdir()} == whole


def test_auto_passes_over_damaged_and_incomplete_snapshots(train: Train) -> None:
    train(16, fields="ema_decay: 0.9")
    os.truncate("out/a_iter_16.solverstate", 100)
    os.truncate("out/a_iter_12.ema.caffemodel", 100)
    os.remove("out/a_iter_8.caffemodel")
    pathlib.Path("out/a_iter_99.caffemodel").write_bytes(b"")  # killed before the state was written
    pathlib.Path("out/a_iter_98.solverstate").symlink_to("none")
    lines = train(16, "--snapshot=auto", fields="ema_decay: 0.9")
    assert resumed(lines) == "out/a_iter_4.solverstate"
    warnings = [line for line in lines if line.startswith("W --snapshot=auto passes over")]
    assert [line.split()[4].rstrip(":") for line in warnings] == [f"out/a_iter_{number}.solverstate" for number in (98, 16, 12, 8)]
    assert "a_iter_12.ema.caffemodel" in warnings[2] and "a_iter_8.caffemodel" in warnings[3]


def test_an_older_complete_snapshot_names_another_prefix(train: Train) -> None:
    train(4)
    for path in list(pathlib.Path("out").iterdir()):
        path.rename(path.with_name(path.name.replace("a_iter", "ab_iter")))
    assert resumed(train(4, "--snapshot=auto")) == ""


def test_weights_exclude_the_snapshot_of_a_user(train: Train) -> None:
    train(4, "--snapshot=files/train_iter_8.solverstate", "--weights=files/init.caffemodel", status=1)


def test_snapshots_by_time(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration takes ten seconds here."""
    now, saved = [0.0], []
    monkeypatch.setattr("ocaffe.solver.solver.time.monotonic", lambda: now[0])
    advance, write = Training._pass, snapshot.write_state

    def passes(self: Training, *arguments: Any) -> Any:
        now[0] += 10
        return advance(self, *arguments)

    def state(path: str, *arguments: Any, **more: Any) -> None:
        saved.append(int(path.split("_iter_")[1].partition(".")[0]))
        write(path, *arguments, **more)

    monkeypatch.setattr(Training, "_pass", passes)
    monkeypatch.setattr(snapshot, "write_state", state)
    train(10, "--set=snapshot_interval_seconds=30")
    assert saved == [3, 4, 7, 8, 10]  # snapshot: 4, and 30 s after the last one
    saved.clear()
    now[0] = 0
    pathlib.Path("files/solver.prototxt").write_text(pathlib.Path("files/solver.prototxt").read_text().replace("snapshot: 8", ""))
    train(10, fields="snapshot_interval_seconds: 45 snapshot_after_train: false")
    assert saved == [5, 10]
    for wrong in ("-1", "nan", "inf"):
        train(10, fields=f"snapshot_interval_seconds: {wrong}", status=1)


def test_two_trainings_with_one_prefix(train: Train, device: Any) -> None:
    first = FileLock(pathlib.Path("out/a.lock"))
    first.acquire()
    told = "\n".join(train(4, status=1))
    assert f"another training writes snapshots with the prefix 'out/a': process {os.getpid()} on {socket.gethostname()}" in told and "out/a.lock" in told
    assert os.listdir("out") == ["a.lock"]
    with Solver("solver.prototxt", device=device) as solver, pytest.raises(Error, match="another training"):
        solver.solve()
    first.release()
    with Solver("solver.prototxt", device=device) as solver:
        solver.solve()
    assert sorted(os.listdir("out")) == ["a_iter_4.caffemodel", "a_iter_4.solverstate"]


def test_a_training_without_snapshots_needs_no_lock(train: Train) -> None:
    os.rmdir("out")
    pathlib.Path("files/solver.prototxt").write_text(pathlib.Path("files/solver.prototxt").read_text().replace("snapshot: 8", ""))
    train(4, fields="snapshot_after_train: false")
    assert not os.path.exists("out")


def test_remains_of_a_killed_training(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    names = ("a_iter_8.caffemodel", "a_iter_8.ema.caffemodel.h5", "a_best_iter_9.solverstate", "ab_iter_8.caffemodel", "a_iter_8.caffemodel.txt")
    with monkeypatch.context() as patched:
        patched.setattr("ocaffe.support.files.os.getpid", lambda: dead.pid)
        remains = [temporary_name(pathlib.Path("out", name)) for name in names]
    for path in remains:
        path.write_bytes(b"half")
    lines = train(4)
    assert [path.exists() for path in remains] == [False, False, False, True, True]
    assert any(line.startswith("I Removed the unfinished snapshots of killed trainings: ") for line in lines)
