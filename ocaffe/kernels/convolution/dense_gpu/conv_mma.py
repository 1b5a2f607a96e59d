"""Convolution on NVIDIA's tensor cores: implicit GEMM in all three directions (conv_mma.cl), called by conv_gpu.py."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ocaffe.ir.kernel import Can, Kernel, read, write
from ocaffe.ir.launch import SLOPE_ONLY, EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.geometry.conv_window import Directions, gathered_shape, phases, sizes, window
from ocaffe.kernels.matmul.gemm_gpu import PACK_ITEMS, Choice, Tile, parts_of_depth, scales, sum_splits, work_items

PACK = Kernel("conv_mma.pack", read("filter"), write("packed"), can=Can(helper=True))
KERNELS = Directions.of("conv_mma", "packed")

FEW = 8  # with fewer channels, the depth of a step also covers taps
MAX_FLAT = 1024  # maximum products per position in that case: local memory holds their places
MAX_TAPS = 31  # maximum taps of the three axes added up: each takes a bit, and the position takes one
VECTOR = 4  # floats


def possible(g: ConvGeometry, direction: str) -> bool:
    """Whether the kernel of `direction` supports the geometry."""
    if sum(g.kernel) > MAX_TAPS:
        return False
    if direction == "forward":
        return g.group_channels >= FEW or g.depth <= MAX_FLAT
    return direction == "backward_filter" or g.group_outputs >= FEW


def with_step(g: ConvGeometry, tile: Tile, direction: str) -> Tile:
    """Return the tile with the waste of its steps."""
    if direction == "backward_filter":
        return replace(tile, waste=1.0)
    depth = g.depth if _flat(g, direction) else _depth(g, direction)
    return replace(tile, waste=-(-depth // tile.depth) * tile.depth / depth)


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, choice: Choice) -> None:
    _gather(rec, g, "forward", x, w, bias, y, choice)


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, bias: Ref | None, dx: Ref, choice: Choice) -> None:
    _gather(rec, g, "backward_data", dy, w, bias, dx, choice)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref, choice: Choice) -> None:
    vector = g.positions % VECTOR == 0
    defines = {**choice.tile.defines(), **scales(rec.target, choice.tile, dy, x), **window(g), "DIRECTION": 2, "VECTOR": int(vector)}
    filter_product(rec, KERNELS.backward_filter, g, x, dy, dw, choice, defines)


def _gather(rec: Recorder, g: ConvGeometry, direction: str, source: Ref, w: Ref, bias: Ref | None, target: Ref, choice: Choice) -> None:
    """forward and backward_data: target = source gathered at the taps of each position, times the filters in the order of the kernel."""
    tile, back, flat = choice.tile, direction == "backward_data", _flat(g, direction)
    depth, taps = (g.depth, 1) if flat else (_depth(g, direction), g.taps)
    vector = g.pointwise and not flat and g.positions % VECTOR == 0
    shape = {"DIRECTION": int(back), "VECTOR": int(vector), "RAGGED": int(depth % tile.depth > 0), "FLAT": g.depth if flat else 0}
    defines = {**tile.defines(), **scales(rec.target, tile, w, source), **window(g), **shape}
    rows = gathered_shape(g, direction)[0]
    quads = g.group * taps * -(-depth // tile.depth) * 4 * rows
    packed = rec.scratch("packed", (quads * 4,))
    rec.launch(PACK(filter=w, packed=packed), args=[rows, depth, taps, back, quads], size=(quads,), local=(PACK_ITEMS,), defines=defines)
    gathered_product(rec, KERNELS, g, direction, source, packed, bias, target, choice, depth, defines)


def gathered_product(
    rec: Recorder, kernels: Directions, g: ConvGeometry, direction: str, source: Ref, packed: Ref, bias: Ref | None, target: Ref, choice: Choice, depth: int,
    defines: Mapping[str, int | str],
) -> None:
    """Record the product of forward or backward_data with the packed filters, and the sum of its splits, which divide `depth`."""
    tile, back = choice.tile, direction == "backward_data"
    rows, columns, inner = gathered_shape(g, direction)
    part, splits = parts_of_depth(depth, choice)
    once = splits == 1
    to = target if once else rec.scratch("splits", (splits, target.count))
    kernel, operands = kernels.gathering(g, direction, once, source, to)
    rec.launch(
        kernel(packed=packed, bias=bias if bias is not None and once else packed, **operands),
        details=-(-columns // tile.columns) if once and (not back or max(g.stride) == 1) else 0,
        args=[*sizes(g), part, splits, EpilogueScalars(bias is not None and once, once and rec.accumulates(target), SLOPE_ONLY, fusable=once)],
        size=work_items(tile, rows, columns, g.group * splits, phases(g) if back else 1),
        local=(tile.items, 1, 1),
        defines=defines,
    )
    if not once:
        sum_splits(rec, kernel.file, defines, to, bias, target, samples=g.batch, inner=inner, mergeable=True)


def filter_product(rec: Recorder, kernel: Kernel, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref, choice: Choice, defines: Mapping[str, int | str]) -> None:
    """Record the product of backward_filter, and the sum of its splits."""
    tile = choice.tile
    part, splits = parts_of_depth(g.batch * g.positions, choice)
    once = splits == 1
    to = dw if once else rec.scratch("splits", (splits, dw.count))
    rec.launch(
        kernel(x=x, dy=dy, dw=to),
        args=[*sizes(g), part, once and rec.accumulates(dw)],
        size=work_items(tile, g.group_outputs, g.depth, g.group * splits),
        local=(tile.items, 1, 1),
        defines=defines,
    )
    if not once:
        sum_splits(rec, kernel.file, defines, to, None, dw)


def _flat(g: ConvGeometry, direction: str) -> bool:
    return direction == "forward" and g.group_channels < FEW


def _depth(g: ConvGeometry, direction: str) -> int:
    return g.group_channels if direction == "forward" else g.group_outputs
