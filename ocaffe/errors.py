"""Errors that a user can correct. A message has the place, the fact with both values, and the remedy.

All errors that ocaffe raises on purpose are of class `Error`. The command line prints it as one paragraph and exits with status 1:

    error: lenet/train_val.prototxt:61: layer 'pool2' (Pooling)
      the AVE window at the last row covers no pixel of the 6 x 5 image (kernel 2, stride 3, pad 0, CEIL)
      fix: set round_mode: FLOOR or stride <= kernel_size
"""
from __future__ import annotations

import contextlib
import errno
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ocaffe.shown import Lines


class Place(NamedTuple):
    """A position in a user's file. Line 0 means the whole file."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    @classmethod
    def of(cls, file: str, line: int) -> Place | None:
        """Return the place, None for a net that is in no file."""
        return cls(file, line) if file else None


class Error(RuntimeError):
    """A mistake in the user's input, or a limit of the machine. A bug of ocaffe raises other exceptions.

    It is a RuntimeError, because pycaffe raises that, for example for an unreadable file. The classes below are of the types that pycaffe or Python
    raises in their places.
    """

    def __init__(self, fact: str, *, place: Place | str | None = None, layer: str | None = None, fix: str | None = None) -> None:
        """`fact` describes the mistake with both values. `layer` has the form "'pool2' (Pooling)". `fix` is the remedy.

        Fact and fix of several lines are Lines. The text of an Error has no control characters of the names in it.
        """
        super().__init__(fact)
        self.fact = fact
        self.place = place
        self.layer = layer
        self.fix = fix

    def __str__(self) -> str:
        return stated(self.place, self.layer, self.fact, self.fix)


def stated(place: Place | str | None, layer: str | None, fact: str, fix: str | None) -> Lines:
    """Return the text of an error."""
    where = ": ".join(str(part) for part in (place, f"layer {layer}" if layer else None) if part)
    begin = "  " if where else ""
    lines = [*([where] if where else []), *_indented(begin, fact), *(_indented("  fix: ", fix) if fix else [])]
    return Lines(*lines)


def _indented(begin: str, text: str) -> Iterator[str]:
    """Yield the lines of `text`, the first after `begin`."""
    first, *more = text.split("\n") if isinstance(text, Lines) else [text]
    yield begin + first
    yield from more


class NoRoom(Error):
    """The nets need more memory than the device has, or than the user allows."""


class WrongType(Error, TypeError):
    """An argument has a wrong type."""


class WrongValue(Error, ValueError):
    """An argument has the right type and a wrong value or shape."""


class UnknownName(Error, KeyError, ValueError):
    """Nothing has this name. Python raises KeyError for a dict, and ValueError for list.index, which pycaffe uses for layers."""


class NoSuchField(Error, AttributeError):
    """A message has no field of this name."""


class NoSuchTop(UnknownName, AttributeError):
    """A NetSpec has no top of this name. pycaffe raises KeyError for `n.name` and `n['name']`. `hasattr` needs AttributeError."""


class OutOfRange(Error, IndexError):
    """Nothing has this number."""


class UnreadableFile(Error, OSError):
    """A file that scripts skip if it cannot be read, such as an image."""


class NoSuchFile(UnreadableFile, FileNotFoundError):
    """Such a file does not exist."""

    errno = errno.ENOENT


class FailedCheck(Error, AssertionError):
    """A condition that pycaffe checks by assert."""


def of_type(error: Error, reason: Exception) -> Error:
    """Return `error` as an instance of the class of `reason` too, with the attributes of `reason`, so that scripts can catch it by its own class.

    Return `error` itself where that class cannot be a second base.
    """
    kind = type(reason)
    try:
        both: Any = type(kind.__name__, (Error, kind), {"__module__": kind.__module__})
        result: Error = both(error.fact, place=error.place, layer=error.layer, fix=error.fix)
    except TypeError:  # some classes that are written in C exclude each other
        return error
    vars(result).update({name: value for name, value in vars(reason).items() if name not in vars(result)})
    return result


@contextlib.contextmanager
def within(place: Place | str | None, layer: str | None = None) -> Iterator[None]:
    """Add `place` and `layer` to an Error raised in the context, unless it has its own."""
    try:
        yield
    except Error as problem:
        problem.place, problem.layer = problem.place or place, problem.layer or layer
        raise


def names_text(names: Sequence[str], shown: int = 5) -> str:
    """Format names as `'a', 'b' and 3 more`."""
    return ", ".join(f"'{name}'" for name in names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def axis_order(given: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Return the order in which the axes of `given` make `wanted`, for np.transpose. None if none does, or if they are equal."""
    if tuple(given) == tuple(wanted) or sorted(given) != sorted(wanted) or len(given) > 5:
        return None
    return next(order for order in itertools.permutations(range(len(given))) if tuple(given[axis] for axis in order) == tuple(wanted))


def shape_text(shape: Sequence[int]) -> str:
    """Format a shape as `64 x 3 x 227 x 227`, or `scalar` if it has no axes."""
    return " x ".join(map(str, shape)) if len(shape) else "scalar"
