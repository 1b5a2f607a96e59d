"""`ocaffe new` for YOLO: anchors of the boxes, outputs of the predictions, sizes of images; training, detections, conversion to ONNX."""
from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.formats.text import read_net, read_solver
from ocaffe.tools.datasets.anchors import anchors_of
from ocaffe.zoo.detection_project import is_detector, write_detector
from ocaffe.zoo.project import Choices
from tests.data.small_databases import write
from tests.data.sources.test_annotated import datum
from tests.zoo.test_detection_project import LABELS, label_map

TRAINED, TESTED = 12, 4
SIDES = np.random.default_rng(2).uniform(0.1, 0.6, (TRAINED, 2))  # width and height of the boxes


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory with annotated databases of three classes, with boxes of many sizes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name, count in (("train_lmdb", TRAINED), ("val_lmdb", TESTED)):
        records = [datum(number, [(1 + number % 3, 0.2, 0.3, 0.2 + width, 0.3 + height)]) for number, (width, height) in enumerate(SIDES[:count])]
        write(tmp_path / "data" / name, records)
    named = [(name, label) for label, name in enumerate(LABELS, 1)]
    (tmp_path / "data/labelmap.prototxt").write_text(label_map(("background", 0), *named))
    return tmp_path


CASES = [("yolo_shapes", ("conv9", "conv10"), 160, 160), ("mobilenet_yolov3_lite", ("conv19", "conv20"), 416, 0)]


@pytest.mark.parametrize(("net", "ends", "side", "size"), CASES)
def test_classes_and_anchors_of_the_data(here: pathlib.Path, net: str, ends: tuple[str, str], side: int, size: int) -> None:
    assert is_detector(net)
    made = write_detector(net, "data", "out", Choices(batch=2, iterations=8, size=size))
    assert (made.images.classes, made.classes, made.batch, made.iterations, made.shape) == (list(LABELS), 3, 2, 8, (3, side, side))
    anchors, _ = anchors_of("data/train_lmdb", 6, side, side, 1)
    assert np.all(np.diff(anchors.sides.prod(1)) > 0)  # the small ones first, as mask expects
    for file in ("train_val", "deploy"):
        layers = {layer.name: layer for layer in read_net(f"out/{file}.prototxt").layer}
        assert [layers[f"{name}_3"].convolution_param.num_output for name in ends] == [3 * (5 + 3)] * 2 and not set(ends) & set(layers)
        output = layers["detection_out"].yolov3_detection_output_param
        given = [output] + [layer.yolov3_param for layer in layers.values() if layer.type == "Yolov3"]
        assert len(given) == (1 if file == "deploy" else 3)
        assert all(np.reshape(each.biases, (-1, 2)) == pytest.approx(anchors.sides, abs=0.06) for each in given)
        assert output.num_classes == 3 and all(each.num_class == 3 for each in given[1:])
    train, test = (layer for layer in read_net("out/train_val.prototxt").layer if layer.type == "AnnotatedData")
    assert (train.annotated_data_param.yolo_data_type, test.annotated_data_param.yolo_data_type) == (1, 0)
    assert {each.height for layer in (train, test) for each in layer.transform_param.resize_param} == {side}
    assert layers["data"].input_param.shape[0].dim[2:] == [side, side]
    evaluate = next(layer for layer in read_net("out/train_val.prototxt").layer if layer.type == "DetectionEvaluate")
    assert evaluate.detection_evaluate_param.num_classes == 4 and read_solver("out/solver.prototxt").best_output == evaluate.top[0]


def test_mistakes(here: pathlib.Path) -> None:
    for text, choices in (("--size is 100", Choices(size=100)), ("--classes is given for yolo_shapes", Choices(classes=3))):
        with pytest.raises(Error, match=text):
            write_detector("yolo_shapes", "data", "out", choices)
    write(here / "data/train_lmdb2", [datum(number, [(1, 0.1, 0.1, 0.4, 0.5)]) for number in range(3)])
    with pytest.raises(Error, match="the 6 boxes have 2 different sizes, and 6 anchors need as many"):
        write_detector("yolo_shapes", "data/train_lmdb2", "out", Choices(val="data/val_lmdb"))
    assert not (here / "out").exists()


def test_train_and_predict(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way: `new`, `train`, `test` by class, `predict` with boxes drawn on the images, and ONNX."""
    own = ["--device", device.number]
    made = write_detector("yolo_shapes", "data", "net", Choices(batch=4, iterations=20, solver="base_lr: 0.003"))
    assert any(note.startswith("anchors: ") for note in made.notes)
    assert main(["train", "--solver", "net/solver.prototxt", *own]) == 0
    log = capsys.readouterr().err
    losses = [float(loss) for loss in re.findall(r"Iteration \d+ .*loss = ([\d.e+-]+)", log)]
    assert len(losses) > 5 and losses[-1] < losses[0] / 2
    assert len(re.findall(r"Test net output #0: detection_eval = [\d.]+", log)) >= 2 and list(here.glob("net/yolo_shapes_best_iter_*.caffemodel"))
    weights = ["--weights", "net/yolo_shapes_iter_20.caffemodel"]
    assert main(["test", "--model", "net/train_val.prototxt", *weights, "--iterations", "1", "--per-class", *own]) == 0
    table = capsys.readouterr().out
    assert all(label in table for label in LABELS)
    Image.new("RGB", (60, 40), (200, 10, 10)).save("image.png")
    capsys.readouterr()
    arguments = ["predict", "--model", "net/deploy.prototxt", *weights, "image.png", "--json", "--threshold", "0", "--annotate", "drawn", *own]
    assert main(arguments) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["objects"] and {each["label"] for each in result["objects"]} <= set(LABELS)
    with Image.open(result["annotated"]) as drawn:
        assert drawn.size == (60, 40)
    assert main(["convert", "net/deploy.prototxt", weights[1], "net/yolo.onnx", "--verify", *own]) == 0
    begun = write_detector("ssd_shapes", "data", "second", Choices(batch=4, weights=weights[1]))  # the same layers up to conv5_2
    rates = {layer.name: layer.param[0].lr_mult for layer in read_net("second/train_val.prototxt").layer if layer.type == "Convolution"}
    assert (rates["conv1_1"], rates["conv5_2"], rates["conv6_1"], rates["conv6_1_mbox_conf_4"]) == (1, 1, 10, 10)
    assert "layers that yolo_shapes_iter_20.caffemodel lacks: 9; their rate is 10 times that of the others" in begun.notes
