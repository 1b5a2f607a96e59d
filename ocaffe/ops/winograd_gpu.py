"""Convolution with 3 x 3 windows by Winograd's algorithm where work-groups share local memory (kernels/winograd_gpu.cl), and the estimate of its time.

Tiles of 4 x 4 outputs take the fewest products; the error of forward and backward_data is half as large with 3 x 3 and a quarter with 2 x 2, below the direct
product's and, made on tensor cores, cuDNN's. So the small ones are for arithmetic that rounds nothing: 2 x 2 for gradients, and forward where they take hardly
longer than 3 x 3, as in small images. backward_filter sums over so many tiles that its error is small with 4 x 4, too.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ocaffe.ir.launch import RELU_MASK, SLOPE_ONLY, EpilogueScalars, ReductionSlot
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import SIXTEEN_BITS, TENSOR_MATHS, Target
from ocaffe.ir.tensor import FLOAT, Ref
from ocaffe.ops import gemm_gpu
from ocaffe.ops.conv_geometry import ConvGeometry
from ocaffe.ops.gemm_gpu import FLOATS_PER_CYCLE, LAUNCH, Choice, Tile, tiles_for

LARGE, MIDDLE, EXACT = 4, 3, 2  # outputs of a tile, per axis
PREMIUM = 1.25  # what EXACT may take of the time of MIDDLE
GRAIN = 128  # tiles of a go are a multiple of it: columns of the largest tile of the product
MAX_SPLITS = 16  # of backward_filter: the kernel `window` adds them up one after the other
GROUP = (64, 2, 1)  # work-items of a group of the transforms
# For the estimates, fitted to an H100.
MORE_LAUNCHES = 2  # than the direct product has
SHOWS = 0.3  # of the traffic of the products is not hidden behind their arithmetic
VECTORS = 0.75  # of the time that gemm_gpu.cost says is what forward's products take, for their rows are whole vectors


@dataclass(frozen=True)
class Tiling:
    """How the outputs of a convolution are cut: tiles of `out` x `out` of them, `grid` tiles down and across an image, `count` in all; a go takes `pitch`."""

    out: int
    grid: tuple[int, int]
    count: int
    pitch: int

    @classmethod
    def of(cls, target: Target, g: ConvGeometry, out: int) -> Tiling:
        """As few goes as what is transformed in one of them fits into the workspace."""
        grid = (-(-g.out[1] // out), -(-g.out[2] // out))
        count = g.batch * math.prod(grid)
        most = max(1, target.workspace // ((out + 2) ** 2 * (g.channels + g.num_output) * FLOAT.itemsize * GRAIN)) * GRAIN
        return cls(out, grid, count, -(-count // (-(-count // most) * GRAIN)) * GRAIN)

    @property
    def points(self) -> int:
        """Products that a tile takes, per channel and output."""
        return (self.out + 2) ** 2

    @property
    def pieces(self) -> int:
        return -(-self.count // self.pitch)

    @property
    def goes(self) -> Iterator[tuple[int, int]]:
        """First tile and number of tiles of each go."""
        return ((first, min(self.pitch, self.count - first)) for first in range(0, self.count, self.pitch))


def tiling(target: Target, g: ConvGeometry, back: bool) -> Tiling:
    """Of forward, and `back` of backward_data as the convolution `turned`."""
    if target.math in TENSOR_MATHS:
        return Tiling.of(target, g, LARGE)
    exact, middle = (Tiling.of(target, g, out) for out in (EXACT, MIDDLE))
    return exact if back or _time(target, g, exact) <= PREMIUM * _time(target, g, middle) else middle


def filter_tiling(target: Target, g: ConvGeometry) -> Tiling:
    """Of backward_filter."""
    return Tiling.of(target, g, LARGE)


def possible(g: ConvGeometry) -> bool:
    """Whether forward and backward_filter can do this geometry."""
    ones = (1, 1, 1)
    flat = (len(g.size), g.size[0], g.kernel, g.stride, g.dilation, g.pad[0]) == (3, 1, (1, 3, 3), ones, ones, 0)
    return flat and g.out == full(g)


def full(g: ConvGeometry) -> tuple[int, ...]:
    """The outputs if every window of stride 1 is there."""
    return tuple(i + 2 * p - k + 1 for i, p, k in zip(g.size, g.pad, g.kernel, strict=True))


def turned(g: ConvGeometry) -> ConvGeometry:
    """The convolution of the outputs' gradient with the turned filters that is backward_data."""
    return replace(g, channels=g.num_output, num_output=g.channels, size=g.out, out=g.size, pad=(0, 2 - g.pad[1], 2 - g.pad[2]))


def cost(target: Target, g: ConvGeometry, back: bool) -> float:
    """Estimated time of `forward` in the cycles of gemm_gpu.cost."""
    return _time(target, g, tiling(target, g, back))


def _time(target: Target, g: ConvGeometry, cut: Tiling) -> float:
    share = 1.0 if target.math in SIXTEEN_BITS else VECTORS  # the direct product of 16 bits beats its estimate, too
    return _moving(target, g, cut, 2 * g.num_output * g.group_channels) + share * cut.pieces * _products(target, g, cut)[1]


def filter_cost(target: Target, g: ConvGeometry) -> float:
    """Estimated time of backward_filter."""
    cut = filter_tiling(target, g)
    choice, products = _sums(target, g, cut)
    return _moving(target, g, cut, 2 * cut.pieces * choice.splits * g.num_output * g.group_channels) + cut.pieces * products


