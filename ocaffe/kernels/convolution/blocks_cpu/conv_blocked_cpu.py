"""Convolution on CPU runtimes whose result has its channels in blocks (conv_blocked_cpu.cl, winograd_blocked_cpu.cl), for nets without backward."""
from __future__ import annotations

from functools import partial
from typing import NamedTuple

from ocaffe.ir.kernel import JOIN, BlockedForm, Can, Kernel, Order, read, reads, write
from ocaffe.ir.launch import EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.winograd.winograd_cpu import OUT, POINTS
from ocaffe.kernels.matmul.gemm_cpu import ITEMS_PER_CORE, ONE, ceil, even


class Tile(NamedTuple):
    """Pixels x vectors of outputs in registers, and the relative time of a multiply-add."""

    pixels: int
    vectors: int
    time: float


# vector width -> tiles that fit 32 or 16 registers (measured: docs/kernel-log.md)
TILES = {
    16: (
        Tile(6, 4, 1.0), Tile(12, 2, 1.04), Tile(7, 4, 1.04), Tile(13, 2, 1.04), Tile(8, 3, 1.06), Tile(8, 2, 1.08), Tile(7, 2, 1.1), Tile(12, 1, 1.3),
        Tile(4, 4, 1.1), Tile(4, 2, 1.2),
    ),
    8: (Tile(6, 2, 1.0), Tile(5, 2, 1.02), Tile(4, 3, 1.15), Tile(4, 2, 1.2)),
}  # fmt: skip
NARROWEST = min(tile.pixels for tiles in TILES.values() for tile in tiles)  # pixels of the smallest tile
NEAR = 1 << 17  # floats of x that a work-item reads for all its outputs before the next ones: they stay in the second-level cache
PANEL = 160 << 10  # floats of a panel of filters, which stays in the second-level cache beside the next one
SMALL, FEW_TILES, MANY_TILES = 1 << 18, 24, 54  # Winograd's tiles at a time: few where so many floats of transformed filters stay in that cache
DEEP = 128  # channels from which on the products of all outputs are kept until the last, so that transformed tiles are read once
ITEMS = 2  # work-items per core where each copies or transforms the image, so that their workspaces stay in that cache
# Cycles of a core for the estimate: a multiply-add of one vector; a byte of filters, which come from memory; Winograd's transforms of one vector.
PRODUCT, BYTE, TRANSFORM = 0.6, 0.8, 120


PACK = Kernel("conv_blocked_cpu.pack", read("w"), write("packed"), can=Can(join=True, helper=True))
IMAGE, RESULT = read("x", order=Order.EITHER), write("y", order=Order.BLOCKS)
FORWARD = Kernel("conv_blocked_cpu.forward", IMAGE, *reads("packed", "bias"), RESULT, write("space", optional=True), can=JOIN)
WINOGRAD_PACK = Kernel("winograd_blocked_cpu.filter", read("w"), write("packed"), can=Can(join=True, helper=True))
WINOGRAD = Kernel("winograd_blocked_cpu.forward", read("x", order=Order.BLOCKS), *reads("packed", "bias"), RESULT, write("space"), can=JOIN)


def form(rec: Recorder, g: ConvGeometry, w: Ref) -> BlockedForm | None:
    """Return how `forward` of this geometry runs with channels in blocks, or None if it cannot."""
    width = rec.channel_block
    flat = len(g.size) == 3 and g.size[0] == g.out[0] == g.kernel[0] == g.stride[0] == g.dilation[0] == 1 and not g.pad[0]
    narrow = g.positions if g.pointwise else g.out[2]
    if not width or not flat or not _divides(rec, g, g.group_outputs) or narrow < NARROWEST:
        return None
    takes_blocks = _divides(rec, g, g.group_channels)
    # Without blocks, an image whose convolution Winograd's algorithm would win stays so, for winograd_cpu.py: its direct product here takes twice as long.
    takes_plain = not (takes_blocks and _winograd_wins(rec, g, g.group_channels))
    return BlockedForm(partial(_record, g=g, w=w), takes_plain=takes_plain, takes_blocks=takes_blocks, fills=True)


