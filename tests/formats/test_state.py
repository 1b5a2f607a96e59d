"""Solver states: golden states byte for byte, private fields, and wrong files."""
from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.state import Cursor, SolverState, read_state, write_state

pytestmark = pytest.mark.quick

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
STATES = sorted((GOLDEN / "solvers").glob("*.solverstate*")) + sorted((GOLDEN / "files").glob("*.solverstate*"))


def full_state() -> SolverState:
    history = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((), np.float32), np.ones(3)]
    cursors = [Cursor("data", "train", 2**40, 2**46), Cursor("data", "test 1", 0)]
    ours = {"averaged_net": "x.ema.caffemodel", "best_value": 0.1, "best_iter": 9, "ranks": 4}
    return SolverState(12, "x_iter_12.caffemodel", history, 3, cursors, random_seed=-5, choices='{"conv1": "winograd"}', **ours)


@pytest.mark.parametrize("path", STATES, ids=lambda path: path.name)
def test_golden_history(path):
    state = read_state(path)
    assert state.iter == int(path.name.split("_iter_")[1].split(".")[0])
    assert state.learned_net.endswith(path.name.replace("solverstate", "caffemodel"))
    assert (state.cursors, state.random_seed, state.choices) == ([], None, "")
    hdf5 = path.suffix == ".h5"
    if not hdf5:
        message = proto.SolverState.FromString(path.read_bytes())
        assert len(message.history) == len(state.history) > 0 and message.current_step == state.current_step
        for blob, array in zip(message.history, state.history, strict=True):
            np.testing.assert_array_equal(np.array(blob.data, np.float32).reshape(blob.shape.dim), array)
    else:
        with h5py.File(path) as file:
            assert len(file["history"]) == len(state.history)
            for index, array in enumerate(state.history):
                np.testing.assert_array_equal(file[f"history/{index}"][()], array)


@pytest.mark.parametrize("path", [path for path in STATES if path.suffix != ".h5"], ids=lambda path: path.name)
def test_golden_state_written_again_is_the_same(tmp_path, path):
    write_state(tmp_path / "new.solverstate", read_state(path))
    assert (tmp_path / "new.solverstate").read_bytes() == path.read_bytes()


def test_golden_hdf5_state_written_again_holds_the_same(tmp_path):
    source = GOLDEN / "files" / "train_iter_8.solverstate.h5"
    write_state(tmp_path / "new.solverstate.h5", read_state(source), hdf5=True)
    with h5py.File(tmp_path / "new.solverstate.h5") as new, h5py.File(source) as old:
        for name in ("iter", "current_step", "learned_net"):
            assert new[name][()] == old[name][()] and new[name].shape == old[name].shape
            assert new[name].dtype == old[name].dtype or name == "learned_net"
        # Caffe reads as many bytes as the type has and stops at the first zero
        assert new["learned_net"].dtype.itemsize == len(old["learned_net"][()]) + 1
        assert list(new["history"]) == list(old["history"])


@pytest.mark.parametrize("hdf5", [False, True])
def test_private_fields_come_back(tmp_path, hdf5):
    state = full_state()
    path = tmp_path / "x.solverstate"
    write_state(path, state, iter(state.history), hdf5)
    read = read_state(path)
    assert [array.dtype for array in read.history] == [np.float32, np.float32, np.float64]
    for ours, theirs in zip(read.history, state.history, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    read.history = state.history
    assert read == state


def test_private_fields_are_those_of_the_schema(tmp_path):
    write_state(tmp_path / "x", full_state())
    message = proto.SolverState.FromString((tmp_path / "x").read_bytes())
    assert (message.iter, message.learned_net, message.current_step) == (12, "x_iter_12.caffemodel", 3)
    assert [(cursor.layer, cursor.net, cursor.batch, cursor.records) for cursor in message.data_cursor] == full_state().cursors
    assert (message.random_seed, message.choices) == (-5, '{"conv1": "winograd"}')
    assert (message.averaged_net, message.best_value, message.best_iter, message.ranks) == ("x.ema.caffemodel", 0.1, 9, 4)


def test_history_is_not_copied(tmp_path):
    assert not read_state(GOLDEN / "files" / "train_iter_8.solverstate").history[0].flags.owndata


WRONG = [
    ("files/train_iter_8.caffemodel", "is a caffemodel, not a solver state", "--weights"),
    ("files/train_iter_8.caffemodel.h5", "not a solver state", "--weights"),
    ("upgrade/v1_weights.caffemodel", "is a caffemodel", "--weights"),
    ("files/solver.prototxt", "is a text file", ""),
]


@pytest.mark.parametrize(("name", "fact", "fix"), WRONG)
def test_the_wrong_file(name, fact, fix):
    with pytest.raises(Error, match=fact) as caught:
        read_state(GOLDEN / name)
    assert fix in (caught.value.fix or "")


def test_truncated_damaged_missing(tmp_path):
    whole = (GOLDEN / "files" / "train_iter_8.solverstate").read_bytes()
    path = tmp_path / "x.solverstate"
    for size in (1, 3, 20, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(Error, match="truncated"):
            read_state(path)
    path.write_bytes(b"\x12\x01x")
    with pytest.raises(Error, match="no iteration"):
        read_state(path)
    with pytest.raises(Error, match="no such file"):
        read_state(tmp_path / "none")


def test_hdf5_state_with_a_gap(tmp_path):
    path = tmp_path / "x.solverstate.h5"
    write_state(path, full_state(), hdf5=True)
    with h5py.File(path, "a") as file:
        del file["history/1"]
    with pytest.raises(Error, match=r"datasets 0, 2, and 1 is missing"):
        read_state(path)


@pytest.mark.parametrize("value", [
    "1", "{}", '["a"]', '[["a"]]', '[["a", "train"]]', '[["a", "train", "1"]]', '[["a", "train", -1]]', '[["a", 5, 1]]', '[[[], "train", 1]]',
    '[["a", "b", 1, 2, 3]]',
    '[["a", "train", 1e9]]', "[" * 100_000, "9" * 5000, '[["\\ud800", "train", 1]]', "", "nonsense",
])  # fmt: skip
def test_hdf5_state_with_odd_cursors(tmp_path, value):
    """The places of data layers are JSON in an attribute."""
    path = tmp_path / "a.solverstate.h5"
    write_state(path, full_state(), hdf5=True)
    with h5py.File(path, "a") as file:
        file["ocaffe"].attrs["data_cursor"] = value[:60_000]
    with pytest.raises(Error, match="the attributes of its group 'ocaffe' are invalid") as caught:
        read_state(path)
    assert caught.value.fix and caught.value.place == str(path)
