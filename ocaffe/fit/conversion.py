"""Data of another form, converted into OUT/data once. A repeated run uses them again, and replaces them if the source has changed."""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from ocaffe.errors import Error
from ocaffe.formats.json_file import read_json
from ocaffe.shown import command, path_word
from ocaffe.support.files import atomic_write

FOLDER, RECORD = "data", "data.json"  # the converted data, and their source
LEFT_OUT = "left_out.txt"  # the file that names data that cannot be used
FLAGS = {"--test", "--seed", "--out"}  # of `ocaffe fit` too
_RECORDED = {"source": str, "lines": [str]}


def converted(
    sources: Sequence[str], settings: object, out: str, make: Callable[[str], list[str]], again: bool, tool: str = ""
) -> tuple[str, list[str]]:  # fmt: skip
    """Return the folder with the converted data, and the lines of the conversion. `make` converts into a new folder, and returns these lines.

    `sources`: the files and folders that it reads. `settings`: its other inputs. `again`: a training has begun on the data. Raise Error.
    `tool`: the command that does the same with flags of its own, for remedies.
    """
    folder, record = os.path.join(out, FOLDER), os.path.join(out, RECORD)
    now = fingerprint(sources, out, settings)
    before = _read(record) if os.path.lexists(record) else None
    if os.path.lexists(folder):
        if before is None or os.path.islink(folder) or os.path.islink(record):
            raise Error(f"{folder} exists, and `ocaffe fit` has not made it", fix="choose another folder, --out FOLDER, or remove it")
        if before["source"] == now:
            return folder, before["lines"]
        if again:
            fact = "the folder has an unfinished training, and its data or their settings have changed since it began"
            raise Error(fact, place=out, fix=f"{command('rm', '-r', path_word(out))} for a new training, or choose another folder, --out FOLDER")
        shutil.rmtree(folder)
    there = os.path.isdir(out)
    os.makedirs(out, exist_ok=True)
    _write(record, now, [])  # before the folder, so that it is known whose it is if this process is killed
    try:
        lines = make(folder)
    except BaseException as problem:
        if isinstance(problem, Error) and tool:
            _name_tool(problem, tool)
        shutil.rmtree(folder, ignore_errors=True)
        os.remove(record)
        if not there:
            with contextlib.suppress(OSError):
                os.rmdir(out)
        raise
    _write(record, now, lines)
    return folder, lines


def fingerprint(sources: Sequence[str], out: str, settings: object) -> str:
    """Return a hash of the names, sizes and times of all files of the data, but those in the folder `out`, and of the settings."""
    made = hashlib.sha256(repr(settings).encode("utf-8", "surrogateescape"))
    own = os.path.realpath(out)
    for source in sources:
        for path, folders, files in os.walk(source):
            folders[:] = sorted(name for name in folders if os.path.realpath(os.path.join(path, name)) != own)
            for name in sorted(files):
                _add(made, os.path.join(path, name))
        if os.path.isfile(source):
            _add(made, source)
    return made.hexdigest()


def _add(made: Any, path: str) -> None:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        made.update(f"{os.path.abspath(path)}\0{found.st_size}\0{found.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))


def note_left_out(out: str, texts: Sequence[str], what: str) -> list[str]:
    """Write all that a conversion leaves out to a file in `out`, a line for each. Return a note about it; none if nothing is left out."""
    path = os.path.join(out, LEFT_OUT)
    if not texts:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        return []
    with atomic_write(path) as file:
        file.write(os.fsencode("".join(" ".join(text.splitlines()) + "\n" for text in texts)))
    return [f"{len(texts)} {what} cannot be used and are left out; {path} names them"]


def _read(record: str) -> dict[str, Any] | None:
    """Return the content of the record; None if it is not that of this program."""
    try:
        return dict(read_json(record, _RECORDED, "the source of the data", "remove it", raw=True))
    except Error:
        return None


def _write(record: str, source: str, lines: Sequence[str]) -> None:
    with atomic_write(record) as out:
        out.write((json.dumps({"source": source, "lines": list(lines)}, indent=1) + "\n").encode())


def _name_tool(problem: Error, tool: str) -> None:
    """Let a remedy with a flag that `ocaffe fit` lacks name the command that has it."""
    fix = str(problem.fix or "")
    if set(re.findall(r"(?<![\w-])--[a-z][\w-]*", fix)) - FLAGS:
        problem.fix = f"{fix}. That is a flag of `{tool}`: use it there, then `ocaffe fit DIR`"
