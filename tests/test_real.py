"""Real files: weights that real Caffe trained, on the real MNIST test set. Skipped without the folder ../shared/real."""
from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cli import main

REAL = pathlib.Path(__file__).resolve().parents[2] / "shared" / "real"
MODEL = REAL / "models" / "lenet_ljf"
pytestmark = pytest.mark.skipif(not MODEL.is_dir(), reason="../shared/real is not here")


def test_lenet_gives_the_outputs_of_another_implementation(device: Any) -> None:
    reference = np.load(MODEL / "cv2_reference.npz")
    net = Net(str(MODEL / "lenet.prototxt"), str(MODEL / "lenet_iter_10000.caffemodel"), proto.TEST, device=device)
    image = reference["run0.in.data"]
    net.blobs["data"].reshape(*image.shape)
    net.blobs["data"].data[...] = image
    assert np.abs(net.forward()["prob"] - reference["run0.out.prob"]).max() < 1e-5


@pytest.mark.parametrize(("folder", "files"), [("mtcnn_det3", "det3"), ("ultralight_RFB320", "RFB-320")])
def test_detectors_give_the_outputs_of_another_implementation(folder: str, files: str, device: Any) -> None:
    model = REAL / "models" / folder
    reference = np.load(model / "cv2_reference.npz")
    net = Net(str(model / f"{files}.prototxt"), str(model / f"{files}.caffemodel"), proto.TEST, device=device)
    compared = 0
    for run in sorted({key.split(".")[0] for key in reference.files}):
        for key in reference.files:
            if key.startswith(f"{run}.in."):
                image = reference[key]
                net.blobs[key.removeprefix(f"{run}.in.")].reshape(*image.shape)
                net.blobs[key.removeprefix(f"{run}.in.")].data[...] = image
        net.forward()
        for key in reference.files:
            if key.startswith(f"{run}.out."):
                name, expected = key.removeprefix(f"{run}.out."), reference[key]
                top = next(node for node in net._network.graph.nodes if node.name == name).tops[0].name
                error = np.abs(net.blobs[top].data.reshape(expected.shape) - expected).max() / max(1.0, np.abs(expected).max())
                assert error < 1e-4, f"{key}: {error}"
                compared += 1
    assert compared


def test_mnist_accuracy_of_caffes_weights(device: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["dataset", "mnist", "--from", str(REAL / "data" / "mnist"), "examples/mnist"]) == 0
    flags = ["--model", str(MODEL / "extra" / "lenet_train_test.prototxt"), "--weights", str(MODEL / "lenet_iter_10000.caffemodel")]
    assert main(["test", *flags, "--iterations", "100", "--device", str(device.number)]) == 0
    accuracy = re.search(r"\] accuracy = (\S+)", capfd.readouterr().err)
    assert accuracy is not None and accuracy[1] == "0.9913"
