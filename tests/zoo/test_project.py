"""`ocaffe new`: the files for one's own images train; nets, batch and rate are adapted; published files; mistakes."""
from __future__ import annotations

import contextlib
import errno
import io
import pathlib
import re
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.formats.text import parse, read_net, read_solver
from ocaffe.ir.target import Target
from ocaffe.zoo import FOLDER
from ocaffe.zoo.project import FILES, Choices, Project, write_project, write_published
from ocaffe.zoo.templates import adapted, graph_of, names, outputs_of, scores, template
from ocaffe.zoo.text import prototxt
from tests.zoo.digits import write_folders


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory with class folders: 2 classes of 10 images."""
    monkeypatch.chdir(tmp_path)
    write_folders(tmp_path / "photos", 10, classes=2)
    return tmp_path


def layers(net: Any, kind: str) -> list[Any]:
    return [layer for layer in net.layer if layer.type == kind]


def made(**choices: Any) -> tuple[Project, Any, Any]:
    """Write a project of lenet. Return it with its net and solver."""
    found = write_project("lenet", "photos", "out", Choices(**choices))
    return found, read_net("out/train_val.prototxt"), read_solver("out/solver.prototxt")


def refused(*arguments: Any, **settings: Any) -> Error:
    with pytest.raises(Error) as caught:
        write_project(*arguments, **settings)
    return caught.value


def test_digits_in_folders_are_learned(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The way of a new user: a folder of images, `ocaffe new`, `ocaffe train`, with the command that is printed."""
    monkeypatch.chdir(tmp_path)
    write_folders(tmp_path / "photos", 40)
    assert main(["new", "lenet", "--data", "photos", "--out", "net", "--iterations", "150", "--device", device.number]) == 0
    printed = capsys.readouterr().out
    assert "320 for training, 80 for testing; 10 classes" in printed
    command = printed.splitlines()[-1].removeprefix("next: ocaffe ").split()
    with pathlib.Path("net/solver.prototxt").open("a") as solver:
        solver.write("random_seed: 1\n")
    log = io.StringIO()
    with contextlib.redirect_stderr(log):
        assert main([*command, "--device", device.number]) == 0
    accuracies = [float(found) for found in re.findall(r"accuracy = ([\d.]+)", log.getvalue())]
    assert accuracies[0] < 0.5 and accuracies[-1] > 0.8, accuracies
    weights = pathlib.Path("net/lenet_iter_150.caffemodel")
    assert f"--weights {weights} --iterations {read_solver('net/solver.prototxt').test_iter[0]}" in pathlib.Path("net/README.md").read_text()
    assert weights.exists() and pathlib.Path("net/labels.txt").read_text().split() == [f"digit{n}" for n in range(10)]
    assert main(["lint", "net/solver.prototxt"]) == 0


def test_what_is_written(here: pathlib.Path) -> None:
    found, net, solver = made()
    assert sorted(path.name for path in (here / "out").iterdir()) == sorted([*FILES, "train.txt", "val.txt", "labels.txt"])
    assert (found.images.train.images, found.images.test.images, found.images.classes, found.shape) == (16, 4, ["digit0", "digit1"], (1, 28, 28))
    train, test = layers(net, "ImageData")
    assert train.include[0].phase == proto.TRAIN and train.image_data_param.shuffle and train.transform_param.HasField("affine")
    assert test.include[0].phase == proto.TEST and not test.image_data_param.shuffle and not test.transform_param.HasField("affine")
    for layer in (train, test):
        p = layer.image_data_param
        assert (p.new_height, p.new_width, p.is_color, p.root_folder, layer.transform_param.scale) == (28, 28, False, "photos/", 1 / 256)
    lines = (here / "out/train.txt").read_text().splitlines() + (here / "out/val.txt").read_text().splitlines()
    assert len(lines) == 20 and all((here / "photos" / line.split()[0]).exists() and line.split()[0][5] == line.split()[1] for line in lines)
    assert solver.net == "out/train_val.prototxt" and solver.snapshot_prefix == found.prefix == "out/lenet"
    assert solver.test_iter[0] * test.image_data_param.batch_size == 4 and solver.lr_policy == "poly"
    deploy = read_net("out/deploy.prototxt")
    assert list(deploy.layer[0].input_param.shape[0].dim) == [1, 1, 28, 28] and outputs_of(scores(deploy.layer)) == 2
    assert found.accuracy == "accuracy" and graph_of(deploy).outputs[0].shape == (1, 2)


def test_batch_is_at_most_the_images(here: pathlib.Path) -> None:
    found, net, solver = made()
    assert found.batch == 16 == layers(net, "ImageData")[0].image_data_param.batch_size
    assert solver.base_lr == pytest.approx(0.01 * 16 / 64, rel=1e-6)  # the published rate is for 64


