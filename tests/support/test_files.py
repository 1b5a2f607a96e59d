"""Files are written atomically: a file is complete or absent, also if the disk is full."""
from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ocaffe.cli.train import json_log
from ocaffe.data.databases.writer import LmdbWriter
from ocaffe.errors import Error
from ocaffe.support import files, log
from ocaffe.support.files import atomic_write, new_folder, output, remove_leftovers, temporary_name, to_read, to_write

pytestmark = pytest.mark.quick


def test_new_file_and_replaced_file(tmp_path):
    path = tmp_path / "a.bin"
    for content in (b"one", b"two" * 100):
        with atomic_write(path) as stream:
            stream.write(content)
            assert path.exists() == (content != b"one") and Path(stream.name).parent == tmp_path
        assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.bin"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("problem", [ValueError("a bug"), KeyboardInterrupt()])
def test_anything_else_that_fails_passes_through(tmp_path, problem):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(type(problem)), atomic_write(path) as stream:
        stream.write(b"new")
        raise problem
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_refusal_keeps_the_old_file(tmp_path, monkeypatch, call):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, call, full)
    with pytest.raises(Error) as caught, atomic_write(path) as stream:
        stream.write(b"new")
    assert "No space left on device" in caught.value.fact and caught.value.place == str(path)
    assert "MiB are free" in caught.value.fix
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


FULL_DISK = """
import resource, signal, sys
import numpy as np
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # a write beyond is cut short, the next one fails
from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats import hdf5, state, weights
net = proto.NetParameter(layer=[proto.LayerParameter(name="a")])
big = [np.ones(200_000, np.float32)]
path = sys.argv[2]
try:
    {
        "weights": lambda: weights.write_weights(path, net, {"a": big}),
        "weights.h5": lambda: hdf5.write_weights_hdf5(path, net, {"a": big}),
        "state": lambda: state.write_state(path, state.SolverState(1, "x", big)),
        "state.h5": lambda: state.write_state(path, state.SolverState(1, "x", big), hdf5=True),
    }[sys.argv[1]]()
except Error as problem:
    print(problem)
    sys.exit(7)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
@pytest.mark.parametrize("writer", ["weights", "weights.h5", "state", "state.h5"])
def test_writers_on_a_full_disk(tmp_path, writer):
    path = tmp_path / "snapshot"
    path.write_bytes(b"the one of before")
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", FULL_DISK, writer, str(path)], capture_output=True, text=True, cwd=root, timeout=60)
    assert run.returncode == 7, run.stderr
    assert f"{path}\n  cannot be written: " in run.stdout and "MiB are free" in run.stdout
    assert path.read_bytes() == b"the one of before" and len(list(tmp_path.iterdir())) == 1


def test_missing_folder(tmp_path):
    with pytest.raises(Error, match="cannot be written") as caught, atomic_write(tmp_path / "none" / "a.bin"):
        pass
    assert "make the folder" in caught.value.fix


def test_a_link_is_followed(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with atomic_write(tmp_path / "link") as stream:
        stream.write(b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="needs /dev/null")
def test_a_device_is_written_not_replaced():
    with atomic_write("/dev/null") as stream:
        stream.write(b"x")
    assert Path("/dev/null").is_char_device()


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


WRONG_OUTPUTS = {"pipe": os.mkfifo, "socket": make_socket, "device": lambda path: path.symlink_to("/dev/zero"),
                 "directory": os.mkdir} if hasattr(os, "mkfifo") else {}  # fmt: skip
WRITERS = {
    "atomic_write": atomic_write,
    "log": lambda path: log.into(str(path), "a"),
    "JSON log": lambda path: json_log(str(path)),
    "in place": lambda path: open(path, "ab", opener=output),
}


@pytest.mark.parametrize("kind", WRONG_OUTPUTS)
@pytest.mark.parametrize("writer", WRITERS)
def test_what_is_no_plain_file_is_refused_at_once(writer: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    WRONG_OUTPUTS[kind](path)
    before = path.lstat()
    with pytest.raises((Error, OSError)) as caught, WRITERS[writer](path):
        pass
    assert kind in str(caught.value).lower() and os.path.samestat(path.lstat(), before)
    assert not isinstance(caught.value, Error) or "plain file" in str(caught.value.fix) or "another name" in str(caught.value.fix)


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="needs /dev/stdout")
@pytest.mark.parametrize("writer", ["atomic_write('/dev/stdout')", "open('/dev/stdout', 'ab', opener=output)"])
def test_a_pipe_that_is_stdout_is_written(writer: str) -> None:
    code = f"from ocaffe.support.files import *\nwith {writer} as out: out.write(b'text')"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout == b"text"


def test_a_terminal_is_written() -> None:
    pty = pytest.importorskip("pty")
    here, there = pty.openpty()
    with atomic_write(os.ttyname(there)) as out:
        out.write(b"text")
    assert os.read(here, 100) == b"text"
    os.close(here)
    os.close(there)


@pytest.mark.parametrize("make", [new_folder, atomic_write, lambda name: contextlib.closing(LmdbWriter(name))])
@pytest.mark.parametrize("name", ["", ".", "a/..", "/"])
def test_folders_by_any_name_are_refused(name: str, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(Error), make(name):
        pass
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("names", [["data.mdb", "lock.mdb"], ["CURRENT", "MANIFEST-000002", "000005.ldb", "000004.log"]])
def test_files_of_a_database_are_not_replaced(names: list[str], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"old")
    for name in names:
        with pytest.raises(Error, match="a file of a database"), atomic_write(tmp_path / name) as stream:
            stream.write(b"new")
    assert {(path.name, path.read_bytes()) for path in tmp_path.iterdir()} == {(name, b"old") for name in names}
    with atomic_write(tmp_path / "labels.txt") as stream:
        stream.write(b"a")


KILLED = """
import os, signal, sys
from ocaffe.support.files import atomic_write
with atomic_write(sys.argv[1]) as stream:
    stream.write(b"half")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_the_file_of_a_killed_process_is_removed(tmp_path):
    for name in ("a.bin", "b.bin"):
        run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name)], cwd=Path(__file__).resolve().parents[2], timeout=60)
        assert run.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    with atomic_write(tmp_path / "a.bin") as stream:
        stream.write(b"whole")
        assert sum(".a.bin." in entry.name for entry in tmp_path.iterdir()) == 1
    assert sorted(entry.name[:6] for entry in tmp_path.iterdir()) == [".b.bin", "a.bin"]  # the other file's next writer removes it


