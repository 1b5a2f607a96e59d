"""Writes files so that a crash, a full disk or an interrupt never leaves an incomplete file under the final name."""
from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ocaffe.errors import Error


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file that gets the name `path` at the end of the block, when its data is on disk. Use: `with atomic_write(p) as out`.

    During the block the file has a temporary name in the same folder (`out.name`, for libraries that need a name). After a failure the temporary file
    is removed and the old file is unchanged. A link is followed. A device such as /dev/null is written directly.

    Raises Error with the file's name and the free space if the system fails to write.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            with open(target, "wb") as stream:
                yield stream
            return
        with replacing(target) as stream:
            yield stream
    except OSError as problem:
        raise _refused(Path(path), target.parent, problem) from problem


@contextlib.contextmanager
def replacing(target: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a new file that gets the name `target` at the end of the block. Readers see either the complete new file or the old one.

    `durable`: wait until the data is on disk. After a failure the temporary file is removed. Raises OSError.
    """
    # Not tempfile: its files are readable only by their owner, also after renaming.
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as stream:
            yield stream
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if durable:
        _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make the renaming survive a power failure. Windows and some file systems do not support this."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _refused(path: Path, folder: Path, problem: OSError) -> Error:
    reason = problem.strerror or str(problem)
    fix = None
    with contextlib.suppress(OSError):
        fix = f"{shutil.disk_usage(folder).free / 2**20:,.1f} MiB are free in {folder}"
    if not folder.is_dir():
        fix = f"make the folder {folder} first"
    return Error(f"cannot be written: {reason}", place=str(path), fix=fix)
