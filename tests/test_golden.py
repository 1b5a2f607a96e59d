"""Compare every case of tests/golden/{layers,nets,data,forks} with the results of real Caffe, on every device, fused and plain.

A case also fails if any of its arrays was not compared. `python -m tests.golden_report` writes the table of passed, failed and skipped.
To add a case: put <case>.prototxt and <case>.npz (see tests/golden/README.md) into the folder; nothing else.
"""
from __future__ import annotations

import functools
import importlib.util
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.compiler.network import recognise
from ocaffe.formats.text import read_net
from ocaffe.formats.upgrade import upgrade_net
from ocaffe.formats.weights import LayerWeights, Weights
from ocaffe.ir.target import TENSOR_MATHS
from ocaffe.layers.base import registry
from tests.harness import changed, switch

GOLDEN = pathlib.Path(__file__).parent / "golden"
TOLERANCE = 1e-4
ILL_CONDITIONED = {  # docs/differences.md
    ("Net-PSP-TRAIN", "param_diff/pool0_conv/0"): 1e-3,  # a BN over two values: a small difference of large terms; Caffe's own error is 6e-5
    ("Net-ShuffleUnit-TRAIN", "param_diff/dw_scale/1"): 10.0,  # the same, with a 1 x 1 convolution between
    **{("Net-SegNet-TRAIN", f"param_diff/{layer}/1"): 10.0 for layer in ("conv1", "conv2", "conv2_D", "conv1_D")},  # the same
    ("InplaceChain", "param_diff/c/1"): 10.0,  # a bias before BatchNorm: exactly 0; Caffe's rounding error is 2e-7, other gradients are near 5
}
WITHOUT_LOSS_WEIGHT = {"SmoothL1Loss.frcnn-sigma1", "SmoothL1Loss.frcnn-weights", "CenterLoss.ydwen-4d", "CenterLoss.ydwen-basic"}
# These forks have no default loss weight. ocaffe uses 1, as for all other losses (docs/differences.md).
# Prototxts that are identical in two forks. Setting a field that only one fork has selects the fork.
AMBIGUOUS = {"FocalLoss.troyliu0105": lambda layer: setattr(layer.focal_loss_param, "axis", 1)}
FOLDERS = ("layers", "nets", "data", "forks")
TRAINING = ("forks/ssd_train",)  # in the format of solvers/, run by tests/solver
WITHOUT_PLYVEL = {"data/Data-leveldb": "reads LevelDB, which needs the extra [leveldb]"} if importlib.util.find_spec("plyvel") is None else {}


class Case:
    """One golden case: its net, its arrays, and which arrays were compared. `tolerance` is relative to each array's largest magnitude."""

    def __init__(self, path: pathlib.Path, tolerance: float = TOLERANCE) -> None:
        self.path, self.tolerance = path, tolerance
        about = path.with_suffix(".json")
        self.about = json.loads(about.read_text()) if about.exists() else {}
        self.prototxt = path.with_name(self.about["prototxt"]) if self.about else path.with_suffix(".prototxt")
        self.arrays = dict(np.load(path))
        self.todo = {key for key in self.arrays if not key.startswith(("in", "param/", "param@", "memory")) or key.startswith(("in_diff", "init"))}

    def get(self, what: str, run: int) -> Iterator[tuple[list[str], np.ndarray]]:
        """Iterate over (path, array) of every key `what[@run]/...`."""
        prefix = f"{what}@{run}/" if run > 1 else f"{what}/"
        for key, array in self.arrays.items():
            if key.startswith(prefix):
                yield key[len(prefix) :].split("/"), array

    def compare(self, what: str, run: int, names: list[str], actual: np.ndarray) -> None:
        key = f"{what}@{run}/{'/'.join(names)}" if run > 1 else f"{what}/{'/'.join(names)}"
        expected = self.arrays[key]
        self.todo.discard(key)
        assert actual.shape == expected.shape, f"{key}: shape {actual.shape}, Caffe has {expected.shape}"
        if self.about and names == ["detection_out"]:  # many scores are 1; their order is undefined (keep_top_k in tests/golden/README.md)
            expected, actual = (array[:, :, np.lexsort(array[0, 0].T[[4, 3, 1, 0]])] for array in (expected, actual))
        scale = max(float(np.abs(expected).max(initial=0)), 1e-30)
        error = float(np.abs(actual.astype(np.float64) - expected).max(initial=0)) / scale
        tolerance = ILL_CONDITIONED.get((self.path.stem, key), self.tolerance)
        assert error <= tolerance, f"{key}: error {error:.3g} of the largest magnitude {scale:.3g}"


