"""Features of solvers beyond Caffe: AdamW, averaged weights, kept snapshots, early stopping, the data meter."""
from __future__ import annotations

import os
import pathlib
import re
import shutil
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.state import read_state
from ocaffe.formats.weights import read_weights
from tests.solver.test_training import assert_same, everything, make, train, workplace  # noqa: F401 (a fixture)

QUIET = "display: 0 test_interval: 1000 test_initialization: false"


def weights(solver: Any) -> dict[str, np.ndarray]:
    return {f"{name}/{i}": blob.astype(np.float64) for name, blobs in solver.network.parameter_arrays().items() for i, blob in enumerate(blobs)}


def close(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 2e-6) -> None:
    for key, value in expected.items():
        assert np.abs(actual[key] - value).max() <= tolerance * max(np.abs(value).max(), 1e-3), key


@pytest.mark.parametrize("extra", ["", 'regularization_type: "L1"', "iter_size: 2 clip_gradients: 1"], ids=["L2", "L1", "clip"])
def test_adamw_decays_the_weights_themselves(device: Any, extra: str) -> None:
    """AdamW is Adam without weight decay, plus w -= rate * decay * w. For one iteration its history equals Adam's."""
    first = make(device, f"{QUIET} {extra}")
    begin = weights(first)
    first.close()
    rate, decay = 0.01, 0.001
    common = f'{QUIET} {extra} lr_policy: "fixed" base_lr: {rate} momentum: 0.9'
    plain = train(device, f'{common} type: "Adam" weight_decay: 0', 1)
    decayed = train(device, f'{common} type: "AdamW" weight_decay: {decay}', 1)
    penalty = np.sign if "L1" in extra else np.positive
    trained = {key: value for key, value in begin.items() if not key.startswith("bn1")}  # BatchNorm's statistics do not decay
    close(decayed, {key: plain[key].astype(np.float64) - rate * decay * penalty(value) for key, value in trained.items()})
    assert_same({key: plain[key] for key in plain if "history" in key}, {key: decayed[key] for key in decayed if "history" in key})


def test_average_of_the_weights(device: Any) -> None:
    """Compare with an average in float64 over the weights of each iteration. Early iterations use a smaller decay."""
    solver = make(device, f"{QUIET} ema_decay: 0.5")
    expected = weights(solver)
    for iteration in range(8):
        solver.step(1)
        kept = min(0.5, (1 + iteration) / (10 + iteration))
        expected = {key: kept * expected[key] + (1 - kept) * value for key, value in weights(solver).items()}
    now = weights(solver)
    with solver.average.in_net():
        averaged = weights(solver)
        with solver.average.in_net(False):
            assert_same(now, weights(solver))
        assert_same(averaged, weights(solver))
    assert_same(now, weights(solver))
    statistics = {key for key in now if key.startswith("bn1")}
    close(averaged, {key: now[key] if key in statistics else value for key, value in expected.items()})
    assert not np.array_equal(averaged["conv1/0"], now["conv1/0"])
    solver.close()


def test_average_does_not_disturb_training(device: Any) -> None:
    assert_same(train(device), train(device, "ema_decay: 0.9 ema_test: true"))


@pytest.mark.parametrize("extra", ["", "snapshot_format: HDF5 iter_size: 2"], ids=["proto", "hdf5"])
def test_average_comes_back_from_a_snapshot(device: Any, extra: str) -> None:
    settings = f"{QUIET} ema_decay: 0.7 {extra}"

    def averaged(solver: Any) -> dict[str, np.ndarray]:
        with solver.average.in_net():
            return everything(solver)

    whole = make(device, settings)
    whole.step(6)
    first = make(device, settings)
    first.step(4)
    state = first.snapshot()
    stored = read_state(state).averaged_net
    assert {layer.name: len(layer.blobs) for layer in read_weights(stored).layers}["bn1"] == 3
    os.mkdir("moved")
    for name in (state, stored, read_state(state).learned_net):
        os.rename(name, f"moved/{name}")
    resumed = make(device, settings, resume=f"moved/{state}")
    resumed.step(2)
    assert_same(averaged(whole), averaged(resumed))
    assert_same(everything(whole), everything(resumed))
    os.remove(f"moved/{stored}")
    with pytest.raises(Error, match="neither beside the state nor at this path"):
        make(device, settings, resume=f"moved/{state}")
    for solver in (whole, first, resumed):
        solver.close()


