"""Recognise the kind of a file from its first bytes, so that an error can name the kind of a wrong file."""
from __future__ import annotations

import os
from pathlib import Path

from ocaffe.errors import Error
from ocaffe.formats.nearby import near
from ocaffe.shown import command, path_word
from ocaffe.support.files import open_plain, to_read
from ocaffe.support.here import here
from ocaffe.support.kinds import EMPTY, Kind, foreign, kind_of
from ocaffe.support.kinds import is_text as is_text

_WEIGHTS = "give the net's prototxt here; a file of weights goes to the flag --weights of train, test and predict"
_HDF5 = b"\x89HDF\r\n\x1a\n"


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
        raise Error("no such file", place=name, fix=near(name) or f"correct the name (relative to {here()})") from None
    except IsADirectoryError:
        inside = sorted(each for each in os.listdir(path) if not each.startswith("."))[:5]
        raise Error(f"is a folder, not {what}", place=name, fix=f"name a file in it: {', '.join(inside)}" if inside else "name a file") from None
    except OSError as problem:
        raise Error(f"cannot be read: {problem.strerror}", place=name, fix=to_read(name, problem, "copy it again, to another disk")) from None
    kind = kind_of(head, name)
    if kind is not None and kind.name == EMPTY:
        raise Error(f"the file is empty, not {what}", place=name, fix=kind.way)
    if kind is not None and kind.way:  # a reader knows those without a way itself
        raise wrong_kind(kind, what, name)
    return head


def wrong_kind(kind: Kind, what: str, path: str, fix: str = "") -> Error:
    """Return the error for a file of another kind than `what`. `fix` is the remedy for kinds that have no way of their own."""
    return Error(f"is {kind.name}, not {what}", place=path, fix=kind.way or fix)


def from_onnx(path: str) -> str:
    """Return the remedy for an ONNX model where a file of Caffe is expected."""
    stem = path_word(Path(path).with_suffix(""))
    return f"make Caffe's files of it: {command('ocaffe', 'convert', path_word(path), f'{stem}.prototxt', f'{stem}.caffemodel')}"


def is_hdf5(head: bytes) -> bool:
    return head.startswith(_HDF5)


def read_text_file(path: str | Path) -> str:
    """Return the text of a prototxt. Bytes that are not UTF-8 become surrogates, which are harmless in comments."""
    data = open_head(path, "a prototxt", size=-1)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Error("is UTF-16 text", place=str(path), fix="save it as UTF-8")
    kind = kind_of(data[:4096], str(path))
    if kind is not None:
        fix = _WEIGHTS if is_hdf5(data) else "give the net's prototxt here"
        raise wrong_kind(kind, "a prototxt", str(path), fix)
    if not is_text(data[:4096]) and str(path).lower().endswith(".onnx"):
        raise Error("is an ONNX model, not a prototxt", place=str(path), fix=from_onnx(str(path)))
    known = foreign(str(path)) if not is_text(data[:4096]) else None
    if known is not None:
        raise wrong_kind(known, "a prototxt", str(path))
    if not is_text(data[:4096]):
        raise Error("is a binary file (a caffemodel?), not a prototxt", place=str(path), fix=_WEIGHTS)
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
