"""Writes files so that a crash, a full disk or an interrupt never leaves an incomplete file under the final name."""
from __future__ import annotations

import contextlib
import errno
import filecmp
import io
import json
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from ocaffe.errors import Error
from ocaffe.shown import command, path_word
from ocaffe.support.here import absolute, here
from ocaffe.support.kinds import HEAD, UTF16, Kind, WrongKind, kind_of, not_lines

_TEMPORARY = re.compile(r"\.(.+)\.([0-9a-f]{8})-(\d+)-[0-9a-f]{8}\.tmp")  # target, place, process, random number
_DATABASE = re.compile(r"data\.mdb|lock\.mdb|CURRENT|LOCK|MANIFEST-\d+|\d+\.(ldb|sst|log)")  # files of LMDB and LevelDB
_OLD = 86400  # seconds
_RESULT, _RECORD = "result", ".renamed"  # of new_entries: its temporary folder, and a record of its renames


OUTPUTS = ("/dev/null", "/dev/full")  # devices that may stand for a file to write; the second lets tests fill a disk
_KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))


class NotPlain(OSError):
    """A device, a pipe or a socket in place of a file. The first may have no end, the second no writer, or no reader."""


def check_plain(path: str | os.PathLike[str]) -> None:
    """Raise OSError if the file cannot be read to its end: it is missing, a device, a pipe, a socket or a folder, or no file can have the name.

    For libraries that open files themselves. Other code uses `open_plain`.
    """
    _check_mode(_found(path).st_mode, path)


def check_folder(path: str) -> None:
    """Raise Error unless `path` is a folder, which the error does not call missing if it is a file, a pipe or a device."""
    try:
        mode = _found(path).st_mode
    except OSError:
        raise Error(f"the folder {path} does not exist", fix=f"correct the path (relative to {here()})") from None
    if not stat.S_ISDIR(mode):
        raise Error(f"{path} is {next((name for test, name in _KINDS if test(mode)), 'a file')}, not a folder", fix=f"name a folder (relative to {here()})")


def _found(path: str | os.PathLike[str]) -> os.stat_result:
    """Like `os.stat`, but raise OSError for a name that no file can have too."""
    try:
        return os.stat(path)
    except ValueError as problem:  # a zero byte, or half of a surrogate pair
        raise OSError(errno.EINVAL, f"no file can have this name: {problem}") from None