def test_batch_fits_the_device(here: pathlib.Path) -> None:
    whole = write_project("resnet20", "photos", "whole", Choices(), Target(max_allocation=1 << 40))
    small = write_project("resnet20", "photos", "small", Choices(), Target(max_allocation=1 << 40, free_memory=whole.bytes // 2))
    assert whole.batch == 16 and small.batch < 16 and small.bytes <= whole.bytes // 2
    rates = [read_solver(f"{name}/solver.prototxt").base_lr for name in ("whole", "small")]
    assert rates == pytest.approx([0.1 * batch / 128 for batch in (whole.batch, small.batch)], rel=0.05)  # two digits are written
    told = write_project("resnet20", "photos", "told", Choices(batch=16), Target(max_allocation=1 << 40, free_memory=whole.bytes // 2))
    assert told.batch == 16 and "--memory-limit auto" in told.notes[-1]


def test_iterations_epochs_and_more_fields(here: pathlib.Path) -> None:
    found, _, solver = made(iterations=40, solver="best_output: 'accuracy' early_stopping: 5 momentum: 0.5")
    assert (solver.max_iter, solver.best_output, solver.early_stopping) == (40, "accuracy", 5) and solver.momentum == 0.5
    assert found.iterations == 40 and solver.test_interval == 2
    assert write_project("lenet", "photos", "long", Choices(epochs=300)).iterations == 300  # one iteration sees all 16 images


def test_augmentation_and_transform(here: pathlib.Path) -> None:
    _, net, _ = made(augment="mirror: true mixup { }", transform="mean_value: 128")
    train, test = (layer.transform_param for layer in layers(net, "ImageData"))
    assert train.mirror and train.label_classes == 2 and not train.HasField("affine") and not test.mirror
    assert list(train.mean_value) == list(test.mean_value) == [128] and train.scale == 1
    write_project("lenet", "photos", "crop", Choices(augment="random_resized_crop { }"))
    assert [layer.transform_param.crop_size for layer in layers(read_net("crop/train_val.prototxt"), "ImageData")] == [28, 28]
    write_project("lenet", "photos", "plain", Choices(augment=""))
    assert not layers(read_net("plain/train_val.prototxt"), "ImageData")[0].transform_param.HasField("affine")


def test_large_images_are_cropped(here: pathlib.Path) -> None:
    write_project("resnet18", "photos", "out", Choices(size=112))
    train, test = layers(read_net("out/train_val.prototxt"), "ImageData")
    assert train.transform_param.mirror and not test.transform_param.mirror
    assert {(layer.transform_param.crop_size, layer.image_data_param.new_height) for layer in (train, test)} == {(112, 128)}


def test_weights_give_new_names_and_lower_rates(here: pathlib.Path) -> None:
    pathlib.Path("given.caffemodel").write_bytes(b"x")
    _, net, solver = made(weights="given.caffemodel")
    last = layers(net, "InnerProduct")[-1]
    assert last.name == "ip2_2" and last.inner_product_param.num_output == 2 and [p.lr_mult for p in last.param] == [10, 20]
    assert [p.lr_mult for p in layers(net, "InnerProduct")[0].param] == [1, 2]
    assert list(solver.weights) == ["given.caffemodel"] and solver.base_lr == pytest.approx(0.00025, rel=1e-6)


def test_public_weights_bring_their_mean_and_scale(here: pathlib.Path) -> None:
    pathlib.Path("mobilenet.caffemodel").write_bytes(b"x")
    found = write_project("mobilenet_v1", "photos", "out", Choices(weights="mobilenet.caffemodel", size=64))
    transform = layers(read_net("out/train_val.prototxt"), "ImageData")[0].transform_param
    assert transform.scale == pytest.approx(0.017) and transform.mean_value[0] == pytest.approx(103.94)
    assert "mean and scale are those of the published mobilenet.caffemodel" in found.notes


@pytest.mark.parametrize(("name", "mean", "scale"), [
    ("vit_tiny", [104, 117, 123], 0.017), ("inception_v3", [128, 128, 128], 0.0078125), ("resnet18", [104, 117, 123], 1), ("lenet", [], 0.00390625),
])  # fmt: skip
def test_mean_and_scale_are_those_of_the_net(name: str, mean: list[float], scale: float) -> None:
    transform = template(name).transform
    assert list(transform.mean_value) == mean and transform.scale == pytest.approx(scale)


def test_machine_without_devices(here: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("ocaffe.cli.new.list_devices", lambda: [])
    assert main(["new", "lenet", "--data", "photos", "--out", "out"]) == 0 and (here / "out" / "solver.prototxt").exists()
    assert main(["new", "lenet", "--data", "photos", "--out", "other", "--device", "0:0"]) == 1
    assert "OpenCL" in capsys.readouterr().err and not (here / "other").exists()


def test_own_net_continues_from_its_weights(here: pathlib.Path, device: Any) -> None:
    """A deploy prototxt, as `ocaffe convert` writes one, becomes a net to train. Its weights load, but for the class scores."""
    write_project("lenet", "photos", "first", Choices(iterations=2))
    with contextlib.redirect_stderr(io.StringIO()):
        assert main(["train", "--solver", "first/solver.prototxt", "--device", device.number]) == 0
    write_folders(here / "more", 5, classes=3)
    found = write_project("first/deploy.prototxt", "more", "second", Choices(weights="first/lenet_iter_2.caffemodel", iterations=2))
    assert found.net == "first" and found.classes == 3 and "--transform" in found.notes[-1]
    assert all(layer.convolution_param.HasField("weight_filler") for layer in layers(read_net("second/train_val.prototxt"), "Convolution"))
    log = io.StringIO()
    with contextlib.redirect_stderr(log):
        assert main(["train", "--solver", "second/solver.prototxt", "--device", device.number]) == 0, log.getvalue()
    assert "Ignoring source layer ip2" in log.getvalue() and "Ignoring source layer conv1" not in log.getvalue()


OTHERS = {"fcn8s": "label images", "segnet": "label images", "segnet_basic": "label images", "unet": "label images",
          "ssd300_vgg16": "images with boxes", "mobilenet_ssd": "images with boxes", "ssd_shapes": "images with boxes", "faster_rcnn_zf": "images with boxes",
          "mobilenet_yolov3_lite": "images with boxes", "yolo_shapes": "images with boxes", "point_shapes": "images with boxes",
          "mtcnn_pnet": "samples of faces", "mtcnn_rnet": "samples of faces", "mtcnn_onet": "samples of faces",
          "crnn": "lines of text"}  # fmt: skip
LONG = ("resnet101", "resnet152")  # more of the layers of resnet50, only by `pytest -m sweep`


@pytest.mark.parametrize("name", OTHERS)
def test_nets_of_other_data_say_so(name: str, here: pathlib.Path) -> None:
    problem = refused(name, "photos", "out")
    assert f"{name} learns from {OTHERS[name]}" in problem.fact
    remedy = {"images with boxes": "`ocaffe dataset voc`", "label images": "`ocaffe dataset masks`", "lines of text": "`ocaffe dataset text`"}
    assert remedy.get(OTHERS[name], f"`ocaffe new {name}` writes its files as published") in str(problem)
    assert not (here / "out").exists() and sorted(write_published(name, "out")) == sorted(f"out/{file}" for file in FILES)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.sweep if name in LONG else ()) for name in names() if name not in OTHERS])
def test_every_net_fits_other_images_and_classes(name: str) -> None:
    given = template(name)
    channels, side, _ = given.shape
    found = adapted(given, 7, (channels, side, side))
    half = adapted(given, 3, (channels, side // 2 + side // 8, side // 2 + side // 8)) if side > 100 else found
    assert outputs_of(scores(found.deploy.layer)) == 7 and not any(layer.accuracy_param.top_k > 7 for layer in found.body)
    assert [blob.shape[:2] for blob in graph_of(half.deploy).outputs] == [(1, 3 if side > 100 else 7)]
    assert graph_of(found.deploy).outputs[0].shape[:2] == (1, 7)
    renamed = {layer.name for layer in found.body} - {layer.name for layer in given.body}
    assert renamed and all(name.endswith("_7") for name in renamed)
    assert found.accuracy in [top for layer in found.body for top in layer.top if layer.type == "Accuracy"]


def test_same_number_of_classes_keeps_the_names() -> None:
    given = template("resnet50")
    assert [layer.name for layer in adapted(given, 1000, given.shape).body] == [layer.name for layer in given.body]


def test_pooling_of_the_whole_image_follows_the_size() -> None:
    given = template("googlenet")
    for side, whole in ((224, False), (160, True)):
        pooling = next(layer for layer in adapted(given, 5, (3, side, side)).deploy.layer if layer.name == "pool5/7x7_s1").pooling_param
        assert pooling.global_pooling == whole and (pooling.kernel_size == 7) != whole


def test_net_with_several_inputs_and_without_scores(here: pathlib.Path) -> None:
    two = 'layer { name: "a" type: "Input" top: "a" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }' * 2
    pathlib.Path("two.prototxt").write_text(two.replace('"a"', '"b"', 2))
    assert "2 Input layers" in refused("two.prototxt", "photos", "out").fact
    last = 'layer { name: "f" type: "InnerProduct" bottom: "a" top: "f" inner_product_param { num_output: 4 } }'
    wide = two[: len(two) // 2].replace("dim: 8 }", "dim: 9 }") + last
    pathlib.Path("wide.prototxt").write_text(wide)
    assert "3 x 8 x 9, and samples are squares" in refused("wide.prototxt", "photos", "out").fact
    one = two[: len(two) // 2] + 'layer { name: "r" type: "LRN" bottom: "a" top: "r" }'
    pathlib.Path("one.prototxt").write_text(one)
    assert "no class scores" in refused("one.prototxt", "photos", "out").fact


@pytest.mark.parametrize(("arguments", "settings", "fact", "fix"), [
    (("resnet19", "photos", "out"), {}, "there is no net 'resnet19'", "did you mean resnet"),
    (("lenet", "fotos", "out"), {}, "fotos does not exist", "class folders"),
    (("lenet", "photos", "out"), {"classes": 3}, "--classes is 3, and the images have 2", "--classes 2"),
    (("lenet", "photos", "out"), {"size": -1}, "--size is -1", "224"),
    (("lenet", "photos", "out"), {"size": 6}, "lenet does not fit images of 1 x 6 x 6", "another --size"),
    (("lenet", "photos", "out"), {"batch": -1}, "--batch is -1", "32"),
    (("lenet", "photos", "out"), {"weights": "no.caffemodel"}, "no.caffemodel do not exist", "ocaffe zoo get"),
    (("lenet", "photos", "out"), {"augment": "miror: true"}, "miror", "mirror"),
    (("lenet", "photos", "out"), {"share": 1.5}, "--test is 1.5", "0.2"),
    (("lenet", "photos", "photos/out"), {}, "lies in the folder of the images", "outside"),
])  # fmt: skip
def test_mistakes_write_nothing(here: pathlib.Path, arguments: tuple[str, str, str], settings: dict[str, Any], fact: str, fix: str) -> None:
    problem = refused(*arguments, Choices(**settings))
    assert fact in str(problem) and re.search(fix, str(problem)), problem
    assert not (here / "out").exists()


def test_nothing_is_overwritten(here: pathlib.Path) -> None:
    (here / "out").mkdir()
    for name in ("labels.txt", "README.md"):
        (here / "out" / name).write_text("mine")
        assert f"out/{name} exists" in refused("lenet", "photos", "out").fact
        assert [(path.name, path.read_text()) for path in (here / "out").iterdir()] == [(name, "mine")]
        (here / "out" / name).unlink()


def test_a_failing_write_leaves_no_files(here: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = pathlib.Path.write_bytes

    def failing(path: pathlib.Path, content: bytes) -> int:
        if path.name == "deploy.prototxt":
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(path, content)

    monkeypatch.setattr(pathlib.Path, "write_bytes", failing)
    problem = refused("lenet", "photos", "out")
    assert problem.fact == "cannot be written: No space left on device" and "make room" in str(problem.fix)
    assert not (here / "out").exists()


def test_published_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "resnet18"]) == 0
    assert capsys.readouterr().out.split() == [f"resnet18/{name}" for name in FILES]
    solver, texts = read_solver("resnet18/solver.prototxt"), [pathlib.Path("resnet18", name).read_text() for name in FILES]
    assert solver.net == "resnet18/train_val.prototxt" and solver.iter_size == 8 and solver.snapshot_prefix == "examples/imagenet/resnet18"
    assert not any("zoo/" in text or "generate.py" in text for text in texts) and "--solver resnet18/solver.prototxt`" in texts[3]
    with pytest.raises(Error, match="exists"):
        write_published("resnet18", "resnet18")


@pytest.mark.parametrize("out", ["my nets/é", 'in "quotes"', "net\\new", "."])
def test_published_solvers_name_their_net_in_any_folder(out: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_published("lenet", out)
    solver, published = read_solver(f"{out}/solver.prototxt"), read_solver(FOLDER / "lenet" / "solver.prototxt")
    assert read_net(solver.net).name == "LeNet"
    published.net = solver.net
    assert solver == published


@pytest.mark.parametrize(("arguments", "words"), [
    (["new", "lenet", "--classes", "3"], ["--classes is given without --data"]),
    (["new", "lenet5"], ["no net 'lenet5'", "did you mean lenet?"]),
])  # fmt: skip
def test_mistakes_of_the_command(
    arguments: list[str], words: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    assert not list(tmp_path.iterdir())


def test_text_has_small_messages_on_a_line() -> None:
    given = 'name: "a {\\n b" param { lr_mult: 2 } convolution_param { num_output: 3 weight_filler { type: "msra" } }'
    text = prototxt(parse(f"layer {{ {given} }}", proto.NetParameter))
    assert '  param { lr_mult: 2.0 }\n  convolution_param {\n    num_output: 3\n    weight_filler { type: "msra" }\n  }\n' in text
    assert parse(text, proto.NetParameter).layer[0].name == "a {\n b"
