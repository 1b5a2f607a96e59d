"""Locks on files. The kernel releases them when their process ends in any way, so they are never stale.

Process number and host in a lock file are for messages. They do not show whether a process runs: each container has its own numbers, and another
host cannot be asked. The kernel's locks also work between containers, and between hosts on NFS and other shared file systems that have locks.
"""
from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import sys
from pathlib import Path

from ocaffe.support import log
from ocaffe.support.files import NotPlain, check_no_link, check_plain

_FAR = 1 << 30  # Windows locks bytes, and others cannot read them then: this one is beyond the text
_LONGEST = 400  # bytes of the text
_OWNER = re.compile(r"process \d+ on [^\n]{0,255}")
_held: set[int] = set()  # handles of FileLocks


class FileLock:
    """The lock file `path`. It names its owner, and is removed on release. After a kill it remains, and the next process takes it over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def acquire(self) -> str | None:
        """Return None if this process has the lock now, else the name of its owner. Raise OSError if the file cannot be made.

        A link and a file with another text raise it too: the folder may come from a stranger, and its names lead to files of this user.

        On a file system without locks, warn and return None.
        """
        while True:
            with contextlib.suppress(FileNotFoundError):
                check_no_link(self.path)
                check_plain(self.path)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            if _text(handle) is None:
                os.close(handle)
                raise NotPlain(errno.EEXIST, "it is no lock of ocaffe", os.fspath(self.path))
            try:
                free = _try_lock(handle)
            except OSError as problem:
                self._drop(handle)
                log.warning("logging.cc:1", f"{self.path} cannot be locked ({problem.strerror}): nothing keeps another process from writing the same files")
                return None
            if not free:
                owner = _text(handle)
                os.close(handle)
                return owner or "an unknown process"
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(self.path)):
                    self._take(handle)
                    return None
            os.close(handle)  # the owner has just removed the file

    def _take(self, handle: int) -> None:
        self._handle = handle
        _held.add(handle)
        before, host = _text(handle), socket.gethostname()
        if before:
            log.info("logging.cc:1", f"{self.path} is taken over: {before} was killed")
            if not before.endswith(f" on {host}"):
                log.warning("logging.cc:1", f"{self.path}: {before} is of another host. If it runs still, stop it: some network file systems do not lock files")
        with contextlib.suppress(OSError):  # on a full disk the lock has no text
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, f"process {os.getpid()} on {host}\n".encode())

    def release(self) -> None:
        """Remove the file and its lock."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            _held.discard(handle)
            self._drop(handle)

    def _drop(self, handle: int) -> None:
        with contextlib.suppress(OSError):  # Windows does not remove open files; then the next process takes it over
            os.unlink(self.path)
        os.close(handle)


def _text(handle: int) -> str | None:
    """Return the owner in a lock file, '' if it is empty, None if it has another text."""
    try:
        os.lseek(handle, 0, os.SEEK_SET)
        text = os.read(handle, _LONGEST).decode(errors="replace").strip()
    except OSError:
        return ""
    return text if not text or _OWNER.fullmatch(text) else None


def _try_lock(handle: int) -> bool:
    """Lock an open file until it is closed. Return False if another process has locked it. Raise OSError if the file system has no locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, _FAR, os.SEEK_SET)
            try:
                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(handle, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _forked() -> None:
    """Close the locks in a forked child. Otherwise it holds them when the training was killed."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
