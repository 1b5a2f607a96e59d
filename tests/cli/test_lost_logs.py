"""A training goes on when a log cannot be written, and writes its snapshots."""
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

from ocaffe.cli import main
from ocaffe.formats.state import read_state

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOLVER = "--solver=files/solver.prototxt"
pytestmark = pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="needs /dev/full")


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "tests" / "golden" / "files", tmp_path / "files")
    for old in (tmp_path / "files").glob("train_iter_*"):  # Caffe's own snapshots
        old.unlink()
    monkeypatch.chdir(tmp_path)


def check_snapshots() -> None:
    for iteration in (8, 16):
        assert read_state(f"files/train_iter_{iteration}.solverstate").iter == iteration
        assert pathlib.Path(f"files/train_iter_{iteration}.caffemodel").stat().st_size


def test_json_log_on_a_full_disk(device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", SOLVER, f"--device={device.number}", "--log_json=/dev/full"]) == 0
    check_snapshots()
    assert capfd.readouterr().err.count("/dev/full (--log_json) cannot be written: No space left on device. The run continues without it") == 1


def test_events_on_a_full_disk(device: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    record_writer = pytest.importorskip("tensorboardX.record_writer")
    monkeypatch.setattr(record_writer, "open_file", lambda path: open("/dev/full", "wb"))
    assert main(["train", SOLVER, f"--device={device.number}", "--tensorboard=events"]) == 0
    check_snapshots()
    assert capfd.readouterr().err.count("events (--tensorboard) cannot be written: No space left on device. The run continues without it") == 1


@pytest.mark.parametrize("redirection", ["2>/dev/full", ">&- 2>&- <&-", ""], ids=["full disk", "closed", "broken pipe"])
def test_stderr(redirection: str, device: Any) -> None:
    """A closed stderr must not give its number to a file of the training."""
    reader, broken = os.pipe()
    os.close(reader)
    command = f'exec "$0" -m ocaffe train {SOLVER} --device={device.number} {redirection}'
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    assert subprocess.run(["bash", "-c", command, sys.executable], env=environment, stdout=subprocess.DEVNULL, stderr=broken, timeout=60).returncode == 0
    os.close(broken)
    check_snapshots()


def test_errors_without_stderr() -> None:
    command = '"$0" -m ocaffe train --solver=none 2>/dev/full'
    assert subprocess.run(["bash", "-c", command, sys.executable], env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60).returncode == 1


@pytest.mark.parametrize("arguments", ["--version", "--help", "summary files/train_net.prototxt", "layers", "summary --help", "none"])
def test_a_full_stdout(arguments: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f'cd "{ROOT}/tests/golden"; exec "$0" -m ocaffe {arguments} >/dev/full'
    done = subprocess.run(["bash", "-c", command, sys.executable], env=environment, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert arguments == "none" or done.stderr.count("error: stdout\n  cannot be written: No space left on device\n  fix: ") == 1
