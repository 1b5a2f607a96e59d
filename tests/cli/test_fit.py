"""`ocaffe fit`: from a folder of images to a tested net and its files; `ocaffe predict` with its result and with other nets."""
from __future__ import annotations

import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.cli import fit, main
from ocaffe.cli.parsers import parser_of
from ocaffe.fit.start import side_of
from ocaffe.formats.text import read_solver
from ocaffe.ir.target import Target
from ocaffe.zoo.images import find_images, typical_side
from tests.zoo.digits import write_folders
from tests.zoo.test_unreadable import BAD, database, spoil

CPU = Target()


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_folder_becomes_a_net(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(here / "photos", 40)
    assert main(["fit", "photos", "--net", "lenet", "--out", "out", "--iterations", "120", "--device", device.number]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert "320 for training, 80 for testing; 10 classes" in lines[0] and not printed.err
    found = json.loads((here / "out/results.json").read_text())
    assert found["accuracy"] > 0.8 and found["images"] == 80 and np.sum(found["confusion"]) == 80
    best = max(float(line.split("accuracy")[1].split("%")[0]) for line in lines if line.startswith("  iteration"))
    assert 100 * found["accuracy"] == pytest.approx(best, abs=0.06)  # the best test's weights were kept
    assert any(line.startswith("digit7 ") for line in lines)
    with Image.open("out/confusion.png") as picture:
        assert picture.width > 100
    assert "Solving" in (here / "out/train.log").read_text()
    assert "page      out/report.html" in lines
    sections = ["Training", "By class", "Confusion", "Worst images", "Data", "Sizes of images", "Settings", "Next"]
    assert re.findall("<h2>(.*?)</h2>", page := (here / "out/report.html").read_text()) == sections
    assert "accuracy in %" in page and "loss in training" in page and "Grad-CAM" in page and "ocaffe predict out IMAGE" in page
    solver = read_solver("out/solver.prototxt")
    assert (solver.best_output, solver.early_stopping, solver.snapshot_keep) == ("accuracy", fit.PATIENCE, 1)
    predicted(device, found, capsys)
    for name in ("test", "export"):  # the printed commands run
        command = next(line for line in lines if line.startswith(name)).split("ocaffe ")[1]
        assert main([*command.split(), *(["--device", device.number] if name == "test" else [])]) == 0
    assert (here / "out/lenet.onnx").exists() and not any(line.startswith(("continue", "stopped")) for line in lines)
    said = capsys.readouterr()
    assert "the model expects images as in the training: 1 x 28 x 28 values from 0 to 255, gray, times 0.00390625" in said.out
    readme = (here / "out/README.md").read_text()
    assert "--weights out/best.caffemodel" in readme and "_iter_120" not in readme
    accuracy = float(said.err.rpartition("accuracy = ")[2].split()[0])
    assert accuracy == pytest.approx(found["accuracy"], abs=1e-4)
    row = next(line.split() for line in said.out.splitlines() if line.startswith("accuracy "))
    assert float(row[1]) == pytest.approx(accuracy, abs=1e-5) and 0 < float(row[2]) < 0.2


def test_test_prints_classes(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(here / "photos", 10, classes=2)
    assert main(["fit", "photos", "--net", "lenet", "--out", "out", "--iterations", "4", "--batch", "8", "--device", device.number]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("class", "digit", "all"))]
    command = ["test", "--model", "out/train_val.prototxt", "--weights", "out/best.caffemodel", "--iterations", "1", "--per-class"]
    assert main([*command, "--device", device.number]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith(("class", "digit", "all"))] == table
    assert main([*command, "--device", f"{device.number},{device.number}"]) == 1
    assert "--per-class with several devices" in capsys.readouterr().err
    net = (here / "out/train_val.prototxt").read_text()
    (here / "out/none.prototxt").write_text(net.replace('type: "Accuracy"', 'type: "Silence"').replace('top: "accuracy"', ""))
    command[2] = "out/none.prototxt"
    assert main([*command, "--device", device.number]) == 1
    assert "the TEST net has no layer Accuracy, DetectionEvaluate or SegAccuracy" in capsys.readouterr().err


def predicted(device: Any, found: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Predict the images for testing, by OUT and by the net of the training. The best classes are those of the test."""
    rows = [line.rsplit(" ", 1) for line in pathlib.Path("out/val.txt").read_text().splitlines()]
    images = [f"photos/{name}" for name, _ in rows]
    results = []
    shutil.copy("out/best.caffemodel", "elsewhere.caffemodel")  # without its .json the net of the training says the preprocessing
    nets = ("deploy", "best"), ("train_val", "elsewhere")
    weights = {"best": "out/best.caffemodel", "elsewhere": "elsewhere.caffemodel"}
    for net in (["out"], *(["--model", f"out/{model}.prototxt", "--weights", weights[name]] for model, name in nets)):
        capsys.readouterr()
        assert main(["predict", *net, *images, "--json", "--top", "3", "--device", device.number]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert [result["file"] for result in results[0]] == images and results[0] == results[1] == results[2]
    right = sum(result["top"][0]["index"] == int(label) for result, (_, label) in zip(results[0], rows))
    assert right == found["right"] and results[0][0]["top"][0]["label"].startswith("digit")


def test_predict_mistakes(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write_folders(here / "photos", 10, classes=2)
    assert main(["fit", "photos", "--net", "lenet", "--out", "out", "--iterations", "4", "--batch", "8", "--device", device.number]) == 0
    (here / "bad.png").write_bytes(b"no image")
    image = "photos/digit0/1.png"
    shutil.copy("out/best.caffemodel", "alone.caffemodel")
    deploy = ["--model", "out/deploy.prototxt", "--weights", "alone.caffemodel"]
    capsys.readouterr()
    assert main(["predict", "out", "bad.png", image, "--device", device.number]) == 1  # the other one is predicted
    said = capsys.readouterr()
    assert "error: bad.png: it is not an image" in said.err and said.out.startswith(image)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(pathlib.Path(image).read_bytes())))
    assert main(["predict", "out", "-", "--device", device.number]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == said.out.splitlines()[1:]
    given = [*deploy, "--resize", "28,28", "--mean", "0", "--scale", "0.00390625", image, "--device", device.number]
    assert main(["predict", *given, "--labels", "out/labels.txt"]) == 0
    assert capsys.readouterr().out == said.out
    (here / "three.txt").write_text("a\nb\nc\n")
    other = proto.NetParameter()
    other.layer.add(name="foo", type="InnerProduct").blobs.add(data=[1.0]).shape.dim.append(1)
    (here / "other.caffemodel").write_bytes(other.SerializeToString())
    strange = [*deploy[:3], "other.caffemodel", *given[4:]]
    for argv, text in (
        (strange, "no layer of the file has the name of a layer of the net"),
        ([*deploy, image], "give --resize, --mean, --scale"),
        (["photos", image], "photos has no deploy.prototxt"),
        ([image], f"{image} is an image"),
        (["out"], "no image is given"),
        (["--model", "out/deploy.prototxt", image], "--weights FILE.caffemodel"),
        (["out", image, "--labels", "three.txt"], "3 names of classes are given, and the net has 2 scores"),
        (["out", image, "--resize", "20,20"], "smaller than the net's input"),
        (["out", image, "--mean", "1,2"], "the mean is 2"),
        (["out", "none"], "none: it cannot be read"),
    ):
        assert main(["predict", *argv, "--device", device.number]) == 1
        assert text in capsys.readouterr().err, argv
    assert main(["predict", *strange, "--allow-no-match"]) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="links need a right")
@pytest.mark.parametrize("name", ["results.json", "confusion.png", "best.json", "best.caffemodel", "resnet20.json", "train.log"])
def test_links_in_the_folder(name: str, here: pathlib.Path, capsys: pytest.CaptureFixture[str], device: Any) -> None:
    """The folder may be that of a stranger."""
    victim = here / "thesis.txt"
    victim.write_text("precious")
    write_folders(here / "digits", 3, classes=2)
    (here / "out").mkdir()
    (here / "out" / name).symlink_to(victim)
    assert main(["fit", "digits", "--out", "out", "--epochs", "1", "--device", str(device.number)]) == 1
    assert "it is a link" in capsys.readouterr().err and victim.read_text() == "precious"
    assert os.listdir("out") == [name]


def test_weights_are_tuned(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(here / "photos", 10, classes=3)
    flags = ["--net", "lenet", "--iterations", "8", "--batch", "8", "--device", device.number]
    assert main(["fit", "photos", "--out", "a", *flags]) == 0
    assert main(["fit", "photos", "--out", "b", "--weights", "a/best.caffemodel", "--transform", "scale: 0.00390625", *flags]) == 0
    assert read_solver("b/solver.prototxt").base_lr == pytest.approx(read_solver("a/solver.prototxt").base_lr * 0.06, rel=0.05)


@pytest.mark.parametrize(("pixels", "side"), [(20, 32), (48, 32), (200, 64)])
def test_the_size_follows_the_images(here: pathlib.Path, pixels: int, side: int) -> None:
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        path = here / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (pixels, pixels + 9)).save(path)
    images = find_images("photos", "out")
    assert typical_side(images) == pixels and side_of("resnet20", images, CPU) == side and side_of("lenet", images, CPU) == 0


def test_bad_photos_are_left_out(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(here / "photos", 10, classes=2)
    spoil(here / "photos" / "digit1")
    (here / "wrong.caffemodel").write_bytes(b"\x08\x08\x12\x04text")
    flags = ["fit", "photos", "--net", "lenet", "--out", "out", "--iterations", "4", "--batch", "8", "--device", device.number]
    assert main([*flags, "--weights", "wrong.caffemodel"]) == 1 and not (here / "out").exists()
    capsys.readouterr()
    assert main(flags) == 0
    said = capsys.readouterr()
    note = f"{len(BAD) + 1} of 30 images cannot be read and are left out; out/unreadable.txt names them"
    assert "images    16 for training, 4 for testing; 2 classes" in said.out and said.out.count(f"note      {note}\n") == 1 and not said.err
    assert (here / "out/train.log").read_text().count(note) == 1
    lines = (here / "out/unreadable.txt").read_text().splitlines()
    assert len(lines) == len(BAD) + 1 and "photos/digit1/empty.jpg: it is empty" in lines
    assert main(["predict", "out", "photos/digit1", "--device", device.number]) == 1  # the same photos are named, and the others are predicted
    said = capsys.readouterr()
    assert sorted(said.err.splitlines()) == sorted(f"error: {line}" for line in lines) and said.out.count(".png\n") == 10


def test_bad_records_are_left_out(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    database("db/train_lmdb", 2)
    database("db/val_lmdb", 1)
    flags = ["--net", "lenet", "--out", "out", "--iterations", "4", "--batch", "3", "--device", device.number]
    assert main(["fit", "db", *flags]) == 0
    assert "note      3 of 12 images cannot be read and are left out; out/unreadable.txt names them\n" in capsys.readouterr().out
    assert (here / "out/train.log").read_text().count("Skipped bad record") == 3


def test_a_class_without_a_readable_photo(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(here / "photos", 2, classes=3)
    for path in (here / "photos" / "digit2").iterdir():
        path.write_bytes(b"")
    assert main(["fit", "photos", "--out", "out", "--device", device.number]) == 1
    said = capsys.readouterr().err
    assert "none of the 2 images of the class 'digit2' in photos can be read; the first: photos/digit2/" in said and "remove the class" in said
    assert not (here / "out").exists()


def test_mistakes(here: pathlib.Path, capsys: pytest.CaptureFixture[str], device: Any) -> None:
    """Each flag that a message advises is one of the command."""
    write_folders(here / "photos", 4, classes=2)
    for name in ("a.csv", "b.csv"):
        (here / "tables" / name).parent.mkdir(exist_ok=True)
        (here / "tables" / name).write_text("file,label\n")
    database("db/train_lmdb", 0)
    flags = {flag for action in parser_of("fit")._actions for flag in action.option_strings}
    for argv, text in (
        (["photos"], "--out FOLDER"),
        (["none", "--out", "out"], "none does not exist"),
        (["photos", "--out", "out", "--patience", "0"], "--patience is 0"),
        (["photos", "--out", "out", "--net", "lennet"], "did you mean lenet?"),
        (["tables", "--out", "out"], "--val with the table for testing"),
        (["db/train_lmdb", "--out", "out"], "--val DATABASE"),
        (["photos", "--out", "out", "--test", "0"], "--test 0.2"),
    ):
        assert main(["fit", *argv, "--device", device.number]) == 1
        said = capsys.readouterr().err
        assert text in said and set(re.findall(r"--[a-z][\w-]*", said)) <= flags and not (here / "out").exists()
    (here / "out").mkdir()
    (here / "out/solver.prototxt").write_text("mine")
    assert main(["fit", "photos", "--out", "out", "--device", device.number]) == 1
    assert "out/solver.prototxt exists" in capsys.readouterr().err and (here / "out/solver.prototxt").read_text() == "mine"
    assert list((here / "out").iterdir()) == [here / "out/solver.prototxt"]


def test_a_failed_start_leaves_no_files(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The corrected command then writes into the same folder."""
    write_folders(here / "photos", 10, classes=2)
    flags = ["fit", "photos", "--net", "lenet", "--out", "out", "--iterations", "4", "--batch", "8", "--device", device.number]
    for name, text in (("bad.caffemodel", "caffemodel"), ("net.onnx", "is an ONNX model, not a caffemodel")):
        (here / name).write_bytes(b"\x08\x08\x12\x04text")
        assert main([*flags, "--weights", name]) == 1
        assert text in capsys.readouterr().err and not (here / "out").exists()
    assert main(flags) == 0


def test_an_onnx_model_is_no_prototxt(here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "net.onnx").write_bytes(b"\x08\x08\x12\x04text\x00")
    write_folders(here / "photos", 10, classes=2)
    assert main(["new", "net.onnx", "--data", "photos", "--out", "out"]) == 1
    assert "is an ONNX model, not a prototxt" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "kill"), reason="POSIX signals")
def test_a_killed_fit_goes_on(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command resumes from the newest snapshot. With other flags it is refused, and so it is after the end."""
    write_folders(here / "photos", 10, classes=2)
    command = ["fit", "photos", "--net", "lenet", "--out", "out", "--iterations", "400", "--batch", "8", "--device", device.number]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    process = subprocess.Popen([sys.executable, "-m", "ocaffe", *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 100
    while process.poll() is None and time.monotonic() < end and not list((here / "out").glob("*.solverstate")):
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert process.returncode == -signal.SIGKILL and not (here / "out/results.json").exists()
    assert main([*command, "--seed", "2"]) == 1
    assert "has an unfinished training, and this file differs" in capsys.readouterr().err
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "accuracy" in said and (here / "out/results.json").exists() and "Resuming from" in (here / "out/train.log").read_text()
    assert main(command) == 1 and "exists" in capsys.readouterr().err
