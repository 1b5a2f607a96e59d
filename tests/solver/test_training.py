"""Training of a small net on an LMDB: reproducible runs, exact resume, no hidden waits, debug switches, snapshots after failures."""
from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.cl import outputs
from ocaffe.cl.command_list import RING
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.solver.solver import Solver
from tests.harness import changed, of_its_own, switch
from tests.tiers import rest_is_long

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"

NET = """
name: "tiny"
layer { name: "data" type: "Data" top: "data" top: "label" transform_param { crop_size: 20 mirror: true scale: 0.0078125 mean_value: 100 }
        data_param { source: "files/lmdb_raw" batch_size: 4 backend: LMDB } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1" convolution_param { num_output: 6 kernel_size: 3 pad: 1 bias_term: false
        weight_filler { type: "msra" } } }
layer { name: "bn1" type: "BatchNorm" bottom: "conv1" top: "conv1" }
layer { name: "scale1" type: "Scale" bottom: "conv1" top: "conv1" scale_param { bias_term: true } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { pool: MAX kernel_size: 3 stride: 2 } }
layer { name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2" convolution_param { num_output: 6 kernel_size: 3 pad: 1
        weight_filler { type: "xavier" } } }
layer { name: "sum" type: "Eltwise" bottom: "pool1" bottom: "conv2" top: "sum" }
layer { name: "relu2" type: "ReLU" bottom: "sum" top: "sum" }
layer { name: "norm" type: "LRN" bottom: "sum" top: "norm" lrn_param { local_size: 3 } }
layer { name: "ip1" type: "InnerProduct" bottom: "norm" top: "ip1" inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy" include { phase: TEST } }
"""
SETTINGS = {
    "net": '"net.prototxt"', "base_lr": "0.01", "momentum": "0.9", "weight_decay": "0.001", "lr_policy": '"inv"', "gamma": "0.1", "power": "0.5",
    "max_iter": "12", "display": "5", "snapshot_prefix": '"snap"', "random_seed": "3", "test_iter": "2", "test_interval": "5",
}  # fmt: skip


@pytest.fixture(autouse=True)
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "net.prototxt").write_text(NET)
    shutil.copytree(GOLDEN / "files", tmp_path / "files")
    monkeypatch.chdir(tmp_path)
    yield


def make(device: Any, extra: str = "", **options: Any) -> Solver:
    """Return a solver with SETTINGS, overridden by `extra` ("name: value ...")."""
    words = extra.split()
    settings = SETTINGS | {name.rstrip(":"): value for name, value in zip(words[::2], words[1::2])}
    text = "\n".join(f"{name}: {value}" for name, value in settings.items())
    return Solver(parse(text, proto.SolverParameter, "solver.prototxt"), device, file="solver.prototxt", **options)


def train(device: Any, extra: str = "", steps: int = 12, **options: Any) -> dict[str, np.ndarray]:
    """Train and return the complete state after it."""
    solver = make(device, extra, **options)
    try:
        solver.step(steps - solver.iter)
        return everything(solver)
    finally:
        solver.close()


def everything(solver: Solver) -> dict[str, np.ndarray]:
    result = {f"{name}/{i}": blob for name, blobs in solver.network.parameter_arrays().items() for i, blob in enumerate(blobs)}
    result |= {f"history/{i}": blob for i, blob in enumerate(solver.history_arrays())}
    result["loss"] = np.array([solver.losses.value])
    return result


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray], but: tuple[str, ...] = ()) -> None:
    assert a.keys() == b.keys()
    for key in a.keys() - set(but):
        assert np.isfinite(a[key]).all(), key
        assert np.array_equal(a[key], b[key]), f"{key} differs by {np.abs(a[key] - b[key]).max()}"


def test_two_runs_with_one_seed_are_equal(device: Any) -> None:
    assert_same(train(device), train(device))


def test_another_seed_gives_other_numbers(device: Any) -> None:
    other = train(device, "random_seed: 4", steps=2)
    assert not np.array_equal(train(device, steps=2)["conv1/0"], other["conv1/0"])


@pytest.mark.parametrize("cut", rest_is_long([1, 5, 4, 7, 11], 2))
@pytest.mark.parametrize("extra", ["", "iter_size: 3", 'snapshot_format: HDF5 type: "Adam"'], ids=["plain", "iter_size", "adam-hdf5"])
def test_resume_is_exact(device: Any, cut: int, extra: str) -> None:
    whole = train(device, extra)
    first = make(device, extra)
    first.step(cut)
    state = first.snapshot()
    first.close()
    # smoothing restarts with every call of step (docs/quirks.md, quirk 34); a window of one is the last loss in both
    assert_same(whole, train(device, extra, resume=state))


