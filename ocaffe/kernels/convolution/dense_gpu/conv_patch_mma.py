"""Convolution with windows of several pixels in bfloat16 on NVIDIA's tensor cores (conv_patch_mma.cl).

The products of all taps read one patch of the image.
"""
from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ocaffe.ir.kernel import Can, Kernel, read, write
from ocaffe.ir.launch import SLOPE_ONLY, EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.geometry.conv_window import Directions, sizes, window
from ocaffe.kernels.matmul.gemm_gpu import BFLOAT16, MAX_REGISTERS, PACK_ITEMS, Choice, Tile, sum_splits

PACK = Kernel("conv_patch_mma.pack", read("filter"), write("packed"), can=Can(helper=True))
KERNELS = Directions.of("conv_patch_mma", "packed", sums_gradients=True)

if TYPE_CHECKING:
    from ocaffe.ir.target import Target
    from ocaffe.kernels.convolution.geometry.conv_geometry import Axes, ConvGeometry

# Tiles of forward and backward_data: columns are pixels, the depth is the channels of a block.
PATCH_TILES = tuple(
    Tile(rows, columns, m, n, warp, depth, BFLOAT16, stages=stages, patches=True)
    for rows, columns, m, n, warp, depth, stages in (
        (128, 128, 8, 8, 64, 32, 3),
        (128, 128, 8, 16, 64, 32, 3),
        (128, 128, 8, 8, 64, 16, 3),
        (128, 128, 8, 16, 64, 16, 3),
        (128, 256, 8, 16, 64, 16, 2),
        (64, 256, 4, 16, 32, 16, 3),
        (64, 256, 8, 16, 64, 16, 3),
        (64, 128, 4, 16, 32, 32, 3),
        (64, 64, 4, 8, 32, 32, 3),
    )
)
# Tiles of backward_filter: columns are channels, which `with_step` multiplies by the taps; the depth is pixels. First layers have few channels.
FILTER_TILES = tuple(
    Tile(rows, channels, m, 2, warp, 64, BFLOAT16, stages=3, patches=True)
    for rows, channels, m, warp in ((64, 32, 4, 32), (64, 32, 8, 64), (32, 32, 4, 32), (64, 8, 4, 32))
)
CHUNK = 8  # elements (kernels/matmul/tile_async.h)
PART = 32  # pixels that backward_filter loads at a time
COPIES = (8, 4, 2)  # elements per copy of dy
# The time of backward_filter by the elements of dy that it fetches together (WIDE), relative to copies of 8. Single ones go through registers.
# Fitted to an H100: 227, 206 and 167 TFLOP/s with 64 to 256 channels and 300, 150 and 75 columns.
FETCH_COST = {8: 1.0, 4: 1.0, 2: 1.1, 1: 1.36}
STORE = 4  # neighbouring pixels of a result that are stored together
MAX_FILTER_TAPS = 9  # maximum taps in backward_filter, where a work-item keeps 8 sums per tap
MIN_DEPTH = 8  # minimum outputs that justify a block in backward_data
MAX_WASTE = 1.31  # maximum computed results per real result: 64 pixels for 49
LOCAL_MEMORY = 48 << 10  # bytes
MAX_SIDE = 511  # pixels of a patch (place_piece in the kernel)
LIMITED_SUMS = 72  # work-items with at most this many sums get a register limit; without it they take up to 185. The registers of stores are spilled
FEW_ITEMS, MAX_OF_FEW = 64, 168  # in groups this small each work-item loads more, so 128 registers would spill; six groups run per unit
SECTOR, SECTOR_COST = 16, 6  # elements per memory transaction, and its cost in pixels


class Rectangle(NamedTuple):
    """The pixels of one sample that are the columns of a work-group: TILE_H, TILE_W."""

    height: int
    width: int


def tiles(target: Target, g: ConvGeometry, direction: str) -> list[Tile]:
    """Return the tile sizes for `direction` that leave little of each tile unused."""
    if target.math != "bf16" or not target.tensor_cores or not possible(g, direction):
        return []
    kinds = tuple(tile for tile in FILTER_TILES if _fits(tile, g)) if direction == "backward_filter" else PATCH_TILES
    return [with_step(g, tile, direction) for tile in kinds if (pixels := _pixel_waste(g, tile, direction)) and pixels <= MAX_WASTE]


