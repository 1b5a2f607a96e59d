"""The kinds of files that are often taken for others, and the way from them: the command works as it stands."""
from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pathlib
import shlex
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from ocaffe.data.databases.proposals import read_proposals
from ocaffe.errors import Error
from ocaffe.evaluation.class_scores import read_class_scores
from ocaffe.evaluation.sidecar import read_sidecar
from ocaffe.formats.blob import read_blobproto
from ocaffe.formats.json_file import read_json
from ocaffe.formats.numpy_file import read_npy, read_npz
from ocaffe.support.files import file_kind, text_lines, to_read
from ocaffe.support.kinds import WrongKind, foreign, kind_of
from ocaffe.support.parsing import parsing, reason
from ocaffe.tools.datasets.annotations import read_boxes

TEXT = b"a.png 1\nb.png 2\n"
PACKERS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a gzip archive": (gzip.compress, ".gz"), "a bzip2 archive": (bz2.compress, ".bz2"), "an xz archive": (lzma.compress, ".xz"),
}  # fmt: skip


WRONG = {
    "a gzip archive": gzip.compress(TEXT), "a web page": b"<!DOCTYPE html><title>net</title>", "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\n",
    "empty": b"",
}  # fmt: skip
READERS: dict[str, Callable[[str], object]] = {  # by the ending of their files
    ".npy": lambda path: read_npy(path, "another"), ".npz": lambda path: read_npz(path, "another"), ".proposals.npz": read_proposals,
    ".json": lambda path: read_json(path, dict, "a file of settings", "another"), ".scores.json": read_class_scores,
    ".sidecar.json": lambda path: read_sidecar(f"{path.removesuffix('.json')}.caffemodel"), ".xml": lambda path: read_boxes(path, "xml"),
    ".boxes.json": lambda path: read_boxes(path, "json"), ".binaryproto": read_blobproto,
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("ending", READERS)
def test_each_reader_names_the_kind_and_the_way(ending: str, name: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / f"file{ending}"
    path.write_bytes(WRONG[name])
    kind = file_kind(path)
    assert kind is not None and kind.name == name
    with pytest.raises(Error) as caught:
        READERS[ending](str(path))
    assert name in caught.value.fact and caught.value.fix == kind.way


def test_a_damaged_file_of_the_right_kind_keeps_its_reason(tmp_path: pathlib.Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(100))
    np.savez(tmp_path / "a.npz", a=np.zeros(100))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:-8])
    with pytest.raises(Error, match="800 bytes, and 792 bytes follow"):
        read_npy(tmp_path / "a.npy", "another")
    with pytest.raises(Error, match=r"cannot be read as an \.npz of arrays: (?!it is)") as caught:
        read_npz(tmp_path / "a.npz", "another")
    assert caught.value.fix == "another"
    with pytest.raises(Error, match=r"cannot be read as \.npy: it is an .npz file of numpy"):
        read_npy(tmp_path / "a.npz", "another")


def test_a_parser_finds_the_kind_of_another_place(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_bytes(WRONG["a web page"])
    with pytest.raises(Error, match="cannot be read: it is a web page") as caught, parsing("cannot be read", "net.prototxt", "another", str(tmp_path / "a")):
        raise KeyError("shape")
    assert caught.value.fix == "download the file itself; this is the page about it"
    with pytest.raises(Error, match="cannot be read: it has no 'shape'") as caught, parsing("cannot be read", str(tmp_path / "missing"), "another"):
        raise KeyError("shape")
    assert caught.value.fix == "another"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_has_no_kind(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert file_kind(tmp_path / "pipe") is None and file_kind("a\0b") is None


def test_reasons_are_one_line() -> None:
    assert reason(ValueError("a\n  b")) == "a b"
    assert reason(RuntimeError(b"Corruption: bad block")) == "Corruption: bad block"
    assert reason(Error("it has no classes", place="a.json")) == "it has no classes"


@pytest.mark.parametrize("stem", ["the list.txt", "-list.txt"])
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("name", PACKERS)
def test_packed_files_are_unpacked_by_the_command(name: str, named: bool, stem: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pack, ending = PACKERS[name]
    path = f"{stem}{ending * named}"
    (tmp_path / path).write_bytes(pack(TEXT))
    with pytest.raises(WrongKind, match=f"it is {name}, not text") as caught:
        list(text_lines(path))
    command = to_read(path, caught.value, "another").removeprefix("unpack it: ")
    if shutil.which(command.rpartition("&& ")[2].split()[0]) is None:
        pytest.skip("the program that unpacks is not installed")
    subprocess.run(["sh", "-c", command], check=True)
    assert (tmp_path / stem).read_bytes() == TEXT


def test_archives_of_several_files(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "data.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    kind = file_kind(str(path))
    assert kind is not None and kind.way == f"unpack it: tar -xf {shlex.quote(str(path))}"
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    kind = file_kind(str(tmp_path / "data.zip"))
    assert kind is not None and kind.name == "a zip archive" and kind.way.startswith("unpack it: unzip ")


@pytest.mark.parametrize("head", [b"PK\x03\x04" + 26 * b"\0" + b"archive/data.pkl", b"\x80\x02\x8a\nl\xfc"])
def test_a_file_of_pytorch(head: bytes) -> None:
    kind = kind_of(head, "nets/resnet50.pth")
    assert kind is not None and kind.name == "a PyTorch file"
    assert "torch.onnx.export(model, images, 'nets/resnet50.onnx')" in kind.way
    assert kind.way.endswith("ocaffe convert nets/resnet50.onnx nets/resnet50.prototxt nets/resnet50.caffemodel")


@pytest.mark.parametrize(("path", "name"), [("a.pb", "a TensorFlow graph"), ("a.tflite", "a TensorFlow Lite model"), ("a.mlmodel", "a Core ML model")])
def test_files_of_other_frameworks(path: str, name: str) -> None:
    kind = foreign(path)
    assert kind is not None and kind.name == name and kind.way.endswith("ocaffe convert a.onnx a.prototxt a.caffemodel")
    assert foreign("a.caffemodel") is None


def test_images_and_arrays(tmp_path: pathlib.Path) -> None:
    for form, name in (("JPEG", "a JPEG image"), ("PNG", "a PNG image"), ("WEBP", "a WebP image"), ("TIFF", "a TIFF image"), ("GIF", "a GIF image")):
        stream = io.BytesIO()
        Image.new("RGB", (4, 4)).save(stream, form)
        assert kind_of(stream.getvalue()) == (name, "")
    np.savez(tmp_path / "a.npz", a=np.zeros(3))
    np.save(tmp_path / "a.npy", np.zeros(3))
    assert [getattr(file_kind(str(tmp_path / name)), "name", "") for name in ("a.npz", "a.npy")] == ["an .npz file of numpy", "a .npy file of numpy"]


@pytest.mark.parametrize("text", [b"BZh/1.png 0\n", b"PKL/1.png 0\n", b"GIF/1.png 0\n", b"name: 'LeNet'\n", b"{}", b"\n"])
def test_texts_are_no_other_kind(text: bytes, tmp_path: pathlib.Path) -> None:
    assert kind_of(text, "list.txt") is None
    (tmp_path / "list.txt").write_bytes(text)
    assert list(text_lines(tmp_path / "list.txt")) == text.decode().splitlines(keepends=True)
