"""The disk cache: a fault in it may cost time, never correctness."""
from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ocaffe.support import cache
from ocaffe.support.cache import Entries, cache_root, digest

pytestmark = pytest.mark.quick


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
def test_a_damaged_entry_counts_as_none(folder: Path, damage) -> None:
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


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="POSIX permissions")
def test_without_a_writable_home_a_private_temporary_folder_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("a file where the folder should be")
    monkeypatch.delenv("OCAFFE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    monkeypatch.setattr(cache, "_user_folder", lambda: blocker / "ocaffe")
    monkeypatch.setattr(cache.tempfile, "gettempdir", lambda: str(tmp_path))
    cache._root.cache_clear()
    try:
        root = cache_root()
        assert root is not None and root.parent == tmp_path and stat.S_IMODE(root.stat().st_mode) == 0o700
        root.chmod(0o777)  # another user could have put libraries there
        cache._root.cache_clear()
        assert cache_root() is None
    finally:
        cache._root.cache_clear()


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
