"""Products that compute with integers: integer.cl. They prove the simulation in floats, and are not made for speed."""
from __future__ import annotations

from typing import Any

from ocaffe.ir.kernel import Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.im2col import Columns
from ocaffe.kernels.expression.expression import pointwise

PRODUCT = Kernel("integer.product", read("v"), read("w"), read("scales"), read("bias", optional=True), write("y"))
GPU_GROUP = 64


def integers(rec: Recorder, x: Ref, settings: Any) -> Ref:
    """Return the whole numbers, as floats, of x on the grid of a WeightQuantizationParam's input: q - zero_point."""
    whole = rec.scratch("integers", x.shape)
    pointwise(rec, "y0 = rint(x0 / s)", reads=[x], writes=[whole], scalars={"s": float(settings.input_scale)})
    return whole


def convolution(rec: Recorder, geometry: ConvGeometry, x: Ref, w: Ref, scales: Ref, bias: Ref | None, y: Ref, settings: Any) -> None:
    """y = the convolution of x with w, both on their grids, by integers."""
    g = geometry
    columns = rec.scratch("columns", (g.batch, g.channels * g.taps, g.positions))
    images = integers(rec, x, settings).view((g.batch, g.channels, *g.size))
    Columns(g.size, g.out, g.kernel, g.stride, g.pad, g.dilation).unroll(rec, images, columns.view((g.batch, g.channels * g.taps, *g.out)))
    _product(rec, columns, w, scales, bias, y.view((g.batch, g.num_output, g.positions)), g.depth, g.group_outputs, settings)


def inner_product(rec: Recorder, x: Ref, w: Ref, scales: Ref, bias: Ref | None, y: Ref, settings: Any) -> None:
    """y (rows, outputs) = x (rows, depth) w^T, both on their grids, by integers. w is (outputs, depth)."""
    (rows, depth), outputs = x.shape, y.shape[1]
    _product(rec, integers(rec, x, settings).view((rows, depth, 1)), w, scales, bias, y.view((rows, outputs, 1)), depth, outputs, settings)


def _product(rec: Recorder, v: Ref, w: Ref, scales: Ref, bias: Ref | None, y: Ref, depth: int, group_outputs: int, settings: Any) -> None:
    samples, outputs, pixels = y.shape
    local = (1, 1, 1) if rec.target.is_cpu else (rec.target.group(GPU_GROUP), 1, 1)
    args = [pixels, outputs, depth, group_outputs, int(scales.count > 1), float(settings.input_scale)]
    defines = {} if bias is None else {"BIAS": 1}
    given = PRODUCT(v=v, w=w, scales=scales, bias=bias, y=y)
    with rec.counted(2 * samples * outputs * pixels * depth):
        rec.launch(given, args=args, size=(pixels, outputs, samples), local=local, defines=defines)
