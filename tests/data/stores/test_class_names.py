"""Names that a list of images and labels.txt hold: what the program writes, it reads back. A name may begin like a binary format."""
from __future__ import annotations

import os
import pathlib

import pytest
from PIL import Image

import ocaffe
from ocaffe.cli import main
from ocaffe.data.stores.image_list import ListFiles
from ocaffe.data.stores.labels_txt import labels_bytes, read_labels
from ocaffe.data.stores.text_list import list_content, unlisted
from ocaffe.errors import Error
from ocaffe.tools.datasets.imageset import read_list

MAGIC = [
    b"GIF89a", b"%PDF-1.4", b"PF", b"Pf", b"float", b"PAR1", b"PIEH", b"II*", b"MM", b"BZh91AY&SY", b"Rar!", b"7z", b"MATLAB 5.0 MAT-file", b"RIFFxxxxWEBP",
    b"xxxxTFL3", b"\xff\xfecat", b"\xfe\xffcat", b"\xff\xd8\xffcat", b"\x89PNG", b"\x93NUMPY", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ",
]  # fmt: skip
LOOK = {
    b"<html>": "a web page", b"<!DOCTYPE html>": "a web page", b"GIF89a\x01": "a GIF image", b"PK\x03\x04": "a zip archive",
    b"\x7fELF": "a program of Linux", b"\xff\xfe\x01": "UTF-16 text", b"Rar!\x1a\x07": "a rar archive",
}  # fmt: skip


def name_of(begin: bytes) -> str:
    return os.fsdecode(begin)


@pytest.mark.parametrize("begin", MAGIC)
def test_a_first_name_like_a_binary_format(begin: bytes, tmp_path: pathlib.Path) -> None:
    names = [name_of(begin), "zebra", "mustard"]
    (tmp_path / "labels.txt").write_bytes(labels_bytes(names))
    assert read_labels(str(tmp_path / "labels.txt")) == names
    files = [f"{name}/1.png" for name in names]
    assert unlisted(files, "here") is None
    (tmp_path / "list.txt").write_bytes(list_content(f"{name} 1" for name in files))
    assert [entry.name for entry in read_list(str(tmp_path / "list.txt"))] == files
    made = ListFiles(str(tmp_path / "list.txt"), "", 1, False)
    assert [made.file(record).path for record in range(3)] == files


def test_a_name_in_the_place_of_a_mark(tmp_path: pathlib.Path) -> None:
    """tar has its mark at byte 257."""
    content = labels_bytes(["a" * 255, "mustard"])
    assert content[257:262] == b"ustar"
    (tmp_path / "labels.txt").write_bytes(content)
    assert read_labels(str(tmp_path / "labels.txt")) == ["a" * 255, "mustard"]


@pytest.mark.parametrize(("begin", "kind"), LOOK.items())
def test_names_that_readers_would_take_for_a_file(begin: bytes, kind: str, tmp_path: pathlib.Path) -> None:
    """They are refused where they would be first. In another place they are names like others."""
    name = name_of(begin)
    with pytest.raises(Error, match=f"of the first class would make labels.txt look like {kind}") as caught:
        labels_bytes([name, "b"])
    assert "rename the class" in str(caught.value.fix)
    problem = unlisted([f"{name}/1.png", "b/1.png"], "here")
    assert problem is not None and f"would make a list look like {kind}" in problem.fact and problem.fix
    with pytest.raises(Error, match=f"look like {kind}"):
        list_content([f"{name}/1.png 0"])
    (tmp_path / "labels.txt").write_bytes(labels_bytes(["b", name]))
    assert read_labels(str(tmp_path / "labels.txt")) == ["b", name] and unlisted(["b/1.png", f"{name}/1.png"], "here") is None


@pytest.mark.parametrize("content", [b"GIF89a\x40\x01\xf0\x00\x00cat\n", b"\xff\xfec\0a\0t\0\n\0", b"%PDF-1.4\n\x00\n", b"<html>\n", b"PK\x03\x04\x14\n"])
def test_other_files_are_told(content: bytes, tmp_path: pathlib.Path) -> None:
    (tmp_path / "labels.txt").write_bytes(content)
    with pytest.raises(Error, match="cannot be read: it is "):
        read_labels(str(tmp_path / "labels.txt"))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
@pytest.mark.parametrize("begin", [b"GIF89a", b"%PDF-", b"\xff\xfecat", b"float"])
def test_class_folders(begin: bytes, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    name = name_of(begin)
    for folder in (name, "zz"):
        os.makedirs(f"p/{folder}")
        for number in range(4):
            Image.new("RGB", (9, 9)).save(f"p/{folder}/{number}.png")
    assert main(["dataset", "folder", "p", "o", "--noshuffle"]) == 0
    for source in (["o/train_lmdb"], ["p"], ["o/train.txt", "--root-folder=p/"]):
        assert main(["dataset", "show", *source, "--out=s.png"]) == 0, capsys.readouterr().err
    assert main(["convert_imageset", "p/", "o/train.txt", "x_lmdb"]) == 0
    assert main(["new", "resnet20", "--data=p", "--out=n"]) == 0
    assert read_labels("n/labels.txt") == sorted([name, "zz"])
    for path in (pathlib.Path("n/train.txt"), pathlib.Path("n/val.txt")):  # the name comes first
        path.write_bytes(b"".join(sorted(path.read_bytes().splitlines(True), reverse=begin > b"zz")))
    ocaffe.Net("n/train_val.prototxt", ocaffe.TRAIN).close()
    ocaffe.Net("n/train_val.prototxt", ocaffe.TEST).close()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
@pytest.mark.parametrize("command", ["dataset folder p OUT", "new resnet20 --data p --out OUT", "fit p --out OUT"])
@pytest.mark.parametrize("begin", [b"<html>", b"GIF89a\x01", b"\xef\xbb\xbfcat"])
def test_class_folders_that_are_refused(
    begin: bytes, command: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (name_of(begin), "zz"):
        os.makedirs(f"p/{folder}")
        for number in range(4):
            Image.new("RGB", (9, 9)).save(f"p/{folder}/{number}.png")
    assert main(command.replace("OUT", "o").split()) == 1
    assert "fix: rename" in capsys.readouterr().err and sorted(os.listdir()) == ["p"]
