"""Convolution with 3 x 3 windows by Winograd's F(4x4, 3x3) where work-groups share local memory (kernels/winograd_gpu.cl), and the estimate of its time."""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ocaffe.graph.ir import FLOAT, Ref
from ocaffe.graph.recorder import Recorder
from ocaffe.ops import gemm_gpu
from ocaffe.ops.gemm_gpu import FLOATS_PER_CYCLE, LAUNCH, Choice, choose, tiles_for
from ocaffe.target import Target

if TYPE_CHECKING:
    from ocaffe.ops.convolution import ConvGeometry

OUT = 4  # outputs of a tile, per axis
POINTS = 36
ROOM = 256 << 20  # bytes that the transformed tiles of one go may take
GRAIN = 128  # tiles of a go are a multiple of it: columns of the largest tile of the product
MOST_SPLITS = 16  # of backward_filter: the kernel `window` adds them up one after the other
GROUP = (64, 2, 1)  # work-items of a group of the transforms


def possible(target: Target, g: ConvGeometry) -> bool:
    """Whether forward and backward_filter can do this geometry."""
    ones = (1, 1, 1)
    flat = (len(g.size), g.size[0], g.kernel, g.stride, g.dilation, g.pad[0]) == (3, 1, (1, 3, 3), ones, ones, 0)
    return flat and target.math != "ieee" and g.out == full(g)


def full(g: ConvGeometry) -> tuple[int, ...]:
    """The outputs if every window of stride 1 is there."""
    return tuple(i + 2 * p - k + 1 for i, p, k in zip(g.size, g.pad, g.kernel, strict=True))


def turned(g: ConvGeometry) -> ConvGeometry:
    """The convolution of the outputs' gradient with the turned filters that is backward_data."""
    return replace(g, channels=g.num_output, num_output=g.channels, size=g.out, out=g.size, pad=(0, 2 - g.pad[1], 2 - g.pad[2]))


def cost(target: Target, g: ConvGeometry) -> float:
    """Estimated time of forward in the cycles of gemm_gpu.cost."""
    pieces, pitch = _pieces(g)
    _, products = _products(target, g, pitch)
    inputs, results = g.channels * _tiles(g), g.num_output * _tiles(g)
    moved = POINTS * (g.num_output * g.group_channels + 2 * (inputs + results)) + OUT * OUT * (inputs + results)
    launches = (1 + 3 * pieces) * LAUNCH
    return launches + moved / (target.compute_units * FLOATS_PER_CYCLE) + pieces * products


def filter_cost(target: Target, g: ConvGeometry) -> float:
    """Estimated time of backward_filter."""
    pieces, pitch = _pieces(g)
    choice, products = _sums(target, g, pitch)
    moved = (2 * POINTS + OUT * OUT) * (g.channels + g.num_output) * _tiles(g) + POINTS * choice.splits * 2 * pieces * g.num_output * g.group_channels
    launches = (1 + 3 * pieces) * LAUNCH
    return launches + moved / (target.compute_units * FLOATS_PER_CYCLE) + pieces * products


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, back: bool = False) -> None:
    """y = convolution of x (+ bias per output); `back`: with filters [channel][output], their taps backwards (`turned`)."""
    _, pitch = _pieces(g)
    choice, _ = _products(rec.target, g, pitch)
    batches = POINTS * g.group
    filters = rec.scratch("filters", (batches * g.group_channels, g.group_outputs))
    inputs = rec.scratch("tiles", (batches * g.group_channels, pitch))
    products = rec.scratch("products", (batches * g.group_outputs, pitch))
    steps = (9, g.group_outputs * 9) if back else (g.depth, 9)
    _transform(rec, "filter", [w], filters, (g.group_outputs, g.group_channels), g.group, [*steps, back])
    for first, count in _goes(g, pitch):
        place = [first, count, pitch]
        _transform(rec, "input", [x], inputs, (pitch, g.group_channels), g.group, [*g.size[1:], *_grid(g), *g.pad[1:], *place])
        gemm_gpu.batched(rec, filters, inputs, products, batches, choice, trans_a=True)
        args = [*g.out[1:], *_grid(g), *place, bias is not None, rec.accumulates(y), 1.0]
        _transform(rec, "output", [products, bias or products], y, (count, g.group_outputs), g.group, args, first > 0, epilogue=True)


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    """dw: the sums over tiles of the products of what forward and backward_data transform, some tiles after others."""
    _, pitch = _pieces(g)
    choice, _ = _sums(rec.target, g, pitch)
    batches = POINTS * g.group
    inputs = rec.scratch("tiles", (batches * g.group_channels, pitch))
    gradients = rec.scratch("gradients", (batches * g.group_outputs, pitch))
    sums = rec.scratch("sums", (choice.splits * batches * g.group_outputs, g.group_channels))
    for first, count in _goes(g, pitch):
        place = [first, count, pitch]
        _transform(rec, "input", [x], inputs, (pitch, g.group_channels), g.group, [*g.size[1:], *_grid(g), *g.pad[1:], *place])
        _transform(rec, "gradient", [dy], gradients, (pitch, g.group_outputs), g.group, [*g.out[1:], *_grid(g), *place])
        gemm_gpu.batched(rec, gradients, inputs, sums, batches, choice, trans_b=True, add=first > 0)
    _transform(rec, "window", [sums], dw, (g.group_channels, g.group_outputs), g.group, [choice.splits, rec.accumulates(dw)])


