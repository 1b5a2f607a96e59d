"""Bilinear resampling with aligned corners: interp.cl."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ocaffe.ir.kernel import JOIN, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

Pair = tuple[int, int]
FORWARD = Kernel("interp.forward", read("x"), write("y"), can=JOIN)
BACKWARD = Kernel("interp.backward", read("dy"), write("dx"), can=JOIN)
GPU_GROUP = 64
CPU_PIECE = 2048  # elements per CPU work-item


@dataclass(frozen=True)
class Resampling:
    """Resampling of a part of each plane to `outputs`. Pairs are (height, width).

    The part has the size `part` and starts `begin` pixels from the top and from the left. `ratios`: the distances of neighbouring outputs in the
    image, by default those that align the corners.
    """

    begin: int
    part: Pair
    outputs: Pair
    ratios: tuple[np.float32, np.float32] | None = None

    def ratio(self, axis: int) -> np.float32:
        return _ratio(self.part[axis], self.outputs[axis]) if self.ratios is None else self.ratios[axis]

    def forward(self, rec: Recorder, x: Ref, y: Ref) -> None:
        """y = the resampled part of x, both N x C x H x W."""
        args = [*x.shape[2:], self.begin, *self.part, *self.outputs, self.ratio(0), self.ratio(1)]
        _launch(rec, FORWARD, y, args, x=x, y=y)

    def backward(self, rec: Recorder, dy: Ref, dx: Ref) -> None:
        """dx = the adjoint of `forward`, first along the rows, then along the columns. Pixels outside the part get 0."""
        samples, channels, height, width = dx.shape
        rows = rec.scratch("rows", (samples, channels, self.outputs[0], width))
        _launch(rec, BACKWARD, rows, [width, *self._axis(1, 1), False], dy=dy, dx=rows)
        _launch(rec, BACKWARD, dx, [height, *self._axis(0, width), rec.accumulates(dx)], dy=rows, dx=dx)

    def _axis(self, axis: int, inner: int) -> list[Any]:
        """Return the arguments of `backward` along an axis: begin, ins, outs, inner, ratio, scale."""
        ins, outs = self.part[axis], self.outputs[axis]
        ratio = self.ratio(axis)
        # A distance of `scale` in the outputs is a distance of 1 in the image. With ratio 0 all outputs are at position 0, and all are read.
        scale = 1 / float(ratio) if ratio > 0 else float(outs)
        return [self.begin, ins, outs, inner, ratio, scale]


def _ratio(ins: int, outs: int) -> np.float32:
    """Return the distance of neighbouring outputs in the image, rounded as in Caffe."""
    return np.float32(ins - 1) / np.float32(outs - 1) if outs > 1 else np.float32(0)


def _launch(rec: Recorder, kernel: Kernel, over: Ref, args: list[Any], **operands: Ref) -> None:
    count = over.dense_stride
    piece = CPU_PIECE if rec.target.is_cpu else 1
    rec.launch(
        kernel(**operands),
        args=[count, piece, *args],
        size=(-(-count // piece), over.shape[0]),
        local=(1, 1) if rec.target.is_cpu else (GPU_GROUP, 1),
    )
