"""Images that cannot be decoded are left out before a training: the rest is as if they were not there. They are named with the reasons."""
from __future__ import annotations

import io
import os
import pathlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.data.stores.labels_txt import labels_bytes
from ocaffe.errors import Error
from ocaffe.formats.text import read_net
from ocaffe.zoo.images import Images, find_images, largest_label
from ocaffe.zoo.project import Choices, write_project
from ocaffe.zoo.unreadable import Check
from tests.zoo.digits import write_folders


def jpeg(side: int = 40) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)).save(out, "JPEG")
    return out.getvalue()


HEIC = b"\0\0\0\x18ftypheic" + bytes(40)
BAD: dict[str, tuple[bytes, str]] = {  # by file name: content, and a part of the reason
    "cut.jpg": (jpeg()[:-200], "it cannot be decoded"),
    "cut in the header.jpg": (jpeg()[:100], "it cannot be decoded"),
    "text.jpg": (b"a text that is no image\n", "it is not an image file"),
    "empty.jpg": (b"", "it is empty"),
    "zero.png": (b"", "it is empty"),
    "zeros.png": (bytes(500), "it is not an image file"),
    "photo.heic": (HEIC, "it is a HEIC photo"),
    "renamed.jpg": (HEIC, "it is a HEIC photo"),
    "page.png": (b"<!DOCTYPE html><html></html>", "it is not an image file"),
}


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spoil(folder: pathlib.Path) -> None:
    """Write a file of each kind, and a link to nothing."""
    for name, (content, _) in BAD.items():
        (folder / name).write_bytes(content)
    (folder / "gone.jpg").symlink_to("nowhere.jpg")


def checked(data: str, **settings: object) -> Images:
    return find_images(data, "out", check=Check(), **settings)  # type: ignore[arg-type]


def named(found: Images) -> list[str]:
    return found.files["out/unreadable.txt"].decode().splitlines()


def without_report(found: Images) -> Images:
    return found._replace(files={path: content for path, content in found.files.items() if path != "out/unreadable.txt"}, notes=())


def test_the_rest_is_as_if_they_were_not_there(here: pathlib.Path) -> None:
    write_folders(here / "photos", 5, classes=3)
    clean = checked("photos")
    assert clean == find_images("photos", "out") and "out/unreadable.txt" not in clean.files
    spoil(here / "photos" / "digit1")
    found = checked("photos")
    assert without_report(found) == clean and largest_label(found) == 2
    assert found.notes == ("10 of 25 images cannot be read and are left out; out/unreadable.txt names them",)
    reasons = dict(line.split(": ", 1) for line in named(found))
    assert sorted(reasons) == sorted(f"photos/digit1/{name}" for name in [*BAD, "gone.jpg"])
    assert all(reason in reasons[f"photos/digit1/{name}"] for name, (_, reason) in BAD.items())
    assert reasons["photos/digit1/gone.jpg"].startswith("it cannot be read: No such file")


