"""Signals sent to a real process: the files it leaves and its exit status."""
from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest

from ocaffe.formats.state import read_state

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals of POSIX")


@pytest.mark.parametrize(
    ("number", "flags", "stops"),
    [
        (signal.SIGTERM, [], True),
        (signal.SIGINT, [], True),
        (signal.SIGHUP, [], False),
        (signal.SIGINT, ["--sigint_effect=snapshot"], False),
        (signal.SIGTERM, ["--sigterm_effect=snapshot"], False),
    ],
    ids=["TERM", "INT", "HUP", "INT takes a snapshot", "TERM takes a snapshot"],
)
def test_signal(number: int, flags: list[str], stops: bool, device: Any, tmp_path: pathlib.Path) -> None:
    shutil.copytree(ROOT / "tests" / "golden" / "files", tmp_path / "files")
    text = (tmp_path / "files" / "solver.prototxt").read_text().replace("max_iter: 16", "max_iter: 100000000").replace("snapshot: 8", "")
    (tmp_path / "solver.prototxt").write_text(text)
    for old in (tmp_path / "files").glob("train_iter_*"):  # Caffe's own snapshots
        old.unlink()
    command = [sys.executable, "-m", "ocaffe", "train", "--solver", "solver.prototxt", "--device", str(device.number), *flags]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        seen = []
        for line in process.stderr:
            seen.append(line)
            if "Iteration 4 (" in line:
                process.send_signal(number)
            if "Snapshotting solver state" in line and not stops:
                process.send_signal(signal.SIGINT if number == signal.SIGTERM else signal.SIGTERM)
                stops = True
            if "Optimization Done." in line:
                break
        log = "".join(seen) + process.stderr.read()
        assert process.wait(60) == 0, log[-2000:]
    finally:
        process.kill()
        process.stderr.close()
    assert "Optimization stopped early." in log
    states = sorted((tmp_path / "files").glob("train_iter_*.solverstate"), key=lambda path: path.stat().st_mtime)
    assert states and all(path.with_suffix(".caffemodel").exists() and read_state(path).iter >= 5 for path in states)