def test_a_copied_folder_uses_its_own_weights(device: Any) -> None:
    """The states of the copy name the weights of the original folder, in which a later run has written others."""
    os.mkdir("a")
    settings = f'{QUIET} snapshot: 1 snapshot_prefix: "{os.path.abspath("a")}/s"'
    solver = make(device, settings)
    solver.step(1)
    expected = everything(solver)
    solver.close()
    shutil.copytree("a", "b")
    pathlib.Path("a/s_iter_1.caffemodel").write_bytes(b"of another run")
    resumed = make(device, settings, resume="b/s_iter_1.solverstate")
    assert_same(everything(resumed), expected, but=("loss",))  # no pass has run
    resumed.close()
    weights = proto.NetParameter(layer=[proto.LayerParameter(name="other")])
    pathlib.Path("b/s_iter_1.caffemodel").write_bytes(weights.SerializeToString())
    with pytest.raises(Error, match="no layer of the weights"):
        make(device, settings, resume="b/s_iter_1.solverstate")


def test_tests_with_the_average(device: Any) -> None:
    """Tests use the weights of the .ema.caffemodel. A snapshot during a test has the trained weights."""
    solver = make(device, "ema_decay: 0.9 ema_test: true test_interval: 1000 test_initialization: false test_iter: 3 test_compute_loss: true")
    solver.step(5)
    asked = iter(["snapshot"])
    solver.request = lambda: next(asked, "")
    scores: list[Any] = []
    solver.on_record = scores.append
    solver.test_all()
    now = everything(solver)
    solver.network.copy_weights(read_weights("snap_iter_5.caffemodel"))
    assert_same(now, everything(solver))
    other = make(device, "test_interval: 1000 test_iter: 3 test_compute_loss: true", weights=["snap_iter_5.ema.caffemodel"])
    other.on_record = scores.append
    other.test_all()
    assert scores[0]["outputs"] == scores[1]["outputs"]
    for made in (solver, other):
        made.close()


def snapshots(prefix: str = "snap") -> list[int]:
    return sorted(int(match[1]) for name in os.listdir() if (match := re.fullmatch(rf"{prefix}_iter_(\d+)\.solverstate", name)))


def test_keep_the_last_snapshots(device: Any) -> None:
    """Only old snapshots of this run are removed. Snapshots of later iterations belong to another run, and the resumed snapshot is kept."""
    for name in ("snap_iter_90.caffemodel", "snap_iter_90.solverstate", "snap_iter_1.txt", "snapshot_iter_1.caffemodel"):
        pathlib.Path(name).touch()
    first = make(device, f"{QUIET} snapshot: 1")
    first.step(1)
    first.close()
    solver = make(device, f"{QUIET} snapshot: 1 snapshot_keep: 2 ema_decay: 0.9", resume="snap_iter_1.solverstate")
    solver.step(5)
    solver.close()
    assert snapshots() == [1, 5, 6, 90]
    assert {name for name in os.listdir() if "_iter_1." in name} == {
        "snap_iter_1.caffemodel", "snap_iter_1.solverstate", "snap_iter_1.txt", "snapshot_iter_1.caffemodel",
    }  # fmt: skip
    assert {name for name in os.listdir() if ".ema." in name} == {"snap_iter_5.ema.caffemodel", "snap_iter_6.ema.caffemodel"}


