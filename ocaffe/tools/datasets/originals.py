"""The original files of public data sets: read from a folder, or downloaded and verified."""
from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from ocaffe.errors import Error
from ocaffe.shown import command, path_word
from ocaffe.support.files import check_folder, read_plain, to_read
from ocaffe.support.kinds import EMPTY, GZIP, WEB_PAGE, kind_of
from ocaffe.support.parsing import reason
from ocaffe.support.transfer import opened

MOST_BYTES = 1 << 30  # of an original file, packed or not; the largest has 170 MB
_AGAIN = {  # what a file is, and the remedy
    EMPTY: "download it again, or leave out --from: ocaffe then downloads it",
    WEB_PAGE: "download the file itself, not the page about it; or leave out --from: ocaffe then downloads it",
}
_UNREADABLE = (OSError, EOFError, zlib.error, tarfile.TarError)


@dataclass(frozen=True)
class Original:
    """A file: its name, the sha256 of its content (after unpacking .gz), and its addresses."""

    name: str
    sha256: str
    addresses: tuple[str, ...]


def _candidates(original: Original, folder: str) -> list[str]:
    names = [original.name, original.name.replace("-idx", ".idx")]
    return [os.path.join(folder, name + packed) for name in dict.fromkeys(names) for packed in ("", ".gz")]


def path_in(original: Original, folder: str | None) -> str:
    """Return the path of the file of `original` in `folder`, whether it is there or not. Without a folder, return its name."""
    if folder is None:
        return original.name
    candidates = _candidates(original, folder)
    return next((path for path in candidates if os.path.isfile(path)), candidates[0])


def obtain(original: Original, folder: str | None) -> bytes:
    """Return the content of `original`, from `folder` if one is given, else by a download. Raise Error."""
    return download(original) if folder is None else from_folder(original, folder)


def from_folder(original: Original, folder: str) -> bytes:
    """Return the content of `original` in `folder`, packed or not, with '-' or '.' in its name.

    The hash is not checked, so the folder may hold another data set in the same format.
    """
    check_folder(folder)
    path = path_in(original, folder)
    if not os.path.isfile(path):
        listed = " or ".join(map(os.path.basename, _candidates(original, folder)))
        raise Error(f"the folder {folder} has no file {listed}", fix="--from with the folder that has it, or leave out --from to download it")
    try:
        content = read_plain(path)
    except OSError as problem:
        raise Error(f"{path} cannot be read: {problem.strerror}", fix=to_read(path, problem, "copy or download it again")) from None
    if path.endswith(".gz"):
        _check_gzip(content, path)
    try:
        return _unpacked(path, content)
    except _UNREADABLE as problem:
        raise Error(f"{path} is damaged: it cannot be unpacked: {reason(problem)}", fix="copy or download it again") from None


def _check_gzip(content: bytes, path: str) -> None:
    """Refuse a .gz file that is not packed. Browsers unpack files, and save a page under the name of a file."""
    kind = kind_of(content[:512], path)
    what = kind.name if kind is not None else ""
    if what != GZIP:
        plain = path.removesuffix(".gz")
        moved = f"if it is unpacked already: {command('mv', path_word(path), path_word(plain))}"
        fix = _AGAIN.get(what) or (kind.way if kind is not None else "") or moved
        raise Error(f"{path} is {what}{', ' if what else ''}not a gzip archive", fix=fix)


def download(original: Original) -> bytes:
    """Return the verified content of `original` from the first address that has it. Raise Error with the failure of each address."""
    failures = []
    for address in original.addresses:
        try:
            content = _unpacked(address, _fetch(address))
        except Error as problem:
            failures.append(f"{address} ({problem.fact})")
            continue
        except Exception as problem:  # for bad answers and damaged files Python's libraries raise exceptions of many types
            failures.append(f"{address} ({reason(problem)})")
            continue
        found = hashlib.sha256(content).hexdigest()
        if found == original.sha256:
            return content
        failures.append(f"{address} (sha256 {found[:16]}..., expected {original.sha256[:16]}...)")
    raise Error(
        f"{original.name} cannot be downloaded: " + ", ".join(failures),
        fix="download the original files by other means and give their folder with --from",
    )


