"""Convolution on devices whose work-groups share local memory: implicit GEMM in all three directions (conv_gpu.cl)."""
from __future__ import annotations

import math
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING

from ocaffe.ir import matrix_units
from ocaffe.ir.launch import SLOPE_ONLY, EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.dense_gpu import conv_mma, conv_patch_mma, conv_pointwise_mma
from ocaffe.kernels.convolution.geometry.conv_window import Directions as Kernels
from ocaffe.kernels.convolution.geometry.conv_window import gathered_shape, phase_taps, phases, sizes, window
from ocaffe.kernels.expression.expression import reduce
from ocaffe.kernels.matmul.families import family_of
from ocaffe.kernels.matmul.gemm_gpu import (
    MAX_REGISTERS,
    Choice,
    LastBlock,
    Tile,
    async_tiles,
    fma_tiles,
    parts_of_depth,
    sum_splits,
    tiles_for,
    work_items,
)  # fmt: skip

if TYPE_CHECKING:
    from ocaffe.ir.target import Target
    from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry

KERNELS = Kernels.of("conv_gpu", "filter", last_block=True, sums_gradients=True)
FAMILIES = {"patch": conv_patch_mma, "pointwise": conv_pointwise_mma, "mma": conv_mma}  # kernels for tiles with 16-bit operands on tensor cores
DIRECTIONS = "forward", "backward_data", "backward_filter"  # DIRECTION of conv_gpu.cl
WINDOW_STEP = 12  # maximum products per result and step, if the window leaves a choice
TENSOR_STEP = 8  # depth of one tensor-core product
FILTER_SUMS = 64  # maximum sums per work-item of backward_filter on tensor cores: more do not fit the registers
LIMITED_SUMS = 64  # work-items with this many sums get a register limit; without it they take up to 172
ROWS_96 = Tile(96, 128, 12, 8, 48, 8)  # 31 TFLOP/s for AlexNet's conv1 on an H100, and tiles of 64 rows 28; for pointwise filters it was slower
LEVEL_SUMS = 32  # maximum sums per work-item that leave registers for a second level (kernels/matmul/tile_gpu.h)
LEVEL_DEPTH = 256  # minimum products per sum for which a second level pays


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, choice: Choice) -> None:
    """y = x * w (+ bias per output), here and below by the kernels of the choice's tile."""
    if family := _family(choice.tile):
        family.forward(rec, g, x, w, bias, y, choice)
        return
    _gather(rec, g, "forward", x, w, bias, y, choice)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, choice: Choice, bias: Ref | None = None) -> None:
    """dx = the gradient of the input (+ bias per channel of dx).

    A stride divides dx into phases (conv_gpu.cl). The first phase is the largest.
    """
    if family := _family(choice.tile):
        family.backward_data(rec, g, dy, w, bias, dx, choice)
        return
    _gather(rec, g, "backward_data", dy, w, bias, dx, choice)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref, choice: Choice) -> None:
    """dw = the gradient of the filters, a product over all positions of all samples."""
    depth = g.batch * g.positions
    if family := _family(choice.tile):
        family.backward_filter(rec, g, x, dy, dw, choice)
        return
    tile = choice.tile
    part, splits = parts_of_depth(depth, choice)
    size = work_items(tile, g.group_outputs, g.depth, g.group * splits)
    last_block = _last_block(rec, tile, size, splits)
    once = splits == 1 or bool(last_block.operands)
    to = dw if once else rec.scratch("splits", (splits, dw.count))
    rec.launch(
        KERNELS.backward_filter(x=x, dy=dy, dw=to, **last_block.operands),
        args=[*sizes(g), part, once and rec.accumulates(dw)],
        size=size,
        local=(tile.items, 1, 1),
        defines={**defines(g, tile, "backward_filter"), **last_block.defines},
    )
    if not once:
        sum_splits(rec, "conv_gpu", defines(g, tile, "backward_filter"), to, None, dw)


