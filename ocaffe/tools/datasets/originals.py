"""The original files of public data sets: read from a folder, or downloaded and verified."""
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
    """A file: its name, the sha256 of its content (after unpacking .gz), and its addresses."""

    name: str
    sha256: str
    addresses: tuple[str, ...]


def obtain(original: Original, folder: str | None) -> bytes:
    """Return the content of `original`, from `folder` if one is given, else by a download. Raise Error."""
    return download(original) if folder is None else from_folder(original, folder)


def from_folder(original: Original, folder: str) -> bytes:
    """Return the content of `original` in `folder`, packed or not, with '-' or '.' in its name.

    The hash is not checked, so the folder may hold another data set in the same format.
    """
    names = [original.name, original.name.replace("-idx", ".idx")]
    candidates = [os.path.join(folder, name + packed) for name in dict.fromkeys(names) for packed in ("", ".gz")]
    path = next((path for path in candidates if os.path.isfile(path)), None)
    if path is None:
        listed = " or ".join(os.path.basename(path) for path in candidates)
        raise Error(f"the folder {folder} has no file {listed}", fix="give the folder with the original files with --from")
    try:
        with open(path, "rb") as stream:
            return _unpacked(path, stream.read())
    except _UNREADABLE as problem:
        raise Error(f"{path} cannot be read: {problem}", fix="copy or download it again") from None


def download(original: Original) -> bytes:
    """Return the verified content of `original` from the first address that has it. Raise Error with the failure of each address."""
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
        fix="download the original files by other means and give their folder with --from",
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
    """Unpack the content of a .gz file. A .tar.gz stays packed, because tarfile unpacks it."""
    return gzip.decompress(content) if name.endswith(".gz") and not name.endswith(".tar.gz") else content


def read_idx(content: bytes, name: str, axes: int) -> np.ndarray:
    """Return the uint8 array of an IDX file with `axes` axes. Raise Error."""
    head = 4 + 4 * axes
    if len(content) < head or content[:4] != bytes((0, 0, 8, axes)):
        raise Error(f"{name} is not an IDX file of bytes with {axes} axes: it begins with {content[:4].hex(' ') or 'nothing'}", fix="copy or download it again")
    shape = tuple(int(n) for n in np.frombuffer(content, ">u4", axes, 4))
    expected = head + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        raise Error(f"{name} has {len(content):,} bytes, and {expected:,} by its header", fix="copy or download it again")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def members(archive: bytes, names: Sequence[str], name: str) -> dict[str, bytes]:
    """Return the files `names` of a .tar.gz archive, from any folder in it. Raise Error."""
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
