"""Names of files that are near a missing one, for error messages."""
from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

SHOWN = 3
_SNAPSHOT = re.compile(r"^(.*)_iter_(\d+)(?:\.ema)?\.(?:caffemodel|solverstate)(?:\.h5)?$")


def near(path: str | Path) -> str | None:
    """Return a remedy for a missing file: similar files in its folder. None if there is nothing to say."""
    folder, base = os.path.split(path)
    try:
        present = sorted(os.listdir(folder or "."))
    except OSError:
        return f"the folder {folder} does not exist either (relative to {os.getcwd()})" if folder and not os.path.isdir(folder) else None
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
