"""Gather rows of a table by their numbers, and the adjoint: rows.cl."""
from __future__ import annotations

import math

import numpy as np

from ocaffe.ir.kernel import Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

GATHER = Kernel("rows.gather", read("x"), read("number"), read("bias"), write("y"))
CHAIN = Kernel("rows.chain", read("number"), write("first"), write("next"))
SUM_CHAINS = Kernel("rows.sum_chains", read("y"), read("first"), read("next"), write("x"))
SELECT_ROWS = Kernel("rows.select_rows", read("selector"), write("chosen"), write("place"), write("extent"))
SUM_MATCHING = Kernel("rows.sum_matching", read("y"), read("number"), write("x"))

NUMBERS = {"float32": "float", "int32": "int"}
GPU_GROUP = 128
COLUMNS = 4  # COLUMNS in rows.cl
CPU_PIECE = 4096  # elements per CPU work-item


def gather(rec: Recorder, x: Ref, numbers: Ref, y: Ref, *, bias: Ref | None = None, fill: float = math.nan) -> None:
    """y[m] = x[numbers[m]] (+ bias). Rows with an invalid number are `fill`. If y is a diff that accumulates, add to it.

    x is (rows, ...), y (*numbers' shape, ...) with rows of the same length. Numbers are floats or int32.
    """
    count, inner = numbers.count, x.dense_stride
    piece = min(inner, CPU_PIECE) if rec.target.is_cpu else 1
    pieces = -(-inner // max(1, piece))
    args = [count, x.shape[0], numbers.dense_stride, inner, piece, pieces, bias is not None, fill, rec.accumulates(y)]
    local = (1,) if rec.target.is_cpu else (_group(rec),)
    bias = x if bias is None else bias
    rec.launch(GATHER(x=x, number=numbers, bias=bias, y=y), args=args, size=(count * pieces,), local=local, defines=_defines(rec, numbers))


def gather_adjoint(rec: Recorder, y: Ref, numbers: Ref, x: Ref) -> None:
    """x[r] = the sum of y[m] over all m with number r, in order: the gradient of `gather`."""
    count, rows, run, inner = numbers.count, x.shape[0], numbers.dense_stride, x.dense_stride
    defines = _defines(rec, numbers)
    if not rec.target.is_cpu:
        group = _group(rec)
        groups = -(-inner // (group * COLUMNS))
        args = [count, rows, run, inner, groups, rec.accumulates(x)]
        size, local = (rows * groups * group,), (group,)
        rec.launch(SUM_MATCHING(y=y, number=numbers, x=x), args=args, size=size, local=local, defines=defines)
        return
    first, following = rec.scratch("first", (rows,), np.int32), rec.scratch("next", (count,), np.int32)
    rec.launch(CHAIN(number=numbers, first=first, next=following), args=[count, rows, run], size=(1,), local=(1,), defines=defines)
    piece = max(1, min(inner, CPU_PIECE))
    pieces = -(-inner // piece)
    args = [rows, run, inner, piece, pieces, rec.accumulates(x)]
    rec.launch(SUM_CHAINS(y=y, first=first, next=following, x=x), args=args, size=(rows * pieces,), local=(1,), defines=defines)


def select(rec: Recorder, selector: Ref, chosen: Ref, place: Ref, extent: Ref) -> None:
    """chosen = numbers of the rows whose selector is not 0; extent = their count; place = the index of each row in chosen, or -1."""
    group = 1 if rec.target.is_cpu else _group(rec)
    defines = {**_defines(rec, selector), "GROUP": group}
    rec.launch(
        SELECT_ROWS(selector=selector, chosen=chosen, place=place, extent=extent),
        args=[selector.shape[0]],
        size=(group,),
        local=(group,),
        defines=defines,
    )


def _group(rec: Recorder) -> int:
    return rec.target.group(GPU_GROUP)


def _defines(rec: Recorder, numbers: Ref) -> dict[str, object]:
    return {"NUMBER": NUMBERS[numbers.dtype.name], "GROUP": _group(rec)}
