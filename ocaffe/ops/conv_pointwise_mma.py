"""Convolution with windows of one pixel in bfloat16 on NVIDIA's tensor cores, operands copied to local memory as they stand (kernels/conv_pointwise_mma.cl)."""
from __future__ import annotations

from dataclasses import replace

from ocaffe.ir.launch import RELU_MASK, SLOPE_ONLY, EpilogueScalars, ReductionSlot
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.ops.conv_geometry import ConvGeometry
from ocaffe.ops.conv_window import gates, sizes, window
from ocaffe.ops.gemm_gpu import MOST_REGISTERS, PACK_ITEMS, Choice, Tile, parts_of_depth, sum_splits, work_items

CHUNK = 8  # elements (kernels/tile_async.h)
LEAST_COPY = 4  # elements: 8 bytes
LIMITED_SUMS = 64  # of work-items whose registers are limited: they would take up to 164, and nothing is spilled


def possible(g: ConvGeometry, direction: str) -> bool:
    """Whether the kernel of `direction` can do the geometry: filters and planes are whole copies."""
    whole = g.positions % LEAST_COPY == 0 and g.batch * g.positions >= CHUNK
    return g.pointwise and whole and (direction == "backward_filter" or g.group_channels % CHUNK == 0)


def with_step(g: ConvGeometry, tile: Tile, direction: str) -> Tile:
    """The tile with what its steps waste."""
    depth = {"forward": g.group_channels, "backward_data": g.group_outputs, "backward_filter": g.batch * g.positions}[direction]
    return replace(tile, waste=-(-depth // tile.depth) * tile.depth / depth)


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, choice: Choice) -> None:
    _gather(rec, g, "forward", x, w, bias, y, choice, g.group_outputs, g.group_channels)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, bias: Ref | None, dx: Ref, choice: Choice) -> None:
    _gather(rec, g, "backward_data", dy, w, bias, dx, choice, g.group_channels, g.group_outputs)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref, choice: Choice) -> None:
    tile = choice.tile
    part, splits = parts_of_depth(g.batch * g.positions, choice)
    once = splits == 1
    to = dw if once else rec.scratch("splits", (splits, dw.count))
    defines = _defines(g, tile, 2, left_across=False, right_across=False)
    rec.launch(
        "conv_pointwise_mma.backward_filter",
        reads=[x, dy],
        writes=[to],
        args=[*sizes(g), part, once and rec.accumulates(dw)],
        bf16_operands=("SOURCE", "GIVEN"),
        size=work_items(tile, g.group_outputs, g.group_channels, g.group * splits),
        local=(tile.items, 1, 1),
        defines=defines,
    )
    if not once:
        sum_splits(rec, "conv_pointwise_mma", defines, to, None, dw)


def _gather(
    rec: Recorder, g: ConvGeometry, direction: str, source: Ref, w: Ref, bias: Ref | None, target: Ref, choice: Choice, rows: int, depth: int
) -> None:
    """forward and backward_data."""
    tile, back, columns = choice.tile, direction == "backward_data", g.batch * g.positions
    part, splits = parts_of_depth(depth, choice)
    defines = _defines(g, tile, int(back), left_across=back, right_across=True)
    packed = rec.scratch("packed", (w.count // 2,))
    chunks = w.count // CHUNK
    rec.launch("conv_pointwise_mma.pack", reads=[w], writes=[packed], args=[chunks], size=(chunks,), local=(PACK_ITEMS,), defines=defines)
    once = splits == 1
    to = target if once else rec.scratch("splits", (splits, target.count))
    rec.launch(
        f"conv_pointwise_mma.{direction}",
        reads=[
            source, packed, ReductionSlot(-(-columns // tile.columns), gradients=False) if once else None,
            RELU_MASK if once and back and gates(g) else None, bias if bias is not None and once else packed,
        ],
        writes=[to],
        args=[*sizes(g), part, splits, EpilogueScalars(bias is not None and once, once and rec.accumulates(target), SLOPE_ONLY, fusable=once)],
        bf16_operands=("SOURCE", "", "", "RESULT" if once else ""),
        size=work_items(tile, rows, columns, g.group * splits),
        local=(tile.items, 1, 1),
        defines=defines,
    )
    if not once:
        sum_splits(rec, "conv_pointwise_mma", defines, to, bias, target, samples=g.batch, inner=g.positions, mergeable=True)


def _defines(g: ConvGeometry, tile: Tile, direction: int, *, left_across: bool, right_across: bool) -> dict[str, int]:
    wide = CHUNK if g.positions % CHUNK == 0 else LEAST_COPY
    limit = {"REGISTERS": MOST_REGISTERS} if direction < 2 and tile.item_rows * tile.item_columns == LIMITED_SUMS else {}
    layout = {"A_ACROSS": int(left_across), "B_ACROSS": int(right_across), "WIDE": wide}
    return {**tile.defines(), **window(g), **layout, **limit, "DIRECTION": direction}
