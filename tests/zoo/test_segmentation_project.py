"""`ocaffe new` for nets that find the class of each pixel: classes, sizes and weights of a folder of `ocaffe dataset masks`, trainings, mistakes."""
from __future__ import annotations

import contextlib
import io
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ocaffe
from ocaffe import proto
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.formats.text import parse, read_net, read_solver
from ocaffe.formats.weights import read_weights, write_weights
from ocaffe.lint import lint
from ocaffe.zoo.project import Choices
from ocaffe.zoo.segmentation_project import SMALL, _reshaped, _stored, is_segmenter, write_segmenter
from ocaffe.zoo.templates import graph_of
from ocaffe.zoo.text import prototxt
from tests.tiers import rest_is_long

NETS = ("unet", "segnet_basic", "segnet", "fcn8s")
LABELS = ("background", "cat", "dog")
WEIGHTS = (0.5, 1.0, 2.0)
SIDE = 32


def save(folder: pathlib.Path, name: str, mask: np.ndarray, gray: bool = False) -> str:
    """Write a mask, and an image that shows its classes. Return the line of the list."""
    rng = np.random.default_rng(sum(name.encode()))
    pixels = np.minimum(mask, 3)[..., None] * 60 + rng.integers(0, 20, (*mask.shape, 1 if gray else 3))
    for part, content in (("images", pixels[..., 0] if gray else pixels), ("masks", mask)):
        (folder / part).mkdir(exist_ok=True)
        Image.fromarray(content.astype(np.uint8)).save(folder / part / f"{name}.png")
    return f"images/{name}.png masks/{name}.png\n"


