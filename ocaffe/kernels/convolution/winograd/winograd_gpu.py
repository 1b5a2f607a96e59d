"""Convolution with 3 x 3 windows by Winograd's algorithm on devices whose work-groups share local memory, and the estimate of its time.

The kernels are in winograd_gpu.cl. Tiles of 4 x 4 outputs need the fewest products. In forward and backward_data, the error
with 3 x 3 is half as large and with 2 x 2 a quarter as large. That is below the error of the direct product and, on tensor cores,
below cuDNN's. If the arithmetic does not round operands, the small tiles are therefore used: 2 x 2 for gradients, and also for
forward if it takes hardly longer than 3 x 3, as with small images. backward_filter sums over so many tiles that its error is
small with 4 x 4, too.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ocaffe.ir.kernel import REDUCTION, SIGN, Can, Kernel, own_parts, read, write, writes
from ocaffe.ir.launch import SLOPE_ONLY, EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import SIXTEEN_BITS, TENSOR_MATHS, Target
from ocaffe.ir.tensor import FLOAT, Ref
from ocaffe.ir.tuned import named
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.kernels.matmul.families import family_of
from ocaffe.kernels.matmul.gemm_gpu import Choice, Tile, fits, tiles_for, units

OPERANDS = Kernel("winograd_gpu.operands", read("x", bf16="SOURCE"), read("w"), *writes("tiles", "matrices"), can=Can(helper=True))
GRADIENTS = Kernel("winograd_gpu.gradients", read("x", bf16="SOURCE"), read("dy", bf16="GIVEN"), *writes("tiles", "matrices"), can=Can(helper=True))
OUTPUT = Kernel(
    "winograd_gpu.output", read("products"), *REDUCTION, SIGN, read("bias"), write("y", bf16="RESULT"), can=Can(helper=True, parts=own_parts),
)  # fmt: skip
WINDOW = Kernel("winograd_gpu.window", read("sums"), write("dw"), can=Can(helper=True))

LARGE, MIDDLE, EXACT = SIDES = 4, 3, 2  # outputs of a tile, per axis
PREMIUM = 1.25  # maximum time of EXACT relative to MIDDLE
GRAIN = 128  # tiles per pass are a multiple of it: the columns of the largest tile of the product
MAX_SPLITS = 16  # of backward_filter: the kernel `window` adds the splits sequentially
GROUP = (64, 2, 1)  # work-group size of the transforms
# Parameters of the estimates, fitted to an H100.
MORE_LAUNCHES = 2  # additional launches compared with the direct product
SHOWS = 0.3  # share of the products' memory traffic that their arithmetic does not hide
VECTORS = 0.75  # time of forward's products relative to gemm_gpu.cost, because their rows are whole vectors


@dataclass(frozen=True)
class Tiling:
    """The division of a convolution's outputs into tiles of `out` x `out`.

    `grid` is the tiles down and across an image, `count` their total number, and `pitch` the number of tiles per pass.
    """

    out: int
    grid: tuple[int, int]
    count: int
    pitch: int

    @classmethod
    def of(cls, target: Target, g: ConvGeometry, out: int) -> Tiling:
        """Return the tiling with the fewest passes whose transformed tiles fit the workspace."""
        grid = (-(-g.out[1] // out), -(-g.out[2] // out))
        count = g.batch * math.prod(grid)
        most = max(1, target.workspace // ((out + 2) ** 2 * (g.channels + g.num_output) * FLOAT.itemsize * GRAIN)) * GRAIN
        return cls(out, grid, count, -(-count // (-(-count // most) * GRAIN)) * GRAIN)

    @property
    def points(self) -> int:
        """Products per tile, channel and output."""
        return (self.out + 2) ** 2

    @property
    def pieces(self) -> int:
        return -(-self.count // self.pitch)

    @property
    def goes(self) -> Iterator[tuple[int, int]]:
        """First tile and number of tiles of each pass."""
        return ((first, min(self.pitch, self.count - first)) for first in range(0, self.count, self.pitch))


def tiling(target: Target, g: ConvGeometry, back: bool) -> Tiling:
    """Return the tiling of forward or, with `back`, of backward_data as the convolution `g.turned`."""
    if target.math in TENSOR_MATHS:
        return Tiling.of(target, g, LARGE)
    exact, middle = (Tiling.of(target, g, out) for out in (EXACT, MIDDLE))
    return exact if back or _time(target, g, exact) <= PREMIUM * _time(target, g, middle) else middle


def filter_tiling(target: Target, g: ConvGeometry) -> Tiling:
    """Return the tiling of backward_filter."""
    return Tiling.of(target, g, LARGE)


def possible(g: ConvGeometry) -> bool:
    """Whether forward and backward_filter support this geometry."""
    ones = (1, 1, 1)
    flat = (len(g.size), g.size[0], g.kernel, g.stride, g.dilation, g.pad[0]) == (3, 1, (1, 3, 3), ones, ones, 0)
    return flat and g.out == full(g)


def full(g: ConvGeometry) -> tuple[int, ...]:
    """Return the output size of all windows with stride 1."""
    return tuple(i + 2 * p - k + 1 for i, p, k in zip(g.size, g.pad, g.kernel, strict=True))


@functools.lru_cache(4096)  # as gemm_gpu.ranked
def cost(target: Target, g: ConvGeometry, direction: str) -> float:
    """Return the estimated time of a direction in the cycles of gemm_gpu.cost."""
    if direction == "backward_filter":
        return _filter_cost(target, g)
    back = direction == "backward_data"
    seen = g.turned if back else g
    return _time(target, seen, tiling(target, seen, back))


def _time(target: Target, g: ConvGeometry, cut: Tiling) -> float:
    share = 1.0 if target.math in SIXTEEN_BITS else VECTORS  # the 16-bit direct product is also faster than its estimate
    return _moving(target, g, cut, 2 * g.num_output * g.group_channels) + share * cut.pieces * _products(target, g, cut)[1]


def _filter_cost(target: Target, g: ConvGeometry) -> float:
    """Return the estimated time of backward_filter."""
    cut = filter_tiling(target, g)
    choice, products = _sums(target, g, cut)
    return _moving(target, g, cut, 2 * cut.pieces * choice.splits * g.num_output * g.group_channels) + cut.pieces * products


def _moving(target: Target, g: ConvGeometry, cut: Tiling, matrices: int) -> float:
    """Return the time of the tile transforms and of the products' visible memory traffic. `matrices`: other floats moved per point."""
    tiles = (g.channels + g.num_output) * cut.count
    moved = (cut.out * cut.out + cut.points * (1 + SHOWS)) * tiles + cut.points * matrices
    family = family_of(target)
    return MORE_LAUNCHES * family.launch + moved / (units(target) * family.memory_floats)


