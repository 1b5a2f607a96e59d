"""The disk cache: built programs, and results of the tests of OpenCL runtimes. Uses only the standard library.

`OCAFFE_CACHE=DIR` moves the cache, `OCAFFE_CACHE=off` turns it off. Entries are written under a temporary name and renamed, so parallel processes
need no locks. A failure here (full disk, damaged file) costs time but never stops a run.
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

from ocaffe.support.files import read_plain, replacing

_MAGIC = b"OCAFFE\x00\x02"  # the last byte is the format version
_SIZE_CAP = 256 << 20  # bytes in one folder of entries; a net's programs take 0.1 to 10 MB


def cache_root() -> Path | None:
    """Return the writable cache folder; None if the cache is off or no folder is writable."""
    return _root(os.environ.get("OCAFFE_CACHE", ""))


@functools.cache
def _root(setting: str) -> Path | None:
    if setting.lower() in ("off", "0", "none"):
        return None
    if setting:
        return _writable(Path(setting).expanduser().absolute())
    return _writable(_user_folder()) or _private_temporary_folder()


def _user_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "ocaffe" / "cache"
    if sys.platform == "darwin":
        return Path(os.path.expanduser("~/Library/Caches/ocaffe"))
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "ocaffe"


def _writable(folder: Path) -> Path | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _private_temporary_folder() -> Path | None:
    """Return a folder for users without a writable home (containers, services).

    Binaries from it are executed, so only this user may have access to it.
    """
    if not hasattr(os, "getuid"):
        return None
    folder = Path(tempfile.gettempdir()) / f"ocaffe-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        facts = folder.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077
    return folder if private else None


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that readers see either the whole file or none. Raise OSError.

    It does not wait for the disk: after a power failure the file may be empty. So a reader checks what it reads, and makes the file again if it is
    damaged. That is cheaper than a wait for the disk per program.
    """
    with replacing(path, durable=False) as out:
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
        root = cache_root()
        self.folder = _writable(root / name) if root else None
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
            data = read_plain(path)
        except OSError:
            return None
        payload = data[len(_MAGIC) + 32 :]
        if data[: len(_MAGIC) + 32] != _header(key, payload):
            return None  # another format, a damaged file or another key's; the caller rebuilds and replaces it
        with contextlib.suppress(OSError):
            os.utime(path)  # marks the entry as used
        return payload

    def store(self, key: str, payload: bytes) -> None:
        if self.folder is not None:
            with contextlib.suppress(OSError):
                write_atomically(self.folder / key, _header(key, payload) + payload)

    def trim(self) -> None:
        """Remove the least recently used entries until the folder fits its cap."""
        if self.folder is None:
            return
        files = []
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):  # another process may remove the file meanwhile
                facts = path.stat()
                files.append((facts.st_mtime, facts.st_size, path))
        excess = sum(size for _, size, _ in files) - self.cap
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            with contextlib.suppress(OSError):
                path.unlink()
                excess -= size
