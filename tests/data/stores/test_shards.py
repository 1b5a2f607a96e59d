"""Tar shards: samples, order, labels, and damaged, compressed or incomplete ones."""
from __future__ import annotations

import gzip
import io
import os
import pathlib
import tarfile
from collections.abc import Iterable
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.data.stores.opening import open_files
from ocaffe.data.stores.shards import ShardFiles
from tests.data.pictures import content, failure, fault, name

pytestmark = pytest.mark.quick

Members = Iterable[tuple[str, bytes]]


def pack(path: pathlib.Path, members: Members, form: int = tarfile.PAX_FORMAT) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return str(path)


def sample(number: int, suffix: str = "jpg") -> Members:
    return [(f"{number:03d}.{suffix}", b"image %d" % number * (number + 1)), (f"{number:03d}.cls", b" %d\n" % number)]


def samples(*numbers: int) -> Members:
    return [member for number in numbers for member in sample(number)]


def opened(source: str | pathlib.Path, **fields: Any) -> ShardFiles:
    files = open_files(proto.ImageDataParameter(source=str(source), **fields))
    assert isinstance(files, ShardFiles)
    return files


def labels(files: ShardFiles) -> list[float]:
    assert all(content(files, n) == b"image %d" % label * (int(label) + 1) for n, (label,) in enumerate(files.labels.tolist()))
    return [label for (label,) in files.labels.tolist()]


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    pack(tmp_path / "s" / "train-001.tar", samples(4, 3))
    pack(tmp_path / "s" / "train-000.tar", samples(7, 1))
    pack(tmp_path / "s" / "train-010.tar", samples(5))
    return tmp_path / "s"


def test_shards_are_read_in_the_order_of_names_and_members(folder: pathlib.Path) -> None:
    files = opened(f"{folder}/train-*.tar")
    assert labels(files) == labels(opened(folder)) == [7, 1, 4, 3, 5]
    assert name(files, 2) == f"{folder}/train-001.tar, member 004.jpg" and files.notes[0][1] == f"Opening 3 shards {folder}/train-*.tar"
    assert labels(opened(folder / "train-001.tar")) == [4, 3] and labels(opened(f"{folder}/train-{{000..001}}.tar")) == [7, 1, 4, 3]
    (folder / "labels.txt").write_text("a\nb\n")
    (folder / ".hidden").write_text("")
    assert labels(opened(folder)) == [7, 1, 4, 3, 5]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_of_members(tmp_path: pathlib.Path, form: int) -> None:
    long = "x" * (90 if form == tarfile.USTAR_FORMAT else 300)
    members = [("./a/0.png", b"0"), ("a/0.cls", b"1"), ("b/0.PNG", b"2"), ("b/0.json", b'{"label": 3, "w": [1]}'), (f"{long}.webp", b"4")]
    members += [(f"{long}.cls", b"5")]
    more = [("readme", b""), (".hidden.jpg", b""), ("c/._0.jpg", b""), ("a/0.seg.png", b"mask"), ("a/0.txt", b"a cat"), ("a/0.json", b"not read")]
    files = opened(pack(tmp_path / "x.tar", [*more, *members], form))
    assert [content(files, n) for n in range(3)] == [b"0", b"2", b"4"] and files.labels.tolist() == [[1], [3], [5]]
    assert name(files, 2).endswith(f"member {long}.webp")


def test_members_of_a_sample_may_be_apart(tmp_path: pathlib.Path) -> None:
    members = [member for part in (0, 1) for member in [list(sample(n))[part] for n in (3, 1, 2)]]
    assert labels(opened(pack(tmp_path / "x.tar", members[::-1]))) == [2, 1, 3]


def test_several_labels(tmp_path: pathlib.Path) -> None:
    members = [("0.jpg", b""), ("0.cls", b"1 0.5"), ("1.jpg", b""), ("1.json", b'{"label": [2, -1e3]}')]
    assert opened(pack(tmp_path / "x.tar", members), label_count=2).labels.tolist() == [[1, 0.5], [2, -1000]]
    assert "member 0.cls: it has 2 labels, and label_count is 1" in failure(lambda: opened(tmp_path / "x.tar")).fact


