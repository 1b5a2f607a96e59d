"""`ocaffe train --tensorboard DIR` writes the numbers of the log as events."""
from __future__ import annotations

import json
import pathlib
import shutil
import struct
from typing import Any

import pytest

from ocaffe.cli import main
from ocaffe.tools.training_logs.tensorboard import scalars

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "files"


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(GOLDEN, tmp_path / "files")
    monkeypatch.chdir(tmp_path)


def events(folder: str) -> dict[tuple[str, int], float]:
    """Return (tag, iteration) -> value from the event file in a folder. A record is length, checksum, message, checksum."""
    from tensorboardX.proto import event_pb2

    (path,) = pathlib.Path(folder).glob("events.*")
    data, at, found = path.read_bytes(), 0, {}
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
        found.update({(value.tag, event.step): value.simple_value for value in event.summary.value})
        at += length + 16
    return found


def test_train(device: Any) -> None:
    pytest.importorskip("tensorboardX")
    arguments = ["train", f"--device={device.number}", "--solver=files/solver.prototxt"]
    assert main([*arguments, "--tensorboard", "events/run", "--log_json=log.json"]) == 0
    found = events("events/run")
    assert {tag for tag, _ in found} == {"train/loss", "train/lr", "train/loss_last", "test/accuracy", "test/loss"}
    for record in map(json.loads, pathlib.Path("log.json").read_text().splitlines()):  # both logs are written in one run
        for tag, value in scalars(record):
            assert found[tag, record["iteration"]] == pytest.approx(value, rel=1e-6)
    assert found["train/lr", 0] == pytest.approx(0.05) and ("test/accuracy", 5) in found


def test_tags() -> None:
    record = {"phase": "test", "net": 1, "iteration": 3, "outputs": {"loss": [1.0], "prob": [0.25, 0.75]}}
    assert list(scalars(record)) == [("test1/loss", 1.0), ("test1/prob/0", 0.25), ("test1/prob/1", 0.75)]


def test_without_tensorboardx_and_bad_folder(device: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", f"--device={device.number}", "--solver=files/solver.prototxt", "--tensorboard"]
    if pytest.importorskip("tensorboardX"):
        assert main([*arguments, "files/images.txt/events"]) == 1
        assert "files/images.txt/events" in capfd.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX", None)
    assert main([*arguments, "events"]) == 1
    assert "pip install tensorboardX" in capfd.readouterr().err
