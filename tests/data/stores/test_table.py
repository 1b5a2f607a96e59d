"""Tables of image files (.csv): detection, headers, classes, mistakes."""
from __future__ import annotations

import os
import pathlib

import pytest

from ocaffe import proto
from ocaffe.data.stores.file_store import Files
from ocaffe.data.stores.image_list import ListFiles
from ocaffe.data.stores.label_names import label_names
from ocaffe.data.stores.opening import open_files
from ocaffe.data.stores.table import TableFiles
from tests.data.pictures import content, failure, fault, name

pytestmark = pytest.mark.quick


def opened(folder: pathlib.Path, text: str | bytes, file: str = "table.csv", **fields: object) -> Files:
    (folder / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    return open_files(proto.ImageDataParameter(**{"source": str(folder / file), **fields}))


def rows(files: Files) -> list[tuple[str, list[float]]]:
    return [(name(files, n), files.labels[n].tolist()) for n in range(files.entries)]


CATS = [("a.jpg", [1]), ("b c.jpg", [0])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a.jpg,1\nb c.jpg,0\n", CATS),
        ("file,label\na.jpg,1\nb c.jpg,0\n", CATS),
        ("\ufefffile;label\r\n\r\na.jpg;1\r\nb c.jpg;0\r\n", CATS),
        ("a.jpg,1\n  \t\nb c.jpg,0\n \n", CATS),
        ("file\tlabel\na.jpg\t1\nb c.jpg\t0", CATS),
        ('a.jpg, 1\n"b c.jpg", "0"\n', CATS),
        ("a.jpg,dog\nb c.jpg,big cat\n", CATS),
        ('name,class\n"a.jpg","dog"\n"b c.jpg","big cat"\n', CATS),
        ('"a, ""x"".jpg",1\n', [('a, "x".jpg', [1])]),
        ("id,label\n0003,7\n0004,8\n", [("0003", [7]), ("0004", [8])]),  # names without suffixes
        ("0003,7\n0004,8\n", [("0003", [7]), ("0004", [8])]),
        ("id,class\n0003.png,x\n", [("0003.png", [0])]),
        ("0003,x\n0004,y\n", [("0003", [0]), ("0004", [1])]),
        ("file,label,\n".replace(",\n", "\n") + "a.jpg,-3\n", [("a.jpg", [-3])]),
    ],
)  # fmt: skip
def test_tables(tmp_path: pathlib.Path, text: str, expected: object) -> None:
    files = opened(tmp_path, text)
    assert isinstance(files, TableFiles) and rows(files) == expected


@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("a.jpg 1\nb.jpg 0\n", {}, [("a.jpg", [1]), ("b.jpg", [0])]),
        ("x,y.jpg 1\n", {}, [("x,y.jpg", [1])]),
        ("x,y.jpg\t1\n", {}, [("x,y.jpg", [1])]),
        ("x;y.jpg 1 0.5\n", {"label_count": 2}, [("x;y.jpg", [1, 0.5])]),
        ("img1 3\n", {}, [("img1", [3])]),
    ],
)  # fmt: skip
def test_a_list_may_have_the_name_of_a_table(tmp_path: pathlib.Path, text: str, fields: dict[str, object], expected: object) -> None:
    files = opened(tmp_path, text, **fields)
    assert isinstance(files, ListFiles) and rows(files) == expected


def test_another_suffix_is_a_list(tmp_path: pathlib.Path) -> None:
    assert isinstance(opened(tmp_path, "a,b.jpg 1\n", "x.txt"), ListFiles) and isinstance(opened(tmp_path, "a.jpg,1\n", "x.CSV"), TableFiles)
    assert "'a.jpg,1' has no label" in failure(lambda: opened(tmp_path, "a.jpg,1\n", "x.txt")).fact


def test_several_labels(tmp_path: pathlib.Path) -> None:
    assert rows(opened(tmp_path, "file,x,y\na b.jpg,1,0.5\n", label_count=2)) == [("a b.jpg", [1, 0.5])]
    assert label_names(str(tmp_path / "table.csv")) == []
    assert rows(opened(tmp_path, "a.jpg,0.5\n", label_count=1, root_folder="r/")) == [("r/a.jpg", [0.5])]


def test_names_of_classes(tmp_path: pathlib.Path) -> None:
    text = "a.jpg,dog\nb.jpg,cat\nc.jpg,dog\n"
    files = opened(tmp_path, text)
    assert label_names(str(tmp_path / "table.csv")) == ["cat", "dog"] and files.notes[0][1].endswith("table.csv: 2 classes")
    (tmp_path / "labels.txt").write_text("dog\nhorse\ncat\n")
    assert [label for _, (label,) in rows(opened(tmp_path, text))] == [0, 2, 0] and label_names(str(tmp_path / "table.csv")) == ["dog", "horse", "cat"]
    error = failure(lambda: opened(tmp_path, text + "d.jpg,eel\n"))
    assert error.fact == f"{tmp_path}/table.csv, line 4: the class 'eel' is not in the labels.txt beside the table"
    assert rows(opened(tmp_path, "a.jpg,5\n")) == [("a.jpg", [5])]  # numbers stay numbers


@pytest.mark.parametrize(
    ("text", "fields", "fact"),
    [
        ("a.jpg,1\nb.jpg\n", {}, "line 2 has 1 columns, and a file and label_count: 1 are 2"),
        ("f,x,y\na.jpg,1,2\n", {}, "line 2 has 3 columns, and a file and label_count: 1 are 2"),
        ("a.jpg,1\nb.jpg,2x\n", {}, "line 2: the label '2x' is not a number, and that of line 1 is '1'"),
        ("a.jpg,cat\nb.jpg,\n", {}, "line 2: the label is empty"),
        ("a.jpg,1.5\n", {}, "line 1: the label '1.5' is not a whole number of 32 bits"),
        ("a.jpg,1,cat\n", {"label_count": 2}, "line 1: the label 'cat' is not a finite number"),
        ('a.jpg,1\n"b.jpg,2\nc.jpg,3\n', {}, "line 3: the row cannot be read: unexpected end of data"),
        ('a.jpg,1\n"b".jpg,2\n', {}, "line 2: the row cannot be read: ',' expected after '\"'"),
        ("a.jpg," + "x" * 200_000, {}, "line 1: the row cannot be read: field larger than field limit"),
        ("", {}, "names no image"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: pathlib.Path, text: str, fields: dict[str, object], fact: str) -> None:
    error = failure(lambda: opened(tmp_path, text, **fields))
    assert fact in error.fact and f"{tmp_path}/table.csv" in error.fact and error.fix


def test_bytes_that_are_no_text(tmp_path: pathlib.Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.jpg")).write_bytes(b"content")
    files = opened(tmp_path, b"\xff.jpg,1\n", root_folder=f"{tmp_path}/")
    assert content(files, 0) == b"content"
    error = failure(lambda: opened(tmp_path, b"a.jpg,1\nb.jpg,2\0\n"))  # Python 3.10: line contains NUL
    assert f"{tmp_path}/table.csv, line 2: " in error.fact


def test_files_that_cannot_be_read(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    for source in ("none.csv", "pipe.csv"):
        assert "cannot be read" in failure(lambda source=source: open_files(proto.ImageDataParameter(source=str(tmp_path / source)))).fact  # type: ignore[misc]
    files = opened(tmp_path, "file,label\n\n\nb.jpg,1\n")
    error = fault(files, 0)
    assert error.fact.startswith(f"{tmp_path}/table.csv, line 4: b.jpg: it cannot be read: No such file")