def test_old_states_are_removed_before_their_weights(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between two removals leaves no state without weights."""
    removed: list[str] = []
    unlink = pathlib.Path.unlink
    monkeypatch.setattr(pathlib.Path, "unlink", lambda path, **options: (removed.append(path.name), unlink(path, **options))[1])
    solver = make(device, f"{QUIET} snapshot: 1 snapshot_keep: 1 ema_decay: 0.9")
    solver.step(3)
    solver.close()
    order = [name for name in removed if name.startswith("snap_iter_")]
    assert [name.endswith(".solverstate") for name in order] == [True, False, False] * 2


def test_the_average_of_the_resumed_snapshot_is_kept(device: Any) -> None:
    for resume in (None, "snap_iter_1.solverstate"):
        solver = make(device, f"{QUIET} snapshot: 1 snapshot_keep: 1 ema_decay: 0.9", resume=resume)
        solver.step(1)
        solver.close()
    assert {name for name in os.listdir() if "_iter_1." in name} == {f"snap_iter_1.{kind}" for kind in ("caffemodel", "ema.caffemodel", "solverstate")}


def test_no_snapshot_is_removed_for_one_that_fails(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = make(device, f"{QUIET} snapshot: 1 snapshot_keep: 1")
    solver.step(1)
    before = {name: pathlib.Path(name).read_bytes() for name in os.listdir() if name.startswith("snap_iter")}
    calls = iter(range(10))
    sync = os.fsync

    def full(fd: int) -> None:
        if next(calls) == 2:  # the weights and their folder are written, the state is not yet
            raise OSError(28, "No space left on device")
        sync(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Error, match=r"snap_iter_2\.solverstate"):
        solver.step(1)
    solver.close()
    assert before and all(pathlib.Path(name).read_bytes() == content for name, content in before.items())


def test_a_training_that_diverged_costs_no_snapshot(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A NaN loss gives one warning. Training stops at the next snapshot, which writes and removes no file."""
    solver = make(device, f"{QUIET} snapshot: 2 snapshot_keep: 1 ema_decay: 0.9")
    solver.step(2)
    before = {name: pathlib.Path(name).read_bytes() for name in os.listdir() if name.startswith("snap_iter")}
    solver.param.base_lr = 1e30
    with pytest.raises(Error, match=r"parameter conv1/0 are NaN or infinite") as caught:
        solver.step(8)
    solver.close()
    assert caught.value.fix and caught.value.place and len(before) == 3
    assert {name: pathlib.Path(name).read_bytes() for name in os.listdir() if name.startswith("snap_")} == before
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("W") and "the loss is" in line]
    assert len(warnings) == 1 and re.search(r"Iteration [3-9]: the loss is -?(nan|inf)", warnings[0])


def scripted(solver: Any, scores: dict[int, float]) -> None:
    """Make the tests of `solver` return these mean accuracies at these iterations."""
    test = solver.test

    def told(index: int) -> Any:
        return [(name, np.array([scores[solver.iter]] if name == "accuracy" else values), weight) for name, values, weight in test(index)]

    solver.test = told


@pytest.mark.parametrize(("name", "kept"), [("accuracy", 6), ("accuracy best_is: LOWER", 9)])
def test_keep_the_best_snapshot(device: Any, name: str, kept: int) -> None:
    first, _, rest = name.partition(" ")
    solver = make(device, f'best_output: "{first}" test_interval: 3 max_iter: 12 test_initialization: false {rest}')
    scripted(solver, {3: 0.5, 6: 0.7, 9: 0.1, 12: float("nan")})
    solver.solve()
    solver.close()
    assert snapshots("snap_best") == [kept] and snapshots() == [12]
    assert {name for name in os.listdir() if "best" in name} == {f"snap_best_iter_{kept}.caffemodel", f"snap_best_iter_{kept}.solverstate"}
    state = read_state("snap_iter_12.solverstate")
    assert (state.best_value, state.best_iter) == ({6: 0.7, 9: 0.1}[kept], kept)


