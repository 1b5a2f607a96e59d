"""Class folders: their classes, images and mistakes; and the names of classes."""
from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

import numpy as np
import pytest

from ocaffe.data.stores import folder
from ocaffe.data.stores.folder import FolderFiles, class_folders
from ocaffe.data.stores.label_names import label_names
from tests.data.pictures import content, failure, fault, name

pytestmark = pytest.mark.quick


def touch(root: pathlib.Path, *names: str) -> str:
    for each in names:
        (root / each).parent.mkdir(parents=True, exist_ok=True)
        (root / each).write_bytes(each.encode())
    return str(root)


def test_classes_and_files_are_sorted(tmp_path: pathlib.Path) -> None:
    root = touch(tmp_path, "dog/b.JPG", "dog/a b.png", "cat/old/z.jpeg", "cat/y.webp", "Zebra/1.bmp", "dog/old.jpg/c.tif")
    listed = class_folders(root + "/")
    assert listed.classes == ["Zebra", "cat", "dog"] and listed.root == root
    assert listed.names == ["Zebra/1.bmp", "cat/old/z.jpeg", "cat/y.webp", "dog/a b.png", "dog/b.JPG", "dog/old.jpg/c.tif"]
    assert listed.labels.tolist() == [0, 1, 1, 2, 2, 2] and not listed.skipped
    assert label_names(root) == listed.classes


def test_other_files_are_counted(tmp_path: pathlib.Path) -> None:
    names = ["a/1.png", "b/1.png", "a/Thumbs.db", "a/notes.txt", "b/more.TXT", "a/.hidden.png", ".git/x.png", "__MACOSX/y.png", "top.png", "README", "b/png"]
    listed = class_folders(touch(tmp_path, *names))
    assert listed.names == ["a/1.png", "b/1.png"]
    assert listed.skipped == {".db": 1, ".txt": 2, "hidden": 3, "images without a class folder": 1, "without suffix": 2}
    files = FolderFiles(str(tmp_path))
    assert files.notes[0][1].endswith("2 classes; 9 entries are no images: 1 .db, 2 .txt, 3 hidden, 1 images without a class folder, 2 without suffix")


def test_labels_txt_gives_the_numbers(tmp_path: pathlib.Path) -> None:
    root = touch(tmp_path, "cat/1.png", "dog/1.png", "dog/2.png")
    (tmp_path / "labels.txt").write_bytes(b"\xef\xbb\xbfdog\r\nhorse \r\ncat\n\n")
    listed = class_folders(root)
    assert listed.classes == label_names(root) == label_names(f"{root}/labels.txt") == ["dog", "horse", "cat"]
    assert listed.names == ["dog/1.png", "dog/2.png", "cat/1.png"] and listed.labels.tolist() == [0, 0, 2]
    assert class_folders(root, ["cat", "dog"]).labels.tolist() == [0, 1, 1]
    for text, fact in (
        ("dog\nhorse\n", f"the folder {root} has the class 'cat', which is not in {root}/labels.txt"),
        ("dog\n\ncat\n", "the line is empty"),
        ("dog\ncat\ndog\n", "the class 'dog' is in line 1 too"),
    ):
        (tmp_path / "labels.txt").write_text(text)
        assert failure(lambda: class_folders(root)).fact == fact
    os.remove(tmp_path / "labels.txt")
    os.mkfifo(tmp_path / "labels.txt")
    assert failure(lambda: label_names(root)).fact == "cannot be read: it is a pipe, not a plain file"


