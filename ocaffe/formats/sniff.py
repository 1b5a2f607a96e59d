"""Recognise the kind of a file from its first bytes, so that an error can name the kind of a wrong file."""
from __future__ import annotations

import os
from pathlib import Path

from ocaffe.errors import Error
from ocaffe.formats.nearby import near
from ocaffe.support.files import open_plain, to_read

_WEIGHTS = "give the net's prototxt here; a file of weights goes to the flag --weights of train, test and predict"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_LFS = b"version https://git-lfs"
_ARCHIVES = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"7z\xbc\xaf": "7z", b"Rar!": "rar"}


def open_head(path: str | Path, what: str, size: int = 4096) -> bytes:
    """Return the first `size` bytes of `path` (-1: all).

    Raises Error if the path is missing, a folder, an empty file, a Git LFS pointer, an archive or a web page.
    `what` names the expected file, for example 'a net prototxt'.
    """
    name = str(path)
    try:
        with open_plain(path) as stream:
            head = stream.read(size)
    except FileNotFoundError:
        raise Error("no such file", place=name, fix=near(name) or f"correct the name (relative to {os.getcwd()})") from None
    except IsADirectoryError:
        inside = sorted(each for each in os.listdir(path) if not each.startswith("."))[:5]
        raise Error(f"is a folder, not {what}", place=name, fix=f"name a file in it: {', '.join(inside)}" if inside else "name a file") from None
    except OSError as problem:
        raise Error(f"cannot be read: {problem.strerror}", place=name, fix=to_read(name, problem, "copy it again, to another disk")) from None
    if not head:
        raise Error(f"the file is empty, not {what}", place=name, fix="download or write it again")
    if head.startswith(_LFS):
        fix = "run `git lfs pull` in its repository"
        raise Error(f"is a Git LFS pointer, not {what}: the file itself was not downloaded", place=name, fix=fix)
    for magic, kind in _ARCHIVES.items():
        if head.startswith(magic):
            raise Error(f"is a {kind} archive, not {what}", place=name, fix="unpack it first")
    if is_web_page(head):
        raise Error(f"is a web page, not {what}", place=name, fix="download the file itself; this is the page about it")
    return head


def is_web_page(head: bytes) -> bool:
    return head[:200].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def kind_of(head: bytes) -> str:
    """Return what the first bytes of a file tell about it, for an error: 'empty', 'a web page', or 'a gzip archive'. Return '' for others."""
    archive = next((f"a {kind} archive" for magic, kind in _ARCHIVES.items() if head.startswith(magic)), "")
    return "empty" if not head else "a web page" if is_web_page(head) else "a Git LFS pointer" if head.startswith(_LFS) else archive


def is_hdf5(head: bytes) -> bool:
    return head.startswith(_HDF5)


def is_text(head: bytes) -> bool:
    """Whether `head` is text, which has no control characters. The lengths and floats of a binary message always contain some."""
    return not any(byte < 32 and byte not in b"\t\n\r\f\v" for byte in head) and b"\x7f" not in head


def read_text_file(path: str | Path) -> str:
    """Return the text of a prototxt. Bytes that are not UTF-8 become surrogates, which are harmless in comments."""
    data = open_head(path, "a prototxt", size=-1)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Error("is UTF-16 text", place=str(path), fix="save it as UTF-8")
    if is_hdf5(data):
        raise Error("is an HDF5 file, not a prototxt", place=str(path), fix=_WEIGHTS)
    if not is_text(data[:4096]) and str(path).lower().endswith(".onnx"):
        raise Error("is an ONNX model, not a prototxt", place=str(path), fix="`ocaffe convert MODEL.onnx NET.prototxt WEIGHTS.caffemodel` makes one")
    if not is_text(data[:4096]):
        raise Error("is a binary file (a caffemodel?), not a prototxt", place=str(path), fix=_WEIGHTS)
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
