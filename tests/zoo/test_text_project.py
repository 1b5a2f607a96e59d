"""`ocaffe new` for nets that read text: lists and characters, mistakes; the whole way from made images to printed texts and an ONNX file."""
from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.evaluation.answers import Text
from ocaffe.evaluation.sidecar import read_sidecar
from ocaffe.formats.text import parse, read_net, read_solver
from ocaffe.tools.datasets.sets import DataSet
from ocaffe.tools.synthetic.text_set import Settings, make_text
from ocaffe.zoo.project import Choices
from ocaffe.zoo.templates import template
from ocaffe.zoo.text_project import is_reader, needed_steps, write_reader
from tests.tools.synthetic.test_scenes import drawn_digits

CHARACTERS = "blank\n0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n"


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory with the folder data of a small set: 12 lines for training and 4 for testing."""
    monkeypatch.chdir(tmp_path)
    make_text("data", DataSet({part: drawn_digits() for part in ("train", "test")}), Settings((12, 4), length=(1, 4)))
    return tmp_path


def test_lists_and_characters(here: pathlib.Path) -> None:
    assert is_reader("crnn") and not is_reader("lenet") and not is_reader("data")
    (here / "data/labels.txt").write_text(CHARACTERS + "A\nB\n")
    made = write_reader("crnn", "data", "out", Choices(batch=2, iterations=8, augment="lighting { std: 5 }"))
    assert (made.classes, made.batch, made.iterations, made.accuracy) == (13, 2, 8, "strings")
    assert made.notes == ("layer scores is scores_13 now, with 13 outputs",)
    for file in ("train_val", "deploy"):
        (scores,) = (layer for layer in read_net(f"out/{file}.prototxt").layer if layer.type == "InnerProduct")
        assert (scores.name, scores.inner_product_param.num_output, scores.top[0]) == ("scores_13", 13, "scores")
    train, test = (layer for layer in read_net("out/train_val.prototxt").layer if layer.type == "ImageData")
    sources = [(p.source, p.root_folder, p.label_count, p.batch_size, p.shuffle) for p in (train.image_data_param, test.image_data_param)]
    assert sources == [("data/train.txt", "data/", 4, 2, True), ("data/val.txt", "data/", 4, 4, False)]
    plain = "scale: 0.0078125 mean_value: 128"
    for layer, fields in ((train, f"{plain} lighting {{ std: 5 }}"), (test, plain)):
        assert layer.transform_param == parse(fields, proto.TransformationParameter)
    solver = read_solver("out/solver.prototxt")
    assert (list(solver.test_iter), solver.max_iter, solver.snapshot_prefix) == ([1], 8, "out/crnn")


def test_published_characters_keep_the_names(here: pathlib.Path) -> None:
    made = write_reader("crnn", "data", "out", Choices(transform="scale: 0.5"))
    train, test = (layer.transform_param for layer in read_net("out/train_val.prototxt").layer if layer.type == "ImageData")
    assert (train.scale, test.scale, len(train.mean_value)) == (0.5, 0.5, 0) and train.HasField("affine") and not test.HasField("affine")
    assert made.notes == () and made.shape == (1, 32, 128)
    readme = (here / "out/README.md").read_text()
    assert "share of the texts without an error" in readme and f" out/crnn_iter_{made.iterations}.caffemodel" in readme


def test_steps_that_texts_need(here: pathlib.Path) -> None:
    """A blank stands between equal characters. Blanks among the labels are left out."""
    rows = [[1, 2, 3, 0], [1, 1, 2, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
    assert [needed_steps(np.array([row])) for row in rows] == [3, 4, 3, 0] and needed_steps(np.array(rows)) == 4
    long = " ".join("1" for _ in range(17))
    for part in ("train", "val"):
        (here / f"data/{part}.txt").write_text(f"images/{part}/000000.png {long}\n")
    (note,) = write_reader("crnn", "data", "out").notes
    assert "the net has 32 time steps, and a text needs 33" in note


def test_mistakes(here: pathlib.Path) -> None:
    def refused(fact: str, data: str = "data", **choices: Any) -> None:
        with pytest.raises(Error, match=re.escape(fact)) as caught:
            write_reader("crnn", data, "out", Choices(**choices))
        assert caught.value.fix and not (here / "out").exists()

    refused("--classes is given for crnn, which reads text", classes=3)
    refused("--size is given for crnn", size=64)
    refused("the weights none do not exist", weights="none")
    refused("nothing does not exist", "nothing")
    refused("data/images is no list", "data/images")
    refused("data/images is no list", "data/train.txt", val="data/images")
    (here / "data/val.txt").write_text("images/val/000000.png 1 2\n")
    refused("data/train.txt has 4 labels an image, data/val.txt 2")
    (here / "data/val.txt").write_text("images/val/000000.png 1 2 11 0\n")
    refused("the label 11 of images/val/000000.png is none of the 11 classes in labels.txt")
    (here / "data/val.txt").write_text("images/val/000000.png abc\n")
    refused("'images/val/000000.png abc' has no labels")
    (here / "data/val.txt").write_text("images/val/none.png 1 0 0 0\n")
    refused("the first image of data/val.txt, images/val/none.png, is neither in")
    (here / "data/labels.txt").unlink()
    refused("there is no labels.txt with the blank and the characters beside data/train.txt")
    with pytest.raises(Error, match="crnn learns from lines of text") as caught:
        template("crnn")
    assert "`ocaffe new crnn --data FOLDER`, with a folder of `ocaffe dataset text`" in str(caught.value.fix)


def test_the_whole_way(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`new`, `train`, `test`, `predict` and `convert`. The net learns one text by heart."""
    on = ("--device", device.number)
    (name, *labels) = (here / "data/train.txt").read_text().split()[:5]
    (here / "data/train.txt").write_text(f"{name} {' '.join(labels)}\n" * 2)
    (here / "data/val.txt").write_text(f"{name} {' '.join(labels)}\n")
    assert main(["new", "crnn", "--data", "data", "--out", "net", "--iterations", "20", "--batch", "2", "--augment", "none", *on]) == 0
    assert "2 for training, 1 for testing; 11 classes" in capsys.readouterr().out
    assert main(["train", "--solver", "net/solver.prototxt", *on]) == 0
    losses = [float(loss) for loss in re.findall(r"Iteration \d+ .*loss = (\S+)", capsys.readouterr().err)]
    assert losses[-1] < losses[0] / 2
    weights = "net/crnn_iter_20.caffemodel"
    assert main(["test", "--model", "net/train_val.prototxt", "--weights", weights, "--iterations", "1", *on]) == 0
    said = capsys.readouterr()
    assert re.search(r"strings = [01]\n", said.out + said.err) and re.search(r"characters = \S+\n", said.out + said.err)
    given = ["predict", "--model", "net/deploy.prototxt", "--weights", weights, f"data/{name}", *on]
    assert main([*given, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    with Net("net/deploy.prototxt", weights=weights, device=device) as net:
        settings = read_sidecar(weights)
        assert settings is not None and settings[1] == CHARACTERS.split()
        net.blobs["data"].data[...] = settings[0]((here / "data" / name).read_bytes())
        net.forward()
        best = net.blobs["scores"].data[:, 0].argmax(1).tolist()
    assert result["text"] == "".join(str(c - 1) for t, c in enumerate(best) if c and (not t or c != best[t - 1]))
    assert main(given) == 0
    assert capsys.readouterr().out.splitlines() == [f"data/{name}", f"  {result['text'] or 'no text'}"]
    assert main([*given, "--annotate", "drawn"]) == 0 and len(list(pathlib.Path("drawn").glob("*.png"))) == 1
    assert main(["convert", "net/deploy.prototxt", weights, "net/crnn.onnx", *on]) == 0
    assert "from data to text; equal to ocaffe's outputs" in capsys.readouterr().out
    assert main(["convert", "net/train_val.prototxt", weights, "net/scores.onnx", "--noverify", *on]) == 0
    assert "from data to scores;" in capsys.readouterr().out  # without the accuracy of the test


def test_texts_without_names() -> None:
    output = np.full((2, 5, 1, 1), -1, np.float32)
    output[1, :3, 0, 0] = 3, 1, 3
    named, plain = Text(["blank", "a", "b", "c"]), Text([])
    assert [named.of(output, image)["text"] for image in (0, 1)] == ["", "cac"] and plain.of(output, 1)["text"] == "3 1 3"
    assert list(named.lines({"text": ""})) == ["no text"]
