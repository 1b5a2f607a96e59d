"""Convolution on channels in blocks of 8, in bfloat16 or TF32 by Hopper's wgmma (conv_blocks.cl).

Its launches require images in blocks (Order.BLOCKS); ocaffe/passes/layouts_gpu.py provides them.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ocaffe.ir.kernel import REDUCTION, SIGN, Can, Kernel, Order, Slot, own_parts, read, write
from ocaffe.ir.launch import SLOPE_ONLY, EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BFLOAT, BLOCK, FLOAT, Ref
from ocaffe.kernels.matmul.gemm_gpu import PACK_ITEMS


def image(name: str, bf16: str) -> Slot:
    """An image that a kernel reads with its channels in blocks."""
    return read(name, bf16=bf16, order=Order.BLOCKS)


def result(name: str) -> Slot:
    """The image that a kernel writes with its channels in blocks."""
    return write(name, bf16="RESULT", order=Order.BLOCKS)


SUMS = Can(parts=own_parts, sums_gradients=False)
FORWARD = Kernel("conv_blocks.forward", image("x", "SOURCE"), read("packed"), *REDUCTION, read("bias"), result("y"), can=SUMS)
BACKWARD_DATA = Kernel("conv_blocks.backward_data", image("x", "SOURCE"), read("packed"), *REDUCTION, SIGN, read("bias"), result("y"), can=SUMS)
BACKWARD_FILTER = Kernel("conv_blocks.backward_filter", image("x", "SOURCE"), image("dy", "GIVEN"), write("parts"))
PACK = Kernel("conv_blocks_pack.pack", read("filters0"), write("packed0"), can=Can(helper=True, jobs=True))
SUM_PARTS = Kernel("conv_blocks_sum.sum_parts", read("parts0"), write("dw0"), can=Can(helper=True, jobs=True))


if TYPE_CHECKING:
    from ocaffe.ir.target import Target
    from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry

PIXELS_OF_UNIT = 8  # of results in TEST, at least. For fewer the kernels have too few groups; mma.sync splits the depth of its products
MAX_TAPS = 32  # a work-group of sum_parts has the sums of all taps of MIN_PAIRS pairs of an output and a channel in local memory
MIN_PAIRS = 32
GROUP_CHANNELS = 32  # of a group of channels, at least: fewer leave columns of a product unused
MAX_SUMS = 3 * 128  # of backward_filter: for all columns and the taps of a group, in registers
ITEMS, COPIERS = 12 * 32, 128  # work-items of a group (NT_ITEMS), and those of them that copy
ROWS = 64  # pixels of one product
RESERVED = 256 + 128 * 9 * 4  # bytes: the barriers, and sums of the warps for a fused channel reduction
MAX_BUFFERS = 4
MAX_DEPTH_BYTES = 128  # of a step of forward and backward_data
PATCH_GRAIN = 64  # virtual pixels: patches of similar images have one size, and so one program
FILTER_ROWS = 128  # of the products of backward_filter, at most
STEP, MAX_STEPS = 64, 6  # virtual pixels of a step of backward_filter, and its buffers at most
QUAD_BYTES = 144  # of eight channels with four pixels each (tile_wgmma.h)
SUM_ITEMS = 9 * MIN_PAIRS  # of a work-group of sum_parts: one for each sum of a 3 x 3 window
# An estimate of a unit: products of bfloat16, bytes from local memory and copied bytes in a cycle (of an H100 and its L2 cache), cycles of a step, and of the
# results of 128 pixels with 128 outputs; of a group of backward_filter, without its steps; and of a sum of one split
PRODUCTS, READ, COPIED, STEP_CYCLES, TILE_CYCLES = 2048, 128, 24, 40, 800
GROUP_CYCLES, PART_CYCLES = 6000, 0.004
# With TF32: of a product, whose left operand is loaded to registers, without its columns and of each column; and of a tile, besides TILE_CYCLES
ROW_CYCLES, COLUMN_CYCLES, FLOAT_TILE_CYCLES = 54, 0.2, 4000


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
    if not target.wgmma or g.taps > MAX_TAPS or (g.group > 1 and min(g.group_channels, g.group_outputs) < GROUP_CHANNELS):
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


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None) -> None:
    _gather(rec, g, "backward_data", dy, w, bias, dx, partial(_pack, g=g, back=True))


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    sum_parts(rec, filter_parts(rec, g, x, dy), dw, g.taps)


def sum_parts(rec: Recorder, parts: Ref, dw: Ref, taps: int) -> None:
    """dw = the sum of the parts: splits, taps x outputs x channels."""
    count, pairs = dw.count // taps, max(MIN_PAIRS, SUM_ITEMS // taps // MIN_PAIRS * MIN_PAIRS)
    items = -(-count // pairs) * SUM_ITEMS
    args = [parts.shape[0], count, taps, rec.accumulates(dw), items, items]
    defines = {"ITEMS": SUM_ITEMS, "MIN_PAIRS": MIN_PAIRS, "MAX_TAPS": MAX_TAPS}
    rec.launch(SUM_PARTS(parts0=parts, dw0=dw), args=args, size=(items,), local=(SUM_ITEMS,), defines=defines)


def filter_parts(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref) -> Ref:
    """Record the first launch of backward_filter, and return the parts: splits, taps x outputs x channels."""
    rows, columns = _filter_tile(rec.target, g)
    all_rows, all_columns = _filter_sides(rec.target, g)
    steps = -(-_virtual(g) // _step(rec.target))
    each = -(-steps // _filter_splits(rec.target, g))
    splits = -(-steps // each)
    parts = rec.scratch("parts", (splits * FILTER_ROWS // rows, math.prod(g.weight_shape)))
    rec.launch(
        BACKWARD_FILTER(x=x, dy=dy, parts=parts),
        args=[*_sizes(g), each],
        size=(-(-all_columns // columns) * ITEMS, -(-all_rows // rows) * (g.kernel[1] // _tap_rows(g, columns)), splits * g.group),
        local=(ITEMS, 1, 1),
        defines=_filter_defines(rec.target, g),
    )
    return parts


def _filter_defines(target: Target, g: ConvGeometry) -> dict[str, int]:
    rows, columns = _filter_tile(target, g)
    buffers = min(MAX_STEPS, _room(target) // _step_bytes(target, g, columns))
    work = {"NT": columns, "TAP_ROWS": _tap_rows(g, columns), "STEP": _step(target), "STEPS": buffers, "HALVES": FILTER_ROWS // rows}
    return {**_window(target, g), "DIRECTION": 2, **work, **(_teams(g, buffers) if target.block_type == FLOAT else {})}


def _teams(g: ConvGeometry, buffers: int) -> dict[str, int]:
    """Return the defines of the teams of copiers of backward_filter with TF32, as measured on an H100. Copies of all teams need at most the buffers."""
    reach = 2 * (g.kernel[2] - 1)  # lines of pixels beyond a step, which a team copies at once
    team, ahead = (64, 1) if buffers < 5 else (64, 2) if g.kernel[2] == 1 or reach > 32 else (32, 1)
    assert COPIERS // team * ahead <= buffers and reach <= team, (g, buffers)
    return {"TEAM": team, "AHEAD": ahead, "OTHERS_IN_FLIGHT": ahead - 1}


def _gather(rec: Recorder, g: ConvGeometry, direction: str, source: Ref, w: Ref, bias: Ref | None, target: Ref, pack: Pack) -> None:
    back = direction == "backward_data"
    tile = _tile(rec.target, g, direction)
    assert tile is not None, "possible() would not have allowed it"
    rows, depth = _rows_and_depth(g, back)
    nbytes = rec.target.block_type.itemsize
    patch = _patch(g, tile.pixels)
    taps = _taps_of_step(rec.target, g, tile.depth)
    patches, filters = _buffers(_room(rec.target, patch), patch * tile.depth * nbytes, taps * tile.depth * tile.outputs * nbytes)
    work = {"NT": tile.outputs, "MB": tile.products, "CB": tile.depth, "STEP_TAPS": taps, "PATCH": patch, "PATCHES": patches, "FILTERS": filters}
    defines = {**_window(rec.target, g), "DIRECTION": int(back), **work}
    tiles = g.group * -(-rows // tile.outputs)
    count = tiles * tile.outputs * padded(depth) // BLOCK
    packed = rec.scratch("packed", (count * g.taps * BLOCK * nbytes // FLOAT.itemsize,))
    pack(rec, w, packed, tile, count)
    columns = -(-_virtual(g) // tile.pixels)
    phases = _phases(g) if back else 1
    all_tiles = phases * columns * tiles
    rec.launch(
        (BACKWARD_DATA if back else FORWARD)(x=source, packed=packed, bias=packed if bias is None else bias, y=target),
        details=columns if phases == 1 else 0,
        args=[*_sizes(g), tiles, columns, all_tiles, EpilogueScalars(bias is not None, rec.accumulates(target), SLOPE_ONLY, bounds=True)],
        size=(min(all_tiles, rec.target.compute_units) * ITEMS,),
        local=(ITEMS,),
        defines=defines,
    )


def _pack(rec: Recorder, w: Ref, packed: Ref, tile: Tile, count: int, *, g: ConvGeometry, back: bool) -> None:
    args = [*_rows_and_depth(g, back), g.taps, g.stride[1], back, tile.outputs, tile.depth, count, count]
    defines = block_defines(rec.target)
    rec.launch(PACK(filters0=w, packed0=packed), args=args, size=(count,), local=(PACK_ITEMS,), defines=defines)


def _rows_and_depth(g: ConvGeometry, back: bool) -> tuple[int, int]:
    """Return the channels of the result, and those that a sum is over."""
    return (g.group_channels, g.group_outputs) if back else (g.group_outputs, g.group_channels)


def _tile(target: Target, g: ConvGeometry, direction: str) -> Tile | None:
    """Return the tile that keeps the compute units busiest, or None if no patch fits local memory."""
    if direction == "backward_filter":
        return Tile(1, FILTER_ROWS, STEP) if _filter_tile(target, g)[1] else None
    back = direction == "backward_data"
    rows, depth = _rows_and_depth(g, back)
    widths = (128, 64, 32) if rows > 32 else (32,)
    nbytes = target.block_type.itemsize
    tiles = [Tile(products, outputs, step) for products in (2, 1) for outputs in widths for step in (64, 32, 16) if padded(depth) % step == 0]
    tiles = [tile for tile in tiles if tile.depth * nbytes <= MAX_DEPTH_BYTES]

    def cycles(tile: Tile) -> float:
        """Return the cycles of the busiest unit. A tap of a step takes as long as its products or its copies, whichever takes longer."""
        groups = g.group * -(-_virtual(g) // tile.pixels) * -(-rows // tile.outputs) * (_phases(g) if back else 1)
        taps = _taps_of_step(target, g, tile.depth)
        copied = nbytes * tile.depth * (tile.outputs + (1 if back else _phases(g)) * _patch(g, tile.pixels) / g.taps)
        if target.block_type == FLOAT:  # a product of ROWS pixels and 32 bytes of the depth
            product, results = ROW_CYCLES + COLUMN_CYCLES * tile.outputs, float(FLOAT_TILE_CYCLES)
        else:
            product, results = max(ROWS * tile.outputs * 16 / PRODUCTS, 32 * (ROWS + tile.outputs) / READ), 0.0
        results += TILE_CYCLES * tile.products * tile.outputs / 128
        step = max(2 * tile.products * tile.depth * nbytes / 32 * product, copied / COPIED) + STEP_CYCLES / taps
        steps = padded(depth) // tile.depth * g.taps / (_phases(g) if back else 1)
        return -(-groups // target.compute_units) * (steps * step + results)

    def fits(tile: Tile) -> bool:
        """Whether two buffers of each kind fit local memory."""
        patch, taps = _patch(g, tile.pixels), _taps_of_step(target, g, tile.depth)
        return 2 * tile.depth * (patch + taps * tile.outputs) * nbytes <= _room(target, patch)

    fitting = [tile for tile in tiles if fits(tile)]
    return min(fitting, key=cycles, default=None)


def _taps_of_step(target: Target, g: ConvGeometry, depth: int) -> int:
    """Return the taps of a step of forward and backward_data, several if it has a small depth. With a stride the phases have too few."""
    most = MAX_DEPTH_BYTES // target.block_type.itemsize // depth
    return next(taps for taps in (8, 4, 3, 2, 1) if taps == 1 or (g.taps % taps == 0 and taps <= most)) if g.stride[1] == 1 else 1


def padded(depth: int) -> int:
    """Return the depth of the products: that of an instruction is 16, or 8 with TF32."""
    return -(-depth // 16) * 16


def _room(target: Target, places: int = 0) -> int:
    """Return the bytes of local memory for buffers, besides two tables of places, which only forward and backward_data have."""
    return target.static_local_memory - RESERVED - 2 * 4 * places


def _buffers(room: int, patch: int, step: int) -> tuple[int, int]:
    """Return the numbers of buffers for patches and for steps that fit `room`. All sizes are bytes."""
    steps = min(MAX_BUFFERS, (room - 2 * patch) // step)
    return min(MAX_BUFFERS, (room - steps * step) // patch), steps


def _filter_sides(target: Target, g: ConvGeometry) -> tuple[int, int]:
    """Return the rows and the columns of backward_filter: outputs and channels, or with TF32 channels and outputs."""
    return (g.group_channels, g.group_outputs) if target.block_type == FLOAT else (g.group_outputs, g.group_channels)


def _filter_tile(target: Target, g: ConvGeometry) -> tuple[int, int]:
    """Return the rows and the columns of a group of backward_filter. Its sums must fit the registers, and two of its steps local memory; 0 columns: none.

    Of at most ROWS rows, both groups of warps compute the same ones, from other pixels.
    """
    columns = _filter_sides(target, g)[1]
    widths = [width for width in (128, 64, 32, 16) if width * g.kernel[2] <= MAX_SUMS and width <= max(16, columns)]
    fitting = (width for width in widths if 2 * _step_bytes(target, g, width) <= _room(target))
    return _filter_rows(target, g), next(fitting, 0)


def _filter_rows(target: Target, g: ConvGeometry) -> int:
    """Return the rows of a group of backward_filter."""
    return FILTER_ROWS if _filter_sides(target, g)[0] > ROWS else ROWS


def _step(target: Target) -> int:
    """Return the virtual pixels of a step of backward_filter. Floats take twice the memory."""
    return STEP * BFLOAT.itemsize // target.block_type.itemsize


def _step_bytes(target: Target, g: ConvGeometry, columns: int) -> int:
    """Return the bytes of a step of backward_filter: pixels of dy, and for each row of taps or for even and odd columns those of x, with their reach."""
    rows, step, images = _filter_rows(target, g), _step(target), _filter_images(g, columns)
    patch = step + -(-(g.kernel[2] - 1) // 8) * 8
    if target.block_type == FLOAT:
        return step // 4 * columns // 8 * QUAD_BYTES + 4 * images * patch * rows
    return 2 * (step * rows + images * patch * columns)


def _filter_images(g: ConvGeometry, columns: int) -> int:
    """Return the patches of a step of backward_filter."""
    return g.stride[2] * _tap_rows(g, columns)


def _tap_rows(g: ConvGeometry, columns: int) -> int:
    """Return the rows of the window whose taps a group of backward_filter has: all of them, which read dy once, if the sums fit the registers."""
    return g.kernel[1] if g.stride[1] == 1 and columns * g.taps <= MAX_SUMS else 1


def _filter_splits(target: Target, g: ConvGeometry) -> int:
    """Return the number of splits of the pixels of backward_filter. A group takes a whole compute unit, and one unit computes several one after the other."""
    rows, columns = _filter_tile(target, g)
    all_rows, all_columns = _filter_sides(target, g)
    tap_rows, nbytes = _tap_rows(g, columns), target.block_type.itemsize
    tiles = g.group * -(-all_columns // columns) * -(-all_rows // rows) * (g.kernel[1] // tap_rows)
    steps = -(-_virtual(g) // _step(target))
    step = max(_step(target) * rows * columns * tap_rows * g.kernel[2] * nbytes / (2 * PRODUCTS), _step_bytes(target, g, columns) / COPIED)

    def cycles(splits: int) -> float:
        return -(-tiles * splits // target.compute_units) * (-(-steps // splits) * step + GROUP_CYCLES) + splits * PART_CYCLES * math.prod(g.weight_shape)

    return min(range(1, min(steps, target.compute_units) + 1), key=cycles)


def _phases(g: ConvGeometry) -> int:
    """Return the images into which a stride divides x."""
    return g.stride[1] * g.stride[2]


def _virtual(g: ConvGeometry) -> int:
    """Return the virtual pixels of a batch (tile_wgmma.h)."""
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
    groups = {"CHANNEL_GROUPS": g.group} if g.group > 1 else {}
    return {**window, **groups, **block_defines(target), **({"WGMMA": 1} if target.runtime == "nvidia" else {})}


def block_defines(target: Target) -> dict[str, int]:
    """Return the define of the type of values in blocks (kernels/common/block_operands.h)."""
    return {"BLOCK_FLOAT": 1} if target.block_type == FLOAT else {}


def _sizes(g: ConvGeometry) -> list[int]:
    """Return the arguments of the macro SIZES."""
    return [g.batch, g.group_channels, g.group_outputs, *g.size[1:], *g.out[1:]]
