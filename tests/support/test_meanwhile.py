"""Two commands that make one folder or file at the same time: one succeeds whole, the other says why it does not, and nothing is replaced."""
from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from ocaffe.errors import Error
from ocaffe.support import files
from ocaffe.support.files import new_entries, new_folder

MADE = "exists now: another command has made it meanwhile"


def make(folder: Path, text: str = "mine") -> None:
    for name in ("a.txt", "d/b.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def content(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("writer", [new_folder, lambda target: new_entries(target, ["a.txt", "d"])])
def test_the_other_one_was_first(writer: object, there: bool, tmp_path: Path) -> None:
    target = tmp_path / "out"
    if there and writer is not new_folder:
        target.mkdir()
    with pytest.raises(Error, match=MADE) as caught, writer(target) as made:  # type: ignore[operator]
        make(made)
        make(target, "theirs")
    assert caught.value.fix and "another folder" in caught.value.fix
    assert content(tmp_path) == {"out/a.txt": "theirs", "out/d/b.txt": "theirs"}


@pytest.mark.parametrize("name", ["a.txt", "d/b.txt"])
def test_between_the_look_and_the_renaming(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or a folder that another process makes in the last moment is not replaced, and the names given before are taken back."""
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").write_text("old")

    def other(folder: Path) -> None:
        if folder != target:
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_text("theirs")

    monkeypatch.setattr(files, "_sync_folder", other)
    with pytest.raises(Error, match=MADE), new_entries(target, ["a.txt", "d"]) as made:
        make(made)
    assert content(tmp_path) == {"out/old": "old", f"out/{name}": "theirs"}


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_without_hard_links(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAT has none. Then a file is renamed, unless one is there."""
    def link(source: object, target: object) -> None:
        raise OSError(code, "no links")

    monkeypatch.setattr(os, "link", link)
    (tmp_path / "out").mkdir()
    with new_entries(tmp_path / "out", ["a.txt", "d"]) as made:
        make(made)
    assert content(tmp_path) == {"out/a.txt": "mine", "out/d/b.txt": "mine"} and sorted(os.listdir(tmp_path)) == ["out"]


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("command", ["dataset folder photos OUT", "new resnet20 --data photos --out OUT", "dataset shapes OUT --images 20"])
def test_commands_at_once(command: str, there: bool, tmp_path: Path) -> None:
    if command.startswith("dataset shapes") and there:
        return  # it makes its folder
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(40):
            Image.effect_noise((64, 64), 40).save(tmp_path / "photos" / name / f"{number}.png")
    if there:
        (tmp_path / "out").mkdir()
    words = [sys.executable, "-m", "ocaffe", *command.replace("OUT", "out").split()]
    running = [subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ended = [(process.communicate()[1], process.returncode) for process in running]
    assert sorted(status for _, status in ended) == [0, 1, 1]
    assert all("exist" in told and "fix: " in told and "Directory not empty" not in told and "Traceback" not in told for told, status in ended if status)
    assert subprocess.run([*words[:3], *command.replace("OUT", "alone").split()], cwd=tmp_path, capture_output=True).returncode == 0
    whole, alone = (sorted(path.relative_to(tmp_path / name).as_posix() for path in (tmp_path / name).rglob("*")) for name in ("out", "alone"))
    assert whole == alone
    assert sorted(os.listdir(tmp_path)) == ["alone", "out", "photos"]
