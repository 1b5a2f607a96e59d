"""Run the scripts of docs/examples in order, as a reader would."""
from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples"


def run(device: Any, script: str, *args: object) -> str:
    env = {**os.environ, "OCAFFE_DEVICE": device.number, "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parents[1]), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-W", "error", str(EXAMPLES / script), *map(str, args)], env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def trained(device: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, str]:
    """Return a folder with a trained LeNet and an image of a seven, and the output of the training."""
    datasets = pytest.importorskip("sklearn.datasets")
    folder = tmp_path_factory.mktemp("examples")
    said = run(device, "train_lenet.py", folder, 120)
    digits = datasets.load_digits()
    seven = digits.images[np.flatnonzero(digits.target == 7)[3]] * (255 / 16)
    Image.fromarray(seven.astype(np.uint8)).resize((28, 28), Image.Resampling.BICUBIC).save(folder / "seven.png")
    return folder, said


def test_train_and_classify(device: Any, trained: tuple[pathlib.Path, str]) -> None:
    folder, said = trained
    accuracies = [float(value) for value in re.findall(r"accuracy ([0-9.]+)", said)]
    assert len(accuracies) == 4 and accuracies[-1] > 0.9, said
    said = run(device, "classify.py", folder / "deploy.prototxt", folder / "lenet.caffemodel", folder / "seven.png")
    assert re.match(r".*seven\.png: class 7 0\.\d+, class", said), said


def test_filters(device: Any, trained: tuple[pathlib.Path, str]) -> None:
    folder, _ = trained
    said = run(device, "filters.py", folder / "deploy.prototxt", folder / "lenet.caffemodel", folder / "seven.png", folder / "a.png", folder / "b.png")
    assert "conv1: 20 filters of 5 x 5" in said
    for name, side in (("a.png", 5), ("b.png", 24)):
        with Image.open(folder / name) as picture:
            assert picture.size == (4 * (5 * (side + 1) - 1), 4 * (4 * (side + 1) - 1))  # four rows of five tiles
            assert len(set(picture.getdata())) > 50


def test_finetune(device: Any, trained: tuple[pathlib.Path, str]) -> None:
    folder, _ = trained
    said = run(device, "finetune.py", folder, 60)
    accuracies = [float(value) for value in re.findall(r"accuracy ([0-9.]+)", said)]
    assert accuracies[-1] > 0.85, said
    assert re.findall(r"(\w+): (frozen|trained)", said) == [("conv1", "frozen"), ("conv2", "frozen"), ("ip1", "frozen"), ("odd", "trained")]
    assert (folder / "odd.caffemodel").exists()


def test_to_onnx(device: Any, trained: tuple[pathlib.Path, str]) -> None:
    pytest.importorskip("onnxruntime")
    folder, _ = trained
    said = run(device, "to_onnx.py", folder / "deploy.prototxt", folder / "lenet.caffemodel", folder / "lenet.onnx")
    assert "nodes Conv, MaxPool" in said
    difference = re.search(r"Runtime ([0-9.e-]+),", said)
    assert difference is not None and float(difference[1]) < 1e-5


def test_every_example_is_listed() -> None:
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert scripts == set(re.findall(r"\[(\w+\.py)\]", (EXAMPLES / "README.md").read_text())) and len(scripts) == 5
