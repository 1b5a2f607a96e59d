"""Convolution on CPU runtimes (kernels/conv_cpu.cl): implicit GEMM in all three directions."""
from __future__ import annotations

from dataclasses import replace
from math import gcd

from ocaffe.graph.ir import Ref
from ocaffe.graph.recorder import Recorder
from ocaffe.ops import gemm_cpu
from ocaffe.ops.convolution import ConvGeometry

ITEMS_PER_CORE = gemm_cpu.ITEMS_PER_CORE
SLICE_FLOATS = 1 << 20  # partial filter gradients may take 4 MB, or twice the gradient
ROWS = 128  # rows of unrolled input that one work-item of backward_filter holds
ONE = (1, 1, 1)


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    _forward(rec, simplify(g), x, w, bias, y, tile(rec, g, g.group_outputs), rows=g.depth, outer=g.taps, inner=1, first=0)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref) -> None:
    if gathers(g):
        pad = (d * (k - 1) - p for d, k, p in zip(g.dilation, g.kernel, g.pad))
        turned = replace(g, channels=g.num_output, num_output=g.channels, size=g.out, out=g.size, pad=tuple(pad))
        defines = tile(rec, g, g.group_channels)
        _forward(rec, simplify(turned), dy, w, None, dx, defines, rows=g.taps, outer=g.depth, inner=-1, first=g.taps - 1)
    else:
        _scatter(rec, g, dy, w, dx)


def gathers(g: ConvGeometry) -> bool:
    """Whether dx is best made as the convolution of dy with the turned filters: stride 1, and few windows that see nothing but padding."""
    full = tuple(i + 2 * p - d * (k - 1) for i, p, d, k in zip(g.size, g.pad, g.dilation, g.kernel))
    return g.stride == ONE and g.out == full and g.pixels <= 1.3 * g.positions


def _forward(
    rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, defines: dict[str, int], rows: int, outer: int, inner: int, first: int
) -> None:
    height = defines["MR"]
    panels = ceil(g.batch * g.positions, columns(defines))
    shares = share_out(rec, panels * g.group, ceil(g.group_outputs, 64))
    block = ceil(g.group_outputs, shares * height) * height
    packed = _pack(rec, g, w, defines, g.group_outputs, g.group_outputs, g.depth, [rows, g.taps, outer, inner, first])
    accumulate = rec.accumulates(y)
    args = [*geometry(g), block, bias is not None, accumulate, 1.0]
    rec.launch(
        "conv_cpu.forward", reads=[x, packed, bias or packed], writes=[y], args=args, size=(panels, ceil(g.group_outputs, block), g.group),
        local=ONE, defines=defines, slope_arg=None if accumulate else len(args) - 1,
    )  # fmt: skip


