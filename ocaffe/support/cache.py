"""The disk cache: built programs, results of the tests of OpenCL runtimes, and tables of tuned choices. Uses only the standard library.

`OCAFFE_CACHE=DIR` moves the cache, `OCAFFE_CACHE=off` turns it off. Entries are written under a temporary name and renamed, so parallel processes
need no locks. A failure here (full disk, damaged file, a folder that someone removes) costs time but never stops a run.

Drivers execute what is in the cache. So each folder must belong to the user, and no other user may write to it; else it is not used, and a warning names
it with the remedy. ocaffe makes its folders for the user alone, whatever the umask is. A file of another user is not read.
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from ocaffe.shown import command
from ocaffe.support import log
from ocaffe.support.files import replacing
from ocaffe.support.here import absolute

_MAGIC = b"OCAFFE\x00\x02"  # the last byte is the format version
_SIZE_CAP = 256 << 20  # bytes in one folder of entries; a net's programs take 0.1 to 10 MB
_PRIVATE, _OTHERS_WRITE = 0o700, stat.S_IWGRP | stat.S_IWOTH
_OWN = "export OCAFFE_CACHE=$(mktemp -d)"  # a remedy that works for every user


class Refused(NamedTuple):
    """Why a folder is not used. `fix`: commands for a shell."""

    reason: str
    fix: str


def cache_root() -> Path | None:
    """Return the cache folder; None if the cache is off or there is no folder that this user alone may write to. The reason is a warning."""
    return _root(os.environ.get("OCAFFE_CACHE", ""))


@functools.cache
def _root(setting: str) -> Path | None:
    if setting.lower() in ("off", "0", "none"):
        return None
    if setting:
        folder = _absolute(setting)
        found = Refused("the home folder is not known", _OWN) if folder is None else private_folder(folder)
        if isinstance(found, Path):
            return found
        _warn(setting, found, "programs are built again in each run")
        return None
    folder = _user_folder()
    found = Refused("the home folder is not known", _OWN) if folder is None else private_folder(folder, closed=True)
    if isinstance(found, Path):
        return found
    name, other = str(folder or "in your home"), _private_temporary_folder()
    if isinstance(other, Path):
        _warn(name, found, f"{other} is used")
        return other
    _warn(name, found, f"{other.reason}, so programs are built again in each run")
    return None


def _warn(name: str, refused: Refused, effect: str) -> None:
    log.warn_once("cache:0", f"The cache folder {name} is not used: {refused.reason}; {effect}. Remedy: {refused.fix}")


def _absolute(path: str) -> Path | None:
    """Return the path with the home folder in place of '~'. None: the home folder is not known, and '~' would be a folder in the working directory."""
    found = os.path.expanduser(path)
    return None if found.startswith("~") else Path(absolute(found))


def _home(*parts: str) -> Path | None:
    """Return a path in the home folder, None if it is not known. A relative HOME would put the cache into the working directory."""
    home = os.path.expanduser("~")
    return Path(home, *parts) if os.path.isabs(home) and os.environ.get("HOME") != "" else None


def _user_folder() -> Path | None:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "")
        return Path(local, "ocaffe", "cache") if os.path.isabs(local) else _home("AppData", "Local", "ocaffe", "cache")
    if sys.platform == "darwin":
        return _home("Library", "Caches", "ocaffe")
    folder = os.environ.get("XDG_CACHE_HOME", "")  # the specification says to ignore a relative one
    return Path(folder, "ocaffe") if os.path.isabs(folder) else _home(".cache", "ocaffe")


def private_folder(path: Path, closed: bool = False) -> Path | Refused:
    """Return the real path of a folder that this user alone may write to, and make it if it is missing. Links are followed.

    `closed`: it is ocaffe's own, so others need not read it, and root makes none in the home of a user.
    """
    if not hasattr(os, "getuid"):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            return Refused(f"it cannot be made: {problem.strerror}", _OWN)
        return path if os.access(path, os.W_OK | os.X_OK) else Refused("you may not write to it", _OWN)
    try:
        _make(path, closed)
        if os.lstat(path).st_uid not in (0, os.geteuid()):
            return Refused(f"it belongs to the user {os.lstat(path).st_uid}, and you are {os.geteuid()}", _OWN)
        real = Path(os.path.realpath(path))
        facts = os.stat(real)
        fault = _fault(real, facts)
        if closed and fault is None and stat.S_IMODE(facts.st_mode) & 0o077 and not path.is_symlink():
            os.chmod(real, _PRIVATE)
    except OSError as problem:
        return Refused(f"it cannot be made: {problem.strerror}", _OWN)
    return fault or real


def _make(path: Path, closed: bool) -> None:
    """Make a folder and those above it for this user alone. Raise OSError."""
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    if missing and closed and os.geteuid() == 0 and os.stat(missing[-1].parent).st_uid != 0:  # sudo with the HOME of a user, who could not use root's folder
        raise PermissionError(0, f"you are root, and {missing[-1].parent} belongs to a user")
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process has made it
            os.mkdir(folder, _PRIVATE)


def _fault(folder: Path, facts: os.stat_result) -> Refused | None:
    """Return why other users could change what is in a folder, None if they cannot."""
    if not stat.S_ISDIR(facts.st_mode):
        return Refused("it is no folder", _OWN)
    if facts.st_uid != os.geteuid():
        return Refused(f"it belongs to the user {facts.st_uid}, and you are {os.geteuid()}", _OWN)
    if facts.st_mode & _OTHERS_WRITE:
        return Refused(f"others may write to it (mode {stat.S_IMODE(facts.st_mode):04o})", command("chmod", "-R", "go-w", folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        return Refused("you may not write to it", f"{command('chmod', 'u+rwx', folder)}; or {_OWN}")
    mode = os.stat(folder.parent).st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return Refused(f"everybody may replace it, because {folder.parent} has the mode {stat.S_IMODE(mode):04o}", command("chmod", "o-w", folder.parent))
    return None


def _private_temporary_folder() -> Path | Refused:
    """Return a folder for users without a home that they can write to (containers, services)."""
    if not hasattr(os, "getuid"):
        return Refused("there is no other folder", _OWN)
    above = tempfile.gettempdir()
    named = {absolute(os.environ[name]) for name in ("TMPDIR", "TEMP", "TMP") if os.environ.get(name)}
    if above not in {"/tmp", "/var/tmp", "/usr/tmp", *named}:  # tempfile's last choice is the working directory
        return Refused("there is no folder for temporary files", _OWN)
    folder = Path(above, f"ocaffe-{os.geteuid()}")
    if folder.is_symlink():
        return Refused(f"{folder} is a link", _OWN)
    found = private_folder(folder)
    if isinstance(found, Path) and stat.S_IMODE(os.stat(found).st_mode) & 0o077:
        return Refused(f"others may read {folder}", command("chmod", "-R", "go-rwx", folder))
    return found if isinstance(found, Path) else Refused(f"{folder}: {found.reason}", found.fix)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see either the whole file or none. Raise OSError.

    It does not wait for the disk: after a power failure the file may be empty. So a reader checks what it reads, and makes the file again if it is
    damaged. That is cheaper than a wait for the disk per program.
    """
    with replacing(path, durable=False, mode=0o600) as out:
        out.write(data)


