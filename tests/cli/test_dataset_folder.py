"""`ocaffe dataset folder`: databases, lists and names of classes; how classes are divided; mistakes and bad files."""
from __future__ import annotations

import io
import os
import pathlib
from collections.abc import Callable
from typing import Any

import lmdb
import numpy as np
import pytest
from PIL import Image

from ocaffe import proto
from ocaffe.cli import main as ocaffe
from ocaffe.cli.dataset import main
from ocaffe.data.stores.image_list import ListFiles
from ocaffe.data.stores.label_names import label_names
from ocaffe.errors import Error
from ocaffe.tools.datasets.imageset import label_of, read_list

pytestmark = pytest.mark.quick


def picture(number: int, kind: str = "PNG", size: tuple[int, int] = (8, 6)) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), np.uint8)).save(buffer, kind)
    return buffer.getvalue()


def write(root: pathlib.Path, *names: str) -> None:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(picture(number, "JPEG" if name.endswith("jpg") else "PNG"))


def records(path: pathlib.Path) -> dict[bytes, Any]:
    with lmdb.open(str(path), readonly=True, lock=False) as environment, environment.begin() as transaction:
        return {key: proto.Datum.FromString(value) for key, value in transaction.cursor()}


def run(*arguments: str | pathlib.Path) -> None:
    assert main(["folder", *map(str, arguments)]) == 0


def refused(*arguments: str | pathlib.Path) -> Error:
    with pytest.raises(Error) as caught:
        run(*arguments)
    return caught.value


@pytest.fixture
def photos(tmp_path: pathlib.Path) -> pathlib.Path:
    """Class folders: 10 cats, 5 dogs, 1 eel."""
    root = tmp_path / "photos"
    write(root, *(f"cat/{n}.jpg" for n in range(10)), *(f"dog/my dogs/{n}.png" for n in range(5)), "eel/1.png")
    return root


def test_databases_lists_and_names(photos: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "cat" / "Thumbs.db").write_bytes(b"")
    out = tmp_path / "made" / "here"
    run(photos, out)
    assert sorted(os.listdir(out)) == ["labels.txt", "test.txt", "test_lmdb", "train.txt", "train_lmdb"]
    seen = set()
    for part, counts in (("train", [8, 4, 1]), ("test", [2, 1, 0])):
        found, lines = records(out / f"{part}_lmdb"), read_list(str(out / f"{part}.txt"))
        assert label_names(str(out / f"{part}_lmdb")) == label_names(str(out / f"{part}.txt")) == ["cat", "dog", "eel"]
        assert list(found) == [b"%08d_%s" % (number, line.name.encode()) for number, line in enumerate(lines)]
        for line, datum in zip(lines, found.values()):
            assert datum.encoded and datum.data == (photos / line.name).read_bytes()
            assert datum.label == label_of(line, "") == ["cat", "dog", "eel"].index(line.name.split("/")[0])
        assert np.bincount([datum.label for datum in found.values()], minlength=3).tolist() == counts
        seen |= {line.name for line in lines}
    assert len(seen) == 16
    said = capsys.readouterr().out
    assert f"{out}/train_lmdb: 13 images of 3 classes, 3 x 6 x 8\n" in said and "1 entries are no images: 1 .db" in said


