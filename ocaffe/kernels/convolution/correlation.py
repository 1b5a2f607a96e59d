"""Correlation of two images at several displacements: correlation.cl."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ocaffe.ir.kernel import JOIN, Kernel, read, reads, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Shape

FORWARD = Kernel("correlation.forward", read("a"), read("b"), write("y"), can=JOIN)
BACKWARD_A = Kernel("correlation.backward_a", *reads("dy", "a", "b"), write("da"), can=JOIN)
BACKWARD_B = Kernel("correlation.backward_b", *reads("dy", "a", "b"), write("db"), can=JOIN)
CPU_PIECE, GPU_GROUP = 256, 64  # values per CPU work-item, work-items of a GPU work-group
Pair = tuple[int, int]


@dataclass(frozen=True)
class Correlator:
    """The geometry, in (rows, columns). Output (d, i, j) compares the window of a at (i, j) step + corner with that of b at a displacement of (d) jump.

    `out`: the size of the outputs. `grid`: the number of displacements. `first`: the first displacement. `subtract`: |a - b| instead of a b.
    """

    image: Shape  # channels, height, width
    out: Pair
    kernel: Pair
    grid: Pair
    first: Pair
    corner: Pair
    jump: int
    step: int
    scale: float
    subtract: bool = False

    def forward(self, rec: Recorder, a: Ref, b: Ref, y: Ref) -> None:
        self._launch(rec, FORWARD, y, [], a=a, b=b, y=y)

    def backward(self, rec: Recorder, dy: Ref, a: Ref, b: Ref, da: Ref | None, db: Ref | None) -> None:
        """Record the launches for the gradients that are given."""
        if da is not None:
            self._launch(rec, BACKWARD_A, da, [rec.accumulates(da)], dy=dy, a=a, b=b, da=da)
        if db is not None:
            self._launch(rec, BACKWARD_B, db, [rec.accumulates(db)], dy=dy, a=a, b=b, db=db)

    def _launch(self, rec: Recorder, kernel: Kernel, over: Ref, more: list[int], **operands: Ref) -> None:
        count, piece = over.dense_stride, CPU_PIECE if rec.target.is_cpu else 1
        args = [count, piece, *self.image, *self.out, *self.grid, *self.first, self.jump, self.step, *self.corner, np.float32(self.scale), *more]
        local = (1 if rec.target.is_cpu else rec.target.group(GPU_GROUP), 1)
        defines = {"KH": self.kernel[0], "KW": self.kernel[1], "SUBTRACT": int(self.subtract)}
        rec.launch(kernel(**operands), args=args, size=(-(-count // piece), over.shape[0]), local=local, defines=defines)
