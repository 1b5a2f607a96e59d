"""Downloads a large file: it continues an interrupted download, checks the sum, and names the file only when it is complete and right."""
from __future__ import annotations

import contextlib
import errno
import hashlib
import http.client
import os
import shutil
import urllib.error
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ocaffe.errors import Error
from ocaffe.support import log
from ocaffe.support.files import atomic_write, check_no_link, check_plain, open_plain, output_no_link, to_read, to_write
from ocaffe.support.lock import FileLock
from ocaffe.support.transfer import CHUNK, ELSEWHERE, opened, printable, total_of

MAX_BYTES = 4 << 30  # of a download; the largest public weights of Caffe have 0.6 GB
DIGITS = {"sha1": 40, "sha256": 64}
PARTIAL = ".part"
OTHER = "choose another folder with --to"

Sums = Mapping[str, str]  # hexadecimal digits by the name of the algorithm


def download(url: str, path: str, sums: Sums, max_bytes: int = MAX_BYTES) -> None:
    """Download `url` to `path`. `sums` are the checksums that the file must have; none if the user accepts the file as it is. Raise Error.

    The bytes arrive in `path`.part, which stays after a failure. The next call continues it. A file with a wrong sum is removed.
    """
    partial = path + PARTIAL
    with _locked(partial):
        try:
            _receive(url, partial, max_bytes)
        except Error as problem:
            if str(problem.fix).endswith(ELSEWHERE):
                problem.fix = f"{problem.fix}: --from FILE, or another address: --url URL"
            raise
        except Exception as problem:  # for bad answers Python's library raises exceptions of many types
            raise _failed(url, partial, problem) from None
        found = _sums_of(partial, sums) if sums else {}
        if found != dict(sums):
            size = os.path.getsize(partial)
            os.remove(partial)
            fix = "run the command again; if the sum differs again, give another address: --url URL"
            raise wrong_sum(url, sums, found, f"; its {size:,} bytes are removed", fix)
        _name(partial, path)


def copy(source: str, path: str, sums: Sums) -> None:
    """Copy the file `source` to `path` after its checksums are found to be right. Raise Error."""
    try:
        with open_plain(source) as stream:
            found = _hashed(stream, sums)
            if found != dict(sums):
                raise wrong_sum(source, sums, found, "", "give --from the file that the publisher has")
            stream.seek(0)
            with atomic_write(path) as out:
                shutil.copyfileobj(stream, out, CHUNK)
    except OSError as problem:
        raise Error(f"cannot be read: {problem.strerror or problem}", place=source, fix=to_read(source, problem, "correct the path of --from")) from None


def matches(path: str, sums: Sums) -> bool:
    """Return whether the file `path` exists and has all `sums`. Raise Error if it cannot be read."""
    if not os.path.lexists(path):
        return False
    try:
        return _sums_of(path, sums) == dict(sums)
    except OSError as problem:
        fix = to_read(path, problem, f"remove it, or {OTHER}")
        raise Error(f"cannot be read: {problem.strerror or problem}", place=path, fix=fix) from None


def sums_of(path: str, names: tuple[str, ...] = ("sha256",)) -> dict[str, str]:
    """Return the checksums of a file. Raise Error."""
    try:
        return _sums_of(path, dict.fromkeys(names, ""))
    except OSError as problem:
        raise Error(f"cannot be read: {problem.strerror or problem}", place=path, fix=to_read(path, problem, "correct the path of --from")) from None


def wrong_sum(place: str, sums: Sums, found: Sums, more: str, fix: str) -> Error:
    """Return the error for a file with other sums."""
    name = next(name for name in sums if found[name] != sums[name])
    return Error(f"the {name} is {found[name]}, expected {sums[name]}{more}", place=place, fix=fix)


def _receive(url: str, partial: str, max_bytes: int) -> None:
    """Receive the rest of `url` into the file `partial`. Raises exceptions of any type."""
    if os.path.lexists(partial):
        check_no_link(partial)
        check_plain(partial)
    have = os.path.getsize(partial) if os.path.exists(partial) else 0
    try:
        _append(url, partial, have, max_bytes)
    except urllib.error.HTTPError as problem:
        problem.close()
        if problem.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        if total_of(problem.headers.get("Content-Range")) != have:  # else all bytes are here
            _append(url, partial, 0, max_bytes)


def _append(url: str, partial: str, have: int, max_bytes: int) -> None:
    with opened(url, have) as answer:
        have, total = answer.first, answer.total  # the server may send the whole file
        if (total or 0) > max_bytes:
            raise _too_large(url, total or 0, max_bytes)
        with open(partial, "ab", opener=output_no_link) as out:
            out.truncate(have)
            with _bar(os.path.basename(partial).removesuffix(PARTIAL), total, have) as bar:
                for chunk in answer.chunks():
                    have += len(chunk)
                    if have > max_bytes:
                        raise _too_large(url, have, max_bytes)
                    out.write(chunk)
                    bar.update(len(chunk))
            out.flush()
            os.fsync(out.fileno())
    if total is not None and have < total:
        raise Error(f"the connection ended after {have:,} of {total:,} bytes", place=url, fix=f"run the command again: it continues {partial}")


def _bar(name: str, total: int | None, have: int) -> Any:
    return tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=name, dynamic_ncols=True, file=log.stderr, disable=None)


def _too_large(url: str, size: int, most: int) -> Error:
    return Error(f"the file has {size:,} bytes or more, and at most {most:,} are accepted", place=url, fix="give the address of the weights: --url URL")


def _failed(url: str, partial: str, problem: Exception) -> Error:
    if isinstance(problem, urllib.error.HTTPError):
        fact = f"the server answers {problem.code} {printable(problem.reason)}"
        return Error(fact, place=url, fix="get the file elsewhere, and give it: --from FILE, or another address: --url URL")
    reason = getattr(problem, "reason", problem)
    if isinstance(problem, OSError) and (problem.filename is not None or problem.errno in (errno.ENOSPC, errno.EDQUOT)):  # of the file, not of the connection
        return Error(f"cannot be written: {problem.strerror}", place=partial, fix=to_write(partial, problem, OTHER))
    fix = f"run the command again{', it continues ' + partial if os.path.exists(partial) else ''}; or get the file elsewhere: --from FILE"
    return Error(f"cannot be downloaded: {printable(reason) or type(problem).__name__}", place=url, fix=fix)


@contextlib.contextmanager
def _locked(partial: str) -> Iterator[None]:
    """Keep other processes from writing the same partial file. Raise Error."""
    lock = FileLock(Path(f"{partial}.lock"))
    try:
        owner = lock.acquire()
    except OSError as problem:
        raise Error(f"cannot be written: {problem.strerror}", place=str(lock.path), fix=to_write(lock.path, problem, OTHER)) from None
    if owner is not None:
        raise Error(f"{owner} is downloading it", place=partial, fix="wait until it ends, and run the command again")
    try:
        yield
    finally:
        lock.release()


def _name(partial: str, path: str) -> None:
    try:
        os.replace(partial, path)
    except OSError as problem:
        raise Error(f"cannot be written: {problem.strerror}", place=path, fix=to_write(path, problem, OTHER)) from None


def _sums_of(path: str, sums: Sums) -> dict[str, str]:
    with open_plain(path) as stream:
        return _hashed(stream, sums)


def _hashed(stream: Any, sums: Sums) -> dict[str, str]:
    hashes = {name: hashlib.new(name, usedforsecurity=False) for name in sums}
    while chunk := stream.read(CHUNK):
        for each in hashes.values():
            each.update(chunk)
    return {name: each.hexdigest() for name, each in hashes.items()}