def _fetch(address: str) -> bytes:
    with opened(address) as answer:
        content = io.BytesIO()
        with tqdm(total=answer.total, unit="B", unit_scale=True, desc=os.path.basename(address), disable=None) as bar:
            for chunk in answer.chunks():
                content.write(chunk)
                bar.update(len(chunk))
                if content.tell() > MOST_BYTES:
                    raise Error(f"it has more than {MOST_BYTES:,} bytes", fix="give the folder of the original files with --from")
    return content.getvalue()


def _unpacked(name: str, content: bytes) -> bytes:
    """Unpack the content of a .gz file. A .tar.gz stays packed, because tarfile unpacks it."""
    if not name.endswith(".gz") or name.endswith(".tar.gz"):
        return content
    with gzip.open(io.BytesIO(content)) as stream:
        unpacked = stream.read(MOST_BYTES + 1)
    if len(unpacked) > MOST_BYTES:
        raise Error(f"{name} unpacks to more than {MOST_BYTES:,} bytes", fix="copy or download it again")
    return unpacked


def read_idx(content: bytes, name: str, axes: int) -> np.ndarray:
    """Return the uint8 array of an IDX file with `axes` axes. Raise Error."""
    head, magic = 4 + 4 * axes, bytes((0, 0, 8, axes))
    if content[:4] != magic:
        raise _not_idx(content, name, axes)
    if len(content) < head:
        raise Error(f"{name} ends in the middle of its header: it has {len(content)} bytes", fix="copy or download it again")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", axes, 4))
    expected = head + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        fact = f"{name} has {len(content):,} bytes, and {expected:,} by its header"
        raise Error(fact, fix="copy or download it again" if len(content) < expected else "take the original file: this one has more bytes behind its data")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _not_idx(content: bytes, name: str, axes: int) -> Error:
    """Return the error for a file that does not begin as an IDX file of bytes with `axes` axes."""
    kind, wanted = kind_of(content[:512], name), f"an IDX file of bytes with {axes} axes"
    if kind is not None and kind.name == GZIP:
        return Error(f"{name} is {GZIP}, and its name does not end in .gz", fix=command("mv", path_word(name), path_word(f"{name}.gz")))
    if kind is not None:
        return Error(f"{name} is {kind.name}, not {wanted}", fix=_AGAIN.get(kind.name) or kind.way or "put the original file there")
    if content[:3] == b"\0\0\x08" and len(content) > 3:
        held = {1: "labels", 3: "images"}.get(axes, "them")
        return Error(f"{name} is an IDX file with {content[3]} {'axis' if content[3] == 1 else 'axes'}, not {wanted}", fix=f"put the file of the {held} there")
    fact = f"{name} is not {wanted}: it begins with the bytes {content[:4].hex(' ')}, not with 00 00 08 {axes:02x}"
    return Error(fact, fix="put the original file there, or leave out --from to download it")


def members(archive: bytes, names: Sequence[str], name: str) -> dict[str, bytes]:
    """Return the files `names` of a .tar.gz archive, from any folder in it. Raise Error."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                base = os.path.basename(member.name)
                stream = tar.extractfile(member) if base in names and member.isfile() and member.size <= MOST_BYTES else None
                if stream is not None:
                    found[base] = stream.read()
    except Exception as problem:  # for damaged files tarfile raises exceptions of many types
        kind = kind_of(archive[:512], name)
        if kind is not None and not kind.way.startswith("unpack"):
            raise Error(f"{name} is {kind.name}, not an archive", fix=_AGAIN.get(kind.name) or kind.way or "put the original file there") from None
        raise Error(f"{name} is damaged, or is not a tar archive: {reason(problem)}", fix="copy or download it again") from None
    missing = [base for base in names if base not in found]
    if missing:
        raise Error(f"{name} lacks {', '.join(missing)}", fix="take the archive of the binary version, or leave out --from to download it")
    return found
