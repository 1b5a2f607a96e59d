"""Cases in which shared memory broke forks of Caffe. Each is a training that must give the same bits with and without sharing."""
from __future__ import annotations

import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.data.databases.datum import encode_datum
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.formats.blob import write_blobproto
from ocaffe.solver.solver import Solver
from ocaffe.zoo import FOLDER
from tests.harness import switch

DATA = """layer { name: "data" type: "DummyData" top: "im" top: "y" dummy_data_param { shape { dim: 4 dim: 3 dim: 12 dim: 12 } shape { dim: 4 }
  data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }\n"""
SETTINGS = "base_lr: 0.05 lr_policy: 'fixed' momentum: 0.9 max_iter: 100 random_seed: 3 snapshot_after_train: false\n"


def conv(name: str, bottom: str, outputs: int = 8) -> str:
    return f"""layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}"
      convolution_param {{ num_output: {outputs} kernel_size: 3 pad: 1 weight_filler {{ type: "msra" }} }} }}\n"""


def layer(kind: str, name: str, bottoms: str, top: str = "", more: str = "") -> str:
    named = " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
    return f'layer {{ name: "{name}" type: "{kind}" {named} top: "{top or name}" {more} }}\n'


def classified(bottom: str, name: str = "loss", weight: float = 1) -> str:
    ip = layer("InnerProduct", f"{name}_ip", bottom, more='inner_product_param { num_output: 4 weight_filler { type: "xavier" } }')
    return ip + layer("SoftmaxWithLoss", name, f"{name}_ip y", more=f"loss_weight: {weight}")


def accumulated_diffs() -> str:
    """Return a net with a value for two convolutions, a sum and a loss; a sum of three values with a factor; a sum of a value and itself."""
    text = DATA + conv("a", "im") + conv("b", "a") + conv("c", "a") + layer("Eltwise", "s", "b a") + conv("d", "s")
    text += layer("Eltwise", "t", "d s c", more="eltwise_param { coeff: 1 coeff: 0.5 coeff: 1 }") + layer("Eltwise", "u", "t t")
    text += layer("Bias", "v", "u", more="bias_param { filler { type: 'gaussian' } }") + layer("Eltwise", "w", "v a")
    return text + classified("a", "early", 0.3) + classified("w")


def in_place_layers() -> str:
    text = DATA
    for i, bottom in enumerate(("im", "c0", "s1")):
        name = f"c{i}"
        text += conv(name, bottom) + layer("BatchNorm", f"bn{i}", name, name) + layer("Scale", f"sc{i}", name, name, "scale_param { bias_term: true }")
        text += layer("ReLU", f"r{i}", name, name) + layer("Dropout", f"d{i}", name, name)
        if i:
            text += layer("Eltwise", f"s{i}", f"{name} {bottom}") + layer("ReLU", f"sr{i}", f"s{i}", f"s{i}")
    return text + classified("s2")


def loss_diffs() -> str:
    """Return a net with a loss that another layer reads, loss weights, and a loss weight on a layer that is not a loss."""
    text = DATA + conv("a", "im") + layer("ReLU", "r", "a") + classified("r", "first", 0.3) + classified("r", "second", 2)
    text += layer("Power", "squared", "second", more="loss_weight: 0.1 power_param { power: 2 }")
    return text + layer("Reduction", "norm", "r", more="loss_weight: 0.001 reduction_param { operation: SUMSQ axis: 0 }")


def data_read_in_backward() -> str:
    text, below = DATA, "im"
    for i, kind in enumerate(("LRN", "Sigmoid", "PReLU", "TanH", "ELU", "BNLL", "AbsVal", "Pooling")):
        more = "pooling_param { pool: MAX kernel_size: 3 stride: 2 }" if kind == "Pooling" else ""
        text += conv(f"c{i}", below) + layer(kind, f"n{i}", f"c{i}", f"n{i}" if kind in ("LRN", "PReLU", "AbsVal", "BNLL", "Pooling") else f"c{i}", more)
        below = f"n{i}" if kind in ("LRN", "PReLU", "AbsVal", "BNLL", "Pooling") else f"c{i}"
    return text + layer("Eltwise", "prod", "n7 n7", more="eltwise_param { operation: PROD }") + layer("Softmax", "soft", "prod") + classified("soft")