def _divides(rec: Recorder, g: ConvGeometry, channels: int) -> bool:
    """Whether the channels of a group can be in blocks."""
    return bool(rec.blocked_channels(channels)) and (g.group == 1 or channels % rec.channel_block == 0)


def _record(rec: Recorder, x: Ref, y: Ref, blocked: bool, *, g: ConvGeometry, w: Ref) -> None:
    if blocked and _winograd_wins(rec, g, rec.blocked_channels(g.group_channels)):
        _winograd(rec, g, x, w, y)
    else:
        _direct(rec, g, x, w, y, blocked)


def _direct(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, y: Ref, blocked: bool) -> None:
    channels_each = rec.channel_block if blocked else 1
    channels = ceil(g.group_channels, channels_each) * channels_each
    flat = g.pointwise
    (height, width), (out_h, out_w) = ((1, g.positions), (1, g.positions)) if flat else (g.size[1:], g.out[1:])
    tile = _tile(rec, out_w, g.group_outputs, g.depth, plain=not blocked)
    padded = any(g.pad)
    defines = _defines(rec, tile) | {"CB": channels_each, "PADDED": int(padded)}
    for axis, kernel, stride, dilation in zip("HW", g.kernel[1:], g.stride[1:], g.dilation[1:], strict=True):
        defines |= {f"K{axis}": kernel, f"S{axis}": stride, f"D{axis}": dilation}
    panels = ceil(g.group_outputs, defines["NV"] * defines["V"])
    packed = rec.scratch("packed", (g.group, panels, channels * g.taps, defines["NV"] * defines["V"]))
    args = [g.group_channels, g.group_outputs]
    size = panels, channels // channels_each, g.group
    rec.launch(PACK(w=w, packed=packed), args=args, size=size, local=ONE, defines=defines)

    across = ceil(out_w, tile.pixels)
    unit = across if padded else 1  # tiles that are not divided
    units = g.batch * out_h * across // unit
    parts, blocks = _parts(rec, ITEMS if padded else ITEMS_PER_CORE, units * g.group, panels, packed.nbytes // g.group, 4 * g.batch * channels * g.pixels)
    share, block = ceil(units, parts) * unit, ceil(panels, blocks) * defines["NV"] * defines["V"]
    row = channels * (g.stride[1] * ((out_w - 1) * g.stride[2] + 1) if padded else tile.pixels * g.stride[1] * g.stride[2])
    near = min(even(share // unit, max(1, NEAR // row)) * unit, out_h * across)
    spaces, image = (ceil(units * unit, share), ceil(g.group_outputs, block), g.group), None
    if padded:
        (kernel_h, kernel_w), (dilation_h, dilation_w) = g.kernel[1:], g.dilation[1:]
        lines = (near // across - 1) * g.stride[1] + (kernel_h - 1) * dilation_h + 1
        room = channels * lines * ((out_w - 1) * g.stride[2] + (kernel_w - 1) * dilation_w + 1)
        image = rec.scratch("padded", (spaces[0] * spaces[1] * spaces[2], room))
    sizes = [g.batch, channels, g.group_outputs, height, width, out_h, out_w, *g.pad[1:]]
    rec.launch(
        FORWARD(x=x, packed=packed, bias=packed, y=y, space=image),
        args=[*sizes, share, near, block, EpilogueScalars(False, False)],
        size=spaces,
        local=ONE,
        defines=defines,
    )


def _winograd(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, y: Ref) -> None:
    tiles, channels = _tiles(g), rec.blocked_channels(g.group_channels)
    tile = _tile(rec, max(tiles, NARROWEST), g.group_outputs, channels)
    defines = _defines(rec, tile)
    columns = defines["NV"] * defines["V"]
    panels = ceil(g.group_outputs, columns)
    packed = rec.scratch("packed", (g.group, panels, POINTS, channels, columns))
    args, size = [g.group_channels, g.group_outputs], (channels, panels, g.group)
    rec.launch(WINOGRAD_PACK(w=w, packed=packed), args=args, size=size, local=ONE, defines=defines)

    small = POINTS * channels * g.group_outputs <= SMALL
    most = FEW_TILES if small else MANY_TILES
    parts, blocks = _parts(rec, ITEMS, ceil(tiles, most) * g.group, panels, 0, 1)
    share = ceil(tiles, parts)
    wide = even(share, most, tile.pixels)
    block = ceil(panels, blocks) * columns
    chunk = block if channels > DEEP else columns
    spaces = ceil(tiles, share), ceil(g.group_outputs, block), g.group
    room = POINTS * ((channels + chunk) * wide + 2 * defines["V"])
    space = rec.scratch("transformed", (spaces[0] * spaces[1] * spaces[2], room))
    sizes = [g.batch, channels, g.group_outputs, *g.size[1:], *g.out[1:], *g.pad[1:]]
    rec.launch(
        WINOGRAD(x=x, packed=packed, bias=packed, y=y, space=space),
        args=[*sizes, share, wide, block, chunk, EpilogueScalars(False, False)],
        size=spaces,
        local=ONE,
        defines=defines,
    )


def _parts(rec: Recorder, items: int, units: int, panels: int, filters: int, image: int) -> tuple[int, int]:
    """Return in how many parts to divide the pixels (`units`) and the panels of outputs, for `items` work-items per core.

    Each part of the outputs reads the image of so many bytes again, each part of the pixels the filters: what is smaller is read again.
    """
    wanted = items * rec.target.compute_units
    if filters > image:
        blocks = min(panels, wanted)
        return min(units, ceil(wanted, blocks)), blocks
    parts = min(units, wanted)
    return parts, min(panels, ceil(wanted, parts))


def _winograd_wins(rec: Recorder, g: ConvGeometry, depth: int) -> bool:
    """Whether Winograd supports this geometry and the estimate says that it is faster than the direct product over `depth` channels."""
    if (*g.kernel, *g.stride, *g.dilation) != (1, 3, 3, *ONE, *ONE) or rec.target.math == "ieee":
        return False
    width, tiles = rec.channel_block, _tiles(g)
    channels, vectors = rec.blocked_channels(g.group_channels), ceil(g.group_outputs, width)
    direct = 9 * depth * (g.batch * g.positions * vectors * PRODUCT + 4 * g.group_outputs * BYTE)
    products = POINTS * channels * (max(tiles, NARROWEST) * vectors * PRODUCT + 4 * g.group_outputs * BYTE)
    return products + tiles * (channels // width + vectors) * TRANSFORM < direct


def _tiles(g: ConvGeometry) -> int:
    return g.batch * ceil(g.out[1], OUT) * ceil(g.out[2], OUT)


def _tile(rec: Recorder, pixels: int, outputs: int, depth: int, plain: bool = False) -> Tile:
    """Return the tile with the least estimated time for lines of `pixels` pixels, padding included, of those whose panels of filters fit the cache.

    `plain`: the image is without blocks. Compilers then load neighbouring pixels as vectors, and have no registers left for wide tiles.
    """
    width = rec.channel_block

    def time(tile: Tile) -> tuple[bool, float]:
        columns = tile.vectors * width
        padded = ceil(pixels, tile.pixels) * tile.pixels * ceil(outputs, columns) * columns
        return tile.vectors > 2 and (plain or depth * columns > PANEL), padded * tile.time

    return min((tile for tile in TILES[width] if tile.pixels <= pixels), key=time)


def _defines(rec: Recorder, tile: Tile) -> dict[str, int]:
    return {"V": rec.channel_block, "NV": tile.vectors, "MR": tile.pixels}
