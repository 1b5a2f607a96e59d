"""Convolution over a few channels, as that of a net's first layer, by wgmma on channels in blocks of 8 (conv_blocks_first.cl, conv_blocks.py).

A pixel of an image in blocks holds a cell of pixels of x. With cells as large as the stride (space to depth), or as the window along an axis, the
convolution has stride 1 and no padding.
"""
from __future__ import annotations

import itertools
import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ocaffe.ir.kernel import Can, Kernel, Order, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BLOCK, Ref
from ocaffe.kernels.convolution.blocks_gpu import conv_blocks
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.geometry.conv_window import plane_window
from ocaffe.kernels.matmul.gemm_gpu import PACK_ITEMS

IMAGE = Kernel("conv_blocks_first.image", read("x", bf16="SOURCE"), write("cells", bf16="RESULT", order=Order.BLOCKS), can=Can(helper=True, recompute=True))
SUM_PARTS = Kernel("conv_blocks_first.sum_parts", read("parts"), write("dw"), can=Can(helper=True))
PACK = Kernel("conv_blocks_first.pack", read("filters"), write("packed"), can=Can(helper=True))

if TYPE_CHECKING:
    from ocaffe.ir.target import Target

MAX_DEPTH = 64  # channels of a cell: more do not pay for an image that is written and read
PRODUCTS_PER_BYTE = 120  # multiply-adds of bfloat16 in the time of a byte of memory, by an estimate for an H100; half of them with TF32
LOCAL = (32, 4, 1)  # a group of work-items that make an image
SUM_LOCAL = (32, 8)  # ELEMENTS, SHARERS


class Cell(NamedTuple):
    """The pixels of x that a pixel of the image in blocks holds."""

    height: int
    width: int


def possible(target: Target, g: ConvGeometry, direction: str) -> bool:
    """Whether the kernels compute the geometry on this device. There are none for the gradient of x."""
    return direction != "backward_data" and _cell(target, g) is not None


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref) -> None:
    cell = _chosen(rec, g)
    conv_blocks.forward(rec, _over_cells(g, cell), _image(rec, g, cell, x), w, bias, y, partial(_pack, g=g, cell=cell))


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    cell = _chosen(rec, g)
    parts = conv_blocks.filter_parts(rec, _over_cells(g, cell), _image(rec, g, cell, x), dy)
    args = [parts.shape[0], g.num_output, rec.accumulates(dw)]
    defines = _defines(rec.target, g, cell)
    rec.launch(SUM_PARTS(parts=parts, dw=dw), args=args, size=(dw.count, SUM_LOCAL[1]), local=SUM_LOCAL, defines=defines)


def _image(rec: Recorder, g: ConvGeometry, cell: Cell, x: Ref) -> Ref:
    """Record the launch that makes the image in blocks, and return the image. backward makes it again, so that it takes no memory in between."""
    over = _over_cells(g, cell)
    _, rows, columns = over.size
    image = rec.scratch("cells", (over.batch, over.channels, rows, columns))
    rec.launch(
        IMAGE(x=x, cells=image),
        args=[*g.size[1:], rows, columns],
        size=(columns, rows, g.batch),
        local=LOCAL,
        defines=_defines(rec.target, g, cell),
    )
    return image


def _pack(rec: Recorder, w: Ref, packed: Ref, tile: conv_blocks.Tile, count: int, *, g: ConvGeometry, cell: Cell) -> None:
    """Record the launch that packs the filters."""
    args = [g.num_output, tile.outputs, tile.depth, count]
    rec.launch(PACK(filters=w, packed=packed), args=args, size=(count,), local=(PACK_ITEMS,), defines=_defines(rec.target, g, cell))


def _over_cells(g: ConvGeometry, cell: Cell) -> ConvGeometry:
    """Return the convolution of stride 1 over cells, in blocks of channels."""
    channels = -(-g.channels * math.prod(cell) // BLOCK) * BLOCK
    taps = [-(-kernel // side) for kernel, side in zip(g.kernel[1:], cell)]
    size = (1, *(out + count - 1 for out, count in zip(g.out[1:], taps)))
    return ConvGeometry(g.batch, channels, g.num_output, 1, size, g.out, (1, *taps), (1, 1, 1), (0, 0, 0), (1, 1, 1))


def _cell(target: Target, g: ConvGeometry) -> Cell | None:
    """Return the cell with the shortest estimated time of its products and of its image, which is written and read; None if no kernel is possible."""
    flat = g.size[0] == g.out[0] == g.kernel[0] == g.stride[0] == max(g.dilation) == 1
    if not flat or g.group > 1 or g.channels >= BLOCK:
        return None

    def cost(cell: Cell) -> float:
        over = _over_cells(g, cell)
        products = over.num_output * over.positions * over.taps * conv_blocks.padded(over.channels)
        size = target.block_type.itemsize
        return size * (products / (2 * PRODUCTS_PER_BYTE) + 2 * over.channels * over.pixels)

    sides = [sorted({kernel, min(kernel, stride)}) for kernel, stride in zip(g.kernel[1:], g.stride[1:])]
    cells = [cell for cell in itertools.starmap(Cell, itertools.product(*sides)) if g.channels * math.prod(cell) <= MAX_DEPTH]
    able = [cell for cell in cells if all(conv_blocks.possible(target, _over_cells(g, cell), way) for way in ("forward", "backward_filter"))]
    return min(able, key=cost, default=None)


def _chosen(rec: Recorder, g: ConvGeometry) -> Cell:
    cell = _cell(rec.target, g)
    assert cell is not None, "possible() would not have allowed it"
    return cell


def _defines(target: Target, g: ConvGeometry, cell: Cell) -> dict[str, int]:
    window = {name: value for name, value in plane_window(g).items() if not name.startswith("DILATION")}
    return {**window, **conv_blocks.block_defines(target), "CHANNELS": g.channels, "CELL_H": cell.height, "CELL_W": cell.width}