@pytest.mark.parametrize(
    ("members", "fact"),
    [
        ([("0.jpg", b"")], "member 0.jpg: the sample has no .cls or .json with its label"),
        ([("0.jpg", b""), ("0.cls", b"1"), ("1.cls", b"1")], "member 1.cls: the sample has no image"),
        ([("0.jpg", b""), ("0.cls", b"cat")], "member 0.cls: the label 'cat' is not a whole number of 32 bits"),
        ([("0.jpg", b""), ("0.cls", b"0.5")], "member 0.cls: the label '0.5' is not a whole number"),
        ([("0.jpg", b""), ("0.cls", b"")], "member 0.cls: it has 0 labels, and label_count is 1"),
        ([("0.jpg", b""), ("0.cls", b"\xff")], "member 0.cls: 'utf-8' codec"),
        ([("0.jpg", b""), ("0.cls", b"1" * 5000)], "member 0.cls: "),
        ([("0.jpg", b""), ("0.cls", b"1" * (1 << 20) + b"1")], "member 0.cls: it has 1,048,577 bytes, and 1,048,576 are allowed"),
        ([("0.jpg", b""), ("0.json", b'{"class": 1}')], 'member 0.json: it has no "label"'),
        ([("0.jpg", b""), ("0.json", b"{")], "member 0.json: it is JSON that ends too early"),
        ([("0.jpg", b""), ("0.json", b"[" * 100_000)], "its brackets are nested too deep"),
        ([("0.jpg", b""), ("0.json", b'{"label": true}')], "member 0.json: the label 'True' is not"),
        ([("0.jpg", b""), ("0.json", b'{"label": NaN}')], "member 0.json: the label 'nan' is not"),
        ([("0.jpg", b""), ("0.png", b""), ("0.cls", b"1")], "member 0.png: the sample has 0.jpg too"),
        ([("0.jpg", b""), ("0.jpg", b""), ("0.cls", b"1")], "member 0.jpg: the sample has 0.jpg too"),
        ([("readme.md", b"")], "have no image"),
        ([], "have no image"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_incomplete_samples(tmp_path: pathlib.Path, members: Members, fact: str) -> None:
    error = failure(lambda: opened(pack(tmp_path / "x.tar", members)))
    assert fact in error.fact and f"{tmp_path}/x.tar" in error.fact and error.fix


def test_damaged_shards(tmp_path: pathlib.Path) -> None:
    whole = pathlib.Path(pack(tmp_path / "good.tar", samples(0, 1, 2))).read_bytes()
    path = tmp_path / "bad.tar"
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512  # of the last member
    for kind, bad, fact in (
        ("in a header", whole[:1000], "is damaged near byte 1,024: unexpected end of data"),
        ("in a content", whole[:2600], "is damaged near byte 3,072: unexpected end of data"),
        ("after a member", whole[:2048], "ends at byte 2,048 without the end mark of a tar file: it is truncated"),
        ("without end", whole[:end], f"ends at byte {end:,} without the end mark of a tar file: it is truncated"),
        ("changed header", whole[:1030] + b"x" + whole[1031:], "is damaged: the header at byte 1,024 is not one of tar"),
        ("changed first header", b"x" + whole[1:], "is damaged near byte 0: "),
        ("nothing", b"", "is damaged near byte 0: empty file"),
        ("text", b"no tar" * 1000, "is damaged near byte 0: "),
    ):
        path.write_bytes(bad)
        error = failure(lambda: opened(path))
        assert fact in error.fact and str(path) in error.fact and error.fix, (kind, error.fact)
    for at in range(0, end, 37):  # any other damage: an Error or a set of samples, never anything else
        for value in (0x80, 0xFF, ord("-")):
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                opened(path)
            except Exception as problem:
                assert str(path) in str(problem) and type(problem).__name__ == "Error"


def test_sizes_that_do_not_end(tmp_path: pathlib.Path) -> None:
    """A negative size leads back to an earlier header."""
    member = tarfile.TarInfo("0.jpg")
    member.size = -1536
    (tmp_path / "x.tar").write_bytes(b"".join(tarfile.TarInfo(name).tobuf() for name in ("a.txt", "b.txt")) + member.tobuf(tarfile.GNU_FORMAT) + bytes(10240))
    assert f"{tmp_path}/x.tar" in failure(lambda: opened(tmp_path / "x.tar")).fact


def test_links_and_devices(tmp_path: pathlib.Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            member = tarfile.TarInfo("0.jpg")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        error = failure(lambda: opened(tmp_path / "x.tar"))
        assert "member 0.jpg: it is a link or a sparse file" in error.fact and "--dereference" in str(error.fix)
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        member = tarfile.TarInfo("folder.jpg")
        member.type = tarfile.DIRTYPE
        tar.addfile(member)
    assert "have no image" in failure(lambda: opened(tmp_path / "x.tar")).fact


def test_compressed_shards_are_refused(tmp_path: pathlib.Path) -> None:
    whole = pathlib.Path(pack(tmp_path / "good.tar", samples(0))).read_bytes()
    for file in ("x.tar.gz", "x.tgz", "hidden.tar"):
        (tmp_path / file).write_bytes(gzip.compress(whole))
        error = failure(lambda file=file: opened(tmp_path / file))  # type: ignore[misc]
        assert error.fact == f"the shard {tmp_path}/{file} is a gzip archive, and only plain tar files can be read in any order" and "gunzip" in str(error.fix)


def test_files_that_cannot_be_read(tmp_path: pathlib.Path, folder: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    (tmp_path / "folder.tar").mkdir()
    for source, fact in (
        ("pipe.tar", "cannot be read: it is a pipe, not a plain file"),
        ("none.tar", "no file has the name"),
        ("none-*.tar", "no file has the name"),
        ("s/train-{000..003}.tar", "train-002.tar cannot be read: No such file"),
        ("s/train-{5..3}.tar", "the range {5..3} in "),
        ("s/train-{0..99999999}.tar", "has 100,000,000 shards"),
        ("folder*.tar", "folder.tar cannot be read: Is a directory"),
    ):
        error = failure(lambda source=source: opened(tmp_path / source))  # type: ignore[misc]
        assert fact in error.fact and error.fix
    assert "root_folder is 'x'" in failure(lambda: opened(folder, root_folder="x")).fact


def test_a_shard_that_changes(folder: pathlib.Path) -> None:
    files, path = opened(folder), folder / "train-000.tar"
    path.write_bytes(path.read_bytes() + b"more")
    error = fault(files, 1)
    assert error.fact == f"{path}, member 001.jpg: the shard was changed after its headers were read" and content(files, 2)
    path.unlink()
    assert "cannot be read: No such file" in fault(files, 0).fact
