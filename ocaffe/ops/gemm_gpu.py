"""Matrix product on devices whose work-groups share local memory, and the choice of tiles that convolution shares (kernels/gemm_gpu.cl)."""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ocaffe.ir.launch import RELU_MASK, SLOPE_ONLY, EpilogueScalars, Read
from ocaffe.ir.recorder import MAX_COMPLETION_COUNTERS, Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import FLOAT, Ref, Role
from ocaffe.ir.tuned import Problem

# A second pass reads the partial results of a split depth; they may take this many bytes of scratch.
SPLIT_SCRATCH = 16 << 20
PATCH_SCRATCH = 4  # times as many where a group makes all taps, so that there are few groups
SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
BFLOAT16, FLOAT16 = 2, 4  # Tile.mma: operands are rounded to 16 bits
SUM_ITEMS = 256  # work-items of a group in split_sum
PACK_ITEMS = 128  # and of the kernels that pack filters
MAX_REGISTERS = 128  # of work-items of which an H100 then holds 512 a unit
BUNCH = 8  # parts of a tile that one work-group adds up at the least (tile_join in kernels/tile_gpu.h)


@dataclass(frozen=True)
class Tile:
    """The work of one group, kernels/tile_gpu.h: `rows` x `columns` results, of which a work-item holds `item_rows` x `item_columns`;
    `depth` is brought to local memory at a time; 32 consecutive work-items cover `warp_rows` rows. `mma`: the kind of products (MMA; 0: multiply-adds).
    `ahead`: by how many steps they fetch before they multiply. `levels` of sums (LEVELS). `stages`: for how many steps there is local memory where operands
    are copied there as they are (STAGES in kernels/tile_async.h; 0: they are not).
    `patches`: columns are pixels of a rectangle, whose windows lie in local memory (kernels/conv_patch_mma.cl).
    `waste`: by how much steps that do not fit the depth lengthen it, and what does not exist.
    """

    rows: int
    columns: int
    item_rows: int
    item_columns: int
    warp_rows: int
    depth: int
    mma: int = 0
    ahead: int = 1
    levels: int = 1
    stages: int = 0
    patches: bool = False
    waste: float = 1.0

    @property
    def items(self) -> int:
        return (self.rows // self.item_rows) * (self.columns // self.item_columns)

    @property
    def quads(self) -> bool:
        """Whether the kernels are those of kernels/tile_mma.h."""
        return self.mma in (BFLOAT16, FLOAT16) and not self.stages

    def defines(self) -> dict[str, int]:
        names = {"BM": self.rows, "BN": self.columns, "TM": self.item_rows, "TN": self.item_columns, "WM": self.warp_rows}
        special = {"MMA": (self.mma, 0), "AHEAD": (self.ahead, 0 if self.quads else self.ahead), "LEVELS": (self.levels, 1), "STAGES": (self.stages, 0)}
        return {**names, "BK": self.depth} | {name: value for name, (value, default) in special.items() if value != default}

    def __str__(self) -> str:
        kind = f" mma{self.mma}" if self.mma else ""
        stages = f" {'patch' if self.patches else 'async'}{self.stages}" if self.stages else ""
        return f"{self.rows}x{self.columns}x{self.depth} by {self.item_rows}x{self.item_columns}{kind}{stages}"


TILES = (
    Tile(128, 128, 16, 8, 64, 8),
    Tile(64, 128, 8, 8, 32, 8),
    Tile(64, 64, 8, 8, 32, 16),
    Tile(32, 128, 4, 8, 32, 16),
    Tile(32, 64, 4, 8, 32, 16),
    Tile(32, 32, 4, 4, 32, 16),
)

# On tensor cores, by kernels/tile_gpu.h: three TF32 products for one of floats. item_rows = warp_rows / 8, here and below.
TENSOR_TILES = (
    Tile(128, 128, 8, 16, 64, 16, mma=3),
    Tile(128, 128, 8, 8, 64, 16, mma=3),
    Tile(64, 128, 8, 8, 64, 16, mma=3),
    Tile(64, 128, 4, 8, 32, 16, mma=3),
    Tile(64, 64, 4, 8, 32, 16, mma=3),
    Tile(32, 128, 4, 8, 32, 16, mma=3),
)

# By kernels/tile_mma.h, by mode of arithmetic.
QUAD_SHAPES = (  # rows, columns, results of a work-item, rows of a warp, steps ahead: two where that leaves registers
    (128, 256, 8, 16, 64, 1),
    (128, 128, 8, 16, 64, 1),
    (128, 128, 8, 8, 64, 2),
    (64, 128, 8, 8, 64, 1),
    (64, 128, 4, 8, 32, 2),
    (64, 64, 4, 8, 32, 2),
)
QUAD_TILES = {
    math: tuple(Tile(rows, columns, m, n, warp, 32, mma, ahead=ahead) for rows, columns, m, n, warp, ahead in QUAD_SHAPES)
    for math, mma in (("bf16", BFLOAT16), ("fp16", FLOAT16))
}

# By kernels/tile_async.h, of operands in bfloat16: what local memory of 48 KiB has stages for.
ASYNC_TILES = tuple(
    Tile(rows, columns, m, n, warp, 32, BFLOAT16, stages=stages)
    for rows, columns, m, n, warp, stages in (
        (128, 128, 8, 8, 64, 3),
        (128, 64, 8, 8, 64, 4),
        (64, 128, 4, 16, 32, 4),
        (64, 128, 4, 8, 32, 4),
        (64, 64, 4, 8, 32, 4),
    )
)

# What there is beside TILES where there are tensor cores, by mode of arithmetic.
ON_TENSOR_CORES: dict[str, tuple[Tile, ...]] = {
    "ieee": (),
    "fp32": TENSOR_TILES,
    "tf32": tuple(replace(tile, mma=1) for tile in TENSOR_TILES),
    **QUAD_TILES,
}


def tiles_for(target: Target, math: str | None = None) -> tuple[Tile, ...]:
    """The tiles of a matrix product that a device may choose from, by its mode of arithmetic (Target.math, or another one that is given)."""
    return TILES + (ON_TENSOR_CORES[math or target.math] if target.tensor_cores else ())


def async_tiles(target: Target) -> tuple[Tile, ...]:
    """Likewise of kernels that copy operands as they are."""
    return ASYNC_TILES if target.tensor_cores and target.math == "bf16" else ()


# Sums that a work-item can keep in registers. Elsewhere they spill: Intel's GPUs have 128 registers of 8 lanes for 16 work-items.
MAX_SUMS = {"nvidia": 144, "amd": 128}
FEW_SUMS = 64


@dataclass(frozen=True)
class Rates:
    """What `cost` counts with, for one kind of products, fitted to the rates in benchmarks/gpu_kernels_h100.txt.

    `product`: instructions that a multiply-add takes as long as; `fetch`: those that bring one element of a tile to local memory; `wait`: cycles until a
    fetched tile can be used; `registers` of a work-item, beside its sums.
    """

    product: float
    fetch: float
    wait: float
    registers: int


# By Tile.mma; and of tiles with stages.
RATES = {
    0: Rates(1.0, 10.5, 1300, 50),
    1: Rates(0.3, 10.5, 1300, 100),
    3: Rates(0.68, 10.5, 1300, 130),
    BFLOAT16: Rates(0.16, 11, 700, 120),
    FLOAT16: Rates(0.16, 11, 700, 120),
}
# Not fitted: an H100 does what these put first faster than the others, but among themselves they may come in another order.
ASYNC_RATES = Rates(0.12, 4, 300, 60)
PATCH_RATES = Rates(0.02, 3, 300, 64)

# An NVIDIA H100: 128 lanes and 65536 registers a unit, 3 TB/s over 132 units at 1.7 GHz, 8 us a launch.
LANES = 128
REGISTERS = 65536
LAUNCH = 14000
LOOP = 0.12  # instructions of a step that are neither arithmetic nor fetches, per multiply-add
FLOATS_PER_CYCLE = 3  # to or from global memory, a unit


LAST_BLOCK_CYCLES = 3500  # cycles until the last group of a tile knows that it is the last
ROUND = 500  # cycles that it takes for 16 loads of each work-item (tile_meet in kernels/tile_gpu.h), or for four one after the other (kernels/split_sum.h)
GAP = 2000  # cycles before a launch


@dataclass(frozen=True)
class Choice:
    """A tile and the number of parts that the depth is cut into."""

    tile: Tile
    splits: int = 1

    def __str__(self) -> str:
        return f"{self.tile} /{self.splits}"


def choose(target: Target, tiles: Sequence[Tile], rows: int, columns: int, depth: int, batches: int = 1) -> Choice:
    """The cheapest of `ranked`."""
    return ranked(target, tiles, rows, columns, depth, batches)[0]


def ranked(target: Target, tiles: Sequence[Tile], rows: int, columns: int, depth: int, batches: int = 1) -> list[Choice]:
    """Tiles and splits for `batches` products of rows x depth by depth x columns, the cheapest first, by `cost`."""
    return sorted(choices(target, tiles, rows, columns, depth, batches), key=lambda choice: cost(target, choice, rows, columns, depth, batches))


def choices(target: Target, tiles: Sequence[Tile], rows: int, columns: int, depth: int, batches: int) -> Iterator[Choice]:
    """What a device can run, with every split that makes sense."""
    fitting = [tile for tile in tiles if tile.item_rows * tile.item_columns <= MAX_SUMS.get(target.runtime, FEW_SUMS)]
    return (Choice(tile, splits) for tile in fitting for splits in _splits(rows * columns * batches, depth, tile))


def _splits(results: int, depth: int, tile: Tile) -> Iterator[int]:
    """1, and what leaves each part several steps and the scratch small."""
    yield 1
    most = SPLIT_SCRATCH * (PATCH_SCRATCH if tile.patches else 1)
    for splits in SPLITS:
        if depth >= splits * tile.depth * 4 and splits * results * FLOAT.itemsize <= most:
            yield splits


def cost(target: Target, choice: Choice, rows: int, columns: int, depth: int, batches: int) -> float:
    """Estimated time of a product, all parts of its depth added up, in the cycles of `parts_cost`."""
    cycles, tile, splits = parts_cost(target, choice, rows, columns, depth, batches), choice.tile, choice.splits
    if splits == 1:
        return cycles
    meets = reduces_in_last_block(target, tile, splits, -(-rows // tile.rows) * -(-columns // tile.columns) * batches)
    return cycles + (max(LAUNCH, _joining(tile, splits)) if meets else _second_pass(splits))


def parts_cost(target: Target, choice: Choice, rows: int, columns: int, depth: int, batches: int) -> float:
    """Estimated time of a product whose parts of the depth are not added up yet, in clock cycles of a compute unit that does 128 multiply-adds and fetches 128
    bytes of local memory in one.

    A step takes its arithmetic or its local fetches, whichever is longer. Groups on one unit hide each other's waiting for global memory
    and barriers; a group alone waits in full. A split pays for writing and reading its partial sums.
    """
    tile, splits, rates = choice.tile, choice.splits, _rates(choice.tile)
    m, n = tile.item_rows, tile.item_columns
    fetched = (tile.rows + tile.columns) / (tile.rows * tile.columns) * rates.fetch
    arithmetic = rates.product * m * n if tile.mma else max(m * n + (m + n) / 4, 4 * (m + n))
    per_depth = arithmetic + (LOOP + fetched) * m * n
    step = tile.items / LANES * tile.depth * per_depth
    steps = -(-int(depth * tile.waste) // (splits * tile.depth))
    groups = -(-rows // tile.rows) * -(-columns // tile.columns) * batches * splits
    groups_per_unit = -(-groups // target.compute_units)
    resident = max(1, REGISTERS // (tile.items * (m * n * tile.levels + rates.registers)))
    cycles = max(groups_per_unit * steps * step, -(-groups_per_unit // resident) * (steps + 2) * (step + rates.wait))
    if splits > 1:
        cycles += (splits + 1) * 2 * rows * columns * batches / (target.compute_units * FLOATS_PER_CYCLE)
    return cycles


def _rates(tile: Tile) -> Rates:
    if tile.patches:
        return PATCH_RATES
    return ASYNC_RATES if tile.stages else RATES[tile.mma]


def _second_pass(splits: int) -> float:
    """Cycles of a launch whose work-items add up the parts of a result one after the other."""
    return LAUNCH + -(-splits // 4) * ROUND


def _joining(tile: Tile, splits: int) -> float:
    """Cycles until the last work-group of a tile has the sum of all parts."""
    count = bunches(splits)
    levels = [splits] if count == 1 else [-(-splits // count), count]
    return sum(LAST_BLOCK_CYCLES + tile.item_rows * tile.item_columns // 16 * -(-parts // 4) * ROUND for parts in levels)


def record(
    rec: Recorder, a: Ref, b: Ref, c: Ref, trans_a: bool, trans_b: bool, bias: Ref | None, choice: Choice | None = None
) -> None:
    """c[M, N] = op(a) @ op(b) (+ bias[n] per column), added to c if it accumulates. `choice` overrules the estimate (benchmarks, tests)."""
    rows, columns = c.shape
    depth = a.shape[0] if trans_a else a.shape[1]
    if choice is None:
        problem = Problem("gemm", (rows, columns, depth, int(trans_a), int(trans_b)), rec.target.math)
        choice = rec.target.tuned.choose(problem, ranked(rec.target, tiles_for(rec.target), rows, columns, depth))
    part, splits = parts_of_depth(depth, choice)
    last_block = LastBlock.of(rec, choice.tile, splits, -(-rows // choice.tile.rows) * -(-columns // choice.tile.columns))
    last = splits == 1 or bool(last_block.parts)
    to = c if last else rec.scratch("splits", (splits * rows, columns))
    reads, writes = [a, b, RELU_MASK if last else None, *last_block.counters, a if bias is None or not last else bias], [to, *last_block.parts]
    family, defines, layout = _program(rec.target, choice.tile, a, b, trans_a, trans_b)
    _launch(rec, family, choice.tile, {**defines, **last_block.defines}, reads, writes, (rows, columns, depth, part), 1, splits,
            [*layout, EpilogueScalars(bias is not None and last, last and rec.accumulates(c), SLOPE_ONLY, fusable=last)])  # fmt: skip
    if not last:
        parts = to.view((splits, rows * columns))
        sum_splits(rec, family, defines, parts, bias, c, samples=rows, mergeable=True)


def batched(
    rec: Recorder, a: Ref, b: Ref, c: Ref, batches: int, choice: Choice, *, trans_a: bool = False, trans_b: bool = False, add: bool = False
) -> None:
    """c[split][batch] = op(a[batch]) @ op(b[batch]) over the split's part of the depth, with `add` added to what is there.

    Each operand is a matrix whose rows are those of all batches, one after the other; c has choice.splits times as many.
    """
    rows, columns = c.shape[0] // (batches * choice.splits), c.shape[1]
    depth = a.shape[0] // batches if trans_a else a.shape[1]
    part, _ = parts_of_depth(depth, choice)
    family, defines, layout = _program(rec.target, choice.tile, a, b, trans_a, trans_b)
    reads, writes, modifies = [a, b, a], [] if add else [c], [c] if add else []
    _launch(rec, family, choice.tile, defines, reads, writes, (rows, columns, depth, part), batches, choice.splits, [*layout, EpilogueScalars(False, add, SLOPE_ONLY, fusable=False)],
            modifies=modifies)  # fmt: skip


def parts_of_depth(depth: int, choice: Choice) -> tuple[int, int]:
    """How much of the depth a split takes, whole steps, and how many splits that makes."""
    part = -(-depth // (choice.splits * choice.tile.depth)) * choice.tile.depth
    return part, max(1, -(-depth // part)) if part else 1


def work_items(tile: Tile, rows: int, columns: int, batches: int, phases: int = 1) -> tuple[int, int, int]:
    """Of a launch whose groups go over the tiles of columns, each in so many phases, of rows, and over batches."""
    return phases * -(-columns // tile.columns) * tile.items, -(-rows // tile.rows), batches


def _program(target: Target, tile: Tile, a: Ref, b: Ref, trans_a: bool, trans_b: bool) -> tuple[str, dict[str, int], list[int]]:
    """The kernel file of a tile, its defines, and the layout as far as it is an argument."""
    layout = {"TRANS_A": int(trans_a), "TRANS_B": int(trans_b)}
    if tile.quads:
        return "gemm_mma", {**tile.defines(), **layout, **scales(target, tile, a, b)}, []
    return "gemm_gpu", tile.defines(), [*layout.values()]


def _launch(
    rec: Recorder, family: str, tile: Tile, defines: Mapping[str, int | str], reads: Sequence[Read], writes: list[Ref], shape: tuple[int, int, int, int],
    batches: int, splits: int, args: list[int | EpilogueScalars], *, modifies: Sequence[Ref] = (),
) -> None:  # fmt: skip
    rows, columns, _, _ = shape
    rec.launch(
        f"{family}.gemm",
        reads=reads,
        writes=writes,
        modifies=modifies,
        args=[*shape, batches, *args],
        size=work_items(tile, rows, columns, batches * splits),
        local=(tile.items, 1, 1),
        defines=defines,
    )


def scales(target: Target, tile: Tile, left: Ref, right: Ref) -> dict[str, int]:
    """The defines LEFT_SCALE and RIGHT_SCALE of kernels/tile_mma.h: gradients are scaled before they are rounded to float16."""
    names = {"LEFT_SCALE": left, "RIGHT_SCALE": right} if tile.mma == FLOAT16 else {}
    return {name: target.gradient_scale for name, ref in names.items() if ref.role is Role.DIFF}


def bunches(splits: int) -> int:
    """Into how many bunches `tile_join` (kernels/tile_gpu.h) puts the parts of a tile."""
    return -(-splits // max(BUNCH, math.isqrt(splits - 1) + 1))


def reduces_in_last_block(target: Target, tile: Tile, splits: int, tiles: int) -> bool:
    """Whether the last work-group of each of so many tiles adds up the partial sums: where that takes no longer than a second launch, and little memory."""
    if not target.last_block_reduction or tile.quads or tile.stages or splits == 1:
        return False
    fits = tiles * (bunches(splits) + 1) <= MAX_COMPLETION_COUNTERS and tiles * splits * tile.rows * tile.columns * FLOAT.itemsize <= SPLIT_SCRATCH
    return fits and _joining(tile, splits) <= _second_pass(splits) + GAP


@dataclass(frozen=True)
class LastBlock:
    """What a product whose groups meet needs beyond others: operands COMPLETION_COUNTER_OPERAND and PARTS, and the define. All empty where they do not (`reduces_in_last_block`)."""

    counters: list[Ref]
    parts: list[Ref]
    defines: dict[str, str]

    @classmethod
    def of(cls, rec: Recorder, tile: Tile, splits: int, tiles: int) -> LastBlock:
        """`tiles`: how many the result is made of."""
        if not reduces_in_last_block(rec.target, tile, splits, tiles):
            return cls([], [], {})
        parts = rec.scratch("splits", (tiles, splits, tile.rows * tile.columns))
        return cls([rec.completion_counters.view((tiles * (bunches(splits) + 1),))], [parts], {"DEVICE_FENCE": rec.target.device_fence})


def sum_splits(
    rec: Recorder,
    family: str,
    defines: dict[str, int],
    parts: Ref,
    bias: Ref | None,
    y: Ref,
    *,
    samples: int = 1,
    inner: int = 1,
    mergeable: bool = False,
) -> None:
    """The second pass of a split depth: y = sum over the first axis of `parts` (+ bias). y is `samples` rows at its batch stride;
    `bias` has one value per `inner` neighbouring results. `family`, with `defines`, is any program that includes split_sum.h."""
    splits, results = parts.shape
    rec.launch(
        f"{family}.split_sum",
        reads=[parts, RELU_MASK if mergeable else None, parts if bias is None else bias],
        writes=[y],
        args=[splits, samples, results // samples, inner, EpilogueScalars(bias is not None, rec.accumulates(y), SLOPE_ONLY, fusable=mergeable)],
        bf16_operands=("", "", "RESULT"),
        size=(results,),
        local=(SUM_ITEMS,),
        defines=defines,
    )
