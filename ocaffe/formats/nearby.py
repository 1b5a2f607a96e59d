"""Where a missing file may be: names that are near, and folders to which its path is relative. For error messages."""
from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ocaffe.errors import Error, Place
from ocaffe.support.files import file_kind, to_read
from ocaffe.support.here import here, working_folder

SHOWN = 3
_ABOVE = 8  # folders above one in which paths are looked for
_SNAPSHOT = re.compile(r"^(.*)_iter_(\d+)(?:\.ema)?\.(?:caffemodel|solverstate)(?:\.h5)?$")


def near(path: str | Path) -> str | None:
    """Return a remedy for a missing file: where it exists, else similar files in its folder. None if there is nothing to say."""
    found = elsewhere(str(path))
    if found is not None:
        return f"{found.path} exists" + (f"; or run in {found.folder}" if found.folder else "")
    folder, base = os.path.split(path)
    if folder and not os.path.isdir(folder):
        return f"the folder {folder} does not exist either (relative to {here()})"
    return _similar((folder, base))


def _similar(parts: tuple[str, str]) -> str | None:
    """Return a text with the files of a folder that are similar to a missing one. `parts` are its folder and its name. None if there is none."""
    folder, base = parts
    try:
        present = sorted(os.listdir(folder or "."))
    except OSError:
        return None
    found = _snapshots(base, present) or difflib.get_close_matches(base, present, SHOWN, 0.6)
    if not found:
        suffix = os.path.splitext(base)[1]
        found = [each for each in present if suffix and each.endswith(suffix)][:SHOWN]
    where = folder or "this folder"
    return f"{where} has {', '.join(found)}" if found else None


def _snapshots(base: str, present: list[str]) -> list[str]:
    """Return the newest snapshots of the same kind, if `base` has the name of a snapshot."""
    wanted = _SNAPSHOT.match(base)
    if not wanted:
        return []
    ending = base[wanted.end(2) :]
    found = [(match, each) for each in present if (match := _SNAPSHOT.match(each)) and each.endswith(ending)]
    own = [pair for pair in found if pair[0][1] == wanted[1]] or found
    return [each for _, each in sorted(own, key=lambda pair: int(pair[0][2]))][-SHOWN:]


class Found(NamedTuple):
    """Where a missing path exists: its right spelling, and the folder to which the old one is relative ('' for another reason)."""

    path: str
    folder: str = ""


class MissingPath(Error):
    """The path of a setting does not exist or cannot be read. If it exists elsewhere, the remedy is the setting with the right path."""

    def __init__(self, fact: str, path: str, field: str, fix: str, *, place: Place | str | None = None, layer: str | None = None) -> None:
        """`field` is the name of the setting, `fix` the remedy if the path is found nowhere. `place` may be set later."""
        self._path, self._field = path, field
        super().__init__(fact, place=place, layer=layer, fix=f"{fix} (relative to {here()})")

    @property
    def fix(self) -> str | None:
        """The remedy, for the place that the error has now."""
        if os.path.exists(self._path):
            if not os.access(self._path, os.R_OK):
                return to_read(self._path, PermissionError(), self._fix or "")
            kind = file_kind(self._path) if os.path.isfile(self._path) else None
            return kind.way if kind is not None and kind.way else self._fix
        found = elsewhere(self._path, str(self.place.file if isinstance(self.place, Place) else self.place or ""))
        if found is None:
            beside = _similar(os.path.split(self._path)) if self._path else None
            return f"{self._fix}; {beside}" if beside else self._fix
        return f'{self._field}: "{found.path}"' + (f", or run in {found.folder}, to which '{self._path}' is relative" if found.folder else "")

    @fix.setter
    def fix(self, text: str | None) -> None:
        self._fix = text


def elsewhere(path: str, beside: str = "") -> Found | None:
    """Return where the missing `path` exists, None if that is unknown. `beside` is the file that names it.

    It is looked for with slashes in place of backslashes, and with the folder of the user in place of ~. A relative path is looked for in the folder of
    `beside`, and in the folders above it and above the working folder. Last the first folders of the path are left out, as of one that was written on
    another machine.
    """
    if not path.strip() or "\0" in path:
        return None
    for spelt in (path.strip(), path.strip().replace("\\", "/"), os.path.expanduser(path.strip())):
        if spelt != path and os.path.exists(spelt):
            return Found(spelt)
    given, path, current = path, path.strip().replace("\\", "/"), working_folder()
    if current is None:
        return None
    folder = os.path.dirname(os.path.abspath(beside)) if beside else current
    if not os.path.isabs(path):
        for base in dict.fromkeys([folder, *_above(folder), *_above(current)]):
            if base != current and os.path.exists(os.path.join(base, path)):
                return Found(os.path.relpath(os.path.join(base, path), current), base if path == given else "")
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for count in range(1, len(parts)):
        tail = os.path.join(*parts[count:])
        for base in (current, folder):
            if os.path.exists(os.path.join(base, tail)):
                return Found(os.path.relpath(os.path.join(base, tail), current))
    return None


def right_root(root: str, name: str, source: str) -> str | None:
    """Return the remedy if the missing file `name` of the list `source` exists with another root_folder than `root`, with which `name` begins."""
    listed = name.removeprefix(root)
    if root and os.path.exists(listed):
        return "remove root_folder"
    if working_folder() is None:
        return None
    folder = os.path.dirname(source)
    bases = [os.path.relpath(base) for base in (folder or ".", *_above(os.path.abspath(folder)))]
    for each in [f"{root}/", *(f"{os.path.join(base, root)}" for base in bases if root), *(f"{base}/" for base in bases)]:
        if each != root and os.path.exists(each + listed):
            return f'root_folder: "{each.removeprefix("./")}"'
    return None


def _above(folder: str) -> Iterator[str]:
    """Yield the folders above an absolute one, the nearest first."""
    for _ in range(_ABOVE):
        upper = os.path.dirname(folder)
        if upper == folder:
            return
        yield upper
        folder = upper