def _check_mode(mode: int, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise NotPlain(errno.EINVAL, f"it is {next((name for test, name in _KINDS if test(mode)), 'a special file')}, not a plain file", os.fspath(path))


def open_plain(path: str | os.PathLike[str], buffering: int = -1) -> BinaryIO:
    """Open a file of a user for reading. All readers do so by this function. Raise OSError as `check_plain` does, without waiting for a pipe.

    `buffering` is that of `open`.
    """
    check_plain(path)  # opening a device may change it
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(path, flags)
    try:
        _check_mode(os.fstat(descriptor).st_mode, path)  # it may have been exchanged since
        return cast(BinaryIO, os.fdopen(descriptor, "rb", buffering))
    except BaseException:
        os.close(descriptor)
        raise


def check_output(path: str | os.PathLike[str]) -> bool:
    """Return whether `path` is one of OUTPUTS, a terminal, or stdout or stderr by another name, which are written directly. False: a plain file or nothing.

    Raise OSError for a folder, another device, a socket, and a pipe: opening a pipe without a reader would wait for one. All writers call this function.
    """
    try:
        found = _found(path)
    except FileNotFoundError:
        return False
    if stat.S_ISCHR(found.st_mode) and _is_sink(path, found):
        return True
    if stat.S_ISFIFO(found.st_mode) and any(_is_stream(number, found) for number in (1, 2)):
        return True
    _check_mode(found.st_mode, path)
    return False


def _is_stream(number: int, found: os.stat_result) -> bool:
    """Whether the file is that of a descriptor of this process."""
    try:
        return os.path.samestat(os.fstat(number), found)
    except OSError:  # it is closed
        return False


def _is_sink(path: str | os.PathLike[str], found: os.stat_result) -> bool:
    """Whether a device is one of OUTPUTS or a terminal."""
    if any(os.path.exists(name) and os.stat(name).st_rdev == found.st_rdev for name in OUTPUTS):
        return True
    flags = os.O_WRONLY | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    handle = os.open(path, flags)
    try:
        return os.isatty(handle)
    finally:
        os.close(handle)


def output(path: str, flags: int) -> int:
    """Return a descriptor of a file to write in place, as the opener of `open`. Raise OSError as `check_output` does."""
    check_output(path)
    return os.open(path, flags, 0o666)


def output_no_link(path: str, flags: int) -> int:
    """Like `output`, for a name that the user has not given: a link in the folder of a stranger would lead to a file of this user."""
    check_no_link(path)
    return output(path, flags | getattr(os, "O_NOFOLLOW", 0))


def check_no_link(path: str | os.PathLike[str]) -> None:
    """Raise OSError if `path` is a link."""
    if os.path.islink(path):
        raise NotPlain(errno.ELOOP, "it is a link, not a plain file", os.fspath(path))


def read_plain(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Return the content of a file of at most `most` bytes. Raise OSError as `open_plain` does, and for a larger file."""
    with open_plain(path) as stream:
        content = stream.read() if most is None else stream.read(most + 1)
        if most is not None and len(content) > most:
            raise OSError(errno.EFBIG, f"it has {os.fstat(stream.fileno()).st_size:,} bytes, and the limit is {most:,}", os.fspath(path))
    return content


def file_kind(path: str | os.PathLike[str]) -> Kind | None:
    """Return the kind of the file `path`, for errors. None for other kinds, and for a path that cannot be read."""
    try:
        with open_plain(path) as stream:
            return kind_of(stream.read(512), os.fspath(path))
    except OSError:
        return None


def text_lines(path: str | os.PathLike[str], errors: str = "surrogateescape", newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a UTF-8 text of a user, without the byte order marks that editors write (files that were joined have some within).

    `errors` and `newline` are those of `open`. Raises OSError, also for UTF-16 and for a file that `open_plain` refuses, and ValueError.
    """
    with open_plain(path) as head:
        kind = not_lines(head.read(HEAD), os.fspath(path))
        if kind is not None:
            raise OSError(errno.EINVAL, f"it is {UTF16}; {kind.way}") if kind.name == UTF16 else WrongKind(kind)
        head.seek(0)
        with io.TextIOWrapper(head, encoding="utf-8", errors=errors, newline=newline) as stream:
            for line in stream:
                yield line.removeprefix("\ufeff")


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file that gets the name `path` at the end of the `with` statement, when its data is on disk. Use: `with atomic_write(p) as out`.

    Until then the file has a temporary name in the same folder (`out.name`, for libraries that need a name). After a failure the temporary file
    is removed and the old file is unchanged. Temporary files for `path` that killed processes have left are removed too. A link is followed. What
    `check_output` allows, such as /dev/null, is written directly.

    Raises Error for a pipe, a device or a folder, and with the file's name and the free space if the system fails to write.
    """
    target = Path(os.path.realpath(path))
    try:
        if check_output(path):
            with open(path, "wb") as stream:
                yield stream
            return
        if target.exists() and _DATABASE.fullmatch(target.name) and any((target.parent / name).exists() for name in ("data.mdb", "CURRENT")):
            raise Error("cannot be written: it is a file of a database, which would be lost", place=str(path), fix="name a file outside of the database")
        remove_leftovers(target.parent, re.escape(target.name))
        with replacing(target) as stream:
            yield stream
    except OSError as problem:
        raise _refused(Path(path), target.parent, problem) from problem


def refuse_other(path: str | os.PathLike[str], write: Callable[[Path], object], *more: Path) -> None:
    """Raise Error if the file exists with other content than `write` would give it: a user may have changed it. `more`: files that it may write beside it.

    `write` gets the same name in a temporary folder beside it.
    """
    target = Path(path)
    if not any(file.is_file() for file in (target, *more)):
        return
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        write(Path(folder, target.name))
        for made in sorted(Path(folder).iterdir()):
            there = target.with_name(made.name)
            if there.is_file() and not filecmp.cmp(made, there, shallow=False):
                raise Error("the file exists and differs from the one to write", place=str(there), fix="another name, or --force to write over it")


@contextlib.contextmanager
def replacing(target: Path, durable: bool = True, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a new file that gets the name `target` at the end of the `with` statement. Readers see either the complete new file or the old one.

    `durable`: wait until the data is on disk. `mode`: the permissions, less the umask. After a failure the temporary file is removed. Raises OSError.
    """
    temporary = temporary_name(target)  # not of tempfile: its files are readable only by their owner, also after renaming
    try:
        with open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, mode)) as stream:
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


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a folder that gets the name `path` at the end of the `with` statement. Until then it has a temporary name beside it, which the context gives.

    After a failure it is removed, and so are those of killed processes. Raises Error if `path` exists, also if another process makes it meanwhile, or
    if the system fails to write.
    """
    target = Path(path)
    if os.path.lexists(target):
        raise Error(f"{path} exists already", fix="choose another folder, or remove it if you do not need it")
    temporary = temporary_name(target)
    try:
        remove_leftovers(target.parent, re.escape(target.name))
        temporary.mkdir(parents=True)
        try:
            yield temporary
            _sync_files(temporary)
            _give_name(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as problem:
        raise _refused(target, target.parent, problem) from problem


@contextlib.contextmanager
def new_entries(folder: str | os.PathLike[str], names: Iterable[str], meanwhile: bool = False) -> Iterator[Path]:
    """Make files and folders that get their names in `folder` together, at the end of the `with` statement. The context gives a folder to make them in.

    If `folder` is missing, it is made by one rename (`new_folder`). Else a process that is killed between two renames leaves a record of them, and the
    next call for `folder`, or `clear_killed`, removes what has been renamed. Raises Error if one of `names`, those that will be made, exists, also if
    another process makes it meanwhile. `meanwhile`: they were missing when the command began.
    """
    target = Path(folder)
    if not os.path.lexists(target):
        with new_folder(target) as made:
            yield made
        return
    clear_killed(target)
    check_free(target, names, meanwhile)
    temporary = temporary_name(target / _RESULT)
    moved: list[Path] = []
    try:
        temporary.mkdir()
        try:
            yield temporary
            entries = sorted(os.listdir(temporary))
            check_free(target, entries, meanwhile=True)
            _sync_files(temporary)
            record = {name: os.lstat(temporary / name).st_ino for name in entries}
            (temporary / _RECORD).write_text(json.dumps(record))
            _sync_folder(temporary)
            for name in entries:
                _give_name(temporary / name, target / name)
                moved.append(target / name)
            _sync_folder(target)
        except BaseException:
            for path in moved:
                _remove(path)
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as problem:
        raise _refused(target, target, problem) from problem


def clear_killed(folder: str | os.PathLike[str]) -> None:
    """Remove what killed processes that used `new_entries` have left in a folder."""
    remove_leftovers(Path(folder), re.escape(_RESULT))


def check_free(folder: str | os.PathLike[str], names: Iterable[str], meanwhile: bool = False) -> None:
    """Raise Error if one of the names exists in the folder. `meanwhile`: it was missing when the command began."""
    for name in names:
        path = os.path.join(folder, name)
        if os.path.lexists(path):
            raise _made_meanwhile(path) if meanwhile else Error(f"{path} exists already", fix="remove it, or choose another folder")


def _made_meanwhile(path: str | os.PathLike[str]) -> Error:
    """Return the error for a file or folder that was missing when the command began."""
    fact = f"{os.fspath(path)} exists now: another command has made it meanwhile"
    return Error(fact, fix="use what the other command has made, or choose another folder and start again")


def _give_name(temporary: Path, target: Path) -> None:
    """Rename a finished file or folder. It never replaces what another process has made meanwhile: then Error is raised. Raise OSError."""
    try:
        if temporary.is_dir():
            os.rename(temporary, target)  # a folder replaces an empty folder at most
            return
        try:
            os.link(temporary, target)
        except OSError as problem:
            if problem.errno in (errno.EEXIST, errno.ENOENT, errno.ENOSPC):
                raise
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
            os.rename(temporary, target)  # the file system has no hard links
        else:
            os.unlink(temporary)
    except OSError as problem:
        if problem.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR) and os.path.lexists(target):
            raise _made_meanwhile(target) from None
        raise


def _undo(temporary: Path) -> None:
    """Remove the entries that a killed process has renamed from `temporary` to the folder around it. Others of the same name are left."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # it did not rename
        for name, number in json.loads((temporary / _RECORD).read_text()).items():
            path = temporary.parent / os.path.basename(name)
            if os.path.lexists(path) and os.lstat(path).st_ino == number:
                _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def temporary_name(target: Path) -> Path:
    """Return a new name beside `target`. It has the process that uses it. Raise Error for an empty name."""
    if not target.name:
        raise Error("the name of a file or folder to write is empty", fix="give it a name")
    return target.with_name(f".{target.name}.{_PLACE}-{os.getpid()}-{secrets.token_hex(4)}.tmp")


