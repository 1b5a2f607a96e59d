"""Reasons to refuse a solver. `train` raises the first one, `lint` reports all of them."""
from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from ocaffe.errors import Error, Place
from ocaffe.formats.text import read_solver


class Fault(NamedTuple):
    """A setting that is refused. `field` is its name in the SolverParameter, `fix` the remedy."""

    field: str
    fact: str
    fix: str


def unknown_choice(solver: Any, field: str, known: Collection[str], fact: str = "") -> Iterator[Fault]:
    """Yield a Fault if the text of `field` is none of `known`. `fact` comes before the value, "FIELD is" if it is empty."""
    value = getattr(solver, field)
    if value not in known:
        near = next((name for name in known if name.lower() == value.lower()), None)
        yield Fault(field, f"{fact or f'{field} is'} '{value}'", f'{field}: "{near}"' if near else f"set {field} to one of {', '.join(known)}")


def refuse(faults: Iterable[Fault], file: str | None = None) -> None:
    """Raise Error for the first of `faults`, if there is one. The place is the line of its field in the solver `file`."""
    fault = next(iter(faults), None)
    if fault is None:
        return
    lines: dict[str, int] = {}
    if file is not None:
        with contextlib.suppress(Error):  # a solver that a script made may not be in the file
            read_solver(file, allow_unknown_fields=True, lines=lines)
    raise Error(fault.fact, place=Place(file, lines.get(fault.field, lines.get(f"{fault.field}[0]", 0))) if file is not None else None, fix=fault.fix)
