"""Convolution with windows of one pixel in bfloat16 on NVIDIA's tensor cores (conv_pointwise_mma.cl).

Operands are copied to local memory unchanged.
"""
from __future__ import annotations

from dataclasses import replace

from ocaffe.ir.kernel import Can, Kernel, read, write
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.dense_gpu.conv_mma import filter_product, gathered_product
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.geometry.conv_window import Directions, window
from ocaffe.kernels.matmul.gemm_gpu import MAX_REGISTERS, PACK_ITEMS, Choice, Tile

PACK = Kernel("conv_pointwise_mma.pack", read("filter"), write("packed"), can=Can(helper=True))
KERNELS = Directions.of("conv_pointwise_mma", "packed")

CHUNK = 8  # elements (kernels/matmul/tile_async.h)
MIN_COPY = 4  # elements: 8 bytes
LIMITED_SUMS = 64  # work-items with this many sums get a register limit; without it they take up to 164. Nothing is spilled


def possible(g: ConvGeometry, direction: str) -> bool:
    """Whether the kernel of `direction` supports the geometry: filters and planes must consist of whole copies."""
    whole = g.positions % MIN_COPY == 0 and g.batch * g.positions >= CHUNK
    return g.pointwise and whole and (direction == "backward_filter" or g.group_channels % CHUNK == 0)


def with_step(g: ConvGeometry, tile: Tile, direction: str) -> Tile:
    """Return the tile with the waste of its steps."""
    depth = {"forward": g.group_channels, "backward_data": g.group_outputs, "backward_filter": g.batch * g.positions}[direction]
    return replace(tile, waste=-(-depth // tile.depth) * tile.depth / depth)


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, choice: Choice) -> None:
    _gather(rec, g, "forward", x, w, bias, y, choice, g.group_channels)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, bias: Ref | None, dx: Ref, choice: Choice) -> None:
    _gather(rec, g, "backward_data", dy, w, bias, dx, choice, g.group_outputs)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref, choice: Choice) -> None:
    filter_product(rec, KERNELS.backward_filter, g, x, dy, dw, choice, _defines(g, choice.tile, 2, left_across=False, right_across=False))


def _gather(
    rec: Recorder, g: ConvGeometry, direction: str, source: Ref, w: Ref, bias: Ref | None, target: Ref, choice: Choice, depth: int
) -> None:
    """Record forward or backward_data."""
    back = direction == "backward_data"
    defines = _defines(g, choice.tile, int(back), left_across=back, right_across=True)
    packed = rec.scratch("packed", (w.count // 2,))
    chunks = w.count // CHUNK
    rec.launch(PACK(filter=w, packed=packed), args=[chunks], size=(chunks,), local=(PACK_ITEMS,), defines=defines)
    gathered_product(rec, KERNELS, g, direction, source, packed, bias, target, choice, depth, defines)


def _defines(g: ConvGeometry, tile: Tile, direction: int, *, left_across: bool, right_across: bool) -> dict[str, int | str]:
    wide = CHUNK if g.positions % CHUNK == 0 else MIN_COPY
    limit = {"REGISTERS": MAX_REGISTERS} if direction < 2 and tile.item_rows * tile.item_columns == LIMITED_SUMS else {}
    layout = {"A_ACROSS": int(left_across), "B_ACROSS": int(right_across), "WIDE": wide}
    return {**tile.defines(), **window(g), **layout, **limit, "DIRECTION": direction}
