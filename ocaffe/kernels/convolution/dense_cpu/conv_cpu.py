"""Convolution on CPU runtimes (conv_cpu.cl): implicit GEMM in all three directions."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from ocaffe.ir.kernel import JOIN, Can, Kernel, own_form, read, reads, write
from ocaffe.ir.launch import EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.dense_cpu import conv_pointwise_cpu
from ocaffe.kernels.convolution.dense_cpu.conv_parts_cpu import filter_slices, pack, sliced
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.winograd import winograd_cpu
from ocaffe.kernels.matmul import gemm_cpu
from ocaffe.kernels.matmul.gemm_cpu import ONE, ceil, columns, even, share_out

FORWARD = Kernel("conv_cpu.forward", *reads("x", "packed", "bias"), write("y"), can=Can(join=True, blocked=own_form))
BACKWARD_DATA = Kernel("conv_cpu.backward_data", *reads("dy", "packed", "bias"), write("dx"), can=JOIN)
BACKWARD_FILTER = Kernel("conv_cpu.backward_filter", *reads("x", "dy"), write("dw"), can=JOIN)
BACKWARD_BIAS = Kernel("product_parts_cpu.backward_bias", read("dy"), write("db"), can=Can(join=True, helper=True))
OUTPUTS = 64  # with fewer outputs, unrolling a panel of the input again does not pay
SCATTER_ROWS = 64  # minimum rows k of a work-item that scatters
FILTER_ROWS = 152  # rows k per work-item of backward_filter; 3 channels of 7 x 7 are 147
FILTER_LINE = 400  # positions that backward_filter sums at a time
WIDE = 2  # see the kernel
GATHER_WASTE = 1.3  # maximum pixels per output for gathering, which also multiplies the padding around the outputs


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    if winograd_cpu.wins(rec, g):
        winograd_cpu.forward(rec, g, x, w, bias, y)
    else:
        _multiply(rec, g, x, w, bias, y, [g.depth, g.taps, g.taps, 1, 0])


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    """dx = the gradient of the input.

    Gathering is a convolution of dy with mirrored filters. Scattering adds all contributions to a channel in the work-item that
    owns it.
    """
    if not gathers(g):
        _scatter(rec, g, dy, w, dx, bias)
        return
    depth, height, width = (d * (k - 1) - p for d, k, p in zip(g.dilation, g.kernel, g.pad, strict=True))
    turned = replace(g, channels=g.num_output, num_output=g.channels, size=g.out, out=g.size, pad=(depth, height, width))
    if winograd_cpu.wins(rec, turned):
        winograd_cpu.forward(rec, turned, dy, w, bias, dx, turned=True)
        return
    _multiply(rec, turned, dy, w, bias, dx, [g.taps, g.taps, g.depth, -1, g.taps - 1])


def gathers(g: ConvGeometry) -> bool:
    """Whether the outputs are all windows of stride 1, and few windows of the mirrored convolution contain only padding."""
    full = tuple(i + 2 * p - d * (k - 1) for i, p, d, k in zip(g.size, g.pad, g.dilation, g.kernel, strict=True))
    return g.stride == ONE and g.out == full and g.pixels <= GATHER_WASTE * g.positions


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    if winograd_cpu.wins(rec, g, filters=True):
        winograd_cpu.backward_filter(rec, g, x, dy, dw)
        return
    if g.pointwise:
        conv_pointwise_cpu.backward_filter(rec, g, x, dy, dw)
        return
    defines = tile(rec, g)
    lines = g.kernel[0] * g.kernel[1]  # rows of the window
    channels = even(g.group_channels, max(1, defines["ROWS"] // g.taps))
    lines_each = even(lines, defines["ROWS"] // g.kernel[2])
    blocks = ceil(g.group_channels, channels) * ceil(lines, lines_each)
    slices, args = filter_slices(rec, g, blocks), [*_sizes(g), channels, lines_each]
    sliced(rec, BACKWARD_FILTER, g, dw, defines, slices, (blocks, g.group), args, x=x, dy=dy)


def backward_bias(rec: Recorder, g: ConvGeometry, dy: Ref, db: Ref) -> None:
    channels, pixels = db.count, dy.count // (g.batch * db.count)
    sliced(rec, BACKWARD_BIAS, g, db, gemm_cpu.tile(rec.target), share_out(rec, channels, g.batch), (channels, 1), [g.batch, pixels], dy=dy)


def tile(rec: Recorder, g: ConvGeometry) -> dict[str, int]:
    """Return the defines of conv_cpu.cl."""
    base = gemm_cpu.tile(rec.target, g.group_outputs)
    width = g.kernel[2]  # blocks hold whole rows of the window
    defines = base | {"KC": max(base["KC"], width), "ROWS": max(FILTER_ROWS, width), "LINE": FILTER_LINE, "WIDE": WIDE}
    for axis, kernel, stride, dilation in zip("DHW", g.kernel, g.stride, g.dilation, strict=True):
        defines |= {f"K{axis}": kernel, f"S{axis}": stride, f"D{axis}": dilation}
    return defines


def _multiply(
    rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, steps: Sequence[int]
) -> None:
    """y = filters times unrolled x. `steps` are the strides and the offset in w for the kernel `pack`."""
    if g.pointwise:
        conv_pointwise_cpu.multiply(rec, g, x, w, bias, y, steps)
        return
    defines = tile(rec, g)
    if ceil(g.batch * g.positions, WIDE * columns(defines)) * g.group < rec.target.compute_units:  # a small image: all cores rather than fewer reads
        defines |= {"WIDE": 1}
    panels = ceil(g.batch * g.positions, defines["WIDE"] * columns(defines))
    block = even(g.group_outputs, ceil(g.group_outputs, share_out(rec, panels * g.group, ceil(g.group_outputs, OUTPUTS))), defines["MR"])
    packed = pack(rec, g, w, defines["MR"], g.group_outputs, g.group_outputs, g.depth, steps)
    args = [*_sizes(g), block, EpilogueScalars(bias is not None, rec.accumulates(y))]
    rec.launch(
        FORWARD(x=x, packed=packed, bias=bias or packed, y=y),
        args=args,
        size=(panels, ceil(g.group_outputs, block), g.group),
        local=ONE,
        defines=defines,
    )


def _scatter(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None) -> None:
    defines = tile(rec, g)
    unit = defines["MR"] // gcd(defines["MR"], g.taps)  # channels whose rows fill tiles exactly
    most = ceil(g.group_channels, unit * ceil(SCATTER_ROWS, unit * g.taps))
    block = min(g.group_channels, even(g.group_channels, ceil(g.group_channels, share_out(rec, g.batch * g.group, most)), unit))
    blocks = ceil(g.group_channels, block)
    samples = ceil(g.batch, share_out(rec, blocks * g.group, g.batch))
    packed = pack(rec, g, w, defines["MR"], g.depth, block * g.taps, g.group_outputs, [1, 1, g.depth, 0, 0])
    rec.launch(
        BACKWARD_DATA(dy=dy, packed=packed, bias=bias or packed, dx=dx),
        args=[*_sizes(g), samples, block, bias is not None, rec.accumulates(dx)],
        size=(ceil(g.batch, samples), blocks, g.group),
        local=ONE,
        defines=defines,
    )


def _sizes(g: ConvGeometry) -> list[int]:
    """Return the arguments GEOMETRY of conv_cpu.cl."""
    return [g.batch, g.group_channels, g.group_outputs, *g.size, *g.out, *g.pad]