def cases() -> list[str]:
    names = (str(path.relative_to(GOLDEN).with_suffix("")) for folder in FOLDERS for path in (GOLDEN / folder).glob("*.npz"))
    return sorted(name for name in names if name not in TRAINING)


@functools.cache
def first_cases() -> set[str]:
    """Return the first case of each layer type, and two nets: the quick tier."""
    first: dict[str, str] = {}
    for name in cases():
        folder, _, compiled = name.partition("/")
        if folder != "nets":
            first.setdefault(re.split(r"[.-]", compiled)[0], name)
    return {*first.values(), "nets/LeNet-TRAIN", "nets/ResBlock-TRAIN"}


def is_optimised(name: str) -> bool:
    """Whether a case is built as for users: one of each layer type, and all nets. Compilers take half the time for the others (tests/conftest.py)."""
    return name in first_cases() or name.startswith("nets/") or "/Net-" in name


FUSED = pytest.mark.parametrize("fuse", ["fused", "plain"])


def types_of(case: Case) -> set[str]:
    return {layer.type for layer in upgrade_net(read_net(str(case.prototxt))).layer}


@FUSED
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.quick if name in first_cases() else ()) for name in cases() if is_optimised(name)])
def test_case(name: str, fuse: str, device: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    run_whole_case(name, fuse, device, monkeypatch, tmp_path)


@pytest.mark.unoptimised
@FUSED
@pytest.mark.parametrize("name", [name for name in cases() if not is_optimised(name)])
def test_unoptimised_case(name: str, fuse: str, device: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    run_whole_case(name, fuse, device, monkeypatch, tmp_path)


def run_whole_case(name: str, fuse: str, device: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.chdir(GOLDEN)
    monkeypatch.syspath_prepend(str(GOLDEN / "layers"))  # golden_pylayer
    switch(monkeypatch, "poison", f"fuse={int(fuse == 'fused')}")
    case = Case(GOLDEN / f"{name}.npz")
    if name in WITHOUT_PLYVEL:
        pytest.skip(WITHOUT_PLYVEL[name])
    absent = types_of(case) - set(registry())
    if absent:
        pytest.skip(f"layer not in the list: {', '.join(sorted(absent))}")
    written = GOLDEN / f"{name}.expected.h5"
    if written.exists():  # the layer writes a file, which must not be in the folder of the cases
        (tmp_path / case.path.parent.name).mkdir()
        monkeypatch.chdir(tmp_path)
    run_case(case, device)
    if written.exists():
        check_file(tmp_path / f"{name}.h5", written)


# Operands are rounded to 11 or 8 bits of mantissa. After several products the error of gradients is several times larger.
ROUNDED = {"tf32": 2e-2, "fp16": 2e-2, "bf16": 1e-1}


@pytest.mark.parametrize("mode", TENSOR_MATHS)
@pytest.mark.parametrize("name", ["LeNet-TRAIN", "Siamese", "SharedIP", "DepthwiseSep", "MultiLoss"])
def test_rounded_operands(name: str, mode: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if not device.target.tensor_cores:
        pytest.skip("no tensor cores")
    monkeypatch.chdir(GOLDEN)
    switch(monkeypatch, "poison")
    # In one window of LeNet's first pooling two values are closer than the rounding of 11-bit operands. So the other value is the maximum, and the gradient
    # of one filter (not of its bias) comes from another position.
    monkeypatch.setitem(ILL_CONDITIONED, ("LeNet-TRAIN", "param_diff/conv1/0"), 0.3)
    run_case(Case(GOLDEN / f"nets/{name}.npz", ROUNDED[mode]), changed(device, math=mode))


def check_file(actual: pathlib.Path, expected: pathlib.Path) -> None:
    with h5py.File(actual) as mine, h5py.File(expected) as theirs:
        assert list(mine) == list(theirs)
        for key in theirs:
            assert mine[key].shape == theirs[key].shape and mine[key].dtype == theirs[key].dtype
            assert (mine[key][...] == theirs[key][...]).all()


def message_of(case: Case) -> Any:
    """Return the net of a case. If its text fits layers of two forks, the case's blobs decide."""
    message = read_net(str(case.prototxt))
    stored: dict[str, list[np.ndarray | None]] = {}
    for (layer, _), array in case.get("param", 1):
        stored.setdefault(layer, []).append(array)
    for name, tell in AMBIGUOUS.items():
        if case.path.stem.startswith(name):
            tell(message.layer[-1])
    recognise(message, Weights("", [LayerWeights(name, blobs=blobs) for name, blobs in stored.items()]))
    return message


def run_case(case: Case, device: Any) -> None:
    """Run a case as Caffe ran it and compare every array."""
    message = message_of(case)
    phase = getattr(proto, case.about["phase"]) if case.about else message.state.phase
    if case.about:
        message.ClearField("state")
    looked_at = {names[0] for what in ("out", "top_diff", "in_diff") for run in range(1, 6) for names, _ in case.get(what, run)}
    net = Net(message, phase, level=case.about.get("level", 0), stages=case.about.get("stages", []), device=device, keep=sorted(looked_at))
    try:
        for names, _ in list(case.get("init", 1)):
            case.compare("init", 1, names, net.params[names[0]][int(names[1])].data)
        for names, array in case.get("param", 1):
            net.params[names[0]][int(names[1])].data[...] = array
        if "memory/data" in case.arrays:
            net.set_input_arrays(case.arrays["memory/data"], case.arrays["memory/label"])
        for run in range(1, 6):
            if run > 1 and not any(key.split("/")[0].endswith(f"@{run}") for key in case.arrays):
                break
            run_once(case, net, run)
        check_structure(case, net)  # only now: shapes may depend on data
    finally:
        net.close()
    assert not case.todo, f"not compared: {sorted(case.todo)}"


def run_once(case: Case, net: Net, run: int) -> None:
    for (blob,), array in case.get("in", run):
        net.blobs[blob].data[...] = array
    net.forward()
    for names, _ in list(case.get("out", run)):
        case.compare("out", run, names, net.blobs[names[0]].data)
    key = f"loss@{run}" if run > 1 else "loss"
    if key in case.arrays:
        loss = sum(weight * net.blobs[name].data.sum(dtype=np.float64) for name, weight in losses(net))
        expected = float(case.arrays[key])
        assert abs(loss - expected) <= case.tolerance * max(abs(expected), 1e-30), f"{key} {loss}, Caffe has {expected}"
        case.todo.discard(key)
    for names, _ in list(case.get("param_after", run)):
        case.compare("param_after", run, names, net.params[names[0]][int(names[1])].data)
    tops = list(case.get("top_diff", run))
    if not tops and not list(case.get("in_diff", run)) and not list(case.get("param_diff", run)):
        return
    for names, array in tops:
        blob = net.blobs[names[0]]
        by_hand = case.path.stem in WITHOUT_LOSS_WEIGHT
        if net._network.graph.blobs[names[0]].loss_weight and not by_hand:  # Caffe writes the loss weight there, so ocaffe must do so too
            case.compare("top_diff", run, names, blob.diff)
        else:
            blob.diff[...] = array
            case.todo.discard(f"top_diff@{run}/{names[0]}" if run > 1 else f"top_diff/{names[0]}")
    net.clear_param_diffs()
    net.backward()
    for names, _ in list(case.get("in_diff", run)):
        case.compare("in_diff", run, names, net.blobs[names[0]].diff)
    for names, _ in list(case.get("param_diff", run)):
        case.compare("param_diff", run, names, net.params[names[0]][int(names[1])].diff)


def losses(net: Net) -> list[tuple[str, float]]:
    return [(top.name, top.loss_weight) for node in net._network.graph.nodes for top in node.tops if top.loss_weight]


def check_structure(case: Case, net: Net) -> None:
    """Compare layers, blobs and shapes with Caffe's if the case records them."""
    if not case.about:
        return
    graph = net._network.graph
    mine = [{"name": n.name, "type": n.type, "bottoms": [b.name for b in n.bottoms], "tops": [t.name for t in n.tops]} for n in graph.nodes]
    assert mine == [{key: layer[key] for key in ("name", "type", "bottoms", "tops")} for layer in case.about["layers"]]
    assert {name: list(blob.shape) for name, blob in graph.blobs.items()} == case.about["blobs"]
    assert net.outputs == case.about["outputs"]
    assert {name: [list(blob.shape) for blob in blobs] for name, blobs in net.params.items()} == case.about["params"]
