"""Values that depend only on weights are kept between runs and recomputed when the weights change."""
from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocaffe import Net, proto
from ocaffe.api.pysolver import get_solver
from ocaffe.cl.actions import PrepackAction
from ocaffe.graph.options import NetOptions
from ocaffe.passes import prepacked_weights
from tests.zoo.counts import TARGETS, compiled

pytestmark = pytest.mark.quick

NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 16 dim: 12 dim: 12 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 24 kernel_size: 3 pad: 1 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "norm" }
layer { name: "scale" type: "Scale" bottom: "norm" top: "scale" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "scale" top: "relu" }
layer { name: "point" type: "Convolution" bottom: "relu" top: "point"
  convolution_param { num_output: 8 kernel_size: 1 weight_filler { type: "gaussian" std: 0.1 } } }
"""
TOTAL = "prepared weights"


@pytest.fixture(autouse=True)
def worth_it(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    """Keep results of any size on GPUs, because those of this small net would not be worth their memory."""
    if not device.target.is_cpu:
        monkeypatch.setattr(prepacked_weights, "MIN_BYTES_PER_FLOP", 0)


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "net.prototxt").write_text(NET)
    return str(tmp_path / "net.prototxt")


def net(file: str, device: Any, limit: int | None = None) -> Net:
    return Net(file, proto.TEST, device=device, keep=["data", "point"], seed=3, memory_limit=limit)


def result(of: Net, batch: int = 2) -> np.ndarray:
    of.blobs["data"].reshape(batch, 16, 12, 12)
    of.blobs["data"].data[...] = np.random.default_rng(batch).standard_normal((batch, 16, 12, 12))
    return np.array(of.forward()["point"])


def made(of: Net) -> list[int]:
    """Return for each kept result the change counter of the weights when it was computed."""
    of._engine.session.device.queue.finish()
    return list(of._engine.session.prepacked.values())


def test_made_once_and_again_after_a_change(file: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, plain = net(file, device), net(file, device)
    assert TOTAL in kept.plan().fixed
    monkeypatch.setattr(prepacked_weights, "MIN_BYTES_PER_FLOP", math.inf)
    assert TOTAL not in plain.plan().fixed
    assert any(isinstance(action, PrepackAction) for action in kept._engine.current().commands._actions)
    np.testing.assert_array_equal(result(kept), result(plain))
    first = made(kept)
    assert first and not made(plain)
    result(kept)
    assert made(kept) == first
    for of in (kept, plain):
        of.params["conv"][0].data[...] *= 2
        of.params["norm"][1].data[...] = 3
    np.testing.assert_array_equal(result(kept), result(plain))
    assert min(made(kept)) > max(first)


def test_a_limit_comes_first(file: str, device: Any) -> None:
    if not device.target.is_cpu:
        pytest.skip("what is made there takes as much memory for a while")
    kept = net(file, device)
    limited = net(file, device, limit=kept.plan().total - 1)
    assert TOTAL not in limited.plan().fixed and limited.plan().total < kept.plan().total
    np.testing.assert_array_equal(result(kept), result(limited))


def test_all_shapes_share_it(file: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, plain = net(file, device), net(file, device)
    size, batches = kept.plan().fixed[TOTAL], (1, 5, 2)
    results = [result(kept, batch) for batch in batches]
    monkeypatch.setattr(prepacked_weights, "MIN_BYTES_PER_FLOP", math.inf)
    for batch, found in zip(batches, results):
        np.testing.assert_array_equal(found, result(plain, batch))
    assert not made(plain)
    assert kept.plan().fixed[TOTAL] == size and len(made(kept)) == len(set(kept._engine.network.graph.prepacked.values()))


def test_weights_from_a_file(file: str, device: Any, tmp_path: Path) -> None:
    other, kept = net(file, device), net(file, device)
    result(kept)
    other.params["point"][0].data[...] = 1
    other.save(str(tmp_path / "net.caffemodel"))
    kept.copy_from(str(tmp_path / "net.caffemodel"))
    np.testing.assert_array_equal(result(kept), result(other))


def test_a_solver_keeps_nothing(device: Any, tmp_path: Path) -> None:
    """A solver keeps none: its weights change in every step, and its TEST net shares the memory of its TRAIN net."""
    (tmp_path / "solver.prototxt").write_text("""
base_lr: 0.1 lr_policy: "fixed" max_iter: 2 test_iter: 1 test_interval: 1 snapshot_after_train: false
net_param {
  layer { name: "data" type: "DummyData" top: "x" top: "t" dummy_data_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } shape { dim: 2 dim: 4 dim: 8 dim: 8 }
    data_filler { type: "gaussian" } data_filler { type: "gaussian" } } }
  layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "xavier" } } }
  layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
}""")
    solver = get_solver(str(tmp_path / "solver.prototxt"), device=device)
    solver.step(2)
    assert TOTAL not in solver.net.plan().fixed and TOTAL not in solver.test_nets[0].plan().fixed


@pytest.mark.parametrize("math", ["bf16", "tf32"])
def test_values_keep_their_order_of_channels(math: str) -> None:
    """The image of constants for a first convolution on Hopper depends on no input, so that it is kept like weights. It is in blocks of channels."""
    target = replace(TARGETS["H100"], math=math, wgmma=True)
    schedule = compiled("cifar10_quick", "TEST", target, NetOptions(prepack_weights=True)).recording.schedule
    (image,) = (launch for launch in schedule if launch.what == "conv_blocks_first.image")
    assert image.prepacks_weights and image["cells"].root.blocked and image["cells"].persistent
