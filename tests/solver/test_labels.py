"""A label that a loss does not accept ends the training before an update uses it. (tests/data/sources/test_labels.py: the sources.)"""
from __future__ import annotations

import pathlib
from typing import Any

import h5py
import numpy as np
import pytest

from ocaffe.api.net import Net
from ocaffe.api.pysolver import get_solver
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.formats.state import read_state
from ocaffe.solver.solver import Solver
from tests.tiers import rest_is_long

WRONG = 5  # the iteration whose batch has the wrong label
BATCH, CLASSES = 4, 3
SHIFT = 'layer {{ name: "shift" type: "Power" bottom: "label" top: "shifted" power_param {{ shift: {} }} }}'
SCORES = """
layer { name: "data" type: "HDF5Data" top: "data" top: "label" hdf5_data_param { source: "list" batch_size: 4 } }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1" inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
NORM
layer { name: "ip" type: "InnerProduct" bottom: "ip1" top: "ip" inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
"""
LOSS = 'layer { name: "loss" type: "TYPE" bottom: "ip" bottom: "label" top: "loss" PARAM }'
SOLVER = 'net: "net.prototxt" base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" max_iter: 8 random_seed: 1 snapshot_prefix: "snap"'


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = np.arange(8 * BATCH, dtype=np.float32) % CLASSES
    labels[WRONG * BATCH + 2] = 7
    with h5py.File("data.h5", "w") as file:
        file["data"], file["label"] = rng.standard_normal((8 * BATCH, 6)).astype(np.float32), labels
    pathlib.Path("list").write_text("data.h5")


def write(kind: str = "SoftmaxWithLoss", param: str = "", shift: float | None = None, norm: bool = False, extra: str = "") -> None:
    """Write a net. With `shift`, the labels come from a Power layer, so no data layer checks them."""
    text = SCORES.replace("NORM", 'layer { name: "bn" type: "BatchNorm" bottom: "ip1" top: "ip1" }' if norm else "")
    loss = LOSS.replace("TYPE", kind).replace("PARAM", param)
    if shift is not None:
        text += SHIFT.format(shift)
        loss = loss.replace('"label"', '"shifted"')
    pathlib.Path("net.prototxt").write_text(text + loss)
    pathlib.Path("solver.prototxt").write_text(f"{SOLVER} {extra}")


def weights(solver: Solver) -> list[np.ndarray]:
    return [*(array for arrays in solver.network.parameter_arrays().values() for array in arrays), *solver.history_arrays()]


def train_until_wrong(device: Any, words: str) -> str:
    """Train. Return the error, after a check that the state is that before the wrong label."""
    solver = Solver("solver.prototxt", device)
    with pytest.raises(Error, match=words) as caught:
        solver.solve()
    solver.close()
    return str(caught.value)


