"""A Caffe user's workflow from image files to a tested net.

It runs convert_imageset, compute_image_mean, train, test, extract_features, classify and plot.
"""
from __future__ import annotations

import contextlib
import io
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe.cli import main
from ocaffe.formats.weights import read_weights

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLASSES, SIZE = 10, 32


def picture(label: int, dice: np.random.Generator) -> Image.Image:
    """Return shifted, noisy stripes whose direction and color depend on the class."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    angle = np.pi * (label % 5) / 5
    wave = np.sin(2 * np.pi * (4 * (x * np.cos(angle) + y * np.sin(angle)) + dice.random()))
    color = np.array([1.0, 0.4, 0.1] if label < 5 else [0.1, 0.5, 1.0])
    pixels = 120 + 80 * wave[..., None] * color + dice.normal(0, 15, (SIZE, SIZE, 3))
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


@pytest.fixture
def workplace(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    dice = np.random.default_rng(4)
    for part, count in (("train", 400), ("test", 100)):
        (tmp_path / part).mkdir()
        lines = []
        for number in range(count):
            label = number * CLASSES // count  # sorted; convert_imageset shuffles
            picture(label, dice).save(f"{part}/{number:04}.png")
            lines.append(f"{number:04}.png {label}\n")
        pathlib.Path(f"{part}.txt").write_text("".join(lines))
    net = (ROOT / "zoo/cifar10_quick" / "train_val.prototxt").read_text()
    net = net.replace("examples/cifar10/cifar10_train_lmdb", "train_lmdb").replace("examples/cifar10/cifar10_test_lmdb", "test_lmdb")
    net = re.sub(r'mean_file: "[^"]*"', 'mean_file: "mean.binaryproto"', net)
    pathlib.Path("net.prototxt").write_text(re.sub(r"batch_size: \d+", "batch_size: 50", net))
    pathlib.Path("solver.prototxt").write_text(
        'net: "net.prototxt" test_iter: 2 test_interval: 30 base_lr: 0.0005 momentum: 0.9 weight_decay: 0.004 lr_policy: "fixed" display: 10 '
        'max_iter: 60 snapshot_prefix: "quick" type: "Adam" random_seed: 3'
    )


def run(*arguments: str) -> str:
    """Run a command and return its stderr."""
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream):
        assert main(list(arguments)) == 0, stream.getvalue()
    return stream.getvalue()


def test_cifar10_quick_from_files(workplace: None, device: Any) -> None:
    spec = f"--device={device.number}"
    run("convert_imageset", "--shuffle", "--seed=1", "train/", "train.txt", "train_lmdb")
    run("convert_imageset", "--encoded", "test/", "test.txt", "test_lmdb")
    run("compute_image_mean", "train_lmdb", "mean.binaryproto")
    assert main(["lint", "solver.prototxt"]) == 0
    log = run("train", "--solver=solver.prototxt", spec)
    accuracy = [float(value) for value in re.findall(r"Test net output #0: accuracy = ([\d.]+)", log)]
    assert accuracy[0] < 0.4 and accuracy[-1] > 0.95, accuracy
    pathlib.Path("train.log").write_text(log)
    run("parse_log", "train.log", ".")
    rows = pathlib.Path("train.log.test").read_text().splitlines()
    assert rows[0] == "NumIters,Seconds,LearningRate,accuracy,loss" and len(rows) == 1 + len(accuracy)
    run("extract_features", "quick_iter_60.caffemodel", "net.prototxt", "ip1", "features", "2", "lmdb", spec)
    assert {layer.name for layer in read_weights("quick_iter_60.caffemodel").layers} >= {"conv1", "ip2"}
    deploy = str(ROOT / "zoo/cifar10_quick" / "deploy.prototxt")
    common = [spec, "--model_def", deploy, "--pretrained_model=quick_iter_60.caffemodel", "--mean_file=mean.binaryproto", "--images_dim=32,32"]
    with contextlib.redirect_stdout(io.StringIO()):
        run("classify", *common, "--center_only", "--ext=png", "test", "scores")
    found = np.load("scores.npy").argmax(1)
    assert (found == np.arange(100) * CLASSES // 100).mean() > 0.95


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["extract_features", "w", "net.prototxt", "ip1", "out", "1", "lmdb", "GPU"], {"gpu": "0"}),
        (["extract_features", "w", "net.prototxt", "ip1", "out", "1", "lmdb", "GPU", "3"], {"gpu": "3"}),
        (["extract_features", "w", "net.prototxt", "ip1", "out", "1", "lmdb", "CPU"], {"solver_mode_cpu": True}),
        (["extract_features", "--gpu=1", "w", "net.prototxt", "ip1", "out", "1", "lmdb"], {"gpu": "1"}),
        (["classify", "--gpu", "--mean_file=", "in.png", "out"], {"gpu": "0"}),
        (["classify", "--device=x", "--mean_file=", "in.png", "out"], {"spec": "x"}),
        (["detect", "--crop_mode=list", "--gpu", "in.csv", "out.csv"], {"gpu": "0"}),
    ],
)
def test_choice_of_device(workplace: None, arguments: list[str], wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands use the requested device. No GPU is needed for the test."""
    asked: dict[str, Any] = {}

    def select(spec: str | None, gpu: str | None = None, solver_mode_cpu: bool = False, math: str | None = None) -> Any:
        asked.update({"spec": spec, "gpu": gpu, "solver_mode_cpu": solver_mode_cpu})
        raise KeyboardInterrupt

    for module in ("extract_features", "classify"):
        monkeypatch.setattr(f"ocaffe.cli.{module}.select_device", select)
    pathlib.Path("in.csv").write_text("filename,ymin,xmin,ymax,xmax\na.png,0,0,2,2\n")
    assert main(arguments) == 130
    assert asked == {"spec": None, "gpu": None, "solver_mode_cpu": False, **wanted}