def forward(rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, back: bool = False, out: int | None = None) -> None:
    """y = convolution of x (+ bias per output). `back`: filters are [channel][output] with mirrored taps. `out`: outputs of a tile, per axis."""
    cut = Tiling.of(rec.target, g, out) if out else tiling(rec.target, g, back)
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
            (OPERANDS.adding("matrices") if first else OPERANDS)(x=x, w=w, tiles=tiles, matrices=filters),
            args=[*sizes, *g.size[1:], *g.pad[1:], *place, once, *steps, back],
            size=(once + pitch, g.group_channels, g.group),
            local=_group(rec),
            defines=defines,
        )
        gemm_gpu.batched(rec, filters, tiles, products, batches, choice, trans_a=True)
        args = [*sizes[1:], *g.out[1:], *place, EpilogueScalars(bias is not None, rec.accumulates(y), SLOPE_ONLY)]
        rec.launch(
            (OUTPUT.adding("y") if first else OUTPUT)(products=products, bias=bias or products, y=y),
            details=-(-cut.count // GROUP[0]) if pitch % GROUP[0] == 0 else 0,
            args=args,
            size=(count, g.group_outputs, g.group),
            local=_group(rec),
            defines=defines,
        )


def backward_data(rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, bias: Ref | None = None, out: int | None = None) -> None:
    forward(rec, g.turned, dy, w, bias, dx, back=True, out=out)


def _group(rec: Recorder) -> tuple[int, int, int]:
    """Return the work-group size of the transforms. `output` needs whole lines of GROUP[0]."""
    return GROUP[0], max(1, min(GROUP[1], rec.target.max_work_group // GROUP[0])), 1


def backward_filter(rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref) -> None:
    """dw = the sums over tiles of products of transformed inputs and gradients. Some tiles are processed at a time."""
    cut = filter_tiling(rec.target, g)
    choice, _ = _sums(rec.target, g, cut)
    batches, pitch, defines = cut.points * g.group, cut.pitch, {"OUT": cut.out}
    tiles = rec.scratch("tiles", (batches * g.group_channels, pitch))
    gradients = rec.scratch("gradients", (batches * g.group_outputs, pitch))
    sums = rec.scratch("sums", (choice.splits * batches * g.group_outputs, g.group_channels))
    sizes = [g.group_channels, g.group_outputs, g.group]
    for first, count in cut.goes:
        rec.launch(
            GRADIENTS(x=x, dy=dy, tiles=tiles, matrices=gradients),
            args=[*sizes, *g.size[1:], *g.pad[1:], *cut.grid, first, count, pitch, *g.out[1:]],
            size=(pitch, g.group_channels + g.group_outputs, g.group),
            local=_group(rec),
            defines=defines,
        )
        gemm_gpu.batched(rec, gradients, tiles, sums, batches, choice, trans_b=True, add=first > 0)
    rec.launch(
        WINDOW(sums=sums, dw=dw),
        args=[*sizes, choice.splits, rec.accumulates(dw)],
        size=(g.group_channels, g.group_outputs, g.group),
        local=_group(rec),
        defines=defines,
    )


def product_tiles(target: Target) -> tuple[Tile, ...]:
    """Return the tiles for the products.

    In 16-bit modes the operands are rounded to TF32. bfloat16 would have an error of 1.6e-2 of the largest magnitude; TF32 has
    2e-3, like the direct product in bfloat16. float16 does not have the range. If there are tensor cores, they compute all
    products: they add sums of 16 elements, which has half the error of sequential multiply-adds.
    """
    tiles = tiles_for(target, "tf32" if target.math in SIXTEEN_BITS else None)
    if target.tuned.preferred_tiles:
        return tuple(named(target.tuned.preferred_tiles, "Winograd's products", tiles))
    return tuple(tile for tile in tiles if tile.mma and fits(target, tile)) or tiles


def _products(target: Target, g: ConvGeometry, cut: Tiling) -> tuple[Choice, float]:
    """Return tile and estimated time of the products of one pass of forward. Their depth is not split, because they fill a device."""
    shape = (g.group_outputs, cut.pitch, g.group_channels, cut.points * g.group)
    costs = {choice: gemm_gpu.cost(target, choice, *shape) for choice in gemm_gpu.choices(target, product_tiles(target), *shape) if choice.splits == 1}
    return min(costs.items(), key=lambda item: item[1])


def _sums(target: Target, g: ConvGeometry, cut: Tiling) -> tuple[Choice, float]:
    """Return the same for backward_filter. The sum over splits needs no extra launch, because the kernel `window` adds them."""
    shape, tiles = (g.group_outputs, g.group_channels, cut.pitch, cut.points * g.group), product_tiles(target)
    deep = [replace(tile, depth=2 * tile.depth) for tile in tiles if tile.mma and not tile.quads and tile.rows == tile.columns == 64]
    choices = gemm_gpu.choices(target, [*tiles, *deep], *shape)
    costs = {choice: gemm_gpu.parts_cost(target, choice, *shape) for choice in choices if choice.splits <= MAX_SPLITS}
    return min(costs.items(), key=lambda item: item[1])
