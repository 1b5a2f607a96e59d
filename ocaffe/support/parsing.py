"""One wrapper for parsers of other people's files. Libraries raise exceptions of many types for damaged files, and a user sees one Error."""
from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ocaffe.errors import Error, Place
from ocaffe.support.files import file_kind, to_read

_LONGEST = 300  # characters of a library's message


@contextlib.contextmanager
def parsing(fact: str, place: Place | str, fix: str, path: str = "", own: str = "") -> Iterator[None]:
    """Turn every exception but Error in the context into an Error at `place`. `fact` is what the user tried: 'cannot be read as .npy'.

    `path`: the file, if `place` is not its name. An OSError gets the remedy of `to_read`, and so does a file of another kind (ocaffe/support/kinds.py).
    All others get `fix`. `own` is the name of the kind that the parser reads, if it is one of those.
    """
    try:
        yield
    except Error:
        raise
    except Exception as problem:
        name = path or (place.file if isinstance(place, Place) else place)
        raise Error(f"{fact}: {reason(problem, name, own)}", place=place, fix=to_read(name, problem, fix)) from None


def reason(problem: BaseException, path: str | os.PathLike[str] = "", own: str = "") -> str:
    """Return why a file cannot be read, in one line: the kind of the file `path` if it is another one than `own`, else what `problem` says."""
    kind = file_kind(path) if path and not isinstance(problem, OSError) else None
    if kind is not None and kind.name != own:
        return f"it is {kind.name}"
    if isinstance(problem, Error):
        return problem.fact
    if isinstance(problem, RecursionError):
        return "its parts are nested too deep"
    if isinstance(problem, MemoryError):
        return "it needs more memory than there is"
    if isinstance(problem, KeyError):
        return f"it has no {problem.args[0]!r}" if problem.args else "a part is missing"
    return _said(problem)[:_LONGEST] or type(problem).__name__


def _said(problem: BaseException) -> str:
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    told = problem.args[0] if problem.args else ""
    text = told.decode("utf-8", "backslashreplace") if isinstance(told, bytes) else str(problem)  # plyvel passes bytes on
    return " ".join(text.split())
