"""Read the data of tensors that lies in files beside a model.

A model may come from anybody. So only plain files below its folder are read, and never through a link.
"""
from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from onnx import TensorProto

from ocaffe.errors import Error
from ocaffe.shown import command
from ocaffe.support.files import open_plain, to_read

REUSED = 4  # Tensors may share bytes of a file. Together they may be this many times as large as the files,
SPARE = 1 << 26  # and this many bytes larger.
_SAVE = "save the model anew where its data can be read: onnx.save_model(onnx.load(path), 'model.onnx', save_as_external_data=True)"


def load_external(model: Any, folder: Path, place: str) -> int:
    """Read the data of all tensors that is in files, and return its size in bytes. Raises Error if a file is missing, truncated or elsewhere."""
    files: dict[Path, int] = {}
    size = 0
    for tensor in tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        try:
            file, first, count = _part(tensor, folder, place)
            files[file] = file.stat().st_size
            size += count
            if size > SPARE + REUSED * sum(files.values()):
                fact = f"brings the tensors to {size:,} bytes, and their files have {sum(files.values()):,}: tensors share too many bytes"
                raise _wrong(tensor, fact, place, "save the data of each tensor once: onnx.save_model(model, path, save_as_external_data=True)")
            with open_plain(file) as stream:
                stream.seek(first)
                tensor.raw_data = stream.read(count)
        except (OSError, ValueError, MemoryError) as problem:  # a name that no file can have
            fact = f"cannot be read: {str(problem)[:200] or type(problem).__name__}"
            fix = to_read(getattr(problem, "filename", None) or folder, problem, "correct the file's name in the model")
            raise _wrong(tensor, fact, place, fix) from None
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]
    return size


def tensors(message: Message) -> Iterator[Any]:
    """Iterate over the tensors in a message: initializers and attributes, dense and sparse, in graphs, in their subgraphs and in functions."""
    if isinstance(message, TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                yield from tensors(part)


def _part(tensor: Any, folder: Path, place: str) -> tuple[Path, int, int]:
    """Return the file, the first byte and the number of bytes of a tensor's data."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    file = _plain(tensor, told.get("location", ""), folder, place)
    there = file.stat().st_size
    first = _number(tensor, told, "offset", 0, place)
    count = _number(tensor, told, "length", max(0, there - first), place)
    if first + count > there:
        fact = f"ends at byte {first + count:,} of '{told['location']}', which has {there:,}: it is truncated"
        raise _wrong(tensor, fact, place, "copy or download that file again")
    return file, first, count


def _plain(tensor: Any, location: str, folder: Path, place: str) -> Path:
    """Return the file of a tensor's data, a plain one below the folder. Links could lead to other files of the user."""
    file, shown = folder / location, location[:200]
    if not location:
        raise _wrong(tensor, "is in a file, and the model does not name it", place, _SAVE)
    if os.path.isabs(location) or ".." in Path(location).parts:
        raise _wrong(tensor, f"is in '{shown}', which is not below the folder of the model", place, _SAVE)
    whole = os.path.realpath(folder)
    copy = f"{command('cp', '-rL', whole, f'{whole}.copy')}, and convert the model there"
    if Path(os.path.realpath(file)) != Path(whole, location):
        raise _wrong(tensor, f"is in '{shown}', which is a link", place, copy)
    if not os.path.lexists(file):
        raise _wrong(tensor, f"is in '{shown}', which is missing", place, f"copy it into the folder {folder}")
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise _wrong(tensor, f"is in '{shown}', which is not a plain file", place, f"put the file with the data at {file}")
    if found.st_nlink > 1:
        raise _wrong(tensor, f"is in '{shown}', which has {found.st_nlink} names (hard links)", place, copy)
    return file


def _number(tensor: Any, told: dict[str, str], key: str, default: int, place: str) -> int:
    value = told.get(key, str(default))
    if not (value.isascii() and value.isdecimal() and len(value) < 20):
        raise _wrong(tensor, f"has the {key} '{value[:50]}', which is no number of bytes", place, f"a whole number as {key}; or {_SAVE}")
    return int(value)


def _wrong(tensor: Any, fact: str, place: str, fix: str) -> Error:
    return Error(f"the data of tensor '{tensor.name}' {fact}", place=place, fix=fix)
