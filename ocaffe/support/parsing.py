"""One wrapper for parsers of other people's files. Libraries raise exceptions of many types for damaged files, and a user sees one Error."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ocaffe.errors import Error, Place
from ocaffe.support.files import to_read

_LONGEST = 300  # characters of a library's message


@contextlib.contextmanager
def parsing(fact: str, place: Place | str, fix: str, path: str = "") -> Iterator[None]:
    """Turn every exception but Error in the context into an Error at `place`. `fact` is what the user tried: 'cannot be read as .npy'.

    `path`: the file, if `place` is not its name. An OSError gets the remedy of `to_read`, all others get `fix`.
    """
    try:
        yield
    except Error:
        raise
    except Exception as problem:
        name = path or (place.file if isinstance(place, Place) else place)
        raise Error(f"{fact}: {reason(problem)}", place=place, fix=to_read(name, problem, fix)) from None


def reason(problem: BaseException) -> str:
    """Return what an exception of a library says about a file, in one line."""
    if isinstance(problem, RecursionError):
        return "its parts are nested too deep"
    if isinstance(problem, MemoryError):
        return "it needs more memory than there is"
    if isinstance(problem, KeyError):
        return f"it has no {problem.args[0]!r}" if problem.args else "a part is missing"
    text = problem.strerror if isinstance(problem, OSError) and problem.strerror else " ".join(str(problem).split())
    return text[:_LONGEST] or type(problem).__name__
