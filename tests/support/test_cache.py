"""The disk cache: a fault in it may cost time, never correctness."""
from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ocaffe.cl.discovery import vendors_folder
from ocaffe.support import cache, log
from ocaffe.support.cache import Entries, cache_root, digest

pytestmark = pytest.mark.quick
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_entry_comes_back() -> None:
    Entries("programs").store("key", b"binary\0\xff")
    assert Entries("programs").load("key") == b"binary\0\xff"
    assert Entries("programs").load("other") is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data[:-1] + b"?",
        lambda data: b"",
        lambda data: b"X" + data[1:],
        lambda data: data[:7] + b"\x01" + data[8:],
    ],
    ids=["truncated", "changed", "empty", "magic", "format"],
)
def test_a_damaged_entry_counts_as_none(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    entries = Entries("programs")
    entries.store("key", b"binary")
    path = folder / "programs" / "key"
    path.write_bytes(damage(path.read_bytes()))
    assert entries.load("key") is None


def test_an_entry_under_another_key_counts_as_none(folder: Path) -> None:
    entries = Entries("programs")
    entries.store("key", b"binary")
    os.rename(folder / "programs" / "key", folder / "programs" / "other")
    assert entries.load("other") is None
    entries.store("other", b"its own")
    assert entries.load("other") == b"its own"


def test_off_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", "off")
    assert cache_root() is None
    entries = Entries("programs")
    entries.store("key", b"binary")
    entries.trim()
    assert entries.load("key") is None


def test_the_least_recently_used_entries_go_first(folder: Path) -> None:
    entries = Entries("programs", cap=250)
    for age, key in enumerate(["newest", "middle", "oldest"]):
        entries.store(key, bytes(60))  # 100 bytes with the header
        os.utime(folder / "programs" / key, (1000 - age, 1000 - age))
    assert entries.load("oldest") is not None  # now it is the most recently used entry
    entries.trim()
    assert entries.load("oldest") and entries.load("newest") and entries.load("middle") is None


def test_a_full_disk_is_no_error(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    entries = Entries("programs")

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "write_atomically", full)
    entries.store("key", b"binary")
    assert entries.load("key") is None


def test_a_failed_write_leaves_no_file_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        cache.write_atomically(tmp_path / "taken", b"data")  # a folder has this name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


def test_parts_of_a_key_cannot_run_together() -> None:
    assert len({digest("ab", "c"), digest("a", "bc"), digest("abc"), digest("ab", "c", "")}) == 4


POSIX = pytest.mark.skipif(not hasattr(os, "getuid"), reason="POSIX permissions")
NET = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "r" type: "ReLU" bottom: "x" top: "r" }
"""


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder without settings of the cache, and a folder for temporary files in it."""
    for name in ("OCAFFE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(cache.tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)
    for name in ("home", "tmp"):
        (tmp_path / name).mkdir(mode=0o700)
    cache._root.cache_clear()
    log._once.clear()
    yield tmp_path
    cache._root.cache_clear()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@POSIX
@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o077])
def test_no_other_user_may_write(mask: int, default: Path) -> None:
    before = os.umask(mask)
    try:
        Entries("programs").store("key", b"binary")
    finally:
        os.umask(before)
    root = default / "home" / ".cache"
    assert cache_root() == root / "ocaffe"
    assert {mode(path) for path in (root, root / "ocaffe", root / "ocaffe" / "programs")} == {0o700}
    assert mode(root / "ocaffe" / "programs" / "key") == 0o600
    assert Entries("programs").load("key") == b"binary"


@POSIX
def test_a_folder_of_ours_that_others_may_read_is_closed(default: Path) -> None:
    (default / "home" / ".cache" / "ocaffe").mkdir(parents=True)
    (default / "home" / ".cache" / "ocaffe").chmod(0o755)
    assert cache_root() is not None and mode(default / "home" / ".cache" / "ocaffe") == 0o700


