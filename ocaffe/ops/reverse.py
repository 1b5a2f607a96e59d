"""Reverse the order of the indices of an axis: kernels/reverse.cl."""
from __future__ import annotations

import math

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

CPU_PIECE = 2048  # elements per CPU work-item
GPU_GROUP = 128


def reverse(rec: Recorder, x: Ref, y: Ref, axis: int, end: int | None = None) -> None:
    """y = x with index k of `axis` in the place of index n - 1 - k. With `end`, all axes from `axis` up to `end` are reversed; they exclude axis 0.

    If y is a diff that accumulates, the values are added to it.
    """
    end = axis + 1 if end is None else end
    count, piece = x.dense_stride, CPU_PIECE if rec.target.is_cpu else 1
    samples, n, inner = (0, math.prod(x.shape[axis:end]), math.prod(x.shape[end:])) if axis else (x.shape[0], 1, 1)
    rec.launch(
        "reverse.reverse",
        reads=[x],
        writes=[y],
        args=[count, piece, samples, n, inner, rec.accumulates(y)],
        size=(-(-count // piece), x.shape[0]),
        local=(1, 1) if rec.target.is_cpu else (GPU_GROUP, 1),
    )
