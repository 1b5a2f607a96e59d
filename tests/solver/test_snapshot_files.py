"""Snapshots compared with the files of real Caffe for the same run: values are equal, and no field of Caffe's schema is missing."""
from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import pytest

from ocaffe import proto
from ocaffe.formats.state import read_state
from ocaffe.formats.text import read_solver
from ocaffe.solver.solver import Solver
from tests.solver.test_solver_golden import close

pytestmark = pytest.mark.quick

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    shutil.copytree(GOLDEN / "files", tmp_path / "files")
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def run(device: Any, file: str, weights: str | None = None, resume: str | None = None, **changes: Any) -> None:
    """Train with the command of files/commands.txt and write snapshots ours_iter_8 and ours_iter_16."""
    param = read_solver(f"files/{file}")
    param.snapshot_prefix = "ours"
    for name, value in changes.items():
        setattr(param, name, value)
    solver = Solver(param, device, file=file, weights=[weights] if weights else (), resume=resume)
    try:
        solver.solve()
    finally:
        solver.close()


def stripped(message: Any) -> Any:
    """Remove the fields in which our files may differ from Caffe's: values of blobs, ocaffe's own fields, `phase` and `loss_weight`. Return the message."""
    for field, value in list(message.ListFields()):
        if field.number >= 50000 or field.name in ("data", "diff", "phase", "loss_weight"):
            message.ClearField(field.name)
        elif field.message_type is not None:
            for one in value if proto.is_repeated(field) else [value]:
                stripped(one)
    return message


def blobs(net: Any) -> list[np.ndarray]:
    return [np.array(blob.data, np.float32).reshape(blob.shape.dim) for layer in net.layer for blob in layer.blobs]


@pytest.mark.parametrize("iteration", [8, 16])
def test_binaryproto(device: Any, iteration: int) -> None:
    run(device, "solver.prototxt", "files/init.caffemodel")
    mine, theirs = (proto.NetParameter.FromString(pathlib.Path(f"{stem}_iter_{iteration}.caffemodel").read_bytes()) for stem in ("ours", "files/train"))
    for number, (a, b) in enumerate(zip(blobs(mine), blobs(theirs), strict=True)):
        close(a, b, f"blob {number}", 1e-4)
    assert stripped(mine) == stripped(theirs)
    mine, theirs = (proto.SolverState.FromString(pathlib.Path(f"{stem}_iter_{iteration}.solverstate").read_bytes()) for stem in ("ours", "files/train"))
    for a, b in zip(mine.history, theirs.history, strict=True):
        close(np.array(a.data), np.array(b.data), "history", 1e-4)
    assert mine.learned_net == f"ours_iter_{iteration}.caffemodel"
    mine.learned_net = theirs.learned_net
    assert stripped(mine) == stripped(theirs)


def datasets(path: str) -> dict[str, np.ndarray]:
    """Return the datasets of an HDF5 file that Caffe reads."""
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


@pytest.mark.parametrize("iteration", [8, 16])
def test_hdf5(device: Any, iteration: int) -> None:
    run(device, "solver_hdf5.prototxt", "files/init.caffemodel")
    for kind in ("caffemodel", "solverstate"):
        mine, theirs = (datasets(f"{stem}_iter_{iteration}.{kind}.h5") for stem in ("ours", "files/train"))
        assert mine.keys() == theirs.keys()
        for name in theirs.keys() - {"learned_net"}:
            assert mine[name].shape == theirs[name].shape and mine[name].dtype == theirs[name].dtype, name
            close(mine[name], theirs[name], name, 1e-4)


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_resumed_run(device: Any, suffix: str) -> None:
    """Resume from Caffe's state in either format and compare with the files of Caffe's resumed run."""
    run(device, "solver_resume.prototxt", resume=f"files/train_iter_8.solverstate{suffix}")
    mine, theirs = (proto.NetParameter.FromString(pathlib.Path(f"{stem}_iter_16.caffemodel").read_bytes()) for stem in ("ours", "files/resumed"))
    for number, (a, b) in enumerate(zip(blobs(mine), blobs(theirs), strict=True)):
        close(a, b, f"blob {number}", 1e-4)
    history = read_state("files/resumed_iter_16.solverstate").history
    for a, b in zip(read_state("ours_iter_16.solverstate").history, history, strict=True):
        close(a, b, "history", 1e-4)
