"""Lock files: one owner at a time, also after the owner was killed."""
from __future__ import annotations

import errno
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from ocaffe.support.lock import FileLock

ROOT = pathlib.Path(__file__).resolve().parents[2]
OWNER = """
import os, pathlib, sys, time
from ocaffe.support.lock import FileLock
assert FileLock(pathlib.Path(sys.argv[1])).acquire() is None
child = os.fork() if sys.argv[2:] else 0
if not child: print("locked", os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Return a function that returns the level and text of the lines that were logged since its last call."""
    return lambda: [line[0] + " " + line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]


def start(path: pathlib.Path, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """Return the owner, and the process that printed: its child if there is an argument. The child has left the lock then."""
    command = [sys.executable, "-c", OWNER, str(path), *arguments]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline().removeprefix("locked "))


def test_a_second_process_waits_until_the_first_is_dead(tmp_path: pathlib.Path, lines: Callable[[], list[str]]) -> None:
    path = tmp_path / "x.lock"
    owner, _ = start(path)
    with owner:
        lock, name = FileLock(path), f"process {owner.pid} on {socket.gethostname()}"
        assert lock.acquire() == name and lock.acquire() == name
        owner.kill()
    assert path.exists() and lock.acquire() is None and FileLock(path).acquire() == f"process {os.getpid()} on {socket.gethostname()}"
    assert lines() == [f"I {path} is taken over: {name} was killed"]
    lock.release()
    assert not path.exists()
    assert lock.acquire() is None and not lines()
    lock.release()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_keep_the_lock(tmp_path: pathlib.Path, lines: Callable[[], list[str]]) -> None:
    """Worker processes of Python layers may live longer than a training that was killed."""
    path = tmp_path / "x.lock"
    owner, child = start(path, "fork")
    with owner:
        owner.kill()
        owner.wait()
        lock = FileLock(path)
        assert lock.acquire() is None
        lock.release()
        os.kill(child, signal.SIGKILL)  # an error if it did not live


def test_the_owner_removes_the_file_while_another_opens_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, opened = FileLock(tmp_path / "x"), FileLock(tmp_path / "x"), os.open
    assert first.acquire() is None

    def late(*arguments: object) -> int:
        monkeypatch.undo()
        handle = opened(*arguments)  # type: ignore[arg-type]
        first.release()
        return handle

    monkeypatch.setattr(os, "open", late)
    assert second.acquire() is None and FileLock(tmp_path / "x").acquire() is not None
    second.release()


def test_the_lock_of_another_host(tmp_path: pathlib.Path, lines: Callable[[], list[str]]) -> None:
    (tmp_path / "x").write_text("process 12 on far\n")
    lock = FileLock(tmp_path / "x")
    assert lock.acquire() is None
    told = lines()
    assert [line[0] for line in told] == ["I", "W"] and "process 12 on far is of another host" in told[1]
    lock.release()


@pytest.mark.skipif(sys.platform == "win32", reason="flock")
def test_a_file_system_without_locks(tmp_path: pathlib.Path, lines: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    lock = FileLock(tmp_path / "x")
    assert lock.acquire() is None and not (tmp_path / "x").exists()
    assert lines() == [f"W {tmp_path / 'x'} cannot be locked (No locks available): nothing keeps another process from writing the same files"]
    lock.release()


@pytest.mark.parametrize("make", ["link", "file", "hard link", "dangling link"])
def test_a_file_of_the_user_is_no_lock(make: str, tmp_path: pathlib.Path, lines: Callable[[], list[str]]) -> None:
    """A stranger's folder may have links of these names. The file behind is neither changed nor shown."""
    own, path = tmp_path / "own", tmp_path / "x.lock"
    if make != "dangling link":
        own.write_text("SECRET\n" * 50)
    {"file": own.rename, "hard link": lambda to: os.link(own, to)}.get(make, lambda to: to.symlink_to(own))(path)
    with pytest.raises(OSError, match="it is no lock of ocaffe" if make in ("file", "hard link") else "it is a link") as caught:
        FileLock(path).acquire()
    assert "SECRET" not in str(caught.value) and lines() == [] and path.is_symlink() == (make in ("link", "dangling link"))
    assert not own.exists() if make == "dangling link" else path.read_text() == "SECRET\n" * 50


@pytest.mark.skipif(os.name == "nt", reason="no pipes")
def test_a_pipe_is_no_lock(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "lock")
    with pytest.raises(OSError, match="it is a pipe, not a plain file"):
        FileLock(tmp_path / "lock").acquire()