def test_any_number_of_threads_finds_the_same(here: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folders(here / "photos", 30, classes=3)
    spoil(here / "photos" / "digit0")
    results = []
    for threads in "14":
        monkeypatch.setenv("OCAFFE_WORKERS", threads)
        results.append(checked("photos"))
    assert results[0] == results[1] and len(named(results[0])) == 10


def as_parts(here: pathlib.Path) -> str:
    write_folders(here / "set" / "train", 3, classes=2)
    write_folders(here / "set" / "val", 2, classes=2, seed=2)
    return "set"


def as_table(here: pathlib.Path) -> str:
    write_folders(here / "photos", 6, classes=2)
    lines = [f"photos/digit{label}/{number}.png,digit{label}\n" for label in range(2) for number in range(6)]
    (here / "all.csv").write_text("file,label\n" + "".join(lines))
    return "all.csv"


def as_list(here: pathlib.Path) -> str:
    write_folders(here / "photos", 6, classes=2)
    (here / "all.txt").write_text("".join(f"photos/digit{label}/{number}.png {label}\n" for label in range(2) for number in range(6)))
    return "all.txt"


@pytest.mark.parametrize("make", [as_parts, as_table, as_list])
def test_all_kinds_of_data(here: pathlib.Path, make: Callable[[pathlib.Path], str]) -> None:
    data = make(here)
    before = checked(data)
    spoiled = {"set": ["set/train/digit0/1.png", "set/val/digit1/0.png"]}.get(data, ["photos/digit0/1.png", "photos/digit1/5.png"])
    for name in spoiled:
        (here / name).write_bytes(b"text")
    found = checked(data)
    assert [line.partition(":")[0] for line in named(found)] == spoiled
    lines = [line.rsplit(b" ", 1)[0].decode() for part in (found.train, found.test) for line in found.files[part.source].splitlines()]
    assert len(lines) == found.train.images + found.test.images == before.train.images + before.test.images - 2
    assert not {os.path.join(found.train.root, name) for name in lines} & set(spoiled)


def database(path: str, bad: int, labels: tuple[str, ...] = ("a", "b")) -> str:
    writer = LmdbWriter(path)
    for n in range(6):
        writer.put(b"%08d" % n, proto.Datum(data=b"text" if n < bad else jpeg(8 + n), label=n % 2, encoded=True).SerializeToString())
    writer.attach("labels.txt", labels_bytes(labels))
    writer.finish()
    return path


def test_databases(here: pathlib.Path) -> None:
    """A database stays as it is: the layer skips as many records as cannot be decoded."""
    database("db/train_lmdb", 2)
    database("db/val_lmdb", 0)
    found = checked("db")
    assert (found.train.bad, found.test.bad) == (2, 0) and named(found)[0].startswith("db/train_lmdb, key '00000000': it is not an image file")
    write_project("lenet", found, "out", Choices())
    limits = [layer.transform_param.skip_bad_records for layer in read_net("out/train_val.prototxt").layer if layer.type == "Data"]
    assert limits == [2, 0]


def test_large_images(here: pathlib.Path) -> None:
    write_folders(here / "photos", 2, classes=2)
    Image.new("RGB", (100, 100)).save(here / "photos" / "digit0" / "large.png")
    assert find_images("photos", "out", check=Check(10_000)) == find_images("photos", "out", check=Check())
    assert "10,000 pixels, and the limit is 9,999" in named(find_images("photos", "out", check=Check(9_999)))[0]


def spoil_all(folder: pathlib.Path) -> None:
    for path in folder.rglob("*.png"):
        path.write_bytes(b"text")


def one_class(here: pathlib.Path) -> str:
    write_folders(here / "photos", 3, classes=3)
    spoil_all(here / "photos" / "digit1")
    return "photos"


def everything(here: pathlib.Path) -> str:
    write_folders(here / "photos", 3, classes=2)
    spoil_all(here / "photos")
    return "photos"


def one_class_for_training(here: pathlib.Path) -> str:
    spoil_all(here / as_parts(here) / "train" / "digit0")
    return "set"


def all_for_testing(here: pathlib.Path) -> str:
    spoil_all(here / as_parts(here) / "val")
    return "set"


def one_class_of_a_list(here: pathlib.Path) -> str:
    as_list(here)
    spoil_all(here / "photos" / "digit1")
    return "all.txt"


def photos_of_one_class_are_heic(here: pathlib.Path) -> str:
    write_folders(here / "photos", 3, classes=2)
    (here / "photos" / "eel").mkdir()
    (here / "photos" / "eel" / "1.HEIC").write_bytes(HEIC)
    return "photos"


def whole_database(here: pathlib.Path) -> str:
    database("db/train_lmdb", 6)
    database("db/val_lmdb", 0)
    return "db"


@pytest.mark.parametrize(
    ("make", "fact", "fix"),
    [
        (one_class, "none of the 3 images of the class 'digit1' in photos can be read; the first: photos/digit1/0.png: it is not", "remove the class"),
        (everything, "none of the 6 images in photos can be read; the first: photos/digit0/0.png: it is not", "replace them"),
        (one_class_for_training, "none of the 3 images of the class 'digit0' in set/train can be read; the first: ", "remove the class"),
        (all_for_testing, "none of the 4 images in set/val can be read; the first: set/val/digit0/0.png: it is not", "replace them"),
        (one_class_of_a_list, "none of the 6 images of the class 1 in all.txt can be read; the first: photos/digit1/0.png: ", "remove the class"),
        (photos_of_one_class_are_heic, "none of the 1 images of the class 'eel' in photos can be read; the first: photos/eel/1.HEIC: ", "remove the class"),
        (whole_database, "none of the 6 images in db/train_lmdb can be read; the first: db/train_lmdb, key '00000000': it is not", "replace them"),
    ],
)  # fmt: skip
def test_nothing_remains(here: pathlib.Path, make: Callable[[pathlib.Path], str], fact: str, fix: str) -> None:
    data = make(here)
    with pytest.raises(Error) as caught:
        checked(data)
    assert caught.value.fact.startswith(fact) and fix in str(caught.value.fix)


def test_a_class_may_lose_its_images_for_testing(here: pathlib.Path) -> None:
    as_parts(here)
    spoil_all(here / "set" / "val" / "digit0")
    found = checked("set")
    assert (found.train.images, found.test.images, len(named(found))) == (6, 2, 2)
