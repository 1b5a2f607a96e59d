"""Convolution on channels in blocks of 8, in bfloat16 by Hopper's wgmma (kernels/conv_blocks.cl).

Its launches require images in blocks (`Launch.blocks`); ocaffe/passes/blocks.py provides them.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ocaffe.ir.launch import RELU_MASK, SLOPE_ONLY, EpilogueScalars, ReductionSlot
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BLOCK, Ref
from ocaffe.ops.gemm_gpu import PACK_ITEMS

if TYPE_CHECKING:
    from ocaffe.ir.target import Target
    from ocaffe.ops.conv_geometry import ConvGeometry

PIXELS_OF_UNIT = 8  # of results in TEST, at least. For fewer the kernels have too few groups; mma.sync splits the depth of its products
MAX_TAPS = 32  # a work-group of sum_parts has MIN_PAIRS work-items for each
MIN_PAIRS = 32
MAX_SUMS = 3 * 128  # of backward_filter: for all columns and the taps of a group, in registers
ITEMS = 12 * 32  # work-items of a group (NT_ITEMS)
ROWS = 64  # pixels of one product
RESERVED = 256 + 128 * 9 * 4  # bytes: the barriers, and sums of the warps for a fused channel reduction
MAX_BUFFERS = 4
MAX_DEPTH = 64  # of a step of forward and backward_data
PATCH_GRAIN = 64  # virtual pixels: patches of similar images have one size, and so one program
FILTER_OUTPUTS = 128  # rows of backward_filter, at most
STEP, MAX_STEPS = 64, 6  # virtual pixels of a step of backward_filter, and its buffers at most
SUM_ITEMS = 256
# An estimate of a unit: products, bytes from local memory and copied bytes in a cycle (of an H100 and its L2 cache), cycles of a step, and of the results of
# 128 pixels with 128 outputs; of a group of backward_filter, without its steps; and of a sum of one split
PRODUCTS, READ, COPIED, STEP_CYCLES, TILE_CYCLES = 2048, 128, 24, 40, 800
GROUP_CYCLES, PART_CYCLES = 6000, 0.004


class Tile(NamedTuple):
    """The work of a group of forward and backward_data: 2 * ROWS * `products` virtual pixels, `outputs` of them, and the depth of a step."""

    products: int
    outputs: int
    depth: int

    @property
    def pixels(self) -> int:
        return 2 * ROWS * self.products


# Records the launch that packs filters for forward and backward_data: (recorder, filters, result, tile, work-items).
Pack = Callable[[Recorder, Ref, Ref, Tile, int], None]


def possible(target: Target, g: ConvGeometry, direction: str) -> bool:
    """Whether the kernel of `direction` computes the geometry on this device."""
    if not target.wgmma or g.group > 1 or g.taps > MAX_TAPS:
        return False
    flat = g.size[0] == g.out[0] == g.kernel[0] == g.stride[0] == max(g.dilation) == 1
    blocked = g.group_channels % BLOCK == g.group_outputs % BLOCK == 0
    return flat and blocked and _has_window(g) and _tile(target, g, direction) is not None


def pays(rec: Recorder, g: ConvGeometry) -> bool:
    """Whether forward is worth it: in TEST there must be enough pixels. On an H100 these are 22 images of 7 x 7."""
    return rec.train or g.batch * g.positions >= PIXELS_OF_UNIT * rec.target.compute_units


def _has_window(g: ConvGeometry) -> bool:
    """Whether the kernels have the window, its padding and its stride, and the images no pixels beyond."""
    axes = zip(g.kernel[1:], g.pad[1:], g.size[1:], g.out[1:])
    if g.stride[1:] == (1, 1):
        return all(pad < kernel and out == size + 2 * pad - kernel + 1 for kernel, pad, size, out in axes)
    return g.stride[1:] == (2, 2) and all(kernel == 3 and pad == 1 and out == -(-size // 2) for kernel, pad, size, out in axes)


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, pack: Pack | None = None) -> None:
    """y = x * w (+ bias per output). `pack`: packs filters of another shape than g's."""
    _gather(rec, g, "forward", x, w, bias, y, pack or partial(_pack, g=g, back=False))


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, bias: Ref | None, dx: Ref) -> None:
    _gather(rec, g, "backward_data", dy, w, bias, dx, partial(_pack, g=g, back=True))


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    parts, count = filter_parts(rec, g, x, dy), g.group_outputs * g.group_channels
    defines = _filter_defines(rec.target, g)
    pairs = defines["PAIRS"]
    rec.launch(
        "conv_blocks.sum_parts",
        reads=[parts],
        writes=[dw],
        args=[parts.shape[0], count, rec.accumulates(dw)],
        size=(-(-count // pairs) * pairs * g.taps,),
        local=(pairs * g.taps,),
        defines=defines,
    )


def filter_parts(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref) -> Ref:
    """Record the first launch of backward_filter, and return the parts: splits, taps x outputs x channels."""
    columns, outputs = _filter_columns(rec.target, g), _filter_outputs(g)
    steps = -(-_virtual(g) // STEP)
    each = -(-steps // _filter_splits(rec.target, g))
    splits = -(-steps // each)
    parts = rec.scratch("parts", (splits * FILTER_OUTPUTS // outputs, math.prod(g.weight_shape)))
    rec.launch(
        "conv_blocks.backward_filter",
        reads=[x, dy],
        writes=[parts],
        args=[*_sizes(g), each],
        bf16_operands=("SOURCE", "GIVEN"),
        blocks=True,
        size=(-(-g.group_channels // columns) * ITEMS, -(-g.group_outputs // outputs) * (g.kernel[1] // _tap_rows(g, columns)), splits),
        local=(ITEMS, 1, 1),
        defines=_filter_defines(rec.target, g),
    )
    return parts


def _filter_defines(target: Target, g: ConvGeometry) -> dict[str, int]:
    columns = _filter_columns(target, g)
    buffers = min(MAX_STEPS, (target.static_local_memory - RESERVED) // _step_bytes(g, columns))
    pairs = max(MIN_PAIRS, SUM_ITEMS // g.taps // MIN_PAIRS * MIN_PAIRS)
    work = {"NT": columns, "TAP_ROWS": _tap_rows(g, columns), "STEP": STEP, "STEPS": buffers, "HALVES": FILTER_OUTPUTS // _filter_outputs(g), "PAIRS": pairs}
    return {**_window(target, g), "DIRECTION": 2, **work}


def _gather(rec: Recorder, g: ConvGeometry, direction: str, source: Ref, w: Ref, bias: Ref | None, target: Ref, pack: Pack) -> None:
    back = direction == "backward_data"
    tile = _tile(rec.target, g, direction)
    assert tile is not None, "possible() would not have allowed it"
    rows, depth = _rows_and_depth(g, back)
    patch = _patch(g, tile.pixels)
    taps = _taps_of_step(g, tile.depth)
    patches, filters = _buffers(rec.target, patch * tile.depth * 2, taps * tile.depth * tile.outputs * 2)
    work = {"NT": tile.outputs, "MB": tile.products, "CB": tile.depth, "STEP_TAPS": taps, "PATCH": patch, "PATCHES": patches, "FILTERS": filters}
    defines = {**_window(rec.target, g), "DIRECTION": int(back), **work}
    tiles = -(-rows // tile.outputs)
    count = tiles * tile.outputs * padded(depth) // BLOCK
    packed = rec.scratch("packed", (count * g.taps * BLOCK // 2,))
    pack(rec, w, packed, tile, count)
    columns = -(-_virtual(g) // tile.pixels)
    phases = _phases(g) if back else 1
    all_tiles = phases * columns * tiles
    reduction = ReductionSlot(columns, gradients=False) if phases == 1 else None
    rec.launch(
        f"conv_blocks.{direction}",
        reads=[source, packed, reduction, RELU_MASK if back else None, bias if bias is not None else packed],
        writes=[target],
        args=[*_sizes(g), tiles, columns, all_tiles, EpilogueScalars(bias is not None, rec.accumulates(target), SLOPE_ONLY)],
        bf16_operands=("SOURCE", "", "", "RESULT"),
        blocks=True,
        size=(min(all_tiles, rec.target.compute_units) * ITEMS,),
        local=(ITEMS,),
        defines=defines,
    )


def _pack(rec: Recorder, w: Ref, packed: Ref, tile: Tile, count: int, *, g: ConvGeometry, back: bool) -> None:
    order = [*_rows_and_depth(g, back), g.taps, g.stride[1], back, tile.outputs, tile.depth]
    rec.launch("conv_blocks_pack.pack", reads=[w], writes=[packed], args=[*order, count, count], size=(count,), local=(PACK_ITEMS,))


def _rows_and_depth(g: ConvGeometry, back: bool) -> tuple[int, int]:
    """Return the channels of the result, and those that a sum is over."""
    return (g.group_channels, g.group_outputs) if back else (g.group_outputs, g.group_channels)


def _tile(target: Target, g: ConvGeometry, direction: str) -> Tile | None:
    """Return the tile that keeps the compute units busiest, or None if no patch fits local memory."""
    if direction == "backward_filter":
        return Tile(1, FILTER_OUTPUTS, STEP) if _filter_columns(target, g) else None
    back = direction == "backward_data"
    rows, depth = _rows_and_depth(g, back)
    widths = (128, 64, 32) if rows > 32 else (32,)
    tiles = [Tile(products, outputs, step) for products in (2, 1) for outputs in widths for step in (64, 32, 16) if padded(depth) % step == 0]

    def cycles(tile: Tile) -> float:
        """Return the cycles of the busiest unit. A tap of a step takes as long as its products or its copies, whichever takes longer."""
        groups = -(-_virtual(g) // tile.pixels) * -(-rows // tile.outputs) * (_phases(g) if back else 1)
        taps = _taps_of_step(g, tile.depth)
        copied = 2 * tile.depth * (tile.outputs + (1 if back else _phases(g)) * _patch(g, tile.pixels) / g.taps)
        product = max(ROWS * tile.outputs * 16 / PRODUCTS, 32 * (ROWS + tile.outputs) / READ)  # of ROWS pixels and 16 of the depth
        step = max(2 * tile.products * tile.depth / 16 * product, copied / COPIED) + STEP_CYCLES / taps
        steps = padded(depth) // tile.depth * g.taps / (_phases(g) if back else 1)
        return -(-groups // target.compute_units) * (steps * step + TILE_CYCLES * tile.products * tile.outputs / 128)

    fitting = [tile for tile in tiles if _fits(target, _patch(g, tile.pixels) * tile.depth * 2, _taps_of_step(g, tile.depth) * tile.depth * tile.outputs * 2)]
    return min(fitting, key=cycles, default=None)


def _taps_of_step(g: ConvGeometry, depth: int) -> int:
    """Return the taps of a step of forward and backward_data, several if it has a small depth. With a stride the phases have too few."""
    return next(taps for taps in (8, 4, 3, 2, 1) if g.taps % taps == 0 and taps * depth <= MAX_DEPTH) if g.stride[1] == 1 else 1


def padded(depth: int) -> int:
    """Return the depth of the products, whose instructions have a depth of 16."""
    return -(-depth // 16) * 16


def _fits(target: Target, patch: int, step: int) -> bool:
    """Whether two buffers of each kind fit local memory. Both sizes are bytes."""
    return 2 * (patch + step) <= target.static_local_memory - RESERVED


def _buffers(target: Target, patch: int, step: int) -> tuple[int, int]:
    """Return the numbers of buffers for patches and for steps that fit local memory. Both sizes are bytes."""
    room = target.static_local_memory - RESERVED
    steps = min(MAX_BUFFERS, (room - 2 * patch) // step)
    return min(MAX_BUFFERS, (room - steps * step) // patch), steps


def _filter_columns(target: Target, g: ConvGeometry) -> int:
    """Return the channels of a group of backward_filter, whose sums must fit the registers, and two of its steps local memory; 0: none."""
    widths = [columns for columns in (128, 64, 32, 16) if columns * g.kernel[2] <= MAX_SUMS and columns <= max(16, g.group_channels)]
    return next((columns for columns in widths if 2 * _step_bytes(g, columns) <= target.static_local_memory - RESERVED), 0)


def _step_bytes(g: ConvGeometry, columns: int) -> int:
    """Return the bytes of a step of backward_filter: pixels of dy, and for each row of taps or for even and odd columns those of x, with their reach."""
    images = g.stride[2] * _tap_rows(g, columns)
    return 2 * (STEP * _filter_outputs(g) + images * (STEP + -(-(g.kernel[2] - 1) // 8) * 8) * columns)


def _tap_rows(g: ConvGeometry, columns: int) -> int:
    """Return the rows of the window whose taps a group of backward_filter has: all of them, which read dy once, if the sums fit the registers."""
    return g.kernel[1] if g.stride[1] == 1 and columns * g.taps <= MAX_SUMS else 1


def _filter_splits(target: Target, g: ConvGeometry) -> int:
    """Return the number of splits of the pixels of backward_filter. A group takes a whole compute unit, and one unit computes several one after the other."""
    columns, outputs = _filter_columns(target, g), _filter_outputs(g)
    rows = _tap_rows(g, columns)
    tiles = -(-g.group_channels // columns) * -(-g.group_outputs // outputs) * (g.kernel[1] // rows)
    steps = -(-_virtual(g) // STEP)
    step = max(STEP * outputs * columns * rows * g.kernel[2] / PRODUCTS, _step_bytes(g, columns) / COPIED)

    def cycles(splits: int) -> float:
        return -(-tiles * splits // target.compute_units) * (-(-steps // splits) * step + GROUP_CYCLES) + splits * PART_CYCLES * math.prod(g.weight_shape)

    return min(range(1, min(steps, target.compute_units) + 1), key=cycles)


def _filter_outputs(g: ConvGeometry) -> int:
    """Return the outputs of a group of backward_filter. Of at most ROWS outputs, both groups of warps compute the same ones, from other pixels."""
    return FILTER_OUTPUTS if g.group_outputs > ROWS else ROWS


def _phases(g: ConvGeometry) -> int:
    """Return the images into which a stride divides x."""
    return g.stride[1] * g.stride[2]


def _virtual(g: ConvGeometry) -> int:
    """Return the virtual pixels of a batch (kernels/tile_wgmma.h)."""
    return g.batch * _rows(g, 1) * _rows(g, 2)


def _rows(g: ConvGeometry, axis: int) -> int:
    """Return the rows of virtual pixels of an image, or for axis 2 their pitch."""
    return -(-g.size[axis] // g.stride[axis]) + g.pad[axis]


def _patch(g: ConvGeometry, pixels: int) -> int:
    """Return the virtual pixels of a patch: `pixels` and those that their windows reach, with a stride only on one side."""
    above, beside = (count - 1 if g.stride[1] == 1 else 1 for count in g.kernel[1:])
    return -(-(pixels + above * _rows(g, 2) + beside) // PATCH_GRAIN) * PATCH_GRAIN


def _window(target: Target, g: ConvGeometry) -> dict[str, int]:
    """Return the defines of the window, and whether the instructions are Hopper's or emulated."""
    window = {"KERNEL_H": g.kernel[1], "KERNEL_W": g.kernel[2], "PAD_H": g.pad[1], "PAD_W": g.pad[2], "STRIDE": g.stride[1]}
    return {**window, **({"WGMMA": 1} if target.runtime == "nvidia" else {})}


def _sizes(g: ConvGeometry) -> list[int]:
    """Return the arguments of the macro SIZES."""
    return [g.batch, g.group_channels, g.group_outputs, *g.size[1:], *g.out[1:]]
