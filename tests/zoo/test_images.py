"""The images of a training: folders, parts, tables, databases; classes have the same numbers in both parts; mistakes."""
from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterable

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.cli.dataset import main as dataset
from ocaffe.data.databases.datum import encode_datum
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.data.stores.labels_txt import labels_bytes
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.zoo.images import Images, find_images, largest_label
from ocaffe.zoo.project import Choices, write_project
from tests.zoo.digits import write_folders

pytestmark = pytest.mark.quick


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(found: Images, part: str) -> list[str]:
    return found.files[f"out/{part}.txt"].decode().splitlines()


def counts(found: Images) -> tuple[int, int]:
    return found.train.images, found.test.images


def refused(data: str, **settings: object) -> Error:
    with pytest.raises(Error) as caught:
        find_images(data, "out", **settings)  # type: ignore[arg-type]
    return caught.value


def table(path: str, lines: Iterable[str]) -> None:
    pathlib.Path(path).write_text("file,label\n" + "".join(f"{line}\n" for line in lines))


def database(path: str, shape: tuple[int, int, int] = (1, 6, 6), count: int = 4, names: tuple[str, ...] = ("a", "b")) -> None:
    writer = LmdbWriter(path)
    for n in range(count):
        writer.put(b"%08d" % n, encode_datum(np.full(shape, n, np.uint8), n % 2))
    if names:
        writer.attach("labels.txt", labels_bytes(names))
    writer.finish()


def test_one_folder_is_divided(here: pathlib.Path) -> None:
    write_folders(here / "photos", 5, classes=3)
    found = find_images("photos", "out")
    assert counts(found) == (12, 3) and found.classes == ["digit0", "digit1", "digit2"]
    assert sorted(row.split()[1] for row in rows(found, "val")) == ["0", "1", "2"]
    assert found.train.root == found.test.root == "photos/" and found.train.source == "out/train.txt"
    assert find_images("photos", "out") == found != find_images("photos", "out", seed=1)
    assert counts(find_images("photos", "out", share=0.4)) == (9, 6)


def test_folders_train_and_val_and_labels(here: pathlib.Path) -> None:
    write_folders(here / "set" / "train", 3, classes=2)
    write_folders(here / "set" / "val", 1, classes=2, seed=2)
    (here / "set" / "train" / "digit0" / "note.txt").write_text("x")
    found = find_images("set", "out")
    assert counts(found) == (6, 2) and found.train.root == "set/" and found.notes == ("1 entries are no images: 1 .txt",)
    assert all(row.startswith("val/digit") for row in rows(found, "val"))
    assert {found.files["out/labels.txt"]} == {b"digit0\ndigit1\n"}
    write_folders(here / "set" / "test", 2, classes=2, seed=3)
    assert counts(find_images("set", "out")) == (6, 2)  # val before test


def test_two_folders_have_one_numbering(here: pathlib.Path) -> None:
    write_folders(here / "a", 2, classes=3)
    write_folders(here / "b", 1, classes=3)
    shutil.rmtree(here / "b" / "digit1")
    found = find_images("a", "out", "b")
    assert counts(found) == (6, 2) and sorted(rows(found, "val")) == ["digit0/0.png 0", "digit2/0.png 2"]
    (here / "b" / "digit0").rename(here / "b" / "eel")
    assert "the class 'eel'" in refused("a", val="b").fact


def test_table_is_divided(here: pathlib.Path) -> None:
    write_folders(here / "photos", 5, classes=2)
    table("photos/all.csv", [f"digit{n % 2}/{n // 2}.png,{'cat' if n % 2 else 'dog'}" for n in range(10)])
    found = find_images("photos/all.csv", "out")
    assert counts(found) == (8, 2) and found.classes == ["cat", "dog"] and found.train.root == "photos/"
    assert all(row.split()[1] == ("1" if row.startswith("digit0") else "0") for row in rows(found, "train") + rows(found, "val"))
    assert len({*rows(found, "train"), *rows(found, "val")}) == 10


def test_tables_train_and_val_have_one_numbering(here: pathlib.Path) -> None:
    write_folders(here / "digits", 3, classes=3)
    (here / "set").mkdir()
    table("set/train.csv", [f"digits/digit{n}/{i}.png,c{n}" for n in range(3) for i in (0, 1)])
    table("set/val.csv", [f"digits/digit{n}/2.png,c{n}" for n in (0, 2)])
    found = find_images("set", "out")
    assert counts(found) == (6, 2) and rows(found, "val") == ["digits/digit0/2.png 0", "digits/digit2/2.png 2"] and found.train.root == ""
    table("set/val.csv", ["digits/digit0/2.png,eel", "digits/digit0/1.png,c0"])
    assert "the class 'eel', which is not among the classes" in refused("set").fact


def test_other_tables_beside_class_folders(here: pathlib.Path) -> None:
    write_folders(here / "photos", 5, classes=2)
    table("photos/notes.csv", ["digit0/0.png,nice"])
    assert counts(find_images("photos", "out")) == (8, 2)


