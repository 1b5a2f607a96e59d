"""`ocaffe new point_shapes --data`: a detector without anchors for other classes and sizes, trained, tested, and used."""
from __future__ import annotations

import pathlib

import numpy as np
import pytest
from PIL import Image

from ocaffe.cl.device import Device
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.formats.text import read_net, read_solver
from ocaffe.zoo.detection_project import write_detector
from ocaffe.zoo.project import Choices
from tests.data.small_databases import write
from tests.data.sources.test_annotated import datum
from tests.zoo.test_detection_project import label_map


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory with annotated databases of three classes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name, count in (("train_lmdb", 6), ("val_lmdb", 4)):
        write(tmp_path / "data" / name, [datum(number, [(1 + number % 3, 0.1, 0.1, 0.4, 0.5)]) for number in range(count)])
    (tmp_path / "data/labelmap.prototxt").write_text(label_map(("background", 0), ("cat", 1), ("dog", 2), ("bird", 3)))
    return tmp_path


def test_classes_and_size(here: pathlib.Path) -> None:
    made = write_detector("point_shapes", "data", "out", Choices(batch=2, iterations=20, size=192))
    assert (made.classes, made.shape) == (3, (3, 192, 192))
    for file, parts in (("train_val", 3), ("deploy", 1)):
        layers = read_net(f"out/{file}.prototxt").layer
        assert {layer.name: layer.convolution_param.num_output for layer in layers if "_mbox_conf" in layer.name and layer.type == "Convolution"} == {
            f"level{cell}_mbox_conf_4": 4 for cell in (4, 8, 16, 32)
        }
        fields = ("aligned_box_loss_param", "detection_output_param", "detection_evaluate_param")
        assert [getattr(layer, field).num_classes for layer in layers for field in fields if layer.HasField(field)] == [4] * parts
        sides = [(each.height, each.width) for layer in layers for each in layer.transform_param.resize_param]
        assert sides == [(192, 192)] * (2 if file == "train_val" else 0)
    solver = read_solver("out/solver.prototxt")
    assert (solver.lr_policy, solver.warmup_iter, solver.ema_test, solver.HasField("power")) == ("cosine", 2, True, False)


def test_a_size_without_whole_cells(here: pathlib.Path) -> None:
    with pytest.raises(Error, match="--size is 200, and the net needs multiples of 32") as raised:
        write_detector("point_shapes", "data", "out", Choices(size=200))
    assert "--size 192 or 224" in str(raised.value)


def test_train_test_and_predict(here: pathlib.Path, device: Device, capsys: pytest.CaptureFixture[str]) -> None:
    """Two iterations, through the commands that README.md of the project names."""
    place = ["--device", device.number]
    assert main(["new", "point_shapes", "--data", "data", "--out", "net", "--iterations", "2", "--batch", "2", *place]) == 0
    assert main(["lint", "net/solver.prototxt"]) == 0, capsys.readouterr().out
    assert main(["train", "--solver", "net/solver.prototxt", *place]) == 0
    weights = "net/point_shapes_iter_2.caffemodel"
    assert main(["test", "--model", "net/train_val.prototxt", "--weights", weights, "--iterations", "1", "--per-class", *place]) == 0
    assert "mean" in capsys.readouterr().err
    image = pathlib.Path("image.png")
    Image.fromarray(np.full((60, 80, 3), 90, np.uint8)).save(image)
    assert main(["predict", "--model", "net/deploy.prototxt", "--weights", weights, "image.png", *place]) == 0
