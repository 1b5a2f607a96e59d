"""Convolution on devices whose work-groups share local memory: implicit GEMM in all three directions (kernels/conv_gpu.cl)."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ocaffe.graph.ir import Ref
from ocaffe.graph.recorder import Recorder
from ocaffe.ops.gemm_gpu import TILES, Choice, Tile, choose, sum_splits

if TYPE_CHECKING:
    from ocaffe.ops.convolution import ConvGeometry

WINDOW_STEP = 12  # taps of one channel that one step takes whole
SUM_ITEMS = 256  # work-items of a group in channel_sum
SUM_WORTH_SPLITTING = 1 << 16  # elements that one group of channel_sum reads in a few microseconds


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, choice: Choice | None = None) -> None:
    """y = x * w (+ bias per output). `choice` overrules the estimate of tile and splits (benchmarks, tests), here and below."""
    _gather(rec, g, "forward", x, w, bias, y, g.num_output // g.group, g.channels // g.group, math.prod(g.out), 1, choice)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, choice: Choice | None = None) -> None:
    """dx = the gradient of the input."""
    largest_phase = math.prod(-(-n // s) for n, s in zip(g.size, g.stride))
    phases = math.prod(g.stride)
    _gather(rec, g, "backward_data", dy, w, None, dx, g.channels // g.group, g.num_output // g.group, largest_phase, phases, choice)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref, choice: Choice | None = None) -> None:
    """dw = the gradient of the filters, a product over all positions of all samples."""
    rows, columns = g.num_output // g.group, g.channels // g.group * math.prod(g.kernel)
    depth = g.batch * math.prod(g.out)
    choice = choice or choose(rec.target, tiles(g), rows, columns, depth, g.group)
    tile = choice.tile
    part = -(-depth // (choice.splits * tile.depth)) * tile.depth
    splits = -(-depth // part)
    to = dw if splits == 1 else rec.scratch("splits", (splits, g.group * rows * columns))
    rec.launch(
        "conv_gpu.backward_filter",
        reads=[x, dy],
        writes=[to],
        args=[*sizes(g), part, splits == 1 and rec.accumulates(dw)],
        size=(-(-columns // tile.columns) * tile.items, -(-rows // tile.rows), g.group * splits),
        local=(tile.items, 1, 1),
        defines=defines(g, tile),
    )
    if splits > 1:
        sum_splits(rec, "conv_gpu", defines(g, tile), to, None, dw, samples=1, inner=1)


def backward_bias(rec: Recorder, g: ConvGeometry, dy: Ref, db: Ref) -> None:
    """db[c] = sum of dy over samples and positions."""
    channel_sum(rec, g, "conv_gpu", defines(g, tiles(g)[0]), dy, db)


def channel_sum(rec: Recorder, g: ConvGeometry, family: str, family_defines: dict[str, int], dy: Ref, db: Ref) -> None:
    """The bias gradient by the kernel that `family` includes; in slices of the batch when the channels alone leave the device idle."""
    plane = math.prod(g.out)
    slices = 1
    if g.batch * plane > SUM_WORTH_SPLITTING:
        slices = min(g.batch, max(1, 4 * rec.target.compute_units // g.num_output))
    part = -(-g.batch // slices)
    slices = -(-g.batch // part)
    to = db if slices == 1 else rec.scratch("slices", (slices, g.num_output))
    rec.launch(
        f"{family}.channel_sum",
        reads=[dy],
        writes=[to],
        args=[g.batch, plane, part, slices == 1 and rec.accumulates(db)],
        size=(g.num_output * SUM_ITEMS, slices),
        local=(SUM_ITEMS, 1),
        defines=family_defines,
    )
    if slices > 1:
        sum_splits(rec, family, family_defines, to, None, db, samples=1, inner=1)


def _gather(
    rec: Recorder,
    g: ConvGeometry,
    kernel: str,
    source: Ref,
    w: Ref,
    bias: Ref | None,
    target: Ref,
    rows: int,
    channels: int,
    positions: int,
    phases: int,
    choice: Choice | None,
) -> None:
    """forward and backward_data: `rows` channels of the target, a group, from `channels` of the source."""
    columns = g.batch * positions
    taps = math.prod(g.kernel)
    choice = choice or choose(rec.target, tiles(g), rows, columns, -(-channels * taps // phases), g.group * phases)
    tile = choice.tile
    step = window_step(g, tile)[0]
    part = -(-channels // (choice.splits * step)) * step
    splits = -(-channels // part)
    last = splits == 1
    to = target if last else rec.scratch("splits", (splits, target.count))
    rec.launch(
        f"conv_gpu.{kernel}",
        reads=[source, w, bias if bias is not None and last else w],
        writes=[to],
        args=[*sizes(g), part, splits, bias is not None and last, last and rec.accumulates(target), 1.0],
        size=(-(-columns // tile.columns) * tile.items, -(-rows // tile.rows), g.group * phases * splits),
        local=(tile.items, 1, 1),
        defines=defines(g, tile),
        slope_arg=14 if last else None,
    )
    if not last:
        inner = target.count // (g.batch * rows * g.group)
        sum_splits(rec, "conv_gpu", defines(g, tile), to, bias, target, samples=g.batch, inner=inner)


def sizes(g: ConvGeometry) -> list[int]:
    """The macro SIZES of the kernels."""
    return [g.batch, g.group, g.channels // g.group, g.num_output // g.group, *g.size, *g.out]


def window_step(g: ConvGeometry, tile: Tile) -> tuple[int, int, int]:
    """Channels, rows of the window and taps in a row that one step takes: about 8 to 12 products of a result, and whole windows where
    they are small, since neighbouring taps of a filter are neighbours in memory. With a stride, backward_data can use only every second
    tap: there a step takes one tap and many channels."""
    apart = tile.items // tile.columns
    channels = g.channels // g.group
    _, rows, taps = g.kernel
    if max(g.stride) > 1 and channels >= 8:
        rows = taps = 1
    elif taps > WINDOW_STEP:
        rows, taps = 1, 8
    elif rows * taps > WINDOW_STEP:
        rows = 1
    at_once = 1
    while at_once < 8 and at_once < channels and 2 * at_once * rows * taps <= WINDOW_STEP:
        at_once *= 2
    return max(at_once, apart), rows, taps


def tiles(g: ConvGeometry) -> list[Tile]:
    """The tiles of gemm_gpu with the depth that the window gives."""
    return [with_depth(g, tile) for tile in TILES]


def with_depth(g: ConvGeometry, tile: Tile) -> Tile:
    from dataclasses import replace

    return replace(tile, depth=math.prod(window_step(g, tile)))


def defines(g: ConvGeometry, tile: Tile) -> dict[str, int]:
    """What makes a program: the window, the tile, the shape of a step."""
    result = dict(zip(("STEP_CHANNELS", "STEP_ROWS", "STEP_TAPS"), window_step(g, tile)))
    for axis, kernel, stride, pad, dilation in zip("DHW", g.kernel, g.stride, g.pad, g.dilation):
        result |= {f"KERNEL_{axis}": kernel, f"STRIDE_{axis}": stride, f"PAD_{axis}": pad, f"DILATION_{axis}": dilation}
        result[f"PHASE_STEP_{axis}"] = stride // math.gcd(stride, dilation)
    return {**tile.defines(), **result}
