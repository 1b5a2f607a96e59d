"""Attention masks as matrices of pixels x pixels: attention.cl."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ocaffe.ir.kernel import JOIN, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

SPREAD = Kernel("attention.spread", read("mask"), write("matrix"), can=JOIN)
TAKE = Kernel("attention.take", read("matrix"), write("mask"), can=JOIN)
CPU_PIECE, GPU_GROUP = 1024, 64  # values per CPU work-item, work-items of a GPU work-group


@dataclass(frozen=True)
class AttentionMask:
    """Masks of `mask` (rows, columns) around each pixel of an `image` (height, width). `collect`: the pixel is the column of the matrix, else the row."""

    image: tuple[int, int]
    mask: tuple[int, int]
    collect: bool

    def spread(self, rec: Recorder, mask: Ref, matrix: Ref) -> None:
        """Matrix (N x pixels x pixels) = the weights of the mask, 0 where it does not reach."""
        self._launch(rec, SPREAD, matrix, [], mask=mask, matrix=matrix)

    def take(self, rec: Recorder, matrix: Ref, mask: Ref) -> None:
        """Mask = the weights in the matrix, 0 for pixels outside the image."""
        self._launch(rec, TAKE, mask, [rec.accumulates(mask)], matrix=matrix, mask=mask)

    def _launch(self, rec: Recorder, kernel: Kernel, over: Ref, more: Sequence[int], **operands: Ref) -> None:
        count, piece = over.dense_stride, CPU_PIECE if rec.target.is_cpu else 1
        local = (1 if rec.target.is_cpu else rec.target.group(GPU_GROUP), 1)
        args = [count, piece, *self.image, *self.mask, *more]
        rec.launch(kernel(**operands), args=args, size=(-(-count // piece), over.shape[0]), local=local, defines={"COLLECT": int(self.collect)})