def final_name(path: str | os.PathLike[str]) -> str:
    """Return a path without the temporary folders that `new_folder` and `new_entries` have given it: the name that the user knows."""
    parts: list[str] = []
    for part in Path(path).parts:
        match = _TEMPORARY.fullmatch(part)
        parts += [part] if match is None else [] if match[1] == _RESULT else [match[1]]
    return os.path.join(*parts)


def remove_leftovers(folder: Path, target: str) -> list[Path]:
    """Remove temporary files and folders of killed processes for names that match the expression `target`. Return their paths.

    Nothing shows whether a process of another host or container lives. Its files are removed when they have not changed for a day.
    """
    removed = []
    with contextlib.suppress(OSError):  # the folder is missing, or other users' files cannot be removed
        for path in folder.iterdir():
            match = _TEMPORARY.fullmatch(path.name)
            if match is None or not re.fullmatch(target, match[1]):
                continue
            with contextlib.suppress(OSError):
                if not _runs(int(match[3])) if match[2] == _PLACE else time.time() - path.stat().st_mtime > _OLD:
                    _undo(path)
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    removed.append(path)
    return removed


def _runs(process: int) -> bool:
    if os.name == "nt":
        return process == os.getpid()  # os.kill would end it; Windows does not remove files that are open
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        pass
    return True


