"""`ocaffe fit` with boxes, masks, lines of text and tags: it sees what the data are, converts them once, and tests the best snapshot."""
from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocaffe.cli import main
from ocaffe.cli.parsers import parser_of
from ocaffe.errors import Error
from ocaffe.fit.conversion import converted
from ocaffe.fit.mask_folders import mask_folders
from ocaffe.fit.see import Seen, see
from tests.zoo.digits import write_folders


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("made") / "scenes"
    assert main(["dataset", "shapes", str(made), "--images", "20", "--size", "64x64", "--objects", "1,3", "--splits", "60,40,0"]) == 0
    return made


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, scenes: pathlib.Path) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(scenes, "scenes")
    return tmp_path


def command(lines: list[str], word: str) -> list[str]:
    """Return the arguments of the command that a line of the output begins with `word`."""
    return next(line for line in lines if line.startswith(word)).split("ocaffe ")[1].split()


def test_boxes(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["fit", "scenes", "--task", "boxes", "--out", "out", "--iterations", "4", "--batch", "4", "--device", device.number]
    path = next((here / "scenes/Annotations").iterdir())
    path.write_text(re.sub(r"<xmax>\d+", "<xmax>99", path.read_text(), count=1))
    assert main(flags) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "data      boxes: scenes/Annotations has 20 XML files" and lines[1] == "images    12 for training, 8 for testing; 10 classes"
    assert "note      1 boxes or images cannot be used and are left out; out/left_out.txt names them" in lines and not said.err
    assert "and the image is 64 x 64" in (here / "out/left_out.txt").read_text()
    found = json.loads((here / "out/results.json").read_text())
    assert found["images"] == 8 and len(found["classes"]) == 10 and 0 <= found["mean_average_precision"] <= 1
    assert len(list((here / "out/examples").glob("*.png"))) == 8
    assert main([*command(lines, "test"), "--device", device.number]) == 0
    assert f"detection_eval {found['mean_average_precision']:12.6g}" in capsys.readouterr().out
    shutil.copy("scenes/JPEGImages/000001.jpg", "IMAGE")
    assert main([*command(lines, "predict"), "--threshold", "0.01", "--device", device.number]) == 0
    assert main(command(lines, "export")) == 0 and (here / "out/ssd_shapes.onnx").exists()
    capsys.readouterr()
    os.remove("out/results.json")  # as after a kill
    before = os.stat("out/data").st_ino
    assert main(flags) == 0 and os.stat("out/data").st_ino == before
    assert "Resuming from" in (here / "out/train.log").read_text()
    assert "1 boxes or images cannot be used" in capsys.readouterr().out  # the note of the first run
    os.remove("out/results.json")
    path.write_text(path.read_text() + "\n")
    assert main(flags) == 1
    os.rename("out/data", "kept")
    os.symlink("../kept", "out/data")
    assert main(flags) == 1 and "it is a link" in capsys.readouterr().err and (here / "kept/train_lmdb").exists()
    os.remove("out/data")
    os.rename("kept", "out/data")
    (here / "out/results.json").write_text("{}")  # a training that has ended keeps its data
    assert main(flags) == 1 and "exists" in capsys.readouterr().err and os.stat("out/data").st_ino == before
    os.remove("out/results.json")
    assert main(flags) == 1
    assert "its data or their settings have changed since it began" in (error := capsys.readouterr().err) and "rm -r out" in error


def test_masks(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["fit", "scenes", "--task", "masks", "--out", "out", "--iterations", "4", "--batch", "4", "--device", device.number]
    (here / "scenes/SegmentationClass/000000.png").write_bytes(b"")
    assert main(flags) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert "scenes/SegmentationClass masks of the same names" in lines[0] and not said.err
    assert "note      1 pairs of an image and a mask cannot be used and are left out; out/left_out.txt names them" in lines
    found = json.loads((here / "out/results.json").read_text())
    assert len(found["classes"]) == 11 and found["classes"][0]["name"] == "background" and np.sum(found["confusion"]) == found["images"] * 64 * 64
    assert len(list((here / "out/examples").glob("*.png"))) == found["images"]
    assert main([*command(lines, "test"), "--device", device.number]) == 0
    shutil.copy("scenes/JPEGImages/000001.jpg", "IMAGE")
    assert f"{100 * found['mean_iou']:.1f} %" in capsys.readouterr().out.splitlines()[-1]
    assert main([*command(lines, "predict"), "--device", device.number]) == 0
    assert main(command(lines, "export")) == 0 and (here / "out/unet.onnx").exists()


def test_tags(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_folders(here / "photos", 10, classes=4)
    files = [(f"photos/digit{digit}/{number}.png", digit) for digit in range(4) for number in range(10)]
    (here / "photos/digit0/0.png").write_bytes(b"")
    rows = [f"{file},{1 - digit % 2},{int(digit > 1)},-1\n" for file, digit in files]
    (here / "tags.csv").write_text(f"name,even,large,rare\n{''.join(rows)}{files[1][0]},1,0,0\n")
    flags = ["--net", "lenet", "--iterations", "120", "--batch", "16", "--device", device.number]
    assert main(["fit", "tags.csv", "--out", "out", *flags]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "data      tags: tags.csv has 4 columns" and "for testing; 3 classes" in lines[1]
    assert "note      no image for training has the tags 'rare', which cannot be learned" in lines
    assert not said.err
    assert "note      1 images cannot be used and are left out; out/left_out.txt names them" in lines
    found = json.loads((here / "out/results.json").read_text())
    assert [each["name"] for each in found["tags"]] == ["even", "large", "rare"] and found["tags"][1]["average_precision"] > 0.8
    assert found["tags"][2]["recall"] is None and len(list((here / "out/examples").glob("*.png"))) == found["images"]
    assert main([*command(lines, "test"), "--device", device.number]) == 0
    assert f"tag_eval {found['mean_average_precision']:12.6g}" in (out := capsys.readouterr().out) and "\nlarge " in out
    shutil.copy(files[-1][0], "IMAGE")
    assert main([*command(lines, "predict"), "--device", device.number, "--json", "--threshold", "0.2"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert "large" in [each["label"] for each in result["tags"]]
    assert main(command(lines, "export")) == 0 and (here / "out/lenet.onnx").exists()


def test_names_of_tags(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One cell with several tags, or several columns with a tag each. Without a 0 in the table -1 means 0."""
    write_folders(here / "photos", 5, classes=2)
    files = [f"photos/digit{digit}/{number}.png" for digit in range(2) for number in range(5)]
    tables = {
        "cells": "file,tags\n" + "".join(f"{file},{'a|b' if number % 2 else 'b' if number % 3 else ''}\n" for number, file in enumerate(files)),
        "columns": "".join(f"{file};{'a' if number % 2 else ''};{'b' if number % 3 else ''}\n" for number, file in enumerate(files)),
        "minus": "file,a,b\n" + "".join(f"{file},{1 if number % 2 else -1},{1 if number % 3 else -1}\n" for number, file in enumerate(files)),
    }
    lists = []
    for name, text in tables.items():
        (here / f"{name}.csv").write_text(text)
        assert main(["fit", f"{name}.csv", "--out", name, "--net", "lenet", "--iterations", "1", "--batch", "auto", "--device", device.number]) == 0
        assert (here / name / "data/labels.txt").read_text() == "a\nb\n"
        lists.append((here / name / "data/train.txt").read_text())
    assert lists[1] == lists[2] and all(line.split()[1:] != ["-1", "-1"] for line in lists[2].splitlines())


def test_text(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dataset", "text", "lines", "--images", "30", "--width", "48", "--length", "1,2", "--splits", "80,20"]) == 0
    texts = [line.split() for name in ("train", "val") for line in (here / f"lines/texts/{name}.txt").read_text().splitlines()]
    (here / "lines/all.csv").write_text("text,file\n" + "".join(f"a {text},{file}\n" for file, text in texts))
    (here / "lines/images/train/000000.png").write_bytes(b"")
    capsys.readouterr()
    flags = ["--iterations", "2", "--batch", "4", "--device", device.number]
    assert main(["fit", "lines/all.csv", "--out", "out", *flags]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "data      text: the header of lines/all.csv is 'text,file'" and "23 for training, 6 for testing" in lines[1] and not said.err
    assert "note      the space is written as '_'" in lines and "note      1 images cannot be used and are left out; out/left_out.txt names them" in lines
    found = json.loads((here / "out/results.json").read_text())
    assert found["images"] == 6 and all(each["text"].startswith("a_") for each in found["wrong"])
    assert len(list((here / "out/examples").glob("*.png"))) == 6 and (here / "out/data/labels.txt").read_text().split()[:3] == ["blank", "_", "0"]
    shutil.copy("lines/images/val/000000.png", "IMAGE")
    for name in ("test", "predict"):
        assert main([*command(lines, name), "--device", device.number]) == 0
    assert main(command(lines, "export")) == 0 and (here / "out/crnn.onnx").exists()
    assert main(["fit", "lines", "--task", "text", "--out", "other", *flags]) == 1  # a list names the file that is not an image
    assert "000000.png" in capsys.readouterr().err


@pytest.mark.parametrize(("files", "expected"), [
    ({"train.txt": "1.jpg hello you\n2.jpg 12\n", "val.txt": "3.jpg a\n"}, ("text", "texts")),
    ({"train.txt": "1.jpg 3 4 0\n", "labels.txt": "blank\na\n"}, ("text", "made")),
    ({"all.csv": "text,file\nhello,1.jpg\n"}, ("text", "texts")),
    ({"all.csv": "file,cat,dog\n1.jpg,0,1\n", "images/1.jpg": ""}, ("tags", "table")),
    ({"train.csv": "1.jpg,a|b\n2.jpg,a\n", "val.csv": "3.jpg,b\n"}, ("tags", "table")),
    ({"train.txt": "1.jpg cat\n2.jpg cat\n3.jpg dog\n4.jpg dog\n"}, ("classes", "")),
    ({"train.csv": "1.jpg,cat\n2.jpg,dog\n"}, ("classes", "")),
    ({"Annotations/1.xml": "<annotation/>"}, ("boxes", "voc")),
    ({"train/1.xml": "", "valid/2.xml": ""}, ("boxes", "voc")),
    ({"annotations/instances_train.json": '{"images": []}'}, ("boxes", "coco")),
    ({"train/_annotations.coco.json": '{"info": {}, "images": []}', "valid/_annotations.coco.json": '{"images": []}'}, ("boxes", "coco")),
    ({"1.json": '{"version": "5", "shapes": []}', "1.jpg": ""}, ("boxes", "labelme")),
    ({"data.yaml": "names: [a]"}, ("boxes", "yolo")),
    ({"images/train/1.jpg": "", "labels/train/1.txt": "0 0.5 0.5 0.1 0.2\n"}, ("boxes", "yolo")),
    ({"images/1.jpg": "", "masks/1.png": ""}, ("masks", "folders")),
    ({"imgs/1.jpg": "", "masks/1_mask.png": ""}, ("masks", "folders")),
    ({"train.txt": "images/1.jpg masks/1.png\n"}, ("masks", "made")),
    ({"cat/1.jpg": "", "dog/1.jpg": ""}, ("classes", "")),
    ({"cat/1.json": '{"date": 1}', "dog/1.jpg": ""}, ("classes", "")),
    ({"train.txt": "a.jpg 0\n", "val.txt": "b.jpg 1\n"}, ("classes", "")),
    ({"images/1.jpg": "", "masks/2.png": ""}, ("classes", "")),
])  # fmt: skip
def test_the_data_are_seen(files: dict[str, str], expected: tuple[str, str], tmp_path: pathlib.Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    seen = see(str(tmp_path))
    assert (seen.task, seen.form) == expected
    assert see(str(tmp_path), "classes") == Seen("classes", "", "")
    if expected[0] != "boxes":
        with pytest.raises(Error, match="--task is boxes"):
            see(str(tmp_path), "boxes")


def test_masks_with_a_suffix(tmp_path: pathlib.Path) -> None:
    for name in ("images/a.jpg", "images/b.jpg", "masks/a_mask.png", "masks/b_mask.png", "masks/other.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = mask_folders(str(tmp_path))
    assert found is not None and found.mask_suffix == "_mask"


def test_data_are_converted_again_if_they_change(tmp_path: pathlib.Path) -> None:
    source, out, made = tmp_path / "source", tmp_path / "out", list[str]()
    source.mkdir()
    (source / "1.txt").write_text("a")

    def make(folder: str) -> list[str]:
        os.mkdir(folder)
        made.append(folder)
        return ["a note"]

    for settings, times in ((1, 1), (1, 1), (2, 2)):
        assert converted([str(source)], settings, str(out), make, False) == (str(out / "data"), ["a note"]) and len(made) == times
    (source / "2.txt").write_text("b")
    converted([str(source)], 2, str(out), make, False)
    assert len(made) == 3
    shutil.rmtree(out)
    (out / "data").mkdir(parents=True)  # not of this program
    with pytest.raises(Error, match="ocaffe fit` has not made it"):
        converted([str(source)], 2, str(out), make, False)

    def fail(folder: str) -> list[str]:
        raise Error("no", fix="--colors FILE")

    shutil.rmtree(out)
    with pytest.raises(Error, match="no") as caught:
        converted([str(source)], 2, str(out), fail, False, "ocaffe dataset masks A B DIR")
    assert "`ocaffe dataset masks A B DIR`" in str(caught.value.fix) and not out.exists()


def test_mistakes(here: pathlib.Path, device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Each flag that a message advises is one of the command, or of the one that it names."""
    flags = {flag for action in parser_of("fit")._actions for flag in action.option_strings}
    shutil.copytree("scenes", "wrong")
    for path in (here / "wrong/Annotations").iterdir():
        path.write_text(re.sub(r"<xmax>\d+", "<xmax>99", path.read_text()))
    shutil.copytree("scenes/JPEGImages", "flat/images")
    (here / "flat/masks").mkdir()
    for path in (here / "flat/images").iterdir():
        Image.new("L", (64, 64), 0).save(here / "flat/masks" / f"{path.stem}.png")
    shutil.copytree("flat", "red")
    for path in (here / "red/images").iterdir():
        Image.new("RGB", (64, 64), "red").save(here / "red/masks" / f"{path.stem}.png")
    shutil.copy("scenes/JPEGImages/000000.jpg", "x.png")
    (here / "numbers.csv").write_text("".join(f"x.png,{number}\n" for number in range(20)))
    for name, text in (("cells", "file,a,b\nx.png,1,2\nx.png,1,2\n"), ("empty", "file,text\nx.png,\nx.png,\n"), ("none", "file,text\nx,y\nz,w\n"),
                       ("odd", "file,a,b\nx.png,1,2\nx.png,1,2\n"), ("mixed", "file,a,b\nx.png,1,cat\nx.png,1,dog\n"),
                       ("ragged", "file,a,b\nx.png,1,0\nx.png,1\n"), ("twice", "file,a,a\nx.png,1,0\nx.png,1,0\n"),
                       ("bare", "file,a,b\nx.png,0,0\nx.png,0,0\n")):  # fmt: skip
        (here / f"{name}.csv").write_text(text)
    for argv, texts in (
        (["scenes"], ("scenes can be several things: boxes", "--task boxes, or --task masks")),
        (["none", "--task", "boxes"], ("none does not exist", "VOC, COCO, YOLO or LabelMe")),
        (["flat", "--task", "boxes"], ("--task is boxes, and flat can be masks", "or --task masks")),
        (["wrong", "--task", "boxes"], ("boxes cannot be used; the first", "xmin, ymin, xmax, ymax = ", "the image is 64 x 64", "clip or remove the box")),
        (["odd.csv"], ("odd.csv:", "column 'b' has '2', and a tag is 1 or 0", "remove the column")),
        (["mixed.csv"], ("mixed.csv:", "column 'b' has '", "', and column 'a' has numbers")),
        (["ragged.csv"], ("ragged.csv:3", "the row has 2 columns, and line 2 has 3")),
        (["twice.csv"], ("twice.csv", "the header names the column 'a' 2 times")),
        (["bare.csv"], ("no image for training has a tag",)),
        (["numbers.csv"], ("classes (numbers.csv has a label for each image); text (20 of the 20 labels at its begin differ", "--task text")),
        (["cells.csv", "--task", "text"], ("cells.csv:", "the image has 2 texts (a, b)", "a table with two columns")),
        (["empty.csv", "--task", "text"], ("empty.csv:", "the text of x.png is empty")),
        (["none.csv", "--task", "text"], ("none.csv:2", "no cell names an image file: 'x', 'y'")),
        (["flat"], ("all pixels have the class 0",)),
        (["red"], ("of type RGB", "--colors FILE. That is a flag of `ocaffe dataset masks red/images red/masks DIR`")),
        (["scenes", "--task", "boxes", "--size", "64"], ("--size is given for ssd_shapes",)),
        (["scenes", "--task", "boxes", "--val", "scenes"], ("--val is scenes, and the parts of boxes are in the data set", "leave it out")),
        (["scenes", "--task", "boxes", "--net", "resnet20"], ("resnet20, which does not learn boxes", "--net ssd_shapes")),
        (["scenes", "--task", "masks", "--net", "ssd_shapes"], ("ssd_shapes, which does not learn masks", "--net unet")),
    ):
        assert main(["fit", *argv, "--out", "out", "--device", device.number]) == 1, argv
        said = capsys.readouterr().err
        assert all(text in said for text in texts), said
        assert set(re.findall(r"--[a-z][\w-]*", said.partition(". That is a flag of")[0])) <= flags | {"--colors"}, said
        shutil.rmtree("out", ignore_errors=True)