def _scatter(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref) -> None:
    defines = tile(rec, g, g.group_outputs)
    height = defines["MR"]
    unit = height // gcd(height, g.taps)  # channels whose rows fill tiles exactly
    blocks = share_out(rec, g.batch * g.group, ceil(g.group_channels, unit * ceil(64, unit * g.taps)))
    block = min(ceil(g.group_channels, blocks * unit) * unit, g.group_channels)
    blocks = ceil(g.group_channels, block)
    shares = share_out(rec, blocks * g.group, g.batch)
    share = ceil(g.batch, shares)
    packed = _pack(rec, g, w, defines, g.depth, block * g.taps, g.group_outputs, [1, 1, g.depth, 0, 0])
    rec.launch(
        "conv_cpu.backward_data", reads=[dy, packed], writes=[dx], args=[*geometry(g), share, block, rec.accumulates(dx)],
        size=(ceil(g.batch, share), blocks, g.group), local=ONE, defines=defines,
    )  # fmt: skip


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    g = simplify(g)
    defines = tile(rec, g, g.group_outputs)
    lines = g.kernel[0] * g.kernel[1]  # of the window
    cb, lb = even(g.group_channels, max(1, defines["ROWS"] // g.taps)), even(lines, defines["ROWS"] // g.kernel[2])
    blocks = ceil(g.group_channels, cb) * ceil(lines, lb)
    room = max(2, SLICE_FLOATS // dw.count)
    shares = min(share_out(rec, blocks * g.group, g.batch), room)
    share = ceil(g.batch, shares)
    shares = ceil(g.batch, share)
    accumulate = rec.accumulates(dw)
    to = rec.scratch("slices", (shares, dw.count)) if shares > 1 else dw
    rec.launch(
        "conv_cpu.backward_filter", reads=[x, dy], writes=[to], args=[*geometry(g), cb, lb, share, accumulate and shares == 1],
        size=(blocks, shares, g.group), local=ONE, defines=defines,
    )  # fmt: skip
    if shares > 1:
        _add_slices(rec, to, dw, defines, accumulate)


def backward_bias(rec: Recorder, g: ConvGeometry, dy: Ref, db: Ref) -> None:
    defines = tile(rec, g, g.group_outputs)
    share = ceil(g.batch, share_out(rec, g.num_output, g.batch))
    shares = ceil(g.batch, share)
    accumulate = rec.accumulates(db)
    to = rec.scratch("slices", (shares, db.count)) if shares > 1 else db
    args = [g.batch, g.positions, share, accumulate and shares == 1]
    rec.launch("conv_cpu.backward_bias", reads=[dy], writes=[to], args=args, size=(g.num_output, shares, 1), local=ONE, defines=defines)
    if shares > 1:
        _add_slices(rec, to, db, defines, accumulate)


def simplify(g: ConvGeometry) -> ConvGeometry:
    """A pointwise convolution does not care where rows end: one long row."""
    if g.pointwise:
        return replace(g, size=(1, 1, g.pixels), out=(1, 1, g.positions), dilation=ONE)
    return g


def tile(rec: Recorder, g: ConvGeometry, rows: int) -> dict[str, int]:
    """The defines of conv_cpu.cl: window and register tile, whose height should divide `rows`."""
    base = gemm_cpu.tile(rec.target)
    defines = {"V": base["V"], "NV": base["NV"], "KC": max(base["KC"], g.kernel[2]), "ROWS": max(ROWS, g.kernel[2]), "LINE": 128}
    defines["MR"] = min((base["MR"], *(10, 12)[: 2 if base["V"] == 16 else 0]), key=lambda height: ceil(rows, height) * height)
    for axis, kernel, stride, dilation in zip("DHW", g.kernel, g.stride, g.dilation):
        defines |= {f"K{axis}": kernel, f"S{axis}": stride, f"D{axis}": dilation}
    return defines


def geometry(g: ConvGeometry) -> list[int]:
    """GEOMETRY of conv_cpu.cl."""
    return [g.batch, g.group_channels, g.group_outputs, *g.size, *g.out, *g.pad]


def columns(defines: dict[str, int]) -> int:
    return defines["NV"] * defines["V"]


def ceil(a: int, b: int) -> int:
    return -(-a // b)


def even(count: int, most: int) -> int:
    """The size of equal parts of at most `most`."""
    return ceil(count, ceil(count, most))


def share_out(rec: Recorder, items: int, most: int) -> int:
    """How many parts each of `items` pieces of work is cut into, at most `most`, so that all cores get enough."""
    return max(1, min(most, ceil(ITEMS_PER_CORE * rec.target.compute_units, items)))


def _pack(rec: Recorder, g: ConvGeometry, w: Ref, defines: dict[str, int], total: int, rows: int, depth: int, steps: list[int]) -> Ref:
    """The filters of each group, `total` x `depth`, as panels in blocks of `rows` rows; `steps`: see the kernel."""
    tiles = ceil(total, rows) * ceil(rows, defines["MR"])
    packed = rec.scratch("packed", (g.group, tiles, depth, defines["MR"]))
    args = [total, rows, depth, g.group_outputs * g.depth, *steps]
    rec.launch("conv_cpu.pack", reads=[w], writes=[packed], args=args, size=(ceil(depth, defines["KC"]), tiles, g.group), local=ONE, defines=defines)
    return packed


def _add_slices(rec: Recorder, part: Ref, total: Ref, defines: dict[str, int], accumulate: bool) -> None:
    share = max(256, ceil(total.count, ITEMS_PER_CORE * rec.target.compute_units))
    share = ceil(share, 16) * 16
    args = [part.shape[0], total.count, share, accumulate]
    rec.launch("conv_cpu.add_slices", reads=[part], writes=[total], args=args, size=(ceil(total.count, share), 1, 1), local=ONE, defines=defines)