def test_early_stopping_also_after_a_resume(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings = 'best_output: "accuracy" early_stopping: 2 test_interval: 2 max_iter: 100 test_initialization: false'
    scores = {2: 0.5, 4: 0.8, 6: 0.8, 8: 0.7, 10: 0.9}
    solver = make(device, settings)
    scripted(solver, scores)
    solver.solve()
    solver.close()
    assert solver.iter == 8 and solver.stopped and snapshots() == [8]
    told = capsys.readouterr().err
    assert "accuracy is no better than 0.8 (iteration 4) after 2 more tests" in told and "Optimization stopped early." in told
    again = make(device, settings, resume="snap_best_iter_4.solverstate")
    scripted(again, scores)
    again.solve()
    again.close()
    assert again.iter == 8


def test_a_run_from_the_best_snapshot_goes_on_exactly(device: Any) -> None:
    settings = 'best_output: "loss" test_interval: 4 test_initialization: false test_iter: 3'
    records: list[list[Any]] = [[], []]
    whole = make(device, settings)
    whole.on_record = records[0].append
    whole.step(9)
    whole.close()
    path = next(name for name in sorted(os.listdir()) if name.startswith("snap_best") and name.endswith("solverstate"))
    resumed = make(device, settings, resume=path)
    begin = resumed.iter
    resumed.on_record = records[1].append
    resumed.step(9 - resumed.iter)
    resumed.close()
    assert_same(everything(whole), everything(resumed), but=("loss",))
    tests = [[record for record in part if record["phase"] == "test" and record["iteration"] >= begin] for part in records]
    assert tests[0] == tests[1] and tests[0]


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ('best_output: "accurcy"', "best_output is 'accurcy', the outputs of the TEST nets are: .*accuracy"),
        ("early_stopping: 3", "without best_output"),
        ("ema_test: true", "no average"),
        ("ema_decay: 1", "ema_decay is 1"),
        ("snapshot_keep: -1", "snapshot_keep is -1"),
        ("iter_size: 0", "iter_size is 0"),
        ('larc: true type: "Adam"', "larc is set, and the type is Adam: the forks apply it with SGD only"),
        ('larc: true larc_policy: "clop"', "larc_policy is 'clop'"),
        ("larc: true local_lr_auto: true", "larc .* and local_lr_auto .* are both set"),
        ("larc_turbo: true", "larc_turbo is set, which is not supported: NVCaffe lowers"),
        ("stagelr: 0.1", "stagelr is for lr_policy 'multifixed'"),
        ('momentum_policy: "poly" type: "Nesterov"', "momentum_policy is 'poly', and the type is Nesterov"),
        ('momentum_policy: "polly"', "momentum_policy is 'polly'"),
        ('weight_decay_policy: "opt"', "weight_decay_policy is 'opt'"),
        ('type: "Adm"', "unknown solver type 'Adm'"),
        ('lr_policy: "steep"', "unknown lr_policy 'steep'"),
    ],
)
def test_refused(device: Any, extra: str, told: str) -> None:
    with pytest.raises(Error, match=told) as caught:
        make(device, extra)
    assert caught.value.fix and str(caught.value.place) == "solver.prototxt"


def test_best_output_without_tests(device: Any, tmp_path: pathlib.Path) -> None:
    from ocaffe import proto
    from ocaffe.formats.text import parse
    from ocaffe.solver.solver import Solver

    with pytest.raises(Error, match="nothing is tested"):
        Solver(parse('net: "net.prototxt" lr_policy: "fixed" best_output: "loss"', proto.SolverParameter, "s"), device)


def test_data_meter(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    solver = make(device, "display: 2 test_interval: 1000 test_initialization: false")
    records: list[Any] = []
    solver.on_record = records.append
    solver.step(5)
    solver.close()
    shown = [float(share) for share in re.findall(r"data wait (\d+) %", capsys.readouterr().err)]
    assert len(shown) == 2  # not at iteration 0, when no time has passed
    assert [record.get("data_wait") is not None for record in records] == [False, True, True]
    assert all(0 <= record["data_wait"] <= 1 for record in records[1:])
