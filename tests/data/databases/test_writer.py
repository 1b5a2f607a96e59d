"""Errors of databases that cannot be written."""
from __future__ import annotations

import contextlib
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.errors import Error
from ocaffe.support.files import new_entries, new_folder


@pytest.mark.parametrize("free, fact, remedy", [
    (100, "No space left on device", "make room in {there}: 0.0 MiB are free there; or choose another folder"),
    (1 << 40, "mdb_txn_commit: Input/output error", "choose another folder, on another disk"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["new folder", "folder that is there", "alone"])
def test_a_write_that_ends_early(kind: str, free: int, fact: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB says EIO where the disk is full. The error names the database, not the folder in which it is built."""
    contexts: dict[str, Callable[[Path], Any]] = {
        "new folder": new_folder, "folder that is there": lambda path: new_entries(path, ["train_lmdb"]), "alone": contextlib.nullcontext,
    }  # fmt: skip
    out = tmp_path / "ds"
    if kind != "new folder":
        out.mkdir()

    def ended(*_: Any) -> None:
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    monkeypatch.setattr(LmdbWriter, "_write", ended)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=free))
    with pytest.raises(Error) as caught, contexts[kind](out) as folder, LmdbWriter(str(Path(folder, "train_lmdb"))) as writer:
        writer.put(b"0", b"1")
    assert caught.value.fact == f"{out}/train_lmdb cannot be written: {fact}"
    assert caught.value.fix == remedy.format(there=tmp_path if kind == "new folder" else out)