AUGMENTED = """crop_size: 20 mirror: true scale: 0.0078125 mean_value: 100 vertical_mirror: true random_90_deg_rot: true random_resized_crop { }
    affine { rotation: 10 translation: 0.1 min_zoom: 0.9 max_zoom: 1.1 shear: 5 border: REFLECT } lighting { } erase { random: true }
    mixup { prob: 0.5 alpha: 0.2 } cutmix { prob: 0.5 } label_classes: 4
    distort_param { brightness_prob: 0.5 brightness_delta: 32 hue_prob: 0.5 hue_delta: 18 random_order_prob: 0.5 }"""


@pytest.mark.parametrize("cut", [5, 7])
def test_resume_with_augmentation_is_exact(device: Any, cut: int) -> None:
    plain = "crop_size: 20 mirror: true scale: 0.0078125 mean_value: 100"
    assert plain in NET
    pathlib.Path("net.prototxt").write_text(NET.replace(plain, AUGMENTED))
    whole = train(device)
    first = make(device)
    first.step(cut)
    state = first.snapshot()
    first.close()
    assert_same(whole, train(device, resume=state))
    pathlib.Path("net.prototxt").write_text(NET)
    assert not np.array_equal(train(device)["conv1/0"], whole["conv1/0"])


@pytest.mark.parametrize("word", ["plan=none", "poison"])
@pytest.mark.parametrize("extra", ["", "iter_size: 2 clip_gradients: 0.5"], ids=["plain", "passes"])
def test_debug_switches_give_equal_bits(device: Any, word: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train(device, extra)
    switch(monkeypatch, word)
    assert_same(plain, train(device, extra))


def test_fusion_changes_no_more_than_rounding(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fused = train(device, steps=3)
    switch(monkeypatch, "fuse=0")
    plain = train(device, steps=3)
    for key, value in fused.items():
        assert np.abs(value - plain[key]).max() <= 1e-4 * max(np.abs(value).max(), 1e-30), key


def run_log(device: Any, capsys: pytest.CaptureFixture[str], extra: str, steps: int = 6) -> list[str]:
    """Train, and return the texts of the log without the speed."""
    capsys.readouterr()
    solver = make(device, extra)
    solver.step(steps)
    solver.close()
    return [re.sub(r"^.*?\] |\(.* iters\)", "", line) for line in capsys.readouterr().err.splitlines()]


def test_clipping_is_logged_where_caffe_logs_it(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The line comes after the outputs and before the rate. Its numbers are the same for fused and separate updates."""
    settings = "display: 1 test_interval: 100 test_initialization: false clip_gradients: 0.05"
    together = run_log(device, capsys, settings)
    apart = run_log(device, capsys, f"{settings} snapshot_diff: true")
    pick = re.compile(r"Iteration \d+|Gradient clipping|net output")
    chosen = [line for line in together if pick.search(line)]
    assert [line for line in apart if pick.search(line)] == chosen
    assert [line.split(" ")[0] for line in chosen[:4]] == ["Iteration", "", "Gradient", "Iteration"]
    norms = [float(match[1]) for line in chosen if (match := re.search(r"L2 norm (\S+) > 0.05", line))]
    assert len(norms) == 6 and all(0.05 < norm < 1e4 for norm in norms)


def test_smoothing_does_not_depend_on_display(device: Any) -> None:
    """The smoothed loss is the same for every display interval, also if another layer reads the loss."""
    text = pathlib.Path("net.prototxt").read_text()
    extra = 'layer { name: "copy" type: "Power" bottom: "loss" top: "copy" }'
    pathlib.Path("net.prototxt").write_text(text + extra)
    shown, hidden = (make(device, f"average_loss: 3 test_interval: 100 test_initialization: false display: {display}") for display in (1, 0))
    for solver in (shown, hidden):
        solver.step(5)
        solver.close()
    assert shown.losses.recent == hidden.losses.recent and len({float(loss) for loss in shown.losses.recent}) == 3


def test_resume_after_a_stop_in_the_middle_of_a_test(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def scores() -> list[str]:
        return [line.split("] ")[1] for line in capsys.readouterr().err.splitlines() if "Test net output" in line]

    settings = "test_interval: 4 test_iter: 3"
    train(device, settings)
    whole = scores()
    first = make(device, settings)
    batches = iter(range(100))
    first.request = lambda: "stop" if first.iter == 8 and next(batches) == 2 else ""
    first.solve()
    first.close()
    begun = scores()
    assert first.stopped and first.iter == 8 and len(begun) < len(whole)
    train(device, settings, resume="snap_iter_8.solverstate")
    assert begun + scores() == whole


def test_planned_memory_is_recycled(device: Any) -> None:
    solver = make(device)
    plan = solver.train_nets()[0].plan
    assert plan.lower_bound <= plan.total <= 1.1 * plan.lower_bound
    assert plan.total < 0.8 * sum(life.size for life in plan.lives)
    test_slabs = solver.test_networks[0].nets.compiled(solver.test_options[0]).plan.slabs
    assert len(solver.session.arena.slabs) == len(plan.slabs) and sum(test_slabs) <= sum(plan.slabs)
    solver.close()


FORBIDDEN = ("finish", "Buffer", "Program", "Kernel", "Context", "CommandQueue", "wait_for_events", "enqueue_barrier", "enqueue_map_buffer")


class Watched:
    """Replaces pyopencl: it forwards all names, and records forbidden names and blocking copies."""

    def __init__(self, cl: Any, allowed: tuple[str, ...] = ()) -> None:
        self.cl, self.broken, self.allowed = cl, [], allowed

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.cl, name)
        if name in FORBIDDEN and name not in self.allowed:
            self.broken.append(name)
        if name == "enqueue_copy":
            return self.copy
        return value

    def copy(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("is_blocking", True):
            self.broken.append("blocking enqueue_copy")
        return self.cl.enqueue_copy(*args, **kwargs)


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("extra", ["", "iter_size: 2"], ids=["plain", "passes"])
def test_step_neither_waits_nor_makes_anything(device: Any, extra: str, own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if own:
        device = of_its_own(device)
    solver = make(device, f"display: 0 test_interval: 100 test_initialization: false {extra}")
    solver.step(1)
    allowed = () if device.target.unified_memory else ("enqueue_barrier",)  # one queue waits for the other
    watched = Watched(device.cl, allowed)
    calls: list[str] = []
    for cls, names in ((device.cl.Kernel, ("set_args", "set_arg")), (device.cl.CommandQueue, ("finish",)), (device.cl.Program, ("build",))):
        for name in names:
            monkeypatch.setattr(cls, name, forbid(calls, name), raising=False)
    monkeypatch.setattr(device, "cl", watched)
    monkeypatch.setattr(solver.session, "_cl", watched)
    try:
        solver.step(8)
    finally:
        monkeypatch.undo()
        solver.close()
    assert not watched.broken and not calls


CONSTANT = """
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 6 } shape { dim: 4 } data_filler { type: "constant" value: 0.5 } data_filler { type: "constant" value: 1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
FIXED = "net: 'constant.prototxt' momentum: 0.9 random_seed: 1 average_loss: 40 snapshot_after_train: false"


def constant(device: Any, extra: str) -> Solver:
    """Return a solver of a net that needs no data from the host."""
    pathlib.Path("constant.prototxt").write_text(CONSTANT)
    return Solver(parse(f"{FIXED} {extra}", proto.SolverParameter, "solver.prototxt"), device, file="solver.prototxt")


class Counted:
    """Replaces pyopencl and counts copies by direction."""

    def __init__(self, cl: Any) -> None:
        self.cl, self.copies = cl, {"to": 0, "from": 0}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cl, name)

    def enqueue_copy(self, queue: Any, target: Any, source: Any, **kwargs: Any) -> Any:
        self.copies["from" if isinstance(target, np.ndarray) else "to"] += 1
        return self.cl.enqueue_copy(queue, target, source, **kwargs)


RATES = {  # solver settings, and the number of iterations out of 32 that send words of the step buffer
    "fixed": ("base_lr: 0.1 lr_policy: 'fixed'", 0),
    "multistep": ("base_lr: 0.1 lr_policy: 'multistep' gamma: 0.5 stepvalue: 10 stepvalue: 20", 2),
    "inv": ("base_lr: 0.1 lr_policy: 'inv' gamma: 0.1 power: 0.5", 32),
    "adam": ("base_lr: 0.1 lr_policy: 'fixed' type: 'Adam' momentum2: 0.99", 32),
    "average": ("base_lr: 0.1 lr_policy: 'fixed' ema_decay: 0.9", 32),
}


@pytest.mark.parametrize("case", RATES)
def test_what_stays_the_same_is_not_sent(device: Any, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extra, sent = RATES[case]
    monkeypatch.setattr(outputs, "LATE", 1e9)
    solver = constant(device, extra)
    solver.step(1)
    counted = Counted(device.cl)
    monkeypatch.setattr(device, "cl", counted)
    solver.step(32)
    monkeypatch.undo()
    solver.close()
    assert counted.copies == {"to": sent, "from": 2}


def test_words_are_sent_again_where_something_wrote_over_them(device: Any) -> None:
    states = []
    for disturbed in (False, True):
        solver = constant(device, RATES["fixed"][0])
        solver.step(2)
        compiled = solver.train_nets()[0]
        if disturbed:
            compiled.commands.write(compiled.recording.step, np.zeros(8, np.uint32))
        solver.step(2)
        states.append(everything(solver))
        solver.close()
    for name, array in states[0].items():
        np.testing.assert_array_equal(states[1][name], array, name)


@pytest.mark.parametrize("extra", ["", "iter_size: 2", "clip_gradients: 0.01"], ids=["plain", "passes", "clipped"])
def test_losses_do_not_depend_on_when_they_come(device: Any, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses are the same with a transfer for each run, with one for many runs, and with transfers of late outputs."""
    kept = []
    for slots, late in ((1, 0.0), (16, 1e9), (16, 0.0), (3, 1e9)):
        monkeypatch.setattr(outputs, "OUTPUT_SLOTS", slots)
        monkeypatch.setattr(outputs, "LATE", late)
        solver = constant(device, f"{RATES['fixed'][0]} display: 7 {extra}")
        solver.step(24)
        kept.append([float(loss) for loss in solver.losses.recent])
        solver.close()
    assert len(set(kept[0])) == 24 and all(each == kept[0] for each in kept[1:])


def test_a_run_ahead_is_bounded(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an iteration is enqueued, at most RING - 1 iterations are unfinished."""
    monkeypatch.setattr(outputs, "LATE", 1e9)
    solver = constant(device, RATES["fixed"][0])
    events: list[Any] = []
    ended: list[bool] = []

    def after(iteration: int) -> None:
        events.append(solver.train_nets()[0].commands._last)
        ended.extend(event.command_execution_status == device.cl.command_execution_status.COMPLETE for event in events[: -RING + 1])

    solver.on_progress = after
    solver.step(12)
    solver.close()
    assert len(events) == 12 and ended and all(ended)


def forbid(calls: list[str], name: str) -> Callable[..., None]:
    def called(*args: Any, **kwargs: Any) -> None:
        calls.append(name)

    return called


@pytest.mark.parametrize("extra", ["", "iter_size: 2"], ids=["plain", "passes"])
def test_a_memory_of_its_own_changes_nothing(device: Any, extra: str) -> None:
    assert_same(train(device, extra), train(of_its_own(device), extra))


def test_signals_stop_and_snapshot(device: Any) -> None:
    solver = make(device)
    wanted = {3: "snapshot", 6: "stop"}
    solver.request = lambda: wanted.pop(solver.iter, "")
    solver.solve()
    solver.close()
    assert solver.iter == 6 and solver.stopped
    assert {"snap_iter_3.caffemodel", "snap_iter_3.solverstate", "snap_iter_6.caffemodel", "snap_iter_6.solverstate"} <= set(os.listdir())


def test_a_full_disk_leaves_the_old_snapshot(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = make(device)
    solver.step(2)
    solver.snapshot()
    before = pathlib.Path("snap_iter_2.caffemodel").read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Error, match="snap_iter_2"):
        solver.snapshot()
    solver.close()
    assert pathlib.Path("snap_iter_2.caffemodel").read_bytes() == before
    assert not [name for name in os.listdir() if name.endswith(".tmp")]


@pytest.mark.parametrize("extra", ["snapshot: 5", 'best_output: "loss"'])
def test_snapshot_folder_is_checked_before_training(device: Any, extra: str) -> None:
    pathlib.Path("file").write_text("no folder")
    with pytest.raises(Error, match="cannot write snapshots"):
        make(device, f'{extra} snapshot_prefix: "file/snap"')
    make(device, f'{extra} snapshot_prefix: "new/folder/snap"').close()
    assert pathlib.Path("new/folder").is_dir()


def test_a_device_too_small_is_refused_before_iteration_0(device: Any) -> None:
    with pytest.raises(Error, match=r"needs .* has 97\.7 KiB free|takes 160 KiB, and a buffer of .* at most 97\.7 KiB") as caught:
        make(changed(device, global_memory=100_000))
    assert caught.value.fix


def test_the_last_pass_may_have_a_new_shape(tmp_path: pathlib.Path, device: Any) -> None:
    """After the last update one more batch is read for its loss. Here its image has a size that no iteration had."""
    for number, side in enumerate((8, 12)):
        Image.new("RGB", (side, side), (100, 50, 20)).save(tmp_path / f"{number}.png")
    (tmp_path / "list.txt").write_text("".join(f"{tmp_path}/{number}.png {number}\n" for number in range(2)))
    text = f"""net_param {{
        layer {{ name: "data" type: "ImageData" top: "data" top: "label" image_data_param {{ source: "{tmp_path}/list.txt" batch_size: 1 }} }}
        layer {{ name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param {{ pool: AVE global_pooling: true }} }}
        layer {{ name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param {{ num_output: 2 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }} }}
        base_lr: 0.01 lr_policy: "fixed" max_iter: 1 display: 1"""
    with contextlib.closing(Solver(parse(text, proto.SolverParameter), device)) as solver:
        solver.solve()
        assert solver.iter == 1