def saved(device: Any) -> None:
    """Check that the state of iteration WRONG was saved, with the bits of a training of so many iterations."""
    assert [path.name for path in pathlib.Path().glob("*.solverstate")] == [f"snap_iter_{WRONG}.solverstate"]
    state = read_state(f"snap_iter_{WRONG}.solverstate")
    assert [cursor.batch for cursor in state.cursors] == [WRONG * int(Solver("solver.prototxt", device).param.iter_size)]
    expected, resumed = Solver("solver.prototxt", device), Solver("solver.prototxt", device, resume=f"snap_iter_{WRONG}.solverstate")
    expected.step(WRONG)
    for mine, theirs in zip(weights(resumed), weights(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
def test_read_by_a_data_layer(device: Any, norm: bool) -> None:
    write(norm=norm)
    error = train_until_wrong(device, "data.h5, row 22 of dataset 'label': its label is 7; layer 'loss' .SoftmaxWithLoss. has 3 classes: labels 0 to 2")
    assert error.startswith("net.prototxt:2: layer 'data' (HDF5Data)\n") and f"--snapshot=snap_iter_{WRONG}.solverstate" in error
    saved(device)


@pytest.mark.parametrize("extra", rest_is_long(["", 'type: "AdamW" ema_decay: 0.9', "clip_gradients: 0.1", "display: 1", "snapshot_diff: true"], 2))
@pytest.mark.parametrize("kind", ["SoftmaxWithLoss", "HingeLoss"])
def test_from_another_layer(device: Any, kind: str, extra: str) -> None:
    write(kind, shift=0, extra=extra)
    error = train_until_wrong(device, rf"iteration {WRONG}: value 2 of bottom 'shifted': its label is 7; layer 'loss' \({kind}\) has 3 classes")
    assert "no update has used it" in error and "layer 'loss'" in error
    saved(device)


def test_in_the_second_pass(device: Any) -> None:
    write(shift=0, extra="iter_size: 2")
    train_until_wrong(device, "iteration 2: value 2 of bottom 'shifted': its label is 7")
    assert [path.name for path in pathlib.Path().glob("*.solverstate")] == ["snap_iter_2.solverstate"]


def test_running_statistics_have_used_it(device: Any) -> None:
    """Later passes have changed the statistics of a BatchNorm, so the state is that of no iteration."""
    write(shift=0, norm=True)
    assert "no snapshot of iteration 5 is written" in train_until_wrong(device, "its label is 7")
    assert not list(pathlib.Path().glob("snap*"))


@pytest.mark.parametrize("shift", [None, 0, -1])
@pytest.mark.parametrize("kind, param", [
    ("SoftmaxWithLoss", "loss_param { ignore_label: IGNORED }"), ("FocalLoss", "loss_param { ignore_label: IGNORED } focal_loss_param { type: ORIGIN }"),
    ("SoftmaxWithLoss", "loss_weight: 0"),
])  # fmt: skip
def test_accepted(device: Any, kind: str, param: str, shift: int | None) -> None:
    """An ignored label, and one that has no weight in the loss."""
    write(kind, param.replace("IGNORED", str(7 + (shift or 0))), shift)
    if shift == -1:  # -1 is wrong
        with h5py.File("data.h5", "r+") as file:
            file["label"][...] = np.maximum(file["label"][...], 1)
    solver = Solver("solver.prototxt", device)
    solver.solve()
    assert np.isfinite(solver.losses.value)


def test_constant_labels(device: Any) -> None:
    write()
    path = pathlib.Path("net.prototxt")
    dummy = 'layer { name: "constant" type: "DummyData" top: "seven" dummy_data_param { shape { dim: 4 } data_filler { value: 7 } } }\n'
    path.write_text(dummy + path.read_text().replace('bottom: "ip" bottom: "label"', 'bottom: "ip" bottom: "seven"'))
    with pytest.raises(Error, match=r"its label is 7; layer 'loss' \(SoftmaxWithLoss\) has 3 classes"):
        Solver("solver.prototxt", device)


def test_drawn_labels(device: Any) -> None:
    """The device draws and checks them."""
    write()
    path = pathlib.Path("net.prototxt")
    filler = "data_filler { type: 'uniform' min: 7 max: 7 }"
    dummy = f'layer {{ name: "drawn" type: "DummyData" top: "seven" dummy_data_param {{ shape {{ dim: 4 }} {filler} }} }}\n'
    path.write_text(dummy + path.read_text().replace('bottom: "ip" bottom: "label"', 'bottom: "ip" bottom: "seven"'))
    with pytest.raises(Error, match="value 0 of bottom 'seven': its label is 7"):
        Solver("solver.prototxt", device).solve()


def test_scripts(device: Any) -> None:
    """A net without a solver gives NaN. A solver raises for labels that a script writes, and continues with others."""
    write()
    text = pathlib.Path("net.prototxt").read_text()
    fed = 'layer { name: "in" type: "Input" top: "data" top: "label" input_param { shape { dim: 4 dim: 6 } shape { dim: 4 } } }'
    pathlib.Path("net.prototxt").write_text("\n".join([fed, *text.strip().split("\n")[1:]]))
    with Net("net.prototxt", 0, device=device) as net:
        net.blobs["label"].data[...] = 7
        assert np.isnan(net.forward()["loss"])
    with get_solver("solver.prototxt", device=device) as solver:
        solver.net.blobs["data"].data[...] = 1
        solver.step(1)
        before = solver.net.params["ip"][0].data.copy()
        solver.net.blobs["label"].data[...] = 7
        with pytest.raises(Error, match="iteration 1: value 0 of bottom 'label': its label is 7"):
            solver.step(1)
        solver.net.forward()
        with pytest.raises(Error, match="its label is 7"):
            solver.apply_update()
        assert np.array_equal(solver.net.params["ip"][0].data, before) and solver.iter == 1
        solver.net.blobs["label"].data[...] = 2
        solver.step(1)
        assert not np.array_equal(solver.net.params["ip"][0].data, before) and solver.iter == 2


def test_status(device: Any, capfd: pytest.CaptureFixture[str]) -> None:
    write()
    assert main(["train", "--solver=solver.prototxt", f"--device={device.number}"]) == 1
    assert "data.h5, row 22 of dataset 'label': its label is 7" in capfd.readouterr().err
