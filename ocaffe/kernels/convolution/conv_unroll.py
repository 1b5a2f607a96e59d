"""Convolution over more than three axes. The image is unrolled in memory, some samples at a time (conv_unroll.cl)."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from ocaffe.ir.kernel import Can, Kernel, read, reads, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry

UNROLL = Kernel("conv_unroll.unroll", read("x"), read("axes"), write("columns"), can=Can(helper=True))
FOLD = Kernel("conv_unroll.fold", *reads("columns", "axes", "bias"), write("x"), can=Can(helper=True))
COLUMNS = 1 << 24  # maximum floats of unrolled samples; one sample is always allowed
ONE, ZERO = (1, 1, 1), (0, 0, 0)
Product = Callable[..., None]  # records the same direction of a convolution over unrolled samples, `flat`


def flat(g: ConvGeometry) -> ConvGeometry:
    """Return the 1 x 1 convolution over unrolled samples."""
    line = (1, 1, g.positions)
    return replace(g, channels=g.channels * g.taps, size=line, out=line, kernel=ONE, stride=ONE, pad=ZERO, dilation=ONE)


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, product: Product) -> None:
    """y = x * w (+ bias per output)."""
    for part, xs, ys in _slices(g, x, y):
        product(rec, flat(part), _unroll(rec, part, xs), w, bias, ys)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, product: Product, bias: Ref | None = None) -> None:
    """dx = the gradient of the input (+ bias per channel of dx)."""
    for part, dys, dxs in _slices(g, dy, dx):
        columns = _columns(rec, part)
        product(rec, flat(part), dys, w, columns)
        args = [bias is not None, rec.accumulates(dxs)]
        _launch(rec, part, FOLD, args, part.pixels, part.channels, columns=columns, axes=_axes(rec, g), bias=bias or columns, x=dxs)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref, product: Product) -> None:
    """dw = the gradient of the filters."""
    for part, xs, dys in _slices(g, x, dy):
        product(rec, flat(part), _unroll(rec, part, xs), dys, dw)
        rec.enter(rec.layer, rec.phase)  # the next samples accumulate on this gradient


def _slices(g: ConvGeometry, *refs: Ref) -> Iterator[tuple[ConvGeometry, Ref, Ref]]:
    """Yield slices of as many samples as may be unrolled: their geometry and their parts of both `refs`."""
    most = max(1, COLUMNS // (g.channels * g.taps * g.positions))
    for first in range(0, g.batch, most):
        count = min(most, g.batch - first)
        a, b = (ref.view((count, *ref.shape[1:]), first * ref.batch_stride, ref.batch_stride) for ref in refs)
        yield replace(g, batch=count), a, b


def _columns(rec: Recorder, g: ConvGeometry) -> Ref:
    return rec.scratch("columns", (g.batch, g.channels * g.taps, g.positions))


def _unroll(rec: Recorder, g: ConvGeometry, x: Ref) -> Ref:
    columns = _columns(rec, g)
    _launch(rec, g, UNROLL, [], g.positions, g.channels * g.taps, x=x, axes=_axes(rec, g), columns=columns)
    return columns


def _launch(rec: Recorder, g: ConvGeometry, kernel: Kernel, args: Sequence[int], elements: int, rows: int, **operands: Ref) -> None:
    each = elements if rec.target.is_cpu else 1
    rec.launch(
        kernel(**operands),
        args=[g.pixels, g.positions, g.taps, each, *args],
        size=(math.ceil(elements / each), rows, g.batch),
        defines={"AXES": len(g.size)},
    )


def _axes(rec: Recorder, g: ConvGeometry) -> Ref:
    return rec.constant("axes", np.array([g.size, g.out, g.kernel, g.stride, g.pad, g.dilation], np.int32))