def test_the_lists_make_the_same_database(photos: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run(photos, tmp_path / "out")
    assert ocaffe(["convert_imageset", "--encoded", f"{photos}/", f"{tmp_path}/out/train.txt", f"{tmp_path}/again"]) == 0
    assert records(tmp_path / "again") == records(tmp_path / "out" / "train_lmdb")
    assert sorted(os.listdir(tmp_path / "again")) == ["data.mdb", "lock.mdb"] or os.listdir(tmp_path / "again") == ["data.mdb"]


def test_the_seed_divides(photos: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def tested(name: str, *flags: str) -> list[bytes]:
        run(photos, tmp_path / name, *flags)
        return [key[9:] for key in records(tmp_path / name / "test_lmdb")]

    first = tested("first")
    assert first == tested("same", "--seed=0") != tested("other", "--seed=7")
    write(photos, "ant/1.png", "ant/2.png")  # another class does not change the division of the others
    assert set(first) == {name for name in tested("more") if not name.startswith(b"ant")}
    assert (ordered := tested("ordered", "--noshuffle")) == sorted(ordered) and len(tested("half", "--test=0.5")) == 5 + 2 + 1


def test_without_test_images(photos: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run(photos, tmp_path / "out", "--test", "0")
    assert sorted(os.listdir(tmp_path / "out")) == ["labels.txt", "train.txt", "train_lmdb"] and len(records(tmp_path / "out" / "train_lmdb")) == 16


@pytest.mark.parametrize(("held_out", "made"), [(["val"], ["test"]), (["validation"], ["test"]), (["test", "val"], ["test", "val"])])
def test_parts_that_exist(tmp_path: pathlib.Path, held_out: list[str], made: list[str]) -> None:
    root = tmp_path / "set"
    write(root, *(f"train/{name}/{n}.png" for name in "abc" for n in range(3)), *(f"{part}/{name}/9.png" for part in held_out for name in "cb"))
    run(root, tmp_path / "out", "--noshuffle")
    assert (tmp_path / "out" / "labels.txt").read_text() == "a\nb\nc\n"
    assert (tmp_path / "out" / "train.txt").read_text().splitlines()[:4] == ["train/a/0.png 0", "train/a/1.png 0", "train/a/2.png 0", "train/b/0.png 1"]
    for part, name in zip(held_out, made):
        assert (tmp_path / "out" / f"{name}.txt").read_text() == f"{part}/b/9.png 1\n{part}/c/9.png 2\n"
        assert [datum.label for datum in records(tmp_path / "out" / f"{name}_lmdb").values()] == [1, 2]
    error = refused(root, tmp_path / "other", "--test=0.3")
    assert f"--test is 0.3, and the folder {root} is divided already: train and {' and '.join(held_out)}" == error.fact
    write(root, f"{held_out[0]}/d/1.png")
    error = refused(root, tmp_path / "other")
    assert error.fact == f"the folder {root}/{held_out[0]} has the class 'd', which is not among the classes for training"
    write(root, "more/1.png")
    assert "and another subfolder, 'more'" in refused(root, tmp_path / "other").fact


def test_parts_in_another_case(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "set", *(f"{part}/{name}/{n}.png" for part in ("Training", "TEST") for name in "ab" for n in range(2)))
    run(tmp_path / "set", tmp_path / "out", "--noshuffle")
    assert (tmp_path / "out" / "train.txt").read_text().splitlines()[-1] == "Training/b/1.png 1"
    assert len(records(tmp_path / "out" / "train_lmdb")) == len(records(tmp_path / "out" / "test_lmdb")) == 4


def test_pixels(photos: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run(photos, tmp_path / "raw", "--noencoded", "--gray", "--resize_height=5", "--resize_width=4")
    for datum in records(tmp_path / "raw" / "train_lmdb").values():
        assert (datum.channels, datum.height, datum.width, len(datum.data), datum.encoded) == (1, 5, 4, 20, False)
    run(photos, tmp_path / "small", "--resize_height=5", "--resize_width=4")
    for key, datum in records(tmp_path / "small" / "train_lmdb").items():
        image = Image.open(io.BytesIO(datum.data))
        assert image.size == (4, 5) and image.format == ("JPEG" if key.endswith(b"jpg") else "PNG")
    run(photos, tmp_path / "png", "--encode_type=png")
    assert {datum.data[:4] for datum in records(tmp_path / "png" / "train_lmdb").values()} == {b"\x89PNG"}


def test_sizes(photos: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (photos / "cat" / "wide.png").write_bytes(picture(1, size=(12, 6)))
    error = refused(photos, tmp_path / "out", "--check_size", "--test=0", "--noshuffle")
    assert "wide.png is 3 x 6 x 12, cat/0.jpg is 3 x 6 x 8, and --check_size is given" in error.fact
    run(photos, tmp_path / "out", "--test=0")
    assert "2 sizes such as 3 x 6 x" in capsys.readouterr().out


def test_bad_images(photos: pathlib.Path, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    (photos / "cat" / "empty.jpg").write_bytes(b"")
    (photos / "dog" / "text.png").write_text("no image")
    (photos / "eel" / "cut.jpg").write_bytes(picture(3, "JPEG", (80, 60))[:1500])
    os.mkfifo(photos / "eel" / "pipe.png")
    out = tmp_path / "out"
    error = refused(photos, out, "--noshuffle", "--test=0")
    assert error.fact == f"{photos}/cat/empty.jpg: it is empty" and "leave out all that cannot be read: --skip-bad-records 20" in str(error.fix)
    assert not out.exists()
    error = refused(photos, out, "--skip-bad-records=3")
    assert "3 others are left out already" in error.fact and not out.exists()
    capfd.readouterr()
    run(photos, out, "--skip-bad-records", "20")
    said = capfd.readouterr()
    assert "4 images cannot be read and are left out" in said.out
    for name in ("cat/empty.jpg", "dog/text.png", "eel/cut.jpg", "eel/pipe.png"):
        assert said.err.count(f"{photos}/{name}: ") == 1
    names = [line.name for part in ("train", "test") for line in read_list(f"{out}/{part}.txt")]
    assert len(names) == 16 and not {"cat/empty.jpg", "dog/text.png", "eel/cut.jpg", "eel/pipe.png"} & set(names)
    assert sum(len(records(out / f"{part}_lmdb")) for part in ("train", "test")) == 16


def test_all_images_are_bad(tmp_path: pathlib.Path) -> None:
    for name in "ab":
        (tmp_path / "set" / name).mkdir(parents=True)
        (tmp_path / "set" / name / "1.png").write_bytes(b"")
    assert "none of the 2 images of" in refused(tmp_path / "set", tmp_path / "out", "--test=0", "--skip-bad-records=9").fact
    assert "no class in" in refused(tmp_path / "set", tmp_path / "out").fact


@pytest.mark.parametrize("name", ["train_lmdb", "test.txt", "labels.txt"])
def test_nothing_is_overwritten(photos: pathlib.Path, tmp_path: pathlib.Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    assert refused(photos, tmp_path / "out").fact == f"{tmp_path}/out/{name} exists already"
    assert os.listdir(tmp_path / "out") == [name] and (tmp_path / "out" / name).read_text() == "mine"


def test_nothing_remains_of_a_failure(photos: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(writer: object) -> None:
        raise Error("the disk is full")

    monkeypatch.setattr("ocaffe.data.databases.writer.LmdbWriter.finish", full)
    assert refused(photos, tmp_path / "out").fact == "the disk is full" and not (tmp_path / "out").exists()


def mistakes() -> list[tuple[str, Callable[[pathlib.Path], list[str]]]]:
    return [
        ("lies in the folder of the images", lambda photos: [str(photos), str(photos / "out")]),
        ("lies in the folder of the images", lambda photos: [str(photos), str(photos / "cat" / "..")]),
        ("--test is 1", lambda photos: [str(photos), "out", "--test=1"]),
        ("--test is -0.1", lambda photos: [str(photos), "out", "--test=-0.1"]),
        ("--skip-bad-records is -1", lambda photos: [str(photos), "out", "--skip-bad-records=-1"]),
        ("--resize_height is 3, and --resize_width is 0, the default", lambda photos: [str(photos), "out", "--resize_height=3"]),
        ("none cannot be read: No such file", lambda photos: [str(photos / "none"), "out"]),
        ("has no subfolders, and 10 images itself", lambda photos: [str(photos / "cat"), "out"]),
        ("OUT is missing", lambda photos: [str(photos)]),
    ]


@pytest.mark.parametrize(("fact", "arguments"), mistakes(), ids=[fact for fact, _ in mistakes()])
def test_mistakes(photos: pathlib.Path, fact: str, arguments: Callable[[pathlib.Path], list[str]]) -> None:
    error = refused(*arguments(photos))
    assert fact in error.fact and error.fix


def test_a_name_with_a_line_break(photos: pathlib.Path, tmp_path: pathlib.Path) -> None:
    write(photos, "cat/a\nb.png")
    assert "has a line break" in refused(photos, tmp_path / "out").fact


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
@pytest.mark.parametrize("name", [" cat", "cat ", "\tcat", "\u3000cat", "\xa0cat", "\ufeffcat", "cat\x85", "a\nb", " "])
@pytest.mark.parametrize(
    "command", ["dataset folder PHOTOS OUT", "new lenet --data PHOTOS --out OUT", "new lenet --data PHOTOS --val PHOTOS --out OUT", "fit PHOTOS --out OUT"]
)
def test_a_class_that_labels_cannot_hold(photos: pathlib.Path, tmp_path: pathlib.Path, name: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    write(photos, *(f"{name}/{number}.png" for number in range(4)))
    assert ocaffe([{"PHOTOS": str(photos), "OUT": str(tmp_path / "out")}.get(word, word) for word in command.split()]) == 1
    told = capsys.readouterr().err
    assert "cannot hold" in told and "fix: rename" in told and not (tmp_path / "out").exists()


def test_names_with_spaces_within_classes(photos: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Their folders are in the lists too, so that no line begins with a space. The lists read back as they are written."""
    write(photos, "cat/ a.png", "cat/ b / c d.png", "dog/\u3000e.png")
    run(photos, tmp_path / "out", "--test=0")
    path = str(tmp_path / "out/train.txt")
    names = {ListFiles(path, "", 1, False).file(record).path for record in range(19)}
    assert names == {entry.name for entry in read_list(path)} >= {"cat/ a.png", "cat/ b / c d.png", "dog/\u3000e.png"}
    assert all((photos / name).is_file() for name in names)


def test_the_help_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "ocaffe dataset folder" in capsys.readouterr().out