def _place() -> str:
    """Return a hash of all within which a process number has one meaning: host, time since it was started, container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not Linux
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(os.stat("/proc/self/ns/pid").st_ino)]
    return f"{zlib.crc32(' '.join(parts).encode()):08x}"


_PLACE = _place()


def _sync_files(folder: Path) -> None:
    """Wait until the files that lie in a folder are on disk. Those of databases in it are already."""
    for path in folder.iterdir():
        if path.is_file():
            with open(path, "rb") as stream:
                os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Make the renaming survive a power failure. Windows and some file systems do not support this."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def to_write(path: str | os.PathLike[str], problem: OSError, other: str = "choose another folder") -> str:
    """Return the remedy if the system does not write the file, or does not make the folder, `path`: it depends on the reason.

    `other` says how the user names another place.
    """
    path = Path(path)
    if isinstance(problem, NotPlain):
        return f"name a plain file, which {path} is not, or {other}"
    there = next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
    if problem.errno in (errno.EACCES, errno.EPERM):
        return f"{other}: you may not write to {there.parent if there.is_file() and os.access(there, os.W_OK) else there}"
    if problem.errno == errno.EROFS:
        return f"{other}: {there} is on a disk that is mounted for reading only"
    if problem.errno in (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY):
        return f"choose another name: {there} is a {'folder' if there.is_dir() else 'file, not a folder'}"
    if problem.errno == errno.ENAMETOOLONG:
        return "choose a shorter name"
    if not path.parent.is_dir():
        return f"make the folder {path.parent} first, or {other}"
    if problem.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, None):
        return f"{other}, on another disk"
    free = ""
    with contextlib.suppress(OSError):
        free = f": {shutil.disk_usage(path.parent).free / 2**20:,.1f} MiB are free there"
    return f"make room in {path.parent}{free}; or {other}"


def to_read(path: str | os.PathLike[str], problem: Exception, fix: str) -> str:
    """Return the remedy if `path` cannot be read: a plain file, the permission that is missing, the way from a file of another kind, else `fix`."""
    if isinstance(problem, NotPlain):
        return "write its content to a plain file first, and name that file"
    if not isinstance(problem, PermissionError):
        kind = file_kind(path) if isinstance(problem, WrongKind) or not isinstance(problem, OSError) else None
        return kind.way if kind is not None and kind.way else fix
    closed = next((each for each in reversed(Path(absolute(os.fspath(path))).parents) if each.is_dir() and not os.access(each, os.X_OK)), None)
    if closed is not None:
        return f"let its owner allow you to use the folder: {command('chmod', 'a+rx', closed)}"
    mode = "a+rx" if os.path.isdir(path) else "a+r"
    return f"let its owner allow you to read it: {command('chmod', mode, path_word(path))}"


def _refused(path: Path, folder: Path, problem: OSError) -> Error:
    return Error(f"cannot be written: {problem.strerror or problem}", place=str(path), fix=to_write(folder / path.name, problem))
