"""Copy a range of one axis from one tensor to another."""
from __future__ import annotations

import math

from ocaffe.ir.kernel import JOIN, Kernel, read, write
from ocaffe.ir.launch import CopyRegion
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

COPY = Kernel("copy.copy", read("x"), write("y"), can=JOIN)
CPU_PIECE = 4096  # elements per work-item: enough to hide its start, few enough to divide small tensors among cores

GPU_GROUP = 128


def copy(rec: Recorder, x: Ref, y: Ref, axis: int, size: int, *, x_start: int = 0, y_start: int = 0) -> None:
    """y[.., y_start : y_start + size, ..] = x[.., x_start : x_start + size, ..] along `axis`; the other axes of x and y are equal.

    If y is a diff that accumulates, the copy adds to it (docs/kernels.md). x and y may be strided views.
    """
    inner = math.prod(x.shape[axis + 1 :])
    count = size * inner
    if axis == 0:
        samples, outer, count = size, 1, inner
        starts = (x_start, y_start, 0, 0)
    else:
        samples, outer = x.shape[0], math.prod(x.shape[1:axis])
        starts = (0, 0, x_start * inner, y_start * inner)
    piece = CPU_PIECE if rec.target.is_cpu else 1
    rec.launch(
        COPY(x=x, y=y),
        args=[count, outer, piece, *starts, x.shape[axis] * inner, y.shape[axis] * inner, rec.accumulates(y)],
        size=(outer * -(-count // piece), samples),
        local=(1, 1) if rec.target.is_cpu else (rec.target.group(GPU_GROUP), 1),
        details=CopyRegion(axis, x_start, y_start, size),
    )
