"""Convolution on CPU runtimes (kernels/conv_cpu.cl): implicit GEMM in all three directions."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from ocaffe.graph.ir import NO_ACTIVATION, Ref
from ocaffe.graph.recorder import Recorder
from ocaffe.ops import gemm_cpu, winograd_cpu
from ocaffe.ops.convolution import ConvGeometry
from ocaffe.ops.gemm_cpu import ONE, ceil, columns, height, share_out

OUTPUTS = 64  # fewer outputs are not worth unrolling a panel of the input once more
SCATTER_ROWS = 64  # rows k of a work-item that scatters, at least
FILTER_ROWS = 152  # rows k of a work-item of backward_filter: 3 channels of 7 x 7 are 147
FILTER_LINE = 160  # positions that it sums in one go
SLICES = 1 << 20  # floats that partial filter gradients may take; two slices are always allowed
GATHER_WASTE = 1.3  # pixels per output up to which gathering is taken: it multiplies the padding around the outputs too


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    if winograd_cpu.wins(rec, g):
        winograd_cpu.forward(rec, g, x, w, bias, y)
    else:
        _multiply(rec, g, x, w, bias, y, tile(rec, g, g.group_outputs), [g.depth, g.taps, g.taps, 1, 0])


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    """Gathers (a convolution of dy with the turned filters) or scatters (the work-item that owns a channel adds up what belongs there)."""
    if not gathers(g):
        _scatter(rec, g, dy, w, dx, bias)
        return
    depth, height, width = (d * (k - 1) - p for d, k, p in zip(g.dilation, g.kernel, g.pad, strict=True))
    turned = replace(g, channels=g.num_output, num_output=g.channels, size=g.out, out=g.size, pad=(depth, height, width))
    if winograd_cpu.wins(rec, turned):
        winograd_cpu.forward(rec, turned, dy, w, bias, dx, turned=True)
        return
    _multiply(rec, turned, dy, w, bias, dx, tile(rec, g, g.group_channels), [g.taps, g.taps, g.depth, -1, g.taps - 1])


def gathers(g: ConvGeometry) -> bool:
    """Whether every window of stride 1 is there, and few of the turned ones see nothing but padding."""
    full = tuple(i + 2 * p - d * (k - 1) for i, p, d, k in zip(g.size, g.pad, g.dilation, g.kernel, strict=True))
    return g.stride == ONE and g.out == full and g.pixels <= GATHER_WASTE * g.positions


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    if winograd_cpu.wins(rec, g, filters=True):
        winograd_cpu.backward_filter(rec, g, x, dy, dw)
        return
    defines = tile(rec, g, g.group_outputs)
    lines = g.kernel[0] * g.kernel[1]  # of the window
    channels = _even(g.group_channels, max(1, defines["ROWS"] // g.taps))
    lines_each = _even(lines, defines["ROWS"] // g.kernel[2])
    blocks = ceil(g.group_channels, channels) * ceil(lines, lines_each)
    slices = min(share_out(rec, blocks * g.group, g.batch), max(2, SLICES // dw.count))
    _sliced(rec, "backward_filter", g, [x, dy], dw, defines, slices, (blocks, g.group), [*_sizes(simplify(g)), channels, lines_each])


def backward_bias(rec: Recorder, g: ConvGeometry, dy: Ref, db: Ref) -> None:
    channels, pixels = db.count, dy.count // (g.batch * db.count)
    slices = share_out(rec, channels, g.batch)
    defines = tile(rec, g, g.group_outputs)  # those of forward: no program of its own
    _sliced(rec, "backward_bias", g, [dy], db, defines, slices, (channels, 1), [g.batch, pixels])


def simplify(g: ConvGeometry) -> ConvGeometry:
    """A pointwise convolution does not care where rows end: one long row."""
    return replace(g, size=(1, 1, g.pixels), out=(1, 1, g.positions), dilation=ONE) if g.pointwise else g


def tile(rec: Recorder, g: ConvGeometry, rows: int) -> dict[str, int]:
    """The defines of conv_cpu.cl for tiles over `rows` outputs."""
    base = gemm_cpu.tile(rec.target)
    width = g.kernel[2]  # blocks hold whole lines of the window
    defines = base | {"MR": height(base, rows), "KC": max(base["KC"], width), "ROWS": max(FILTER_ROWS, width), "LINE": FILTER_LINE}
    for axis, kernel, stride, dilation in zip("DHW", g.kernel, g.stride, g.dilation if not g.pointwise else ONE, strict=True):
        defines |= {f"K{axis}": kernel, f"S{axis}": stride, f"D{axis}": dilation}
    return defines


def _multiply(
    rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, defines: dict[str, int], steps: Sequence[int]
) -> None:
    """y = filters times unrolled x; `steps`: how the kernel `pack` finds its way through w."""
    panels = ceil(g.batch * g.positions, columns(defines))
    block = _even(g.group_outputs, ceil(g.group_outputs, share_out(rec, panels * g.group, ceil(g.group_outputs, OUTPUTS))), defines["MR"])
    packed = _pack(rec, g, w, defines, g.group_outputs, g.group_outputs, g.depth, steps)
    args = [*_sizes(simplify(g)), block, bias is not None, rec.accumulates(y), *NO_ACTIVATION]
    rec.launch(
        "conv_cpu.forward",
        reads=[x, packed, bias or packed],
        writes=[y],
        args=args,
        size=(panels, ceil(g.group_outputs, block), g.group),
        local=ONE,
        defines=defines,
        epilogue=len(args) - len(NO_ACTIVATION),
    )


def _scatter(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None) -> None:
    defines = tile(rec, g, g.group_outputs)
    unit = defines["MR"] // gcd(defines["MR"], g.taps)  # channels whose rows fill tiles exactly
    most = ceil(g.group_channels, unit * ceil(SCATTER_ROWS, unit * g.taps))
    block = min(g.group_channels, _even(g.group_channels, ceil(g.group_channels, share_out(rec, g.batch * g.group, most)), unit))
    blocks = ceil(g.group_channels, block)
    samples = ceil(g.batch, share_out(rec, blocks * g.group, g.batch))
    packed = _pack(rec, g, w, defines, g.depth, block * g.taps, g.group_outputs, [1, 1, g.depth, 0, 0])
    rec.launch(
        "conv_cpu.backward_data",
        reads=[dy, packed, bias or packed],
        writes=[dx],
        args=[*_sizes(g), samples, block, bias is not None, rec.accumulates(dx)],
        size=(ceil(g.batch, samples), blocks, g.group),
        local=ONE,
        defines=defines,
    )


def _pack(
    rec: Recorder, g: ConvGeometry, w: Ref, defines: dict[str, int], total: int, rows: int, depth: int, steps: Sequence[int]
) -> Ref:
    """The filters of each group, `total` x `depth`, as panels of MR in blocks of `rows`."""
    panels = ceil(total, rows) * ceil(rows, defines["MR"])
    packed = rec.scratch("packed", (g.group, panels, depth, defines["MR"]))
    rec.launch(
        "conv_cpu.pack",
        reads=[w],
        writes=[packed],
        args=[total, rows, depth, g.group_outputs * g.depth, *steps],
        size=(ceil(depth, defines["KC"]), panels, g.group),
        local=ONE,
        defines=defines,
    )
    return packed


def _sliced(
    rec: Recorder, kernel: str, g: ConvGeometry, reads: list[Ref], to: Ref, defines: dict[str, int], slices: int, size: tuple[int, int],
    args: list[int],
) -> None:  # fmt: skip
    """A sum over the batch in up to `slices` slices, added up by a second launch where there is more than one."""
    samples = ceil(g.batch, slices)
    slices = ceil(g.batch, samples)
    accumulate = rec.accumulates(to)
    part = rec.scratch("slices", (slices, to.count)) if slices > 1 else to
    args = [*args, samples, accumulate and slices == 1]
    rec.launch(
        f"conv_cpu.{kernel}", reads=reads, writes=[part], args=args, size=(size[0], slices, size[1]), local=ONE, defines=defines
    )
    if slices > 1:
        share = _even(to.count, max(1024, ceil(to.count, share_out(rec, 1, to.count))), defines["V"])
        args = [slices, to.count, share, accumulate]
        rec.launch(
            "conv_cpu.add_slices", reads=[part], writes=[to], args=args, size=(ceil(to.count, share), 1, 1), local=ONE, defines=defines
        )


def _sizes(g: ConvGeometry) -> list[int]:
    """GEOMETRY of conv_cpu.cl."""
    return [g.batch, g.group_channels, g.group_outputs, *g.size, *g.out, *g.pad]


def _even(count: int, most: int, unit: int = 1) -> int:
    """The size of equal parts of about `most`, a multiple of `unit`."""
    return ceil(ceil(count, ceil(count, most)), unit) * unit