def test_files_of_processes_that_may_live_stay(tmp_path, monkeypatch):
    own = temporary_name(tmp_path / "a.bin")
    monkeypatch.setattr(files, "_PLACE", "0123abcd")
    other = temporary_name(tmp_path / "a.bin")
    monkeypatch.undo()
    for path in (own, other, tmp_path / ".a.bin.swp", tmp_path / ".a.bin.0123abcd-12-tmp"):
        path.write_bytes(b"x")
    assert remove_leftovers(tmp_path, r"a\.bin") == []
    os.utime(other, (time.time() - 90000,) * 2)
    assert remove_leftovers(tmp_path, r"b\.bin") == [] and remove_leftovers(tmp_path, r"a\.bin") == [other]
    assert remove_leftovers(tmp_path / "none", ".*") == []


def test_the_place_of_a_process_number(monkeypatch):
    """Another host, or another container, gives another meaning to a process number."""
    before = files._place()
    assert before == files._place() == files._PLACE
    monkeypatch.setattr(files.socket, "gethostname", lambda: "another")
    assert files._place() != before


@pytest.mark.parametrize(
    ("code", "path", "fix"),
    [
        (errno.EACCES, "here/a.bin", "give --to: you may not write to {tmp}/here"),
        (errno.EACCES, "here/absent/a.bin", "give --to: you may not write to {tmp}/here"),
        (errno.EPERM, "here", "give --to: you may not write to {tmp}/here"),
        (errno.EROFS, "here/a.bin", "give --to: {tmp}/here is on a disk that is mounted for reading only"),
        (errno.ENOENT, "here/absent/a.bin", "make the folder {tmp}/here/absent first, or give --to"),
        (errno.ENOTDIR, "file/a.bin", "choose another name: {tmp}/file is a file, not a folder"),
        (errno.EISDIR, "here", "choose another name: {tmp}/here is a folder"),
        (errno.ENAMETOOLONG, "here/a.bin", "choose a shorter name"),
        (errno.EIO, "here/a.bin", "give --to, on another disk"),
    ],
)
def test_the_remedy_of_a_refusal_fits_its_reason(tmp_path, code, path, fix):
    """Only a missing folder is to be made, and only a full disk needs room."""
    (tmp_path / "here").mkdir()
    (tmp_path / "file").write_bytes(b"1")
    assert to_write(tmp_path / path, OSError(code, os.strerror(code)), "give --to") == fix.format(tmp=tmp_path)
    room = to_write(tmp_path / "here" / "a.bin", OSError(errno.ENOSPC, "full"), "give --to")
    assert room.startswith(f"make room in {tmp_path}/here: ") and room.endswith(" MiB are free there; or give --to")


def test_the_remedy_of_a_file_that_cannot_be_read(tmp_path):
    file = tmp_path / "a file"
    file.write_bytes(b"1")
    assert to_read(file, FileNotFoundError(), "correct the path") == "correct the path"
    assert to_read(file, PermissionError(), "correct the path") == f"let its owner allow you to read it: chmod a+r '{file}'"
    assert to_read(tmp_path, PermissionError(), "correct the path") == f"let its owner allow you to read it: chmod a+rx {tmp_path}"
