"""Callbacks of the net between the layers, in the passes of a solver."""
from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe

NET = """
layer { name: "data" type: "DummyData" top: "data" top: "label"
        dummy_data_param { shape { dim: 6 dim: 3 dim: 5 dim: 5 } shape { dim: 6 } data_filler { type: "gaussian" } data_filler { type: "constant" value: 1 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 random_seed: 3 display: 0 max_iter: 10 iter_size: PASSES'
NAMES = ["data", "conv", "relu", "drop", "ip", "loss"]


@pytest.mark.parametrize("passes", [1, 2])
def test_callbacks_run_between_the_layers(device: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, passes: int) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("net.prototxt").write_text(NET)
    pathlib.Path("solver.prototxt").write_text(SOLVER.replace("PASSES", str(passes)))
    plain, hooked = (caffe.SGDSolver("solver.prototxt", device=device) for _ in range(2))
    plain.step(3)
    called: list[tuple[str, int]] = []
    assert list(hooked.net._layer_names) == NAMES
    hooked.net.before_forward(lambda layer: called.append(("forward", layer)))
    hooked.net.after_backward(lambda layer: called.append(("backward", layer)))
    hooked.step(3)
    layers = range(len(NAMES))
    assert called == [*(("forward", layer) for layer in layers), *(("backward", layer) for layer in reversed(layers))] * 3 * passes
    for name, blobs in plain.net.params.items():
        for ours, theirs in zip(hooked.net.params[name], blobs):
            np.testing.assert_allclose(ours.data, theirs.data, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(hooked.net.blobs["loss"].data, plain.net.blobs["loss"].data, rtol=1e-5)


def test_a_callback_changes_a_blob(device: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("net.prototxt").write_text(NET)
    pathlib.Path("solver.prototxt").write_text(SOLVER.replace("PASSES", "1"))
    solver = caffe.SGDSolver("solver.prototxt", device=device)

    def clear(layer: int) -> None:
        if NAMES[layer] == "loss":
            solver.net.blobs["ip"].data[...] = 0

    solver.net.before_forward(clear)
    solver.step(1)
    assert solver.net.blobs["loss"].data == pytest.approx(np.log(3), rel=1e-5)