def possible(g: ConvGeometry, direction: str) -> bool:
    """Whether the kernel of `direction` supports the geometry."""
    plain = g.size[0] == g.out[0] == g.kernel[0] == 1 and max(g.stride) == max(g.dilation) == 1
    if not plain or g.taps == 1 or any(pad >= kernel for pad, kernel in zip(g.pad, g.kernel)):
        return False
    if direction == "backward_filter":
        return g.taps <= MAX_FILTER_TAPS
    return direction == "forward" or g.group_outputs >= MIN_DEPTH


def with_step(g: ConvGeometry, tile: Tile, direction: str) -> Tile:
    """Return the tile with its waste: pixels outside the image, padded channels of the last block, and slow fetches."""
    waste = _pixel_waste(g, tile, direction) or 1.0
    if direction == "backward_filter":
        shape = _rectangle_of(g, tile, direction)
        cost = FETCH_COST[_wide(g, shape)] if shape else 1.0
        return replace(tile, columns=tile.columns * g.taps, item_columns=tile.item_columns * g.taps, waste=waste * cost)
    depth = _depth(g, direction)
    return replace(tile, waste=-(-depth // tile.depth) * tile.depth / depth * waste)


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, choice: Choice) -> None:
    _gather(rec, g, "forward", x, w, bias, y, choice.tile, g.group_outputs)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, bias: Ref | None, dx: Ref, choice: Choice) -> None:
    _gather(rec, g, "backward_data", dy, w, bias, dx, choice.tile, g.group_channels)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref, choice: Choice) -> None:
    tile = choice.tile
    shape = _rectangle_of(g, tile, "backward_filter")
    assert shape is not None, "tiles() would not have offered it"
    rectangles = g.batch * _rectangles(g.out, shape)
    part = -(-rectangles // choice.splits)
    splits = -(-rectangles // part)
    once = splits == 1
    to = dw if once else rec.scratch("splits", (splits, dw.count))
    special = {"RAGGED": int(g.group_channels % _channels(tile) > 0), "WIDE": _wide(g, shape)}
    defines = {**_defines(g, tile, shape, 2), **special}
    rec.launch(
        KERNELS.backward_filter(x=x, dy=dy, dw=to),
        args=[*sizes(g), part, once and rec.accumulates(dw)],
        size=(-(-g.group_channels // _channels(tile)) * tile.items, -(-g.group_outputs // tile.rows), g.group * splits),
        local=(tile.items, 1, 1),
        defines=defines,
    )
    if not once:
        sum_splits(rec, "conv_patch_mma", defines, to, None, dw)


def _gather(rec: Recorder, g: ConvGeometry, direction: str, source: Ref, w: Ref, bias: Ref | None, target: Ref, tile: Tile, rows: int) -> None:
    """Record forward or backward_data. The depth is never split; other tiles are chosen if there is too little work for all units."""
    back, depth = direction == "backward_data", _depth(g, direction)
    shape = _rectangle_of(g, tile, direction)
    assert shape is not None, "tiles() would not have offered it"
    fours = shape.width % 4 == 0 and _result(g, direction)[2] % 4 == 0
    special = {"STEP_TAPS": _step_taps(g, tile), "RAGGED": int(depth % tile.depth > 0), "PLANES_OF_FOURS": int(fours)}
    defines = {**_defines(g, tile, shape, int(back)), **special}
    chunks = g.group * -(-depth // tile.depth) * (tile.depth // CHUNK) * g.taps * rows
    packed = rec.scratch("packed", (chunks * CHUNK // 2,))
    rec.launch(PACK(filter=w, packed=packed), args=[rows, depth, back, chunks], size=(chunks,), local=(PACK_ITEMS,), defines=defines)
    columns = g.batch * _rectangles(_result(g, direction), shape)
    kernel, operands = KERNELS.gathering(g, direction, True, source, target)
    rec.launch(
        kernel(packed=packed, bias=bias if bias is not None else packed, **operands),
        details=columns,
        args=[*sizes(g), EpilogueScalars(bias is not None, rec.accumulates(target), SLOPE_ONLY)],
        size=(columns * tile.items, -(-rows // tile.rows), g.group),
        local=(tile.items, 1, 1),
        defines=defines,
    )


def _defines(g: ConvGeometry, tile: Tile, shape: Rectangle, direction: int) -> dict[str, int]:
    most = MAX_REGISTERS if tile.items > FEW_ITEMS else MAX_OF_FEW
    limit = {"REGISTERS": most} if tile.item_rows * tile.item_columns <= LIMITED_SUMS else {}
    return {**tile.defines(), **limit, **window(g), "DIRECTION": direction, "TILE_H": shape.height, "TILE_W": shape.width}


def _channels(tile: Tile) -> int:
    """Return the channels per work-group of backward_filter: a chunk for each warp along the columns."""
    return CHUNK * tile.columns // (4 * tile.item_columns)


def _fits(tile: Tile, g: ConvGeometry) -> bool:
    """Whether a tile of backward_filter fits the number of channels: a narrow tile for few channels, else a wide one."""
    return _channels(tile) == CHUNK if g.group_channels <= CHUNK else _channels(tile) > CHUNK


def _depth(g: ConvGeometry, direction: str) -> int:
    return g.group_channels if direction == "forward" else g.group_outputs


def _result(g: ConvGeometry, direction: str) -> Axes:
    """Return the size of the image that the rectangles divide."""
    return g.size if direction == "backward_data" else g.out


def _rectangles(image: Axes, shape: Rectangle) -> int:
    """Return the number of rectangles per sample."""
    return -(-image[1] // shape.height) * -(-image[2] // shape.width)


def _step_taps(g: ConvGeometry, tile: Tile) -> int:
    """Return the taps per step: a row of taps for blocks of 16 channels, so that there is enough work between barriers, else one."""
    return g.kernel[2] if tile.depth < 32 and g.kernel[2] <= 3 else 1


def _pixel_waste(g: ConvGeometry, tile: Tile, direction: str) -> float | None:
    """Return the computed pixels per real pixel, or None if patches do not fit local memory."""
    shape, image = _rectangle_of(g, tile, direction), _result(g, direction)
    if shape is None:
        return None
    return _rectangles(image, shape) * (tile.depth if direction == "backward_filter" else tile.columns) / (image[1] * image[2])


def _rectangle_of(g: ConvGeometry, tile: Tile, direction: str) -> Rectangle | None:
    filters = direction == "backward_filter"
    if filters:
        line, most = _channels(tile), tile.depth
        others = tile.stages * tile.rows * PART
    else:
        line, most = tile.depth, tile.columns
        others = tile.stages * tile.rows * tile.depth * _step_taps(g, tile)
    return _rectangle(_result(g, direction), g.kernel, most, (LOCAL_MEMORY // 2 - others) // line, filters)


def _wide(g: ConvGeometry, shape: Rectangle) -> int:
    """Return the elements of dy that backward_filter fetches together."""
    return next((n for n in COPIES if _together(shape, g.out, n)), 1)


def _together(shape: Rectangle, image: Axes, count: int) -> bool:
    """Whether each aligned run of `count` pixels of a rectangle is also contiguous and aligned in memory."""
    _, height, width = image
    whole = shape.width == width and shape.width * shape.height % count == 0 and height * width % count == 0
    return whole or (shape.width % count == 0 and width % count == 0)


@functools.cache
def _rectangle(image: Axes, kernel: Axes, most: int, most_lines: int, copied: bool) -> Rectangle | None:
    """Return the rectangle of at most `most` pixels that covers an image with the fewest rectangles, or None.

    Two patches must have at most `most_lines` lines. Among equal candidates, the preference is, in this order: four pixels
    (with `copied`, for backward_filter, two, four and eight) stay contiguous; eight columns of a product are in one row, and so in
    different banks; few loads and stores.
    """
    _, height, width = image

    def patch_of(shape: Rectangle) -> tuple[int, int]:
        return shape.height + kernel[1] - 1, shape.width + kernel[2] - 1

    def lines_of(shape: Rectangle) -> int:
        """Return the lines of both patches. Those of backward_filter include lines of zeros."""
        rows, columns = patch_of(shape)
        return (2 * rows + kernel[1] - 1) * -(-columns // CHUNK) * CHUNK + 1 if copied else 2 * rows * columns

    def cost(shape: Rectangle) -> tuple[int, ...]:
        apart = sum(not _together(shape, image, n) for n in (COPIES if copied else (STORE,)))
        rows, columns = patch_of(shape)
        sectors = rows * (1 + -(-columns // SECTOR)) + shape.height * -(-shape.width // SECTOR)
        return _rectangles(image, shape), apart, shape.width % CHUNK > 0, rows * columns + SECTOR_COST * sectors

    widths = {*range(4, min(-(-width // 4) * 4, most) + 1, 4), *([width] if width <= most else [])}
    shapes = (Rectangle(rows, across) for across in sorted(widths) for rows in range(1, min(height, most // across) + 1))
    fit = (shape for shape in shapes if lines_of(shape) <= most_lines and max(patch_of(shape)) <= MAX_SIDE)
    return min(fit, key=cost, default=None)
