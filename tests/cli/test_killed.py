"""A command that was killed at any moment while it gave its files their names can be repeated. Then it leaves what an undisturbed run leaves."""
from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocaffe.cli import main
from ocaffe.support.files import clear_killed, new_entries

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a killed process needs fork")
COMMANDS = {
    "dataset folder": ["dataset", "folder", "photos", "out", "--test", "0.5"],
    "dataset digits": ["dataset", "digits", "out"],
    "dataset shapes": ["dataset", "shapes", "out", "--images", "4", "--size", "96x96", "--splits", "0.5,0.25,0.25"],
    "new": ["new", "lenet", "--data", "photos", "--out", "out"],
    "new as published": ["new", "lenet", "--out", "out"],
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (tmp_path / "photos" / kind).mkdir(parents=True)
        for number in range(4):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(tmp_path / "photos" / kind / f"{number}.png")
    return tmp_path


def killed_at(renames: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that is killed at a rename, or between the link and the unlink that rename a file. Return False if it ended before."""
    process = os.fork()
    if not process:
        left = [renames]

        def counted(original: Callable[..., None]) -> Callable[..., None]:
            def rename(*arguments: object, **settings: object) -> None:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                original(*arguments, **settings)

            return rename

        for name in ("rename", "replace", "link", "unlink"):
            setattr(os, name, counted(getattr(os, name)))
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(process, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def tree(folder: Path) -> dict[str, bytes]:
    """The files below a folder; of databases, that they are there: lock files have numbers of processes."""
    return {str(path.relative_to(folder)): b"" if path.suffix == ".mdb" else path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("there", [False, True], ids=["a new folder", "a folder with other files"])
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_the_same_command_again(name: str, there: bool, here: Path) -> None:
    if there and name == "dataset shapes":
        pytest.skip("it makes a new folder alone")

    def prepare() -> None:
        shutil.rmtree(here / "out", ignore_errors=True)
        if there:
            (here / "out").mkdir()
            (here / "out" / "mine.txt").write_text("mine")

    prepare()
    assert main(COMMANDS[name]) == 0
    wanted = tree(here / "out")
    assert ("mine.txt" in wanted) == there and len(wanted) > 3
    for renames in range(40):
        prepare()
        if not killed_at(renames, lambda: main(COMMANDS[name])):
            assert renames > (1 if there else 0)
            return
        assert main(COMMANDS[name]) == 0
        assert tree(here / "out") == wanted and sorted(os.listdir(here)) == ["out", "photos"]
        assert not list(here.rglob("*.tmp"))
    raise AssertionError("the command has more renames than the test expects")


def write(folder: Path) -> None:
    with new_entries(folder, ["a", "b", "c"]) as made:
        for name in "abc":
            (made / name).mkdir()
            (made / name / "file").write_text(name)


def test_what_was_renamed_is_removed_but_no_file_of_a_user(tmp_path: Path) -> None:
    assert killed_at(2, lambda: write(tmp_path))
    assert {"a", "b"} < {*os.listdir(tmp_path)} and "c" not in os.listdir(tmp_path)
    shutil.rmtree(tmp_path / "b")
    (tmp_path / "other").mkdir()  # takes the number that b had, on some systems
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("mine")
    number = os.stat(tmp_path / "b").st_ino
    clear_killed(tmp_path)
    assert not (tmp_path / "a").exists() and (tmp_path / "other").exists()
    assert (tmp_path / "b" / "mine").exists() or number == os.stat(tmp_path / "other").st_ino
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), new_entries(tmp_path, ["a"]) as made:
        (made / "a").write_text("a")
        raise KeyError
    assert os.listdir(tmp_path) == []
    write(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


def test_a_living_process_keeps_its_files(tmp_path: Path) -> None:
    with new_entries(tmp_path, ["a"]) as made:
        (made / "a").write_text("a")
        clear_killed(tmp_path)
        assert (made / "a").exists()
    assert os.listdir(tmp_path) == ["a"]
