"""A reader slot of an LMDB, as Caffe takes it: writers keep the pages of its transaction. A child process holds it (slot_child.py)."""
from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import subprocess
import sys
import weakref
from pathlib import Path

from ocaffe.support.files import check_plain
from ocaffe.support.whole import whole

_CHILD = Path(__file__).with_name("slot_child.py")
_LOCK_MODE = 0o664  # of a lock file, as in Caffe
_LOCK_BYTES = 8192  # of a lock file for the usual 126 readers
_SECONDS = 20  # that the child may take to answer, or to end


class NoSlot(Exception):
    """There is no slot. The message is the reason."""


class Slot:
    """A reader slot of the database in the folder `path`. It protects the state of `transaction`.

    The library opens a database only once in a process. So another process holds the slot, and a script may open the database itself.
    """

    def __init__(self, path: str) -> None:
        """Raises NoSlot, OSError."""
        if not sys.executable:
            raise NoSlot("sys.executable is empty, as in a program that contains Python")
        _make_lock_file(os.path.join(path, "lock.mdb"))
        command = [sys.executable, "-I", "-S", str(_CHILD), json.dumps(sys.path), os.path.abspath(path), str(_LOCK_MODE)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._end = weakref.finalize(self, _end, self._child)
        self.transaction = self._answer()

    @property
    def held(self) -> bool:
        """Whether the child is alive."""
        return self._child.poll() is None

    def renew(self) -> None:
        """Protect the newest transaction. Raises NoSlot."""
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):
            self._child.stdin.write(b"\n")
            self._child.stdin.flush()
        self.transaction = self._answer()

    def _answer(self) -> int:
        assert self._child.stdout is not None
        if sys.platform != "win32" and not select.select([self._child.stdout], [], [], _SECONDS)[0]:
            self._child.kill()
            self._end()
            raise NoSlot("another process keeps lock.mdb locked")
        line = self._child.stdout.readline().decode(errors="replace").strip()
        if whole(line) < 0:
            self._end()
            raise NoSlot(line[1:] or "its process ended")
        return int(line)


def _end(child: subprocess.Popen[bytes]) -> None:
    for stream in (child.stdin, child.stdout):
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()
    try:
        child.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _make_lock_file(path: str) -> None:
    """Make a lock file with disk space if there is none. The library makes it without, and a full disk would end the process by a signal.

    Raises OSError if there is none, or if it cannot be written.
    """
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "lock.mdb is a link, and the library would write where it leads to")
    exists = os.path.exists(path)
    if exists:
        check_plain(path)
    if not os.access(path if exists else os.path.dirname(path), os.W_OK):
        raise OSError(errno.EACCES, "lock.mdb cannot be written")  # on a read-only file system the library says nothing and takes no slot
    if exists or not hasattr(os, "posix_fallocate"):
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _LOCK_MODE)
    except FileExistsError:
        return
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_BYTES)  # unlike a write, it keeps what another process may have written meanwhile
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)
