"""Upsampling by nearest pixels or by unpooling: upsample.cl."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.ir.kernel import JOIN, Kernel, modify, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

NEAREST_FORWARD = Kernel("upsample.nearest_forward", read("x"), write("y"), can=JOIN)
NEAREST_BACKWARD = Kernel("upsample.nearest_backward", read("dy"), write("dx"), can=JOIN)
UNPOOL_CLEAR = Kernel("upsample.unpool_clear", write("y"), can=JOIN)
UNPOOL_TAKE = Kernel("upsample.unpool_take", read("x"), modify("y"), can=JOIN)
UNPOOL_BACKWARD = Kernel("upsample.unpool_backward", read("dy"), read("mask"), write("dx"), can=JOIN)
UNPOOL_CLAIM = Kernel("upsample.unpool_claim", read("mask"), modify("y"), can=JOIN)
UNPOOL_PLANE = Kernel("upsample.unpool_plane", read("x"), read("mask"), write("y"), can=JOIN)

GPU_GROUP = 128
CPU_PIECE = 4096  # elements per CPU work-item


def nearest(rec: Recorder, x: Ref, y: Ref, scale: int) -> None:
    """y (N x C x H scale x W scale) = x (N x C x H x W), each pixel scale x scale times."""
    _elements(rec, NEAREST_FORWARD, y, [x.shape[3]], {"SCALE": scale}, x=x, y=y)


def nearest_backward(rec: Recorder, dy: Ref, dx: Ref, scale: int) -> None:
    """dx = the sum of dy over the scale x scale pixels."""
    _elements(rec, NEAREST_BACKWARD, dx, [dx.shape[3], rec.accumulates(dx)], {"SCALE": scale}, dy=dy, dx=dx)


def unpool(rec: Recorder, x: Ref, mask: Ref, y: Ref) -> None:
    """y (N x C x OH x OW) = the values of x at the places in its planes that `mask` names, 0 elsewhere.

    `mask` has the shape of x. If several values have the same place, the last one is written.
    """
    inputs, outputs = math.prod(x.shape[2:]), math.prod(y.shape[2:])
    if rec.target.is_cpu:
        rec.launch(UNPOOL_PLANE(x=x, mask=mask, y=y), args=[x.shape[1], inputs, outputs], size=(x.shape[1], x.shape[0]), local=(1, 1))
        return
    _elements(rec, UNPOOL_CLEAR, y, [], y=y)
    count, group = x.dense_stride, _group(rec)
    rec.launch(UNPOOL_CLAIM(mask=mask, y=y), args=[count, inputs, outputs], size=(count, x.shape[0]), local=(group, 1))
    _elements(rec, UNPOOL_TAKE, y, [inputs, outputs], x=x, y=y)


def unpool_backward(rec: Recorder, dy: Ref, mask: Ref, dx: Ref) -> None:
    """dx = the values of dy at the places that `mask` names."""
    args = [math.prod(dx.shape[2:]), math.prod(dy.shape[2:]), rec.accumulates(dx)]
    _elements(rec, UNPOOL_BACKWARD, dx, args, dy=dy, mask=mask, dx=dx)


def _elements(rec: Recorder, kernel: Kernel, over: Ref, args: Sequence[int], defines: dict[str, object] | None = None, **operands: Ref) -> None:
    """Record a launch over the elements of `over`."""
    count, piece = over.dense_stride, CPU_PIECE if rec.target.is_cpu else 1
    rec.launch(
        kernel(**operands),
        args=[count, piece, *args],
        size=(-(-count // piece), over.shape[0]),
        local=(1 if rec.target.is_cpu else _group(rec), 1),
        defines=defines,
    )


def _group(rec: Recorder) -> int:
    return rec.target.group(GPU_GROUP)