def digest(*parts: str | bytes) -> str:
    """Return the SHA-256 of the parts. The length precedes each part, so different lists of parts cannot give the same bytes."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(f"{len(data)}:".encode())
        hasher.update(data)
    return hasher.hexdigest()


def _header(key: str, payload: bytes) -> bytes:
    return _MAGIC + bytes.fromhex(digest(key, payload))


class Entries:
    """One folder of the cache: bytes by key. `trim` removes the least recently used entries.

    A hash of key and bytes verifies an entry: damaged ones, and those under another entry's name, are not accepted.
    """

    def __init__(self, name: str, cap: int = _SIZE_CAP) -> None:
        """`name` is the folder's name in the cache, `cap` its maximum size in bytes."""
        self.folder = part(name)
        self.cap = cap

    def empty(self) -> bool:
        """Return whether nothing is stored."""
        if self.folder is None:
            return True
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            return next(entries, None) is None
        return True

    def load(self, key: str) -> bytes | None:
        """Return the bytes stored for this key, or None."""
        if self.folder is None:
            return None
        path = self.folder / key
        try:
            data = _own_bytes(path)
        except OSError:
            return None
        payload = data[len(_MAGIC) + 32 :]
        if data[: len(_MAGIC) + 32] != _header(key, payload):
            return None  # another format, a damaged file or another key's; the caller rebuilds and replaces it
        with contextlib.suppress(OSError):
            os.utime(path)  # marks the entry as used
        return payload

    def store(self, key: str, payload: bytes) -> None:
        """Store bytes. A folder that someone has removed is made again."""
        if self.folder is None:
            return
        with contextlib.suppress(OSError):
            if not self.folder.is_dir() and not isinstance(private_folder(self.folder, closed=True), Path):
                return
            write_atomically(self.folder / key, _header(key, payload) + payload)

    def trim(self) -> None:
        """Remove the least recently used entries until the folder fits its cap."""
        if self.folder is None:
            return
        files = []
        with contextlib.suppress(OSError):  # the folder may be removed, or closed, meanwhile
            for path in self.folder.iterdir():
                with contextlib.suppress(OSError):  # another process may remove the file meanwhile
                    facts = path.lstat()
                    files.append((facts.st_mtime, facts.st_size, path))
        excess = sum(size for _, size, _ in files) - self.cap
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                excess -= size


def part(name: str) -> Path | None:
    """Return the folder `name` in the cache, None if the cache is off or others may write to the folder."""
    root = cache_root()
    if root is None:
        return None
    folder = root / name
    found = private_folder(folder, closed=True)
    if isinstance(found, Path):
        return found
    _warn(str(folder), found, "what it would keep is made again in each run")
    return None


def _own_bytes(path: Path) -> bytes:
    """Return the content of a regular file of this user that others may not write. Raise OSError."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as stream:
        facts = os.fstat(handle)
        foreign = hasattr(os, "getuid") and (facts.st_uid != os.geteuid() or facts.st_mode & _OTHERS_WRITE)
        if foreign or not stat.S_ISREG(facts.st_mode):
            raise PermissionError(0, "it is not a file of this user alone")
        return stream.read()