def _transform(
    rec: Recorder, kernel: str, reads: list[Ref], to: Ref, size: tuple[int, int], groups: int, args: list[float], more: bool = False, epilogue: bool = False
) -> None:
    """One launch over `size` work-items per group; `more`: `to` holds what an earlier one wrote."""
    planes = size if kernel in ("filter", "window") else size[1:]
    rec.launch(
        f"winograd_gpu.{kernel}",
        reads=reads,
        writes=[] if more else [to],
        modifies=[to] if more else [],
        args=[*planes, groups, *args],
        size=(*size, groups),
        local=GROUP,
        epilogue=len(planes) + len(args) if epilogue else None,
    )


def _grid(g: ConvGeometry) -> tuple[int, int]:
    """Tiles of an image, down and across."""
    return -(-g.out[1] // OUT), -(-g.out[2] // OUT)


def _tiles(g: ConvGeometry) -> int:
    return g.batch * math.prod(_grid(g))


def _pieces(g: ConvGeometry) -> tuple[int, int]:
    """Into how many goes the tiles are cut so that what is transformed fits into ROOM, and tiles of a go with padding."""
    most = max(1, ROOM // (POINTS * (g.channels + g.num_output) * FLOAT.itemsize * GRAIN)) * GRAIN
    pieces = -(-_tiles(g) // most)
    pitch = -(-_tiles(g) // (pieces * GRAIN)) * GRAIN
    return -(-_tiles(g) // pitch), pitch


def _goes(g: ConvGeometry, pitch: int) -> Iterator[tuple[int, int]]:
    """First tile and number of tiles of each go."""
    return ((first, min(pitch, _tiles(g) - first)) for first in range(0, _tiles(g), pitch))


def _products(target: Target, g: ConvGeometry, pitch: int) -> tuple[Choice, float]:
    """Tile and estimated time of the products of one go of forward; their depth is not split, for 36 of them fill a device."""
    shape = (g.group_outputs, pitch, g.group_channels, POINTS * g.group)
    choice = choose(target, tiles_for(target), *shape, most_splits=1)
    return choice, gemm_gpu.cost(target, choice, *shape)


def _sums(target: Target, g: ConvGeometry, pitch: int) -> tuple[Choice, float]:
    """The same of backward_filter."""
    shape = (g.group_outputs, g.group_channels, pitch, POINTS * g.group)
    choice = choose(target, tiles_for(target), *shape, most_splits=MOST_SPLITS)
    return choice, gemm_gpu.cost(target, choice, *shape)