@POSIX
def test_a_folder_that_the_user_names_keeps_its_mode(default: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", str(default / "mine"))
    (default / "mine").mkdir()
    (default / "mine").chmod(0o755)
    Entries("programs").store("key", b"binary")
    assert mode(default / "mine") == 0o755 and mode(default / "mine" / "programs") == 0o700


@POSIX
@pytest.mark.parametrize("wide", [0o777, 0o775, 0o1777, 0o722])
@pytest.mark.parametrize("part", ["", "programs"])
def test_a_folder_that_others_may_write_to_is_not_used(
    wide: int, part: str, default: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = default / "some cache"
    monkeypatch.setenv("OCAFFE_CACHE", str(folder))
    (folder / part).mkdir(parents=True)
    folder.chmod(0o700)
    (folder / part).chmod(wide)
    entries = Entries("programs")
    entries.store("key", b"binary")
    assert entries.load("key") is None and not [path for path in folder.rglob("*") if path.is_file()]
    said = capsys.readouterr().err
    assert f"{folder / part} is not used: others may write to it (mode {wide:04o})" in said
    remedy = said.partition("Remedy: ")[2].strip()
    subprocess.run(remedy, shell=True, check=True)  # it works as it is printed
    cache._root.cache_clear()
    Entries("programs").store("key", b"binary")
    assert Entries("programs").load("key") == b"binary"


@POSIX
@pytest.mark.parametrize("home", [None, "", ".", "~", "relative", "/proc/none", "/dev/null"])
def test_without_a_home_a_private_temporary_folder_serves(
    home: str | None, default: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """No folder is made in the working directory."""
    monkeypatch.setattr(pwd, "getpwuid", lambda number: (_ for _ in ()).throw(KeyError(number)))  # a container's user without an account
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    root = cache_root()
    assert root == default / "tmp" / f"ocaffe-{os.geteuid()}" and mode(root) == 0o700
    assert f"{root} is used" in capsys.readouterr().err
    assert sorted(path.name for path in default.iterdir()) == ["home", "tmp"]
    root.chmod(0o777)  # another user could have put libraries there
    cache._root.cache_clear()
    assert cache_root() is None and "programs are built again in each run" in capsys.readouterr().err


@POSIX
@pytest.mark.parametrize("setting", ["~/cache", "~nobody-of-this-name/cache"])
def test_an_unknown_home_in_the_setting(setting: str, default: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda number: (_ for _ in ()).throw(KeyError(number)))
    monkeypatch.delenv("HOME")
    monkeypatch.setenv("OCAFFE_CACHE", setting)
    assert cache_root() is None and f"{setting} is not used: the home folder is not known" in capsys.readouterr().err
    assert sorted(path.name for path in default.iterdir()) == ["home", "tmp"]


@POSIX
def test_a_relative_xdg_folder_is_ignored(default: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root() == default / "home" / ".cache" / "ocaffe" and not (default / "relative").exists()


@POSIX
@pytest.mark.parametrize("variable", ["OCAFFE_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_a_folder_of_another_user_is_not_used(variable: str, default: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    owner = os.stat
    theirs = default / "theirs"
    folder = {"OCAFFE_CACHE": theirs, "XDG_CACHE_HOME": theirs / "ocaffe", "HOME": theirs / ".cache" / "ocaffe"}[variable]
    folder.mkdir(parents=True)
    monkeypatch.setenv(variable, str(theirs))

    def stated(path: Any, **settings: Any) -> os.stat_result:
        facts = owner(path, **settings)
        return os.stat_result((*facts[:4], 12345, *facts[5:])) if str(path).startswith(str(theirs)) else facts

    monkeypatch.setattr(os, "stat", stated)
    root = cache_root()
    assert root is None if variable == "OCAFFE_CACHE" else root == default / "tmp" / f"ocaffe-{os.geteuid()}"
    assert f"{folder} is not used: it belongs to the user 12345, and you are {os.geteuid()}" in capsys.readouterr().err


@POSIX
def test_a_link_leads_to_a_private_folder(default: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A home on a small disk often has one. The real folder is used, so that the link can change later without effect."""
    (default / "disk").mkdir(mode=0o700)
    (default / "link").symlink_to("disk")
    monkeypatch.setenv("OCAFFE_CACHE", str(default / "link"))
    assert cache_root() == default / "disk"
    (default / "disk").chmod(0o777)
    cache._root.cache_clear()
    assert cache_root() is None and "others may write to it" in capsys.readouterr().err
    (default / "link").unlink()
    (default / "link").symlink_to("nowhere")
    cache._root.cache_clear()
    assert cache_root() is None


@POSIX
def test_a_temporary_folder_must_be_sticky(default: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    (default / "tmp").chmod(0o777)
    assert cache_root() is None
    (default / "tmp").chmod(0o1777)
    cache._root.cache_clear()
    root = cache_root()
    assert root is not None
    root.rmdir()
    root.symlink_to(default / "home")
    cache._root.cache_clear()
    assert cache_root() is None


@POSIX
def test_tempfile_may_name_the_working_directory(default: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does so if it can write to no folder for temporary files."""
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(cache.tempfile, "gettempdir", os.getcwd)
    assert cache_root() is None and sorted(path.name for path in default.iterdir()) == ["home", "tmp"]


@POSIX
@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "writable"])
def test_an_entry_that_is_not_ours_counts_as_none(kind: str, folder: Path) -> None:
    entries = Entries("programs")
    entries.store("key", b"binary")
    path = folder / "programs" / "key"
    if kind == "writable":
        path.chmod(0o666)
    else:
        path.rename(folder / "other")
        {"link": lambda: path.symlink_to(folder / "other"), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    assert entries.load("key") is None


@pytest.mark.parametrize("what", ["removed", "emptied", "closed", "a file"])
def test_a_cache_that_changes_while_it_is_used(what: str, folder: Path) -> None:
    entries = Entries("programs")
    entries.store("key", b"binary")
    if what == "closed":
        (folder / "programs").chmod(0)
    elif what == "emptied":
        (folder / "programs" / "key").unlink()
    else:
        shutil.rmtree(folder)
        if what == "a file":
            folder.write_text("")
    assert entries.load("key") in (None, b"binary")
    entries.trim()
    assert entries.empty() in (True, False)
    entries.store("key", b"binary")
    entries.trim()
    assert entries.load("key") == (b"binary" if what in ("removed", "emptied") or (os.geteuid() == 0 and what == "closed") else None)
    if what == "closed":
        (folder / "programs").chmod(0o700)


def test_a_run_whose_cache_is_removed_again_and_again(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    environment = {**os.environ, "OCAFFE_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ocaffe", "time", "--model", "net.prototxt", "--iterations", "1"]
    with open(tmp_path / "said", "w+b") as said:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=said, stderr=said)
        while process.poll() is None and not (tmp_path / "cache" / "programs").exists():  # before, it is the search of OpenCL runtimes that needs it
            time.sleep(0.01)
        while process.poll() is None:
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
            time.sleep(0.01)
        said.seek(0)
        assert process.returncode == 0, said.read().decode()


def test_a_vendors_folder_has_only_our_drivers(folder: Path) -> None:
    """The loader loads the library that any .icd file there names."""
    made = Path(vendors_folder(["/lib/a.so"]))
    (made / "99-evil.icd").write_text("/tmp/evil.so")
    assert Path(vendors_folder(["/lib/a.so"])) == made and [path.read_text() for path in made.iterdir()] == ["/lib/a.so\n"]
    shutil.rmtree(folder)
    assert Path(vendors_folder(["/lib/a.so"])) == made and made.is_dir()


@pytest.mark.skipif(os.name == "nt", reason="no pipes")
def test_a_pipe_counts_as_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCAFFE_CACHE", str(tmp_path / "cache"))
    entries = Entries("programs")
    entries.store("key", b"binary")
    path = tmp_path / "cache" / "programs" / "key"
    path.unlink()
    os.mkfifo(path)
    assert entries.load("key") is None
    entries.store("key", b"binary")
    assert entries.load("key") == b"binary"
