"""Padding along one axis with mirrored values or copies of the edge: border.cl."""
from __future__ import annotations

import math
from dataclasses import dataclass

from ocaffe.ir.kernel import JOIN, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

FORWARD = Kernel("border.forward", read("x"), write("y"), can=JOIN)
BACKWARD = Kernel("border.backward", read("dy"), write("dx"), can=JOIN)
GPU_GROUP = 64
CPU_PIECE = 2048  # elements per CPU work-item


@dataclass(frozen=True)
class Border:
    """Padding of `ins` values along `axis` (not axis 0) to `outs` values, `begin` of them in front.

    The border is mirrored or repeats the edge.
    """

    axis: int
    ins: int
    begin: int
    outs: int
    mirrored: bool

    def forward(self, rec: Recorder, x: Ref, y: Ref) -> None:
        """y = x with the border."""
        self._launch(rec, FORWARD, y, x=x, y=y)

    def backward(self, rec: Recorder, dy: Ref, dx: Ref) -> None:
        """dx = the adjoint: every value sums the gradients of all its copies."""
        self._launch(rec, BACKWARD, dx, rec.accumulates(dx), dy=dy, dx=dx)

    def _launch(self, rec: Recorder, kernel: Kernel, over: Ref, *more: int | bool, **operands: Ref) -> None:
        count, inner = over.dense_stride, math.prod(over.shape[self.axis + 1 :])
        piece = CPU_PIECE if rec.target.is_cpu else 1
        rec.launch(
            kernel(**operands),
            args=[count, piece, self.ins, self.outs, inner, self.begin, self.mirrored, *more],
            size=(-(-count // piece), over.shape[0]),
            local=(1, 1) if rec.target.is_cpu else (GPU_GROUP, 1),
        )
