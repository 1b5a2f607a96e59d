"""Reading and writing tables of tuned choices: the tables that ocaffe ships, and the user's table in the cache folder."""
from __future__ import annotations

import functools
import importlib.resources
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocaffe.errors import Error
from ocaffe.ir.target import Target
from ocaffe.ir.tuned import ESTIMATES, REMEDY, Tuned
from ocaffe.support import log
from ocaffe.support.cache import part
from ocaffe.support.files import read_plain
from ocaffe.support.parsing import reason

FORMAT = 1  # of the files


def load(target: Target) -> Tuned:
    """The choices for a device: the shipped table, and the user's table, which wins. Raises Error for a damaged file."""
    setting = os.environ.get("OCAFFE_TUNED", "")
    if setting.lower() == "off":
        return ESTIMATES
    if setting:
        return merged([(setting, read(Path(setting)))])
    own = user_file(target)
    return merged([*shipped(target), *([(str(own), read(own))] if own is not None and os.path.exists(own) else [])])


def merged(tables: Sequence[tuple[str, dict[str, str]]]) -> Tuned:
    """One set of choices from several tables; later tables win."""
    choices: dict[str, str] = {}
    places: dict[str, str] = {}
    for file, table in tables:
        choices |= table
        places |= dict.fromkeys(table, file)
    return Tuned(choices, places, tuple((file, count) for file, table in tables if (count := sum(places[key] == file for key in table))))


def shipped(target: Target) -> list[tuple[str, dict[str, str]]]:
    """The shipped choices for a device, with their file."""
    return [(path, dict(content["choices"])) for path, content in _shipped_files() if all(_fits(target, *fact) for fact in content["for"].items())]


def _fits(target: Target, name: str, wanted: Any) -> bool:
    """Whether a device has a wanted attribute. A wanted name may be a part of the device's name."""
    has = getattr(target, name)
    return wanted in has if name == "name" else wanted == has


@functools.cache
def _shipped_files() -> list[tuple[str, dict[str, Any]]]:
    folder = importlib.resources.files("ocaffe") / "kernels"
    names = sorted(entry.name for entry in folder.iterdir() if re.fullmatch(r"tuned_\w+\.json", entry.name))
    return [(str(folder / name), parse((folder / name).read_text(encoding="utf-8"), str(folder / name))) for name in names]


def user_file(target: Target) -> Path | None:
    """The path of the user's table for a device, which may not exist; None without a cache folder."""
    folder = part("tuned")
    name = re.sub(r"[^a-z0-9]+", "-", f"{target.runtime} {target.name} {target.compute_units}".lower()).strip("-")
    return None if folder is None else folder / f"{name}.json"


def read(path: Path) -> dict[str, str]:
    """The choices in a file. A file of another format is ignored with a warning. Raises Error if it cannot be read or is damaged."""
    return dict(content(path)["choices"])


def content(path: Path) -> dict[str, Any]:
    """The whole content of a file as `parse` returns it; for a file of another format, with a warning, that of an empty one."""
    try:
        text = read_plain(path).decode()
    except (OSError, UnicodeDecodeError) as problem:
        fact = problem.strerror if isinstance(problem, OSError) else "it is no text"
        raise Error(f"a table of tuned choices cannot be read: {fact}", place=str(path), fix=REMEDY) from problem
    found = parse(text, str(path))
    if found["format"] != FORMAT:
        log.warn_once("tuned:0", f"{path}: tuned choices of format {found['format']} are ignored, this is format {FORMAT}; {REMEDY}")
        return {"format": FORMAT, "for": {}, "choices": {}}
    return found


def parse(text: str, place: str) -> dict[str, Any]:
    """The content of a table: `format`, `for` (attributes of a Target) and `choices`. Raises Error with the line of the damage."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as problem:
        raise Error(f"a table of tuned choices is damaged: {problem.msg}", place=f"{place}:{problem.lineno}", fix=REMEDY) from problem
    except (RecursionError, ValueError) as problem:  # ValueError: a number of thousands of digits
        raise Error(f"a table of tuned choices is damaged: {reason(problem)}", place=place, fix=REMEDY) from None
    whole = isinstance(content, dict) and isinstance(content.get("format"), int) and isinstance(content.get("for"), dict)
    choices = content.get("choices") if whole else None
    readable = isinstance(choices, dict) and all(isinstance(name, str) for name in choices.values())
    if not whole or (content["format"] == FORMAT and not (readable and isinstance(content.get("measured", {}), dict))):
        raise Error("a table of tuned choices is damaged: it needs 'format', a number, 'for' and 'choices', texts by text", place=place, fix=REMEDY)
    return dict(content)


def table(target_facts: Mapping[str, Any], choices: Mapping[str, str], **more: Mapping[str, Any]) -> str:
    """The text of a table file: one choice per line, sorted. `more`: other tables of texts for people, such as the measured times."""
    others = {name: dict(sorted(texts.items())) for name, texts in more.items() if texts}
    return json.dumps({"format": FORMAT, "for": dict(target_facts), **others, "choices": dict(sorted(choices.items()))}, indent=1) + "\n"
