"""Convolution on CPU runtimes (conv_cpu.cl): implicit GEMM in all three directions."""
from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from ocaffe.ir.kernel import JOIN, Can, Kernel, own_form, read, reads, write
from ocaffe.ir.launch import EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.dense_cpu.conv_parts_cpu import filter_slices, mirrored_steps, pack, plain_steps, sliced
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul import gemm_cpu
from ocaffe.kernels.matmul.gemm_cpu import ONE, ceil, columns, even, share_out

FORWARD = Kernel("conv_cpu.forward", *reads("x", "packed", "bias"), write("y"), can=Can(join=True, in_blocks=own_form))
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
    _multiply(rec, g, x, w, bias, y, plain_steps(g))


def gather(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    """dx = the gradient of the input, as a convolution of dy with mirrored filters."""
    _multiply(rec, g.turned, dy, w, bias, dx, mirrored_steps(g))


def can_gather(g: ConvGeometry) -> bool:
    """Whether the outputs are all windows of stride 1."""
    full = tuple(i + 2 * p - d * (k - 1) for i, p, d, k in zip(g.size, g.pad, g.dilation, g.kernel, strict=True))
    return g.stride == ONE and g.out == full


def gathers(g: ConvGeometry) -> bool:
    """Whether gathering pays: few windows of the mirrored convolution contain only padding."""
    return can_gather(g) and g.pixels <= GATHER_WASTE * g.positions


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
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


def scatter(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    """dx = the gradient of the input. The work-item that owns a channel adds all contributions to it."""
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