def write_masks(folder: pathlib.Path, sizes: list[tuple[int, int]], tested: int = 3, gray: bool = False) -> None:
    """Write a folder as `ocaffe dataset masks` does: masks with a rectangle of each class, and an ignored row."""
    folder.mkdir()
    lines = []
    for number, (height, width) in enumerate(sizes):
        mask = np.zeros((height, width), np.uint8)
        mask[4 : height // 2, 2 + number % 3 : width // 2] = 1
        mask[height // 2 :, width // 2 + number % 5 :] = 2
        mask[-1] = 255
        lines.append(save(folder, f"{number}", mask, gray))
    (folder / "train.txt").write_text("".join(lines[tested:]))
    (folder / "test.txt").write_text("".join(lines[:tested]))
    (folder / "labels.txt").write_text("".join(f"{name}\n" for name in LABELS))
    weights = " ".join(f"class_weighting: {weight}" for weight in WEIGHTS)
    (folder / "class_weights.prototxt").write_text(f"loss_param {{ ignore_label: 255 weight_by_label_freqs: true {weights} }}\n")


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory with eight images of three classes and their masks."""
    monkeypatch.chdir(tmp_path)
    write_masks(tmp_path / "made", [(SIDE, SIDE)] * 8)
    return tmp_path


def layers(file: str, kind: str) -> list[Any]:
    return [layer for layer in read_net(file).layer if layer.type == kind]


def narrow(folder: str, factor: int) -> None:
    """Divide the channels of the nets, so that their trainings are short."""
    for file in (pathlib.Path(folder, name) for name in ("train_val.prototxt", "deploy.prototxt")):
        net = read_net(file)
        for layer in net.layer:
            if layer.type in ("Convolution", "Deconvolution") and layer.convolution_param.num_output > len(LABELS):
                layer.convolution_param.num_output //= factor
        file.write_text(prototxt(net))


@pytest.mark.parametrize(("net", "renamed"), [("unet", 1), ("segnet_basic", 0), ("segnet", 0), ("fcn8s", 6)])
def test_classes_and_sizes_of_the_masks(here: pathlib.Path, net: str, renamed: int) -> None:
    assert is_segmenter(net) and not is_segmenter("resnet18")
    made = write_segmenter(net, "made", "out", Choices(batch=2, iterations=5))
    assert (made.classes, made.shape, made.batch, made.iterations, made.accuracy) == (3, (3, SIDE, SIDE), 2, 5, "seg/mean_iou")
    for file in ("train_val", "deploy"):
        found = [layer for layer in read_net(f"out/{file}.prototxt").layer if layer.name.endswith("_3") and layer.convolution_param.num_output == 3]
        assert len(found) == renamed + net.startswith("segnet")
        assert all(layer.convolution_param.group == 3 for layer in found if layer.type == "Deconvolution" and net == "fcn8s")
    assert [blob.shape for blob in graph_of(read_net("out/deploy.prototxt")).outputs] == [(1, 3, SIDE, SIDE)]
    train, test = layers("out/train_val.prototxt", "DenseImageData")
    p, q = train.dense_image_data_param, test.dense_image_data_param
    assert (p.source, p.root_folder, p.batch_size, p.shuffle, p.is_color, p.new_height) == ("made/train.txt", "made/", 2, True, True, SIDE)
    assert (q.source, q.batch_size, q.shuffle) == ("made/test.txt", 3, False)
    (loss,), (score,) = layers("out/train_val.prototxt", "SoftmaxWithLoss"), layers("out/train_val.prototxt", "SegAccuracy")
    assert (loss.loss_param.ignore_label, loss.loss_param.normalize, list(score.seg_accuracy_param.ignore_label)) == (255, True, [255])
    assert list(loss.loss_param.class_weighting) == (list(WEIGHTS) if net.startswith("segnet") else [])
    assert not layers("out/train_val.prototxt", "Accuracy")
    solver = read_solver("out/solver.prototxt")
    assert (list(solver.test_iter), solver.max_iter, solver.best_output, solver.lr_policy) == ([1], 5, "seg/mean_iou", "poly")


@pytest.mark.parametrize("net", rest_is_long(NETS, 2))
def test_train_and_predict(here: pathlib.Path, net: str, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole way: `new`, `train`, `test --per-class`, `predict --annotate`."""
    assert main(["new", net, "--data", "made", "--out", "out", "--iterations", "5", "--batch", "2", "--device", device.number]) == 0
    assert "5 for training, 3 for testing; 3 classes" in capsys.readouterr().out
    narrow("out", 16)
    log = io.StringIO()
    with contextlib.redirect_stderr(log):
        assert main(["train", "--solver", "out/solver.prototxt", "--set", "random_seed=1", "--device", device.number]) == 0, log.getvalue()
    before, after = (float(found) for found in re.findall(r"Test net output #0: loss = (\S+)", log.getvalue()))
    assert after < before and "seg/mean_iou" in log.getvalue()
    assert pathlib.Path("out/README.md").read_text().count(f" out/{net}_best_iter_*.caffemodel") == 3
    assert len(list(here.glob(f"out/{net}_best_iter_*.caffemodel"))) == 1
    weights = f"out/{net}_iter_5.caffemodel"
    test = ["test", "--model", "out/train_val.prototxt", "--weights", weights, "--iterations", "1", "--per-class", "--device", device.number]
    capsys.readouterr()
    assert main(test) == 0
    output = capsys.readouterr().out
    assert "seg/mean_iou" in output and re.search(r"^background +\d+ ", output, re.MULTILINE)
    drawn = ["--json", "--annotate", "drawn", "made/images/0.png", "--device", device.number]
    assert main(["predict", "--model", "out/deploy.prototxt", "--weights", weights, *drawn]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert {each["label"] for each in result["regions"]} <= set(LABELS)
    with Image.open(result["annotated"]) as picture:
        assert picture.size == (SIDE, SIDE)


def test_weights_of_classes(here: pathlib.Path) -> None:
    def written(net: str, **choices: Any) -> Any:
        write_segmenter(net, "made", f"{net}{len(list(here.iterdir()))}", Choices(**choices))
        newest = max(here.glob(f"{net}*/train_val.prototxt"), key=lambda path: path.stat().st_mtime_ns)
        return layers(str(newest), "SoftmaxWithLoss")[0].loss_param

    assert list(written("unet", class_weights="median").class_weighting) == list(WEIGHTS)
    loss = written("segnet_basic", class_weights="none")
    assert not loss.class_weighting and not loss.weight_by_label_freqs and loss.normalize


@pytest.mark.parametrize(
    ("net", "plain", "normalized"), [("unet", 3e-4, 1e-3), ("segnet", 1e-3, 3e-4), ("segnet_basic", 1e-3, 1e-3), ("fcn8s", 1e-4, 1e-3)]
)
def test_rates(here: pathlib.Path, net: str, plain: float, normalized: float) -> None:
    """From fillers; and from weights, of which the layers that the file lacks learn at ten times the rate."""
    bare = proto.NetParameter()
    bare.layer.add(name="other", type="Convolution")
    write_weights("one.caffemodel", bare, {"other": [np.zeros((1, 1, 1, 1), np.float32)]})
    for batch_norm, rate, tuned in ((False, plain, plain / 10), (True, normalized, 1e-4)):
        for weights, wanted in (("", rate), ("one.caffemodel", tuned)):
            write_segmenter(net, "made", f"out{batch_norm}{weights}", Choices(batch=1, batch_norm=batch_norm, weights=weights))
            assert read_solver(f"out{batch_norm}{weights}/solver.prototxt").base_lr == pytest.approx(wanted)


@pytest.mark.parametrize(("net", "count"), [("unet", 18), ("fcn8s", 15)])
def test_batch_norm(here: pathlib.Path, net: str, count: int) -> None:
    """It is between each convolution and its ReLU, in the nets for training and for single images."""
    made = write_segmenter(net, "made", "out", Choices(batch=1, batch_norm=True))
    assert any("BatchNorm" in note for note in made.notes) and read_solver("out/solver.prototxt").base_lr == pytest.approx(0.001)
    for file in ("train_val", "deploy"):
        found = read_net(f"out/{file}.prototxt").layer
        places = [index for index, layer in enumerate(found) if layer.type == "BatchNorm"]
        assert len(places) == count
        assert all([layer.type for layer in found[index - 1 : index + 3]] == ["Convolution", "BatchNorm", "Scale", "ReLU"] for index in places)
        assert not any(found[index - 1].convolution_param.bias_term or len(found[index - 1].param) > 1 for index in places)
    assert not lint("out/solver.prototxt")


def test_batch_norm_of_segnet(here: pathlib.Path) -> None:
    """It replaces BN, so that the scores of an image do not depend on the others of a batch."""
    made = write_segmenter("segnet_basic", "made", "out", Choices(batch=1, batch_norm=True))
    assert any("replace each BN" in note for note in made.notes)
    types = [layer.type for layer in read_net("out/deploy.prototxt").layer]
    assert "BN" not in types and types.count("BatchNorm") == types.count("Scale") == 8
    with ocaffe.Net("out/deploy.prototxt", ocaffe.TEST) as net:
        images = np.random.default_rng(0).standard_normal((2, *made.shape)).astype(np.float32)
        net.blobs["data"].reshape(*images.shape)
        both = net.forward(data=images)
        (name,) = both
        alone = net.forward(data=images[::-1].copy())[name][::-1]
        np.testing.assert_allclose(both[name], alone, atol=1e-5)


def test_segnet_from_a_classifier(here: pathlib.Path, device: Any) -> None:
    """The encoder has VGG-16's weights by name. Images and masks are turned: pixels outside of the image are ignored."""
    bare = proto.NetParameter()
    bare.layer.add(name="conv1_1", type="Convolution")
    given = np.random.default_rng(0).normal(0, 0.1, (64, 3, 3, 3)).astype(np.float32)
    write_weights("vgg16.caffemodel", bare, {"conv1_1": [given, np.zeros(64, np.float32)]})
    choices = Choices(batch=2, weights="vgg16.caffemodel", batch_norm=True, augment="affine { rotation: 20 }", solver="snapshot: 1 base_lr: 1e-6", iterations=1)
    write_segmenter("segnet", "made", "out", choices)
    log = io.StringIO()
    with contextlib.redirect_stderr(log):
        assert main(["train", "--solver", "out/solver.prototxt", "--device", device.number]) == 0, log.getvalue()
    trained = {layer.name: layer.blobs[0] for layer in read_weights("out/segnet_iter_1.caffemodel").layers if layer.blobs}
    biased = {layer.name for layer in layers("out/train_val.prototxt", "Convolution") if layer.convolution_param.bias_term}
    assert biased == {"conv1_1", "conv1_1_D_3"}  # the bias of the given weights, and that of the scores
    np.testing.assert_allclose(trained["conv1_1"], given, atol=1e-4)
    # The test before the training has NaN, as in Caffe: the variances are 0, and the values overflow after 26 BatchNorm layers.
    after = log.getvalue().rpartition("Iteration 1, Testing net")[2]
    assert "seg/mean_iou = " in after and "nan" not in after


def test_own_sizes(here: pathlib.Path) -> None:
    """SegNet takes any size. U-Net needs multiples of 16, and images of several sizes are resized to the median one."""
    write_masks(here / "odd", [(37, 51)] * 6)
    write_segmenter("segnet_basic", "odd", "segnet", Choices(batch=1))
    pads = [(layer.upsample_param.pad_out_h, layer.upsample_param.pad_out_w) for layer in layers("segnet/deploy.prototxt", "Upsample")]
    assert pads == [(True, True), (False, True), (True, False), (True, True)]  # of 5 x 7, 10 x 13, 19 x 26 and 37 x 51 values
    assert graph_of(read_net("segnet/deploy.prototxt")).outputs[0].shape == (1, 3, 37, 51)
    assert write_segmenter("unet", "odd", "unet", Choices(batch=1)).shape == (3, 32, 48)
    write_masks(here / "mixed", [(30, 40), (50, 60), (50, 60), (33, 47), (50, 60)], gray=True)
    made = write_segmenter("unet", "mixed", "mixed_unet", Choices(batch=1))
    assert made.shape == (1, 48, 64) and any("resized to 48 x 64" in note for note in made.notes)
    p = layers("mixed_unet/train_val.prototxt", "DenseImageData")[0].dense_image_data_param
    assert (p.new_height, p.new_width, p.is_color) == (48, 64, False)
    assert write_segmenter("fcn8s", "mixed", "fcn", Choices(batch=1, size=41)).shape == (3, 41, 41)
    write_segmenter("segnet_basic", "mixed", "crops", Choices(batch=1, size=48, augment="crop_size: 32"))
    train, test = layers("crops/train_val.prototxt", "DenseImageData")
    assert (train.transform_param.crop_size, test.transform_param.crop_size) == (32, 0)


def test_fcn_from_fillers_and_from_weights(here: pathlib.Path) -> None:
    """The factors of pool3 and pool4 belong to pixels without a scale, as VGG-16's weights need them."""
    write_segmenter("fcn8s", "made", "fillers", Choices(batch=1))
    scales = {layer.name: layer.scale_param.filler.value for layer in layers("fillers/train_val.prototxt", "Scale")}
    assert scales == {"scale_pool3": 1, "scale_pool4": 1}
    assert layers("fillers/train_val.prototxt", "DenseImageData")[0].transform_param.scale == pytest.approx(SMALL)
    bare = proto.NetParameter()
    bare.layer.add(name="conv1_1", type="Convolution")
    write_weights("VGG_ILSVRC_16_layers.caffemodel", bare, {"conv1_1": [np.zeros(shape, np.float32) for shape in ((64, 3, 3, 3), (64,))]})
    write_segmenter("fcn8s", "made", "weights", Choices(batch=1, weights="VGG_ILSVRC_16_layers.caffemodel"))
    scales = {layer.name: round(layer.scale_param.filler.value, 6) for layer in layers("weights/train_val.prototxt", "Scale")}
    assert scales == {"scale_pool3": 0.0001, "scale_pool4": 0.01}
    transform = layers("weights/train_val.prototxt", "DenseImageData")[0].transform_param
    assert transform.scale == 1 and list(transform.mean_value) == pytest.approx([103.94, 116.78, 123.68])
    assert list(read_solver("weights/solver.prototxt").weights) == ["VGG_ILSVRC_16_layers.caffemodel"]
    rates = {layer.name: [param.lr_mult for param in layer.param] for layer in layers("weights/train_val.prototxt", "Convolution")}
    assert (rates["conv1_1"], rates["score_fr_3"]) == ([1, 2], [10, 20])  # layers without weights learn faster
    assert all(param.lr_mult == 0 for layer in layers("weights/train_val.prototxt", "Deconvolution") for param in layer.param)


def test_weights_of_a_classifier_get_the_shapes_of_the_net(tmp_path: pathlib.Path) -> None:
    net = parse(
        '''layer { name: "data" type: "Input" top: "data" input_param { shape { dim: [1, 2, 5, 5] } } }
        layer { name: "fc6" type: "Convolution" bottom: "data" top: "fc6" convolution_param { num_output: 4 kernel_size: 3 } }
        layer { name: "score" type: "Convolution" bottom: "fc6" top: "score" convolution_param { num_output: 3 kernel_size: 1 } }''',
        proto.NetParameter,
    )
    given = proto.NetParameter()
    given.layer.add(name="fc6", type="InnerProduct")
    values = np.arange(72, dtype=np.float32).reshape(4, 18)
    file = str(tmp_path / "given.caffemodel")
    write_weights(file, given, {"fc6": [values, np.ones(4, np.float32)]})
    found = _reshaped(_stored(file), graph_of(net), file)
    assert list(found) == ["fc6"] and found["fc6"][0].shape == (4, 2, 3, 3) and (found["fc6"][0].reshape(4, 18) == values).all()
    net.layer[1].convolution_param.num_output = 5
    with pytest.raises(Error, match="layer 'fc6' has weights of 4 x 18, 4, and the net needs 5 x 2 x 3 x 3, 5"):
        _reshaped(_stored(file), graph_of(net), file)


def test_a_class_that_the_net_lacks(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The training names the list, the line and the mask."""
    write_segmenter("segnet_basic", "made", "out", Choices(batch=5, iterations=1))
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[0, 0] = 7
    Image.fromarray(mask).save(here / "made/masks/4.png")
    assert main(["train", "--solver", "out/solver.prototxt", "--device", device.number]) == 1
    error = capsys.readouterr().err
    assert "made/train.txt, line 2: made/masks/4.png" in error and "7" in error


def test_mistakes(here: pathlib.Path) -> None:
    def refused(text: str, net: str = "unet", data: str = "made", **choices: Any) -> None:
        with pytest.raises(Error) as caught:
            write_segmenter(net, data, "out", Choices(**choices))
        assert text in f"{caught.value}" and not (here / "out").exists()

    refused("--size is 40, and unet needs multiples of 16", size=40)
    refused("32 or 48", size=40)
    refused("crop_size is 20, and segnet_basic needs multiples of 16", net="segnet_basic", augment="crop_size: 20")
    refused("crop_size is 16, and segnet needs multiples of 32", net="segnet", augment="crop_size: 16")
    refused("crop_size is 64, and the images are 32 x 32", augment="crop_size: 64")
    refused("--classes is 4, and labels.txt has 3 classes", classes=4)
    refused("the weights none.caffemodel do not exist", weights="none.caffemodel")
    refused("none is not a folder", data="none")
    made = here / "made"
    lines = (made / "train.txt").read_text()
    (made / "train.txt").write_text(f"{lines}images/0.png\n")
    refused("line 6: 1 words")
    Image.new("L", (SIDE, SIDE + 1)).save(made / "masks/7.png")
    (made / "train.txt").write_text(lines)
    refused("line 5: made/masks/7.png: the mask is 33 x 32, the image images/7.png is 32 x 32")
    Image.new("P", (SIDE, SIDE)).save(made / "masks/7.png")
    refused("the mask's pixels are of type P")
    (made / "masks/7.png").unlink()
    refused("made/masks/7.png: it cannot be read")
    (made / "train.txt").write_text(lines.splitlines()[0])
    (made / "labels.txt").write_text("a\nb\n")
    refused("it has 3 weights, and labels.txt has 2 classes")
    (made / "class_weights.prototxt").unlink()
    refused("made has 0 weights in class_weights.prototxt, and there are 2 classes", class_weights="median")
    (made / "labels.txt").unlink()
    refused("the masks have no labels.txt")
    (made / "test.txt").unlink()
    refused("made has neither val.txt nor test.txt")


def test_flags(here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "lenet", "--data", "made", "--class-weights", "median"]) == 1
    assert "--class-weights is given for lenet" in capsys.readouterr().err
    assert main(["new", "ssd_shapes", "--data", "made", "--batch-norm"]) == 1
    assert "--batch-norm is given for ssd_shapes" in capsys.readouterr().err
    assert main(["new", "unet", "--class-weights", "median"]) == 1
    assert "--class-weights is given without --data" in capsys.readouterr().err
