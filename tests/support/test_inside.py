"""Names in files of strangers lead to files below a folder alone, and exceptions of parsers become one kind of error."""
from __future__ import annotations

import os
import pathlib

import pytest

from ocaffe.errors import Error, Place
from ocaffe.support.files import check_plain, open_plain, read_plain
from ocaffe.support.inside import inside, plain_inside
from ocaffe.support.parsing import parsing, reason

pytestmark = [pytest.mark.quick, pytest.mark.skipif(os.name == "nt", reason="no pipes")]


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    made = tmp_path / "set"
    (made / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (made / "a").write_text("a")
    (made / "link").symlink_to(tmp_path / "secret")
    (made / "folder").symlink_to(tmp_path)
    (made / "inner").symlink_to(made / "a")
    os.mkfifo(made / "pipe")
    return made


@pytest.mark.parametrize("name", ["a", "./a", "sub/../a", "sub//../a", "inner", "none", "sub/none", "sub\\..\\a", "..a"])
def test_names_inside(root: pathlib.Path, name: str) -> None:
    assert inside(str(root), name, "list.txt") == os.path.join(root, os.path.normpath(name.replace("\\", "/")))


@pytest.mark.parametrize(
    "name", ["..", "../secret", "sub/../../secret", "/etc/passwd", "a\0b", "\ud800", "..\\secret", "link", "folder/secret", "folder/none", "folder"]
)
def test_names_outside(root: pathlib.Path, name: str) -> None:
    with pytest.raises(Error) as caught:
        plain_inside(str(root), name, Place("list.txt", 3))
    linked = name in ("link", "folder/secret", "folder/none", "folder")
    assert str(caught.value.place) == "list.txt:3" and caught.value.fix and ("leads out" if linked else "outside") in caught.value.fact
    if not linked:
        with pytest.raises(Error, match="outside"):
            inside(str(root), name, "")


def test_a_folder_that_is_a_link(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "linked").symlink_to(root)
    assert inside(str(tmp_path / "linked"), "a", "") == str(tmp_path / "linked" / "a")


@pytest.mark.parametrize(("name", "told"), [("pipe", "it is a pipe, not a plain file"), ("sub", "Is a directory"), ("none", "No such file")])
def test_plain_files(root: pathlib.Path, name: str, told: str) -> None:
    assert plain_inside(str(root), "a", "") == str(root / "a")
    with pytest.raises(Error, match=told) as caught:
        plain_inside(str(root), name, "list.txt")
    assert caught.value.place == "list.txt" and caught.value.fix


def test_open_plain(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with open_plain(root / "inner") as stream:
        assert stream.read() == b"a" and stream.mode == "rb"
    assert read_plain(root / "a", 1) == b"a"
    wrong = {"pipe": "a pipe", "/dev/zero": "a device", ".": "directory", "none": "No such", "a\0": "no file can have this name", "\ud800": "name"}
    for name, told in wrong.items():
        for read in (check_plain, open_plain, read_plain):
            with pytest.raises(OSError, match=told):
                read(root / name)  # type: ignore[operator]
    with pytest.raises(OSError, match="it has 1 bytes, and the limit is 0"):
        read_plain(root / "a", 0)


def test_a_file_that_is_exchanged_for_a_pipe(root: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the pipe between the check and the opening."""
    before = os.stat(root / "a")
    monkeypatch.setattr("ocaffe.support.files.os.stat", lambda path: before)
    with pytest.raises(OSError, match="a pipe"):
        open_plain(root / "pipe")


@pytest.mark.parametrize(("problem", "told"), [
    (ValueError("a\n  b"), "a b"), (KeyError("x"), "it has no 'x'"), (RecursionError(), "nested too deep"), (MemoryError(), "more memory"),
    (AssertionError(), "AssertionError"), (OSError(2, "No such file"), "No such file"), (ValueError("x" * 1000), "x" * 300),
])  # fmt: skip
def test_reasons(problem: Exception, told: str) -> None:
    assert told in reason(problem)
    with pytest.raises(Error) as caught, parsing("cannot be read", Place("a", 2), "correct it"):
        raise problem
    assert caught.value.fact == f"cannot be read: {reason(problem)}" and str(caught.value.place) == "a:2" and caught.value.fix == "correct it"


def test_errors_and_interrupts_pass() -> None:
    with pytest.raises(Error, match="mine"), parsing("cannot be read", "a", "correct it"):
        raise Error("mine")
    with pytest.raises(KeyboardInterrupt), parsing("cannot be read", "a", "correct it"):
        raise KeyboardInterrupt