def trained(device: Any, text: str, iterations: int = 10, **settings: Any) -> dict[str, list[np.ndarray]]:
    """Return all parameters, including running statistics, after some iterations."""
    solver = Solver(text_format.Parse(text, proto.SolverParameter()), device, **settings)
    solver.step(iterations)
    parameters = solver.network.parameter_arrays()
    solver.close()
    return parameters


def same(a: dict[str, list[np.ndarray]], b: dict[str, list[np.ndarray]]) -> None:
    for name in a:
        for x, y in zip(a[name], b[name]):
            assert np.isfinite(x).all() and x.tobytes() == y.tobytes(), name


@pytest.mark.usefixtures("small_values")
@pytest.mark.parametrize("net", [accumulated_diffs, in_place_layers, loss_diffs, data_read_in_backward])
def test_sharing_changes_no_bit(net: Any, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"net_param {{ {net()} }} {SETTINGS}"
    switch(monkeypatch, "poison")
    shared = trained(device, text)
    switch(monkeypatch, "poison=0", "plan=none")
    same(shared, trained(device, text, recompute="none"))


def test_a_test_net_in_the_same_memory_disturbs_nothing(device: Any) -> None:
    net = f"net_param {{ {in_place_layers()} }} {SETTINGS}"
    tested = net + "test_interval: 1 test_iter: 2 test_state { }"
    same(trained(device, net), trained(device, tested))


@pytest.mark.usefixtures("small_values")
def test_recomputation_leaves_running_statistics_and_masks(device: Any) -> None:
    """Recomputation updates BatchNorm's sums only once per iteration, and Dropout draws the same mask."""
    text = f"net_param {{ {in_place_layers()} }} {SETTINGS}"
    kept, cheap = trained(device, text, recompute="none"), trained(device, text, recompute="cheap")
    assert kept["bn1"][2][0] == pytest.approx(sum(0.999**i for i in range(10)))
    same(kept, cheap)


@pytest.mark.usefixtures("small_values")
def test_recomputation_advances_a_hidden_state_once(device: Any) -> None:
    text = """layer { name: "data" type: "DummyData" top: "x" top: "cont" top: "y" dummy_data_param {
      shape { dim: 3 dim: 4 dim: 5 } shape { dim: 3 dim: 4 } shape { dim: 3 dim: 4 dim: 6 }
      data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } data_filler { type: "gaussian" } } }\n"""
    text += layer("BNLL", "b", "x") + layer("TanH", "t", "b")
    text += layer("LSTM", "lstm", "t cont", more='recurrent_param { num_output: 6 weight_filler { type: "uniform" min: -0.5 max: 0.5 } }')
    text += layer("EuclideanLoss", "loss", "lstm y")
    solver = f"net_param {{ {text} }} {SETTINGS}"
    same(trained(device, solver, recompute="none"), trained(device, solver, recompute="cheap"))


@pytest.fixture
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory with the zoo, and small databases of noise under the names that its small nets use."""
    rng = np.random.default_rng(2)
    shutil.copytree(FOLDER, tmp_path / "zoo")
    for name, shape in (("mnist/mnist_{}", (1, 28, 28)), ("digits/digits_{}", (1, 28, 28)), ("cifar10/cifar10_{}", (3, 32, 32))):
        for part in ("train", "test"):
            path = tmp_path / "examples" / (name.format(part) + "_lmdb")
            path.parent.mkdir(parents=True, exist_ok=True)
            with LmdbWriter(str(path)) as writer:
                for i in range(150):
                    writer.put(b"%08d" % i, encode_datum(rng.integers(0, 256, shape, np.uint8), i % 10))
    write_blobproto(tmp_path / "examples/cifar10/mean.binaryproto", np.full((1, 3, 32, 32), 120, np.float32))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("net", ["lenet", "lenet_digits", "cifar10_quick"])
def test_zoo_nets_read_nothing_that_is_gone(net: str, workplace: pathlib.Path, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> dict[str, list[np.ndarray]]:
        param = text_format.Parse((workplace / f"zoo/{net}/solver.prototxt").read_text(), proto.SolverParameter())
        param.snapshot, param.snapshot_after_train, param.random_seed, param.test_interval = 0, False, 7, 5
        del param.test_iter[:]
        param.test_iter.append(1)
        return trained(device, text_format.MessageToString(param))

    plain = run()
    switch(monkeypatch, "poison")
    same(plain, run())
    switch(monkeypatch, "plan=none")
    same(plain, run())
