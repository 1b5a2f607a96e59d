"""Padding along one axis with mirrored values or copies of the edge: kernels/border.cl."""
from __future__ import annotations

import math
from dataclasses import dataclass

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

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
        self._launch(rec, "forward", x, y)

    def backward(self, rec: Recorder, dy: Ref, dx: Ref) -> None:
        """dx = the adjoint: every value sums the gradients of all its copies."""
        self._launch(rec, "backward", dy, dx, rec.accumulates(dx))

    def _launch(self, rec: Recorder, function: str, read: Ref, write: Ref, *more: int | bool) -> None:
        count, inner = write.dense_stride, math.prod(write.shape[self.axis + 1 :])
        piece = CPU_PIECE if rec.target.is_cpu else 1
        rec.launch(
            f"border.{function}",
            reads=[read],
            writes=[write],
            args=[count, piece, self.ins, self.outs, inner, self.begin, self.mirrored, *more],
            size=(-(-count // piece), write.shape[0]),
            local=(1, 1) if rec.target.is_cpu else (GPU_GROUP, 1),
        )