def _moving(target: Target, g: ConvGeometry, cut: Tiling, matrices: int) -> float:
    """What the transforms of tiles take, and the products' memory traffic as far as it shows; `matrices`: other floats per point that are moved."""
    tiles = (g.channels + g.num_output) * cut.count
    moved = (cut.out * cut.out + cut.points * (1 + SHOWS)) * tiles + cut.points * matrices
    return MORE_LAUNCHES * LAUNCH + moved / (target.compute_units * FLOATS_PER_CYCLE)


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, back: bool = False) -> None:
    """y = convolution of x (+ bias per output); `back`: with filters [channel][output], their taps backwards (`turned`)."""
    cut = tiling(rec.target, g, back)
    choice, _ = _products(rec.target, g, cut)
    batches, pitch, defines = cut.points * g.group, cut.pitch, {"OUT": cut.out}
    filters = rec.scratch("filters", (batches * g.group_channels, g.group_outputs))
    tiles = rec.scratch("tiles", (batches * g.group_channels, pitch))
    products = rec.scratch("products", (batches * g.group_outputs, pitch))
    sizes, steps = [g.group_channels, g.group_outputs, g.group], (9, g.group_outputs * 9) if back else (g.depth, 9)
    for first, count in cut.goes:
        once = 0 if first else -(-g.group_outputs // GROUP[0]) * GROUP[0]
        place = [*cut.grid, first, count, pitch]
        rec.launch(
            "winograd_gpu.operands",
            reads=[x, w],
            writes=[tiles] if first else [tiles, filters],
            modifies=[filters] if first else [],
            bf16_operands=("SOURCE",),
            args=[*sizes, *g.size[1:], *g.pad[1:], *place, once, *steps, back],
            size=(once + pitch, g.group_channels, g.group),
            local=GROUP,
            defines=defines,
        )
        gemm_gpu.batched(rec, filters, tiles, products, batches, choice, trans_a=True)
        args = [*sizes[1:], *g.out[1:], *place, EpilogueScalars(bias is not None, rec.accumulates(y), SLOPE_ONLY)]
        rec.launch(
            "winograd_gpu.output",
            reads=[products, ReductionSlot(-(-cut.count // GROUP[0])) if pitch % GROUP[0] == 0 else None, RELU_MASK, bias or products],
            writes=[] if first else [y],
            modifies=[y] if first else [],
            bf16_operands=("", "", "RESULT"),
            args=args,
            size=(count, g.group_outputs, g.group),
            local=GROUP,
            defines=defines,
        )


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    """dw: the sums over tiles of the products of what forward and backward_data transform, some tiles after others."""
    cut = filter_tiling(rec.target, g)
    choice, _ = _sums(rec.target, g, cut)
    batches, pitch, defines = cut.points * g.group, cut.pitch, {"OUT": cut.out}
    tiles = rec.scratch("tiles", (batches * g.group_channels, pitch))
    gradients = rec.scratch("gradients", (batches * g.group_outputs, pitch))
    sums = rec.scratch("sums", (choice.splits * batches * g.group_outputs, g.group_channels))
    sizes = [g.group_channels, g.group_outputs, g.group]
    for first, count in cut.goes:
        rec.launch(
            "winograd_gpu.gradients",
            reads=[x, dy],
            writes=[tiles, gradients],
            bf16_operands=("SOURCE", "GIVEN"),
            args=[*sizes, *g.size[1:], *g.pad[1:], *cut.grid, first, count, pitch, *g.out[1:]],
            size=(pitch, g.group_channels + g.group_outputs, g.group),
            local=GROUP,
            defines=defines,
        )
        gemm_gpu.batched(rec, gradients, tiles, sums, batches, choice, trans_b=True, add=first > 0)
    rec.launch(
        "winograd_gpu.window",
        reads=[sums],
        writes=[dw],
        args=[*sizes, choice.splits, rec.accumulates(dw)],
        size=(g.group_channels, g.group_outputs, g.group),
        local=GROUP,
        defines=defines,
    )


def product_tiles(target: Target) -> tuple[Tile, ...]:
    """Operands of the products are never rounded to 16 bits, but to TF32: bfloat16 would be 1.6e-2 of the largest magnitude off (TF32: 2e-3, as the direct
    product of bfloat16), and float16 has not the range. Where tensor cores make them, they make all: sums of 16 elements are added up there, which has half the
    error of multiply-adds one after the other."""
    tiles = tiles_for(target, "tf32" if target.math in SIXTEEN_BITS else None)
    return tuple(tile for tile in tiles if tile.mma) or tiles


def _products(target: Target, g: ConvGeometry, cut: Tiling) -> tuple[Choice, float]:
    """Tile and estimated time of the products of one go of forward; their depth is not split, for so many of them fill a device."""
    shape = (g.group_outputs, cut.pitch, g.group_channels, cut.points * g.group)
    costs = {choice: gemm_gpu.cost(target, choice, *shape) for choice in gemm_gpu.choices(target, product_tiles(target), *shape) if choice.splits == 1}
    return min(costs.items(), key=lambda item: item[1])


def _sums(target: Target, g: ConvGeometry, cut: Tiling) -> tuple[Choice, float]:
    """The same of backward_filter; the sum over splits costs no launch here, for the kernel `window` is needed anyway."""
    shape, tiles = (g.group_outputs, g.group_channels, cut.pitch, cut.points * g.group), product_tiles(target)
    deep = [replace(tile, depth=2 * tile.depth) for tile in tiles if tile.mma and tile.rows == tile.columns == 64]
    choices = gemm_gpu.choices(target, [*tiles, *deep], *shape)
    costs = {choice: gemm_gpu.parts_cost(target, choice, *shape) for choice in choices if choice.splits <= MAX_SPLITS}
    return min(costs.items(), key=lambda item: item[1])
