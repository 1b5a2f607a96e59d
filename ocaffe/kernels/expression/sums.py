"""Sums of any number of values, in launches with few operands: kernels with many operands build slowly, and some devices limit the arguments."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.expression.expression import pointwise

AT_ONCE = 8  # values that one launch reads

T = TypeVar("T")


def runs(values: Sequence[T], count: int = AT_ONCE) -> Iterator[tuple[int, Sequence[T]]]:
    """Yield at most `count` values at a time, each time with the index of the first."""
    for start in range(0, len(values), count):
        yield start, values[start : start + count]


def add_diffs(rec: Recorder, diffs: Sequence[Ref], total: Ref) -> None:
    """Record launches that write the sum of `diffs`, from left to right, to the diff `total`."""
    for start, some in runs(diffs):
        if start:
            rec.enter(rec.layer, rec.phase)  # a new node: the next launch adds to the total
        pointwise(rec, "y0 = " + " + ".join(f"x{i}" for i in range(len(some))), reads=some, writes=[total])
