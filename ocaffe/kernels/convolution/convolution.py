"""Convolution in its three directions. choose.py chooses the kernels for a geometry."""
from __future__ import annotations

import math
from dataclasses import replace

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution import choose, conv_unroll
from ocaffe.kernels.convolution.blocks_cpu import conv_blocked_cpu, conv_depthwise_blocked_cpu
from ocaffe.kernels.convolution.dense_cpu import conv_cpu
from ocaffe.kernels.convolution.dense_gpu import conv_gpu
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.expression.expression import pointwise
from ocaffe.kernels.pooling.pooling import AVE, Pool


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    """y = convolution of x with the filters w, plus bias[channel]. The first axis of x and y is the batch, with their batch strides."""
    if not g.batch:
        rec.empty([x, w, *([bias] if bias else [])], [y], what="convolution")
        return
    if g.sparse and (not rec.train or not rec.target.is_cpu):
        g, x = _thinned(rec, g, x)
    assert w.count == math.prod(g.weight_shape), f"{w.shape} for filters {g.weight_shape}"
    with rec.counted(g.flops):
        choose.record(rec, "forward", g, x, w, bias, y)
    if rec.channel_block:
        rec.launches[-1].details = (conv_depthwise_blocked_cpu if g.depthwise else conv_blocked_cpu).form(rec, g, w)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    """dx from dy: every pixel sums the gradients of the windows that cover it. With `bias` per channel of dx it is a deconvolution's forward."""
    if not g.batch:
        rec.empty([dy, w, *([bias] if bias else [])], [dx], what="convolution")
        return
    assert w.count == math.prod(g.weight_shape), f"{w.shape} for filters {g.weight_shape}"
    if g.sparse and rec.phase == "backward" and not rec.target.is_cpu:  # a deconvolution's forward stays one launch, for fusion
        thin, seen = rec.scratch("thinned", (g.batch, g.channels, *g.out[1:])), _dense(g)
        with rec.counted(g.flops):
            choose.record(rec, "backward_data", seen, dy, w, thin)
        _seen(g).backward(rec, thin, None, dx)
        return
    with rec.counted(g.flops):
        choose.record(rec, "backward_data", g, dy, w, dx, bias=bias)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    """dw, summed over batch and positions."""
    if not g.batch:
        pointwise(rec, "y0 = 0", writes=[dw])
        return
    if g.sparse and not rec.target.is_cpu:
        g, x = _thinned(rec, g, x)
    assert dw.count == math.prod(g.weight_shape), f"{dw.shape} for filters {g.weight_shape}"
    with rec.counted(g.flops):
        choose.record(rec, "backward_filter", g, x, dy, dw)


def backward_bias(rec: Recorder, g: ConvGeometry, dy: Ref, db: Ref) -> None:
    """db[channel] = sum of dy over batch and positions. In a deconvolution, dy has the channels and pixels of g's input."""
    assert db.count in (g.num_output, g.channels)
    if not g.batch:
        pointwise(rec, "y0 = 0", writes=[db])
        return
    backward = conv_cpu.backward_bias if rec.target.is_cpu else conv_gpu.backward_bias
    backward(rec, conv_unroll.flat(g) if len(g.size) > 3 else g, dy, db)


def _seen(g: ConvGeometry) -> Pool:
    """Return a 1 x 1 pooling that selects the pixels that a sparse convolution reads."""
    return Pool(AVE, (1, 1), g.stride[1:], (0, 0), g.size[1:], g.out[1:])


def _dense(g: ConvGeometry) -> ConvGeometry:
    """Return a sparse convolution as a dense one over the selected pixels."""
    return replace(g, size=g.out, stride=(1, 1, 1))


def _thinned(rec: Recorder, g: ConvGeometry, x: Ref) -> tuple[ConvGeometry, Ref]:
    """Return a sparse convolution as a dense one, and its input: the pixels of x that it reads.

    Both branches of a residual block share these pixels (passes/common_subexpressions.py), and products over adjacent pixels
    load vectors. That saves more time than the pass over a quarter of the image costs.
    """
    thin = rec.scratch("thinned", (g.batch, g.channels, *g.out[1:]), role=Role.DIFF if x.role is Role.DIFF else Role.SCRATCH)
    _seen(g).forward(rec, x, thin)
    return _dense(g), thin