def backward_bias(rec: Recorder, g: ConvGeometry, dy: Ref, db: Ref) -> None:
    """db[c] = sum of dy over samples and pixels."""
    channels = db.count
    planes = dy.view((g.batch, channels, dy.count // (g.batch * channels)))
    reduce(rec, "v0 = x0", reads=[planes], writes=[db], axes=(0, 2))


def _gather(rec: Recorder, g: ConvGeometry, direction: str, source: Ref, w: Ref, bias: Ref | None, target: Ref, choice: Choice) -> None:
    """Record the direct product of forward or backward_data: gather `source` at the taps of each position, and multiply by the filters."""
    back = direction == "backward_data"
    rows, columns, inner = gathered_shape(g, direction)
    part, splits = _split_channels(g.group_outputs if back else g.group_channels, g, choice)
    tile = replace(choice.tile, levels=levels(g, choice.tile, direction, choice.splits))
    size = work_items(tile, rows, columns, g.group * splits, phases(g) if back else 1)
    last_block = _last_block(rec, tile, size, splits)
    once = splits == 1 or bool(last_block.operands)
    to = target if once else rec.scratch("splits", (splits, target.count))
    kernel, operands = KERNELS.gathering(g, direction, once, source, to)
    rec.launch(
        kernel(filter=w, bias=bias if bias is not None and once else w, **operands, **last_block.operands),
        details=-(-columns // tile.columns) if once and (not back or max(g.stride) == 1) else 0,
        args=[*sizes(g), part, splits, EpilogueScalars(bias is not None and once, once and rec.accumulates(target), SLOPE_ONLY, fusable=once)],
        size=size,
        local=(tile.items, 1, 1),
        defines={**defines(g, tile, direction), **last_block.defines},
    )
    if not once:
        sum_splits(rec, "conv_gpu", defines(g, tile, direction), to, bias, target, samples=g.batch, inner=inner, mergeable=True)


def kind(tile: Tile) -> str:
    """Return the kind of kernels that a tile is for: a key of FAMILIES, or else "direct", the kernels of this file."""
    if tile.patches:
        return "patch"
    return "pointwise" if tile.stages else "mma" if tile.quads else "direct"


def _family(tile: Tile) -> ModuleType | None:
    return FAMILIES.get(kind(tile))


def window_step(g: ConvGeometry, tile: Tile) -> tuple[int, int, int]:
    """Return the channels, rows of the window and taps in a row per step of forward and backward_data.

    A step takes whole windows if they are small, because neighbouring taps of a filter are adjacent in memory. Otherwise it takes
    enough rows or channels for about 8 to 12 products. With a stride, backward_data uses only every second tap; a step then
    takes one tap of many channels.
    """
    _, rows, taps = g.kernel
    if tile.mma:
        if g.group_channels < TENSOR_STEP:
            return max(1, tile.items // tile.columns), 1, TENSOR_STEP
        return TENSOR_STEP if g.group_channels % (2 * TENSOR_STEP) else 2 * TENSOR_STEP, 1, 1
    if max(g.stride) > 1 and g.group_channels >= 8:
        rows = taps = 1
    elif taps > WINDOW_STEP:
        rows, taps = 1, 8
    elif rows * taps > WINDOW_STEP:
        rows = 1
    channels = 1
    while channels < min(8, g.group_channels) and 2 * channels * rows * taps <= WINDOW_STEP:
        channels *= 2
    lines = max(1, tile.items // tile.columns)  # of a step, that the work-items fetch together
    return -(-channels // lines) * lines, rows, taps


def tiles(target: Target, g: ConvGeometry, direction: str) -> list[Tile]:
    """Return the tiles for `direction` (the name of a function above) with the depth of their steps."""
    filter_sums = matrix_units.UNITS[target.matrix_unit].filter_sums if target.matrix_unit else FILTER_SUMS
    most = filter_sums if direction == "backward_filter" else 128
    shallow = g.group_channels < TENSOR_STEP and g.taps < TENSOR_STEP  # a step on tensor cores would be mostly zeros
    def fits(tile: Tile) -> bool:
        if not tile.mma:
            return True
        family = _family(tile)
        able = family.possible(g, direction) if family else not shallow
        return able and tile.item_rows * tile.item_columns <= most

    fitting = [tile for tile in (*tiles_for(target), *async_tiles(target)) if fits(tile)] or fma_tiles(family_of(target))  # with matrix_unit_only none may fit
    more = [ROWS_96] if target.runtime == "nvidia" and direction == "forward" and shallow_rows(g) else []
    direct = [with_step(g, tile, direction) for tile in (*fitting, *more)]
    return [*direct, *conv_patch_mma.tiles(target, g, direction)]


def shallow_rows(g: ConvGeometry) -> bool:
    """Whether a first layer has a multiple of 96 outputs that tiles of 64 rows do not divide, such as AlexNet's conv1."""
    return g.group_channels < TENSOR_STEP and g.group_outputs % ROWS_96.rows == 0 and g.group_outputs % 64 != 0


def with_step(g: ConvGeometry, tile: Tile, direction: str = "forward") -> Tile:
    """Return the tile with the depth of its steps, which follows from the window, and with the resulting waste.

    The depth of backward_filter is positions. `levels` is set for a product without splits.
    """
    if family := _family(tile):
        return family.with_step(g, tile, direction)  # type: ignore[no-any-return]
    step = window_step(g, tile)
    padded = math.prod(-(-n // part) * part for n, part in zip((g.group_channels, *g.kernel[1:]), step))
    waste = 1.0 if direction == "backward_filter" else padded * g.kernel[0] / g.depth
    return replace(tile, depth=math.prod(step), levels=levels(g, tile, direction), waste=waste)


def defines(g: ConvGeometry, tile: Tile, direction: str) -> dict[str, int | str]:
    """Return the defines: direction, window, tile, shape of a step, and whether operands are loaded as vectors (kernels/matmul/fetch_gpu.h).

    In TF32, higher occupancy is worth a few spilled registers in forward and backward_data. docs/kernel-log.md lists the exceptions.
    """
    shares = all(lines * tile.depth % (conv_mma.VECTOR * tile.items) == 0 for lines in (tile.rows, tile.columns))
    vector = g.pointwise and g.positions % conv_mma.VECTOR == 0 and g.group_channels % conv_mma.VECTOR == 0 and shares
    limited = direction != "backward_filter" and tile.mma == 1 and tile.item_rows * tile.item_columns == LIMITED_SUMS
    step = dict(zip(("STEP_CHANNELS", "STEP_ROWS", "STEP_TAPS"), window_step(g, tile)))
    limit = {"REGISTERS": MAX_REGISTERS} if limited else {}
    return {**tile.defines(), **step, **window(g), "VECTOR": int(vector), "DIRECTION": DIRECTIONS.index(direction), **limit}


def levels(g: ConvGeometry, tile: Tile, direction: str, splits: int = 1) -> int:
    """Return the levels of summation: 2 for deep sums over windows if enough registers are left, else 1.

    Sums over windows are deep, and cuDNN's algorithms for windows are more exact than its matrix products. The sums of phases
    and of parts of a depth are shorter. backward_filter adds many parts, and two levels would take 240 registers instead of 167.
    """
    few = tile.mma != 1 and tile.item_rows * tile.item_columns <= LEVEL_SUMS
    channels, taps = (g.group_outputs, phase_taps(g)) if direction == "backward_data" else (g.group_channels, g.taps)
    part, _ = _split_channels(channels, g, Choice(tile, splits))
    deep = g.taps > 1 and min(part, channels) * taps >= LEVEL_DEPTH
    return 2 if few and deep and direction != "backward_filter" else 1


def _split_channels(channels: int, g: ConvGeometry, choice: Choice) -> tuple[int, int]:
    """Return the channels per part, a multiple of those of a step, and the number of parts."""
    step = window_step(g, choice.tile)[0]
    part = -(-channels // (choice.splits * step)) * step
    return part, -(-channels // part)


def _last_block(rec: Recorder, tile: Tile, size: tuple[int, int, int], splits: int) -> LastBlock:
    """Return the last-block reduction of a launch of `size` work-items."""
    return LastBlock.of(rec, tile, splits, math.prod(size) // (tile.items * splits))
