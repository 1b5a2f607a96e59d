"""Measured choices of kernels. The compiler prefers them to its own estimates.

`ocaffe tune` measures and writes a table; nothing else is ever timed. A *problem* is an operation with its sizes and arithmetic, a *candidate* one way to
compute it. A table names a candidate for each problem. Two tables count: the one that ocaffe ships for a class of devices (`kernels/tuned_*.json`), and
the user's table in the cache folder, which wins. `OCAFFE_TUNED=off` ignores both; `OCAFFE_TUNED=FILE` uses only this file.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ocaffe.errors import Error
from ocaffe.support.cache import digest

REMEDY = "`OCAFFE_TUNED=off` leaves tables out, `ocaffe tune --reset` removes yours, `ocaffe tune` makes a new one"
T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """An operation with its sizes. `operation`: a key of `ocaffe.profiling.tune.OPERATIONS`; `shape`: a ConvGeometry, or numbers.

    Its text is the key of the tables.
    """

    operation: str
    shape: Any
    math: str

    def __str__(self) -> str:
        return f"{self.operation} {self.shape if not isinstance(self.shape, tuple) else 'x'.join(map(str, self.shape))} {self.math}"


@dataclass(frozen=True, eq=False)
class Tuned:
    """Named candidates by problem. `files`: each table's file, with the number of choices that come from it.

    `preferred`: names of candidates that tests and benchmarks select, in this order, instead of tables (Recorder.prefer).
    """

    choices: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)  # the file that a choice is from
    files: tuple[tuple[str, int], ...] = ()
    preferred: tuple[str, ...] = ()

    @property
    def preferred_tiles(self) -> tuple[str, ...]:
        """The preferred names that are those of tiles: they begin with a digit. They count for the products within other operations, too."""
        return tuple(name for name in self.preferred if name[:1].isdigit())

    def choose(self, problem: Problem, candidates: Sequence[T]) -> T:
        """The preferred candidate, else the one that a table names, else the first.

        `candidates` are in the order of the estimate; their texts are their names.
        """
        if self.preferred_tiles:
            return named(self.preferred_tiles, problem, candidates)[0]
        key = str(problem)
        name = self.choices.get(key)
        if name is None:
            return candidates[0]
        found = next((candidate for candidate in candidates if str(candidate) == name), None)
        if found is None:
            known = ", ".join(dict.fromkeys(map(str, candidates[:6])))
            raise Error(f"the choice for '{key}' is '{name}', which does not exist; there are {known}, ...", place=self.places[key], fix=REMEDY)
        return found

    @property
    def digest(self) -> str:
        """Tells two sets of choices apart; empty without any."""
        return digest(json.dumps(dict(self.choices), sort_keys=True))[:12] if self.choices else ""

    def __str__(self) -> str:
        return " and ".join(f"{count} of {file}" for file, count in self.files) + (f" ({self.digest})" if self.choices else "")


def named(names: Sequence[str], what: object, candidates: Iterable[T], names_of: Callable[[T], Iterable[str]] = lambda each: (str(each),)) -> list[T]:
    """The candidates with the first of `names` that is the name of any. The beginning of a name is enough: `32x32` is a tile of any depth."""
    known = {candidate: tuple(names_of(candidate)) for candidate in candidates}
    for name in names:
        found = [candidate for candidate, own in known.items() if any(f"{each} ".startswith((f"{name} ", f"{name}x")) for each in own)]
        if found:
            return found
    possible = ", ".join(dict.fromkeys(each for own in known.values() for each in own))
    raise Error(f"'{what}' cannot be computed by {' or '.join(map(repr, names))}", fix=f"prefer one of these: {possible}")


ESTIMATES = Tuned()  # no measurements
