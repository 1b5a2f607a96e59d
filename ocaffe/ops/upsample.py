"""Upsampling by nearest pixels or by unpooling: kernels/upsample.cl."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref

GPU_GROUP = 128
CPU_PIECE = 4096  # elements per CPU work-item


def nearest(rec: Recorder, x: Ref, y: Ref, scale: int) -> None:
    """y (N x C x H scale x W scale) = x (N x C x H x W), each pixel scale x scale times."""
    _elements(rec, "nearest_forward", [x], y, [x.shape[3]], {"SCALE": scale})


def nearest_backward(rec: Recorder, dy: Ref, dx: Ref, scale: int) -> None:
    """dx = the sum of dy over the scale x scale pixels."""
    _elements(rec, "nearest_backward", [dy], dx, [dx.shape[3], rec.accumulates(dx)], {"SCALE": scale})


def unpool(rec: Recorder, x: Ref, mask: Ref, y: Ref) -> None:
    """y (N x C x OH x OW) = the values of x at the places in its planes that `mask` names, 0 elsewhere.

    `mask` has the shape of x. If several values have the same place, the last one is written.
    """
    inputs, outputs = math.prod(x.shape[2:]), math.prod(y.shape[2:])
    if rec.target.is_cpu:
        rec.launch("upsample.unpool_plane", reads=[x, mask], writes=[y], args=[x.shape[1], inputs, outputs], size=(x.shape[1], x.shape[0]), local=(1, 1))
        return
    _elements(rec, "unpool_clear", [], y, [])
    count, group = x.dense_stride, _group(rec)
    rec.launch("upsample.unpool_claim", reads=[mask], modifies=[y], args=[count, inputs, outputs], size=(count, x.shape[0]), local=(group, 1))
    _elements(rec, "unpool_take", [x], y, [inputs, outputs], modifies=True)


def unpool_backward(rec: Recorder, dy: Ref, mask: Ref, dx: Ref) -> None:
    """dx = the values of dy at the places that `mask` names."""
    args = [math.prod(dx.shape[2:]), math.prod(dy.shape[2:]), rec.accumulates(dx)]
    _elements(rec, "unpool_backward", [dy, mask], dx, args)


def _elements(
    rec: Recorder, function: str, reads: Sequence[Ref], y: Ref, args: Sequence[int], defines: dict[str, object] | None = None, modifies: bool = False
) -> None:
    """Record a launch over the elements of y."""
    count, piece = y.dense_stride, CPU_PIECE if rec.target.is_cpu else 1
    rec.launch(
        f"upsample.{function}",
        reads=reads,
        writes=[] if modifies else [y],
        modifies=[y] if modifies else [],
        args=[count, piece, *args],
        size=(-(-count // piece), y.shape[0]),
        local=(1 if rec.target.is_cpu else _group(rec), 1),
        defines=defines,
    )


def _group(rec: Recorder) -> int:
    return rec.target.group(GPU_GROUP)
