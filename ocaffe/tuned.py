"""Choices of kernels that were measured: what `compile` takes before its own estimates. A table is made by `ocaffe tune`; nothing is timed anywhere else.

A *problem* is an operation with its sizes and arithmetic, a *candidate* one way to do it; a table names a candidate for problems. Two tables count: the one
that ocaffe brings for a class of devices (`kernels/tuned_*.json`), and the user's, in the cache folder, which wins. `OCAFFE_TUNED=off` leaves both out,
`OCAFFE_TUNED=FILE` takes this one alone.
"""
from __future__ import annotations

import functools
import importlib.resources
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ocaffe import log
from ocaffe.cl.cache import cache_root, digest
from ocaffe.errors import Error

if TYPE_CHECKING:
    from ocaffe.target import Target

FORMAT = 1  # of the files
REMEDY = "`OCAFFE_TUNED=off` leaves tables out, `ocaffe tune --reset` removes yours, `ocaffe tune` makes a new one"
T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """What a choice is about. `operation`: a key of `ocaffe.tune.OPERATIONS`; `shape`: a ConvGeometry, or numbers. Its text is the key of the tables."""

    operation: str
    shape: Any
    math: str

    def __str__(self) -> str:
        return f"{self.operation} {self.shape if not isinstance(self.shape, tuple) else 'x'.join(map(str, self.shape))} {self.math}"


@dataclass(frozen=True, eq=False)
class Tuned:
    """Named candidates by problem. `files`: where each table was read from, with how many choices it gives."""

    choices: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)  # the file that a choice is from
    files: tuple[tuple[str, int], ...] = ()

    def choose(self, problem: Problem, candidates: Sequence[T]) -> T:
        """The candidate that a table names, else the first: `candidates` are in the order of the estimate, and their texts are their names."""
        key = str(problem)
        name = self.choices.get(key)
        if name is None:
            return candidates[0]
        found = next((candidate for candidate in candidates if str(candidate) == name), None)
        if found is None:
            known = ", ".join(dict.fromkeys(map(str, candidates[:6])))
            raise Error(f"the choice for '{key}' is '{name}', which there is not; there are {known}, ...", place=self.places[key], fix=REMEDY)
        return found

    @property
    def digest(self) -> str:
        """Tells two sets of choices apart; empty without any."""
        return digest(json.dumps(dict(self.choices), sort_keys=True))[:12] if self.choices else ""

    def __str__(self) -> str:
        return " and ".join(f"{count} of {file}" for file, count in self.files) + (f" ({self.digest})" if self.choices else "")


ESTIMATES = Tuned()  # nothing was measured


def load(target: Target) -> Tuned:
    """The tables that count for a device, the user's above the one that ocaffe brings. Raises Error for a damaged file."""
    setting = os.environ.get("OCAFFE_TUNED", "")
    if setting.lower() == "off":
        return ESTIMATES
    if setting:
        return merged([(setting, read(Path(setting)))])
    own = user_file(target)
    return merged([*shipped(target), *([(str(own), read(own))] if own is not None and own.exists() else [])])


def merged(tables: Sequence[tuple[str, dict[str, str]]]) -> Tuned:
    """Later ones win."""
    choices: dict[str, str] = {}
    places: dict[str, str] = {}
    for file, table in tables:
        choices |= table
        places |= dict.fromkeys(table, file)
    return Tuned(choices, places, tuple((file, count) for file, table in tables if (count := sum(places[key] == file for key in table))))


def shipped(target: Target) -> list[tuple[str, dict[str, str]]]:
    """The choices that ocaffe brings for a device, with their file."""
    return [(path, dict(content["choices"])) for path, content in _shipped_files() if all(_fits(target, *fact) for fact in content["for"].items())]


def _fits(target: Target, name: str, wanted: Any) -> bool:
    """A name is a part of the device's, everything else is the same."""
    has = getattr(target, name)
    return wanted in has if name == "name" else wanted == has


@functools.cache
def _shipped_files() -> list[tuple[str, dict[str, Any]]]:
    folder = importlib.resources.files("ocaffe") / "kernels"
    names = sorted(entry.name for entry in folder.iterdir() if re.fullmatch(r"tuned_\w+\.json", entry.name))
    return [(str(folder / name), parse((folder / name).read_text(encoding="utf-8"), str(folder / name))) for name in names]


def user_file(target: Target) -> Path | None:
    """Where the user's table for a device is, or would be; None without a cache folder."""
    root = cache_root()
    name = re.sub(r"[^a-z0-9]+", "-", f"{target.runtime} {target.name} {target.compute_units}".lower()).strip("-")
    return None if root is None else root / "tuned" / f"{name}.json"


def read(path: Path) -> dict[str, str]:
    """The choices in a file; those of another format do not count, with a warning. Raises Error if it cannot be read or is damaged."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as reason:
        fact = reason.strerror if isinstance(reason, OSError) else "it is no text"
        raise Error(f"a table of tuned choices cannot be read: {fact}", place=str(path), fix=REMEDY) from reason
    content = parse(text, str(path))
    if content["format"] != FORMAT:
        log.warn_once("tuned:0", f"{path}: tuned choices of format {content['format']} are ignored, this is format {FORMAT}; {REMEDY}")
        return {}
    return dict(content["choices"])


def parse(text: str, place: str) -> dict[str, Any]:
    """What a table says: `format`, `for` (attributes of a Target) and `choices`. Raises Error with the line where it is damaged."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as reason:
        raise Error(f"a table of tuned choices is damaged: {reason.msg}", place=f"{place}:{reason.lineno}", fix=REMEDY) from reason
    whole = isinstance(content, dict) and isinstance(content.get("format"), int) and isinstance(content.get("for"), dict)
    choices = content.get("choices") if whole else None
    readable = isinstance(choices, dict) and all(isinstance(name, str) for name in choices.values())
    if not whole or (content["format"] == FORMAT and not readable):
        raise Error("a table of tuned choices is damaged: it needs 'format', a number, 'for' and 'choices', texts by text", place=place, fix=REMEDY)
    return dict(content)


def table(target_facts: Mapping[str, Any], choices: Mapping[str, str]) -> str:
    """The text of a file, a choice a line, sorted."""
    return json.dumps({"format": FORMAT, "for": dict(target_facts), "choices": dict(sorted(choices.items()))}, indent=1) + "\n"