def test_lists(here: pathlib.Path) -> None:
    """Two lists with a labels.txt beside them, and a single one."""
    write_folders(here / "photos", 5, classes=2)
    lines = [f"digit{n}/{i}.png {n}\n" for n in (0, 1) for i in range(5)]
    pathlib.Path("photos/train.txt").write_text("".join(lines[:3] + lines[5:8]))
    pathlib.Path("photos/val.txt").write_text("".join(lines[3:5] + lines[8:]))
    pathlib.Path("photos/labels.txt").write_text("zero\none\n")
    found = find_images("photos", "out")
    assert counts(found) == (6, 4) and found.classes == ["zero", "one"] and found.train.root == "photos/" and rows(found, "val")[0] == "digit0/3.png 0"
    assert counts(find_images("photos/train.txt", "out", share=0.5)) == (3, 3)
    pathlib.Path("photos/val.txt").write_text("digit0/3.png 2\n")
    with pytest.raises(Error, match=r"the label 2, and labels\.txt has the names of 2 classes"):
        write_project("lenet", "photos", "out")


def test_numbers_in_tables(here: pathlib.Path) -> None:
    write_folders(here / "digits", 2, classes=2)
    table("all.csv", [f"digits/digit{n}/{i}.png,{4 * n}" for n in (0, 1) for i in (0, 1)])
    found = find_images("all.csv", "out", share=0.5)
    assert found.classes == [] and largest_label(found) == 4 and "out/labels.txt" not in found.files
    assert write_project("lenet", "all.csv", "out").classes == 5
    with pytest.raises(Error, match="--classes is 3, and the images have the label 4"):
        write_project("lenet", "all.csv", "other", Choices(classes=3))


def test_databases_in_a_folder(here: pathlib.Path) -> None:
    write_folders(here / "photos", 5, classes=2)
    assert dataset(["folder", "photos", "made"]) == 0
    found = find_images("made", "out")
    assert (found.train.source, found.test.source, counts(found)) == ("made/train_lmdb", "made/test_lmdb", (8, 2))
    assert found.classes == ["digit0", "digit1"] and found.stored is None and found.backend == proto.DataParameter.LMDB and not found.files
    write_project("lenet", "made", "out")
    train = read_net("out/train_val.prototxt").layer[0]
    assert train.type == "Data" and train.transform_param.force_gray and train.transform_param.resize_param[0].height == 28


@pytest.mark.parametrize(("side", "size", "resized", "crop"), [
    (28, 28, 0, 0), (32, 28, 0, 28), (64, 28, 28, 0), (20, 28, 28, 0), (256, 224, 0, 224), (500, 224, 256, 224),
])  # fmt: skip
def test_sizes_of_stored_images(here: pathlib.Path, side: int, size: int, resized: int, crop: int) -> None:
    for part in ("train", "val"):
        database(f"made/{part}_lmdb", (1, side, side))
    write_project("resnet20", "made", "out", Choices(size=size))
    for layer in read_net("out/train_val.prototxt").layer[:2]:
        p = layer.transform_param
        assert (p.resize_param[0].height if p.resize_param else 0, p.crop_size) == (resized, crop)
    assert list(read_net("out/deploy.prototxt").layer[0].input_param.shape[0].dim) == [1, 1, size, size]


def test_databases_that_are_named(here: pathlib.Path) -> None:
    database("a", count=6, names=())
    database("b", names=())
    found = find_images("a", "out", "b")
    assert counts(found) == (6, 4) and found.stored == (1, 6, 6) and found.classes == []
    with pytest.raises(Error, match=r"no labels\.txt") as caught:
        write_project("resnet20", "a", "out", Choices(val="b"))
    assert caught.value.fix == "--classes N, with their number as N"
    assert write_project("resnet20", "a", "out", Choices(val="b", classes=2)).classes == 2


@pytest.mark.parametrize(("data", "val", "fact"), [
    ("lone", "", "lone is a database, and none is given for testing"),
    ("lone", "photos", "photos is none"),
    ("lone", "other", "the labels.txt of lone and of other differ"),
    ("several", "", "the folder several has the databases a, b, and not one for training"),
    ("photos", "gone", "gone does not exist"),
    ("tables", "", "the folder tables has the tables all.csv, and not one for training"),
    ("notes.txt", "", "notes.txt, line 1: 'hello' has no label"),
    ("photos", "notes.txt", "notes.txt, line 1"),
    ("one.csv", "", "there is one image"),
    ("far.csv", "", "the first image of far.csv, gone.png, is neither in"),
])  # fmt: skip
def test_mistakes(here: pathlib.Path, data: str, val: str, fact: str) -> None:
    write_folders(here / "photos", 2, classes=2)
    for name, names in (("lone", ("a", "b")), ("other", ("b", "a")), ("several/a", ()), ("several/b", ())):
        database(name, names=names)
    pathlib.Path("notes.txt").write_text("hello")
    pathlib.Path("tables").mkdir()
    table("tables/all.csv", ["photos/digit0/0.png,0"])
    table("one.csv", ["photos/digit0/0.png,0"])
    table("far.csv", ["gone.png,0", "gone2.png,1"])
    problem = refused(data, val=val)
    assert fact in problem.fact and problem.fix