def test_names_of_databases_and_lists(tmp_path: pathlib.Path) -> None:
    touch(tmp_path, "db/data.mdb", "db/x/1.png", "list.txt")
    assert label_names(str(tmp_path / "db")) == label_names(str(tmp_path / "list.txt")) == []
    for place in ("db", "."):
        (tmp_path / place / "labels.txt").write_text(f"one in {place}\ntwo\n")
    assert label_names(str(tmp_path / "db")) == ["one in db", "two"]
    assert label_names(str(tmp_path / "list.txt")) == label_names(str(tmp_path / "train-*.tar")) == ["one in .", "two"]
    assert "none does not exist" in failure(lambda: label_names(str(tmp_path / "none"))).fact
    assert label_names(touch(tmp_path / "parts", "train/b/1.png", "train/a/1.png", "val/a/1.png")) == ["a", "b"]


@pytest.mark.parametrize(
    ("names", "fact", "fix"),
    [
        (["a/1.png", "b/c.txt"], "the class folder {}/b has no image file", "add images"),
        (["a/1.png"], "the folder {} has one class, 'a'", "give {}/a if its subfolders are the classes"),
        (["1.png", "2.png"], "the folder {} has no subfolders, and 2 images itself", "such as {}/cat"),
        (["1.txt"], "the folder {} has no subfolders", "such as {}/cat"),
        (["train/a/1.png", "val/a/1.png"], "the folder {} has the subfolders train and val, which are parts, not classes", "give one of them: {}/train"),
        (["Test/a/1.png", "Train/a/1.png"], "the folder {} has the subfolders Train and Test, which are parts, not classes", "give one of them: {}/Train"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: pathlib.Path, names: Sequence[str], fact: str, fix: str) -> None:
    error = failure(lambda: class_folders(touch(tmp_path, *names)))
    assert error.fact == fact.format(tmp_path) and fix.format(tmp_path) in str(error.fix)


def test_folders_that_cannot_be_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = touch(tmp_path, "a/1.png", "b/1.png", "file")
    assert "none cannot be read: No such file" in failure(lambda: class_folders(f"{root}/none")).fact
    assert "file cannot be read: Not a directory" in failure(lambda: class_folders(f"{root}/file")).fact
    assert "cannot be read: " in failure(lambda: class_folders("a\0b")).fact
    scandir = os.scandir

    def refused(path: str) -> object:
        if path.endswith("/b"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(folder.os, "scandir", refused)
    error = failure(lambda: class_folders(root))
    assert error.fact == f"the folder {root}/b cannot be read: Permission denied" and str(error.fix).endswith(f"chmod a+rx {root}/b")


def test_links(tmp_path: pathlib.Path) -> None:
    root = touch(tmp_path / "set", "a/1.png", "b/1.png")
    touch(tmp_path / "store", "2.png")
    (tmp_path / "set" / "a" / "linked").symlink_to(tmp_path / "store")
    (tmp_path / "set" / "b" / "3.png").symlink_to(tmp_path / "store" / "2.png")
    assert class_folders(root).names == ["a/1.png", "a/linked/2.png", "b/1.png", "b/3.png"]
    (tmp_path / "store" / "up").symlink_to(tmp_path / "set")
    assert failure(lambda: class_folders(root)).fact == f"the folder {root}/a/linked/up/a is a link to a folder above it"


def test_entries_that_are_no_files_are_errors_when_read(tmp_path: pathlib.Path) -> None:
    root = touch(tmp_path, "a/1.png", "b/1.png")
    os.mkfifo(tmp_path / "a" / "pipe.png")
    (tmp_path / "b" / "lost.png").symlink_to(tmp_path / "nothing")
    files = FolderFiles(root)
    assert files.labels.dtype == np.float32 and files.labels.tolist() == [[0], [0], [1], [1]] and files.entries == 4
    assert content(files, 0) == b"a/1.png" and name(files, 3) == f"{root}/b/lost.png"
    for record, fact, fix in (
        (1, f"{root}/a/pipe.png: it cannot be read: it is a pipe, not a plain file", "write its content to a plain file first, and name that file"),
        (3, f"{root}/b/lost.png: it cannot be read: No such file", "replace the file, or remove it"),
    ):
        error = fault(files, record)
        assert error.fact.startswith(fact) and error.fix == fix
