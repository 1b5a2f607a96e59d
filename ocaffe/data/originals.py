"""The original files of public data sets: found in a folder, or downloaded and verified."""
from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from ocaffe.errors import Error

TIMEOUT = 30  # seconds without a byte
CHUNK = 1 << 16
_UNREADABLE = (OSError, EOFError, zlib.error, tarfile.TarError)


@dataclass(frozen=True)
class Original:
    """A file: its name, the sha256 of its content (unpacked if it is stored as .gz), and the addresses of it."""

    name: str
    sha256: str
    addresses: tuple[str, ...]


def obtain(original: Original, folder: str | None) -> bytes:
    """The content of `original`, from `folder` if there is one, else from the network. Raises Error."""
    return download(original) if folder is None else from_folder(original, folder)


def from_folder(original: Original, folder: str) -> bytes:
    """The content of `original` in `folder`, packed or not, with '-' or '.' in its name. It may be another set in the same format."""
    names = [original.name, original.name.replace("-idx", ".idx")]
    candidates = [os.path.join(folder, name + packed) for name in dict.fromkeys(names) for packed in ("", ".gz")]
    path = next((path for path in candidates if os.path.isfile(path)), None)
    if path is None:
        listed = " or ".join(os.path.basename(path) for path in candidates)
        raise Error(f"the folder {folder} has no file {listed}", fix="--from the folder with the original files")
    try:
        with open(path, "rb") as stream:
            return _unpacked(path, stream.read())
    except _UNREADABLE as problem:
        raise Error(f"{path} cannot be read: {problem}", fix="copy or download it again") from None


def download(original: Original) -> bytes:
    """The verified content of `original` from the first address that has it. Raises Error that lists what went wrong at each."""
    failures = []
    for address in original.addresses:
        try:
            content = _unpacked(address, _fetch(address))
        except (*_UNREADABLE, urllib.error.URLError, http.client.HTTPException) as problem:
            failures.append(f"{address} ({problem})")
            continue
        found = hashlib.sha256(content).hexdigest()
        if found == original.sha256:
            return content
        failures.append(f"{address} (sha256 {found[:16]}..., expected {original.sha256[:16]}...)")
    raise Error(
        f"{original.name} cannot be downloaded: " + ", ".join(failures),
        fix="fetch the original files some other way and name their folder with --from",
    )


def _fetch(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
        total = int(answer.headers.get("Content-Length") or 0)
        content = io.BytesIO()
        with tqdm(total=total or None, unit="B", unit_scale=True, desc=os.path.basename(address), disable=None) as bar:
            while chunk := answer.read(CHUNK):
                content.write(chunk)
                bar.update(len(chunk))
    return content.getvalue()


def _unpacked(name: str, content: bytes) -> bytes:
    """The content of a .gz file; archives stay packed, for tarfile unpacks them."""
    return gzip.decompress(content) if name.endswith(".gz") and not name.endswith(".tar.gz") else content


def read_idx(content: bytes, name: str, axes: int) -> np.ndarray:
    """The uint8 array of an IDX file of `axes` axes. Raises Error."""
    head = 4 + 4 * axes
    if len(content) < head or content[:4] != bytes((0, 0, 8, axes)):
        raise Error(f"{name} is no IDX file of bytes with {axes} axes: it begins with {content[:4].hex(' ') or 'nothing'}", fix="copy or download it again")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", axes, 4))
    expected = head + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise Error(f"{name} has {len(content):,} bytes, and {expected:,} by its header", fix="copy or download it again")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def members(archive: bytes, names: Sequence[str], name: str) -> dict[str, bytes]:
    """The files `names`, wherever they lie, of a .tar.gz archive. Raises Error."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                base = os.path.basename(member.name)
                stream = tar.extractfile(member) if base in names and member.isfile() else None
                if stream is not None:
                    found[base] = stream.read()
    except _UNREADABLE as problem:
        raise Error(f"{name} cannot be unpacked: {problem}", fix="copy or download it again") from None
    missing = [base for base in names if base not in found]
    if missing:
        raise Error(f"{name} lacks {', '.join(missing)}", fix="copy or download it again")
    return found
