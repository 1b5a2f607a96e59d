"""Matrix product on devices whose work-groups share local memory (gemm_gpu.cl).

Convolution uses the same choice of tiles.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ocaffe.errors import Error
from ocaffe.ir import matrix_units
from ocaffe.ir.kernel import COUNTERS, PARTS, SIGN, Can, Kernel, read, reads, write
from ocaffe.ir.launch import SLOPE_ONLY, EpilogueScalars
from ocaffe.ir.recorder import MAX_COMPLETION_COUNTERS, Recorder
from ocaffe.ir.target import OTHER_DEVICE, Target
from ocaffe.ir.tensor import FLOAT, Ref, Role
from ocaffe.ir.tuned import Problem
from ocaffe.kernels.matmul.families import FAMILIES, Family, Shape, family_of

GEMM = Kernel("gemm_gpu.gemm", *reads("a", "b"), SIGN, COUNTERS, read("bias"), write("c"), PARTS)
GEMM_MMA = Kernel("gemm_mma.gemm", *reads("a", "b"), SIGN, read("bias"), write("c"))
# Maximum bytes of scratch for the partial results of a split depth, which a second pass reads.
SPLIT_SCRATCH = 16 << 20
PATCH_SCRATCH = 4  # factor on SPLIT_SCRATCH if a group computes all taps, because there are then few groups
SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
TF32, BFLOAT16, FLOAT16 = 1, 2, 4  # Tile.mma: operands are rounded to 11 bits of mantissa, or to 16 bits
SUM_ITEMS = 256  # work-items per group of split_sum
PADDING = 4  # floats between two rows of a tile in local memory (tile_gpu.h)
PACK_ITEMS = 128  # work-items per group of the kernels that pack filters
MAX_REGISTERS = 128  # registers per work-item with which an H100 holds 512 work-items per unit
BUNCH = 8  # minimum partial sums of a tile that one work-group adds (tile_join in tile_gpu.h)


@dataclass(frozen=True)
class Tile:
    """The work of one work-group (tile_gpu.h).

    A group computes `rows` x `columns` results, and a work-item `item_rows` x `item_columns` of them. 32 consecutive work-items
    cover `warp_rows` rows. `depth` is the depth that one step loads to local memory.

    `mma`: the kind of products (MMA; 0: multiply-adds).
    `ahead`: the number of steps that a fetch precedes its multiplication.
    `levels`: the levels of summation (LEVELS).
    `stages`: the number of steps in local memory if operands are copied unchanged (STAGES in tile_async.h), else 0.
    `patches`: columns are the pixels of a rectangle whose windows are in local memory (kernels/convolution/dense_gpu/conv_patch_mma.cl).
    `waste`: the factor on the work by padded depth and by results that do not exist.
    `unit`: the defines of a matrix unit (MatrixUnit.program_defines); empty: NVIDIA's tensor cores, or multiply-adds.
    `compiler`: defines for the device's compiler (Family.compiler_defines).
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
    unit: tuple[tuple[str, str], ...] = ()
    compiler: tuple[tuple[str, int], ...] = ()

    @property
    def items(self) -> int:
        return (self.rows // self.item_rows) * (self.columns // self.item_columns)

    @property
    def local_memory(self) -> int:
        """Bytes of the two buffers of tile_gpu.h or, for matrix units, of tile_mma.h. 0 for NVIDIA's tensor cores, which have enough."""
        if self.mma and not self.unit:
            return 0
        element = 2 if self.mma in (BFLOAT16, FLOAT16) else FLOAT.itemsize
        return 2 * self.depth * (self.rows + self.columns + 2 * PADDING) * element

    @property
    def quads(self) -> bool:
        """Whether the kernels use tile_mma.h."""
        return bool(self.unit) or (self.mma in (BFLOAT16, FLOAT16) and not self.stages)

    def defines(self) -> dict[str, int | str]:
        names = {"BM": self.rows, "BN": self.columns, "TM": self.item_rows, "TN": self.item_columns, "WM": self.warp_rows}
        special = {"MMA": (self.mma, 0), "AHEAD": (self.ahead, 0 if self.quads else self.ahead), "LEVELS": (self.levels, 1), "STAGES": (self.stages, 0)}
        more = {name: value for name, (value, default) in special.items() if value != default}
        return {**names, "BK": self.depth, **more, **dict(self.unit), **dict(self.compiler)}

    def __str__(self) -> str:
        kind = f" mma{self.mma}" if self.mma else ""
        stages = f" {'patch' if self.patches else 'async'}{self.stages}" if self.stages else ""
        return f"{self.rows}x{self.columns}x{self.depth} by {self.item_rows}x{self.item_columns}{kind}{stages}"


@functools.cache
def fma_tiles(family: Family) -> tuple[Tile, ...]:
    """Return the tiles of float multiply-adds of a family."""
    return tuple(_fma_tile(family, shape) for shape in family.tiles)


def _fma_tile(family: Family, shape: Shape) -> Tile:
    return Tile(*shape, compiler=family.compiler_defines(shape[2] * shape[3]))


TILES = fma_tiles(FAMILIES[-1])  # of a device without a row

# Tiles on tensor cores with tile_gpu.h: three TF32 products replace one float product. Here and below, item_rows = warp_rows / 8.
TENSOR_TILES = (
    Tile(128, 128, 8, 16, 64, 16, mma=3),
    Tile(128, 128, 8, 8, 64, 16, mma=3),
    Tile(64, 128, 8, 8, 64, 16, mma=3),
    Tile(64, 128, 4, 8, 32, 16, mma=3),
    Tile(64, 64, 4, 8, 32, 16, mma=3),
    Tile(32, 128, 4, 8, 32, 16, mma=3),
)

# Tiles with tile_mma.h, by mode of arithmetic.
QUAD_SHAPES = (  # rows, columns, rows and columns of a work-item, rows of a warp, steps ahead: two if registers suffice
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

# Tiles with tile_async.h, for bfloat16 operands. As many stages as fit 48 KiB of local memory.
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

# Additional tiles on devices with tensor cores, by mode of arithmetic.
ON_TENSOR_CORES: dict[str, tuple[Tile, ...]] = {
    "ieee": (),
    "fp32": TENSOR_TILES,
    "tf32": tuple(replace(tile, mma=1) for tile in TENSOR_TILES),
    **QUAD_TILES,
}


# Tiles of matrix units: rows, columns, rows and columns of a work-item. The rows of a wave follow from the unit. AMD's work-groups have at most 256
# work-items. With fewer of them for 64 x 128, local memory would hold one wave of each SIMD unit, and Intel's compiler would spill.
UNIT_SHAPES = ((128, 128, 4, 16), (128, 64, 4, 8), (64, 64, 4, 8))
FORMATS = {"tf32": TF32, "bf16": BFLOAT16, "fp16": FLOAT16}
LINE_WORDS = 16  # 32-bit words of a line in one step (tile_mma.h)


def unit_tile(unit: str, math: str, rows: int, columns: int, item_rows: int, item_columns: int) -> Tile:
    """Return the tile of a matrix unit (a key of matrix_units.UNITS) in the arithmetic `math`."""
    own = matrix_units.UNITS[unit]
    depth = LINE_WORDS * (1 if math == "tf32" else 2)
    return Tile(rows, columns, item_rows, item_columns, item_rows * own.lane_rows, depth, FORMATS[math], unit=own.program_defines(math))


@functools.cache
def unit_tiles(unit: str, math: str) -> tuple[Tile, ...]:
    """Return the tiles of a matrix unit in the arithmetic `math`; none if it does not support it."""
    return tuple(unit_tile(unit, math, *shape) for shape in UNIT_SHAPES) if matrix_units.supports(unit, math) else ()


def tiles_for(target: Target, math: str | None = None) -> tuple[Tile, ...]:
    """Return the tiles of a matrix product that a device supports, for `math` or else its mode of arithmetic (Target.math)."""
    math = math or target.math
    special = ON_TENSOR_CORES[math] if target.tensor_cores else unit_tiles(target.matrix_unit, math)
    return special if target.matrix_unit_only and special else fma_tiles(family_of(target)) + special


def async_tiles(target: Target) -> tuple[Tile, ...]:
    """Return the tiles of kernels that copy operands unchanged."""
    return ASYNC_TILES if target.tensor_cores and target.math == "bf16" else ()


@dataclass(frozen=True)
class Rates:
    """The parameters of `cost` for one kind of matrix product, fitted to the rates in benchmarks/gpu_kernels_h100.txt.

    `product`: the cost of a multiply-add in instructions.
    `fetch`: the instructions that load one element of a tile to local memory.
    `wait`: the cycles until a fetched tile can be used.
    `registers`: the registers of a work-item in addition to its sums.
    """

    product: float
    fetch: float
    wait: float
    registers: int


# Rates by Tile.mma. Tiles with stages have ASYNC_RATES or PATCH_RATES.
RATES = {
    0: Rates(1.0, 10.5, 1300, 50),
    1: Rates(0.3, 10.5, 1300, 100),
    3: Rates(0.68, 10.5, 1300, 130),
    BFLOAT16: Rates(0.16, 11, 700, 120),
    FLOAT16: Rates(0.16, 11, 700, 120),
}
# Not fitted. On an H100, the tiles that these rates prefer to other tiles are faster, but their order among themselves is not reliable.
ASYNC_RATES = Rates(0.12, 4, 300, 60)
PATCH_RATES = Rates(0.02, 3, 300, 64)

LOOP = 0.12  # other instructions of a step (neither arithmetic nor fetches), per multiply-add
LAST_BLOCK_CYCLES = 3500  # cycles until the last group of a tile has detected that it is the last
ROUND = 500  # cycles for 16 loads per work-item (tile_join in tile_gpu.h), or for four sequential loads (split_sum.h)
GAP = 2000  # idle cycles before a launch


@dataclass(frozen=True)
class Choice:
    """A tile and the number of splits of the depth."""

    tile: Tile
    splits: int = 1

    def __str__(self) -> str:
        return f"{self.tile} /{self.splits}"


def choose(target: Target, tiles: Sequence[Tile], rows: int, columns: int, depth: int, batches: int = 1) -> Choice:
    """Return the cheapest choice of `ranked`."""
    return ranked(target, tiles, rows, columns, depth, batches)[0]


def ranked(target: Target, tiles: Sequence[Tile], rows: int, columns: int, depth: int, batches: int = 1) -> Sequence[Choice]:
    """Return the tiles and splits for `batches` products of rows x depth by depth x columns, sorted by `cost`."""
    return _ranked(target, family_of(target), tuple(tiles), rows, columns, depth, batches)


@functools.lru_cache(4096)  # a net has few shapes, and a search for a plan records it many times
def _ranked(target: Target, family: Family, tiles: Sequence[Tile], rows: int, columns: int, depth: int, batches: int) -> Sequence[Choice]:
    """`family` is that of the target, on which costs depend."""
    return tuple(sorted(choices(target, tiles, rows, columns, depth, batches), key=lambda choice: cost(target, choice, rows, columns, depth, batches)))


def choices(target: Target, tiles: Sequence[Tile], rows: int, columns: int, depth: int, batches: int) -> Iterator[Choice]:
    """Yield the tiles that a device supports, with every sensible split."""
    fitting = [tile for tile in tiles if tile.item_rows * tile.item_columns <= family_of(target).max_sums and fits(target, tile)]
    if not fitting:
        least = f"{min(tile.items for tile in tiles)} work-items and {min(tile.local_memory for tile in tiles)} bytes of local memory"
        has = f"{target.max_work_group} work-items (CL_DEVICE_MAX_WORK_GROUP_SIZE) and {target.local_memory} bytes (CL_DEVICE_LOCAL_MEM_SIZE)"
        raise Error(f"matrix products on '{target.name}' need work-groups of {least}, it allows {has}", fix=OTHER_DEVICE)
    return (Choice(tile, splits) for tile in fitting for splits in _splits(rows * columns * batches, depth, tile))


def fits(target: Target, tile: Tile) -> bool:
    """Whether a device's work-groups and local memory are large enough for a tile."""
    return tile.items <= target.max_work_group and tile.local_memory <= target.local_memory


def _splits(results: int, depth: int, tile: Tile) -> Iterator[int]:
    """Yield 1 and the splits with several steps each and with little scratch."""
    yield 1
    most = SPLIT_SCRATCH * (PATCH_SCRATCH if tile.patches else 1)
    for splits in SPLITS:
        if depth >= splits * tile.depth * 4 and splits * results * FLOAT.itemsize <= most:
            yield splits


def cost(target: Target, choice: Choice, rows: int, columns: int, depth: int, batches: int) -> float:
    """Return the estimated time of a product, including the addition of its partial sums, in the cycles of `parts_cost`."""
    cycles, tile, splits = parts_cost(target, choice, rows, columns, depth, batches), choice.tile, choice.splits
    if splits == 1:
        return cycles
    in_last_block = reduces_in_last_block(target, tile, splits, -(-rows // tile.rows) * -(-columns // tile.columns) * batches)
    return cycles + (max(family_of(target).launch, _joining(target, tile, splits)) if in_last_block else _second_pass(target, splits))


def parts_cost(target: Target, choice: Choice, rows: int, columns: int, depth: int, batches: int) -> float:
    """Return the estimated time of a product without the addition of its partial sums.

    The result is in clock cycles of a unit (families.py). A step takes the longer of its arithmetic and its local loads. Groups on one unit
    hide each other's latency of global memory and barriers; a single group hides none. A split adds the cost of writing and reading its partial sums.
    """
    tile, splits, rates, family = choice.tile, choice.splits, _rates(choice.tile), family_of(target)
    m, n = tile.item_rows, tile.item_columns
    fetched = (tile.rows + tile.columns) / (tile.rows * tile.columns) * rates.fetch
    if tile.unit and family.matrix:
        arithmetic = m * n * family.lanes * max(unit_product(family, target, tile), unit_local(family, target, tile))
    else:
        arithmetic = rates.product * m * n if tile.mma else max(m * n + (m + n) / 4, family.lanes / family.local_floats * (m + n))
    per_depth = arithmetic + (LOOP + fetched) * m * n
    step = tile.items / family.lanes * tile.depth * per_depth
    steps = -(-int(depth * tile.waste) // (splits * tile.depth))
    groups = -(-rows // tile.rows) * -(-columns // tile.columns) * batches * splits
    groups_per_unit = -(-groups // units(target))
    cycles = max(groups_per_unit * steps * step, -(-groups_per_unit // _resident(family, tile, rates)) * (steps + 2) * (step + family.waiting(rates.wait)))
    if splits > 1:
        cycles += (splits + 1) * 2 * rows * columns * batches / (units(target) * family.memory_floats)
    return cycles


def unit_product(family: Family, target: Target, tile: Tile) -> float:
    """Return the cycles of a multiply-add on the matrix unit. Units multiply fewer numbers of a format at the same rate of instructions."""
    depth = matrix_units.UNITS[target.matrix_unit].depth[next(math for math, mma in FORMATS.items() if mma == tile.mma)]
    return 16 / depth / family.matrix


def unit_local(family: Family, target: Target, tile: Tile) -> float:
    """Return the cycles of local memory per multiply-add on the matrix unit: each wave loads its lines, and the group stores all (tile_mma.h)."""
    unit = matrix_units.UNITS[target.matrix_unit]
    columns = unit.wave // unit.lane_rows * tile.item_columns
    lines = tile.items // unit.wave * (tile.warp_rows + columns) * unit.copies + tile.rows + tile.columns
    return lines * LINE_WORDS / family.local_floats / (tile.rows * tile.columns * tile.depth)


def units(target: Target) -> int:
    """Return the number of units that run work-groups."""
    return max(1, target.compute_units // family_of(target).engines)


def _resident(family: Family, tile: Tile, rates: Rates) -> int:
    """Return the number of work-groups that one unit holds: as many as its registers and its local memory allow."""
    sums = tile.item_rows * tile.item_columns * tile.levels
    extra = (family.matrix_registers if tile.unit else 0 if tile.mma else family.extra_registers) or rates.registers
    whole = 256 if tile.unit and family.many_sums else dict(tile.compiler).get("GRF", 0)  # Intel's threads have all of a mode's registers
    registers = whole or max(family.least_registers, sums + extra)
    by_registers = family.registers // (tile.items * registers)
    limited = family.local_memory and tile.local_memory  # tiles of tensor cores do not tell theirs
    return max(1, min(by_registers, family.local_memory // tile.local_memory) if limited else by_registers)


def _rates(tile: Tile) -> Rates:
    if tile.patches:
        return PATCH_RATES
    return ASYNC_RATES if tile.stages else RATES[tile.mma]


def _second_pass(target: Target, splits: int) -> float:
    """Return the cycles of a launch whose work-items add the partial sums of a result sequentially."""
    family = family_of(target)
    return family.launch + family.waiting(-(-splits // 4) * ROUND)


def _joining(target: Target, tile: Tile, splits: int) -> float:
    """Return the cycles until the last work-group of a tile has added all partial sums. If groups of a tile have different caches, these go through memory."""
    count, family = bunches(splits), family_of(target)
    levels = [splits] if count == 1 else [-(-splits // count), count]
    cycles = sum(LAST_BLOCK_CYCLES + tile.item_rows * tile.item_columns // 16 * -(-partials // 4) * ROUND for partials in levels)
    written = tile.rows * tile.columns / family.memory_floats if family.caches > 1 else 0
    return family.waiting(cycles) + len(levels) * written


def record(
    rec: Recorder, a: Ref, b: Ref, c: Ref, trans_a: bool, trans_b: bool, bias: Ref | None, choice: Choice | None = None
) -> None:
    """c[M, N] = op(a) @ op(b) (+ bias[n] per column), added to c if c accumulates. `choice` replaces the estimate (benchmarks, tests)."""
    rows, columns = c.shape
    depth = a.shape[0] if trans_a else a.shape[1]
    if choice is None:
        problem = Problem("gemm", (rows, columns, depth, int(trans_a), int(trans_b)), rec.target.math)
        choice = rec.target.tuned.choose(problem, ranked(rec.target, tiles_for(rec.target), rows, columns, depth))
    part, splits = parts_of_depth(depth, choice)
    last_block = LastBlock.of(rec, choice.tile, splits, -(-rows // choice.tile.rows) * -(-columns // choice.tile.columns))
    last = splits == 1 or bool(last_block.operands)
    to = c if last else rec.scratch("splits", (splits * rows, columns))
    kernel, defines, layout = _program(rec.target, choice.tile, a, b, trans_a, trans_b)
    operands = {"a": a, "b": b, "bias": a if bias is None or not last else bias, "c": to, **last_block.operands}
    _launch(rec, kernel if last else kernel.without(SIGN.name), choice.tile, {**defines, **last_block.defines}, operands, (rows, columns, depth, part), 1,
            splits, [*layout, EpilogueScalars(bias is not None and last, last and rec.accumulates(c), SLOPE_ONLY, fusable=last)])  # fmt: skip
    if not last:
        partials = to.view((splits, rows * columns))
        sum_splits(rec, kernel.file, defines, partials, bias, c, samples=rows, mergeable=True)


def batched(
    rec: Recorder, a: Ref, b: Ref, c: Ref, batches: int, choice: Choice, *, trans_a: bool = False, trans_b: bool = False, add: bool = False
) -> None:
    """c[split][batch] = op(a[batch]) @ op(b[batch]) over the split's share of the depth. `add` accumulates on c, as does a c that accumulates.

    Each operand is a matrix with the rows of all batches in order. c has choice.splits times as many rows.
    """
    rows, columns = c.shape[0] // (batches * choice.splits), c.shape[1]
    depth = a.shape[0] // batches if trans_a else a.shape[1]
    part, _ = parts_of_depth(depth, choice)
    kernel, defines, layout = _program(rec.target, choice.tile, a, b, trans_a, trans_b)
    kernel = kernel.without(SIGN.name)
    args: list[int | EpilogueScalars] = [*layout, EpilogueScalars(False, add or rec.accumulates(c), SLOPE_ONLY, fusable=False)]
    operands = {"a": a, "b": b, "bias": a, "c": c}
    _launch(rec, kernel.adding("c") if add else kernel, choice.tile, defines, operands, (rows, columns, depth, part), batches, choice.splits, args)


def record_batches(rec: Recorder, a: Ref, b: Ref, c: Ref, batches: int, trans_a: bool, trans_b: bool) -> None:
    """Record the products of `ocaffe.kernels.matmul.gemm.batched_gemm` as one launch. The depth is not split: a batch has many tiles."""
    rows, columns, depth = c.shape[0] // batches, c.shape[1], a.shape[0] // batches if trans_a else a.shape[1]
    candidates = [choice for choice in ranked(rec.target, tiles_for(rec.target), rows, columns, depth, batches) if choice.splits == 1]
    batched(rec, a, b, c, batches, candidates[0], trans_a=trans_a, trans_b=trans_b)


def parts_of_depth(depth: int, choice: Choice) -> tuple[int, int]:
    """Return the depth per split, in whole steps, and the number of splits."""
    part = -(-depth // (choice.splits * choice.tile.depth)) * choice.tile.depth
    return part, max(1, -(-depth // part)) if part else 1


def work_items(tile: Tile, rows: int, columns: int, batches: int, phases: int = 1) -> tuple[int, int, int]:
    """Return the work-items of a launch whose groups cover the tiles of columns, times the phases, the tiles of rows, and the batches."""
    return phases * -(-columns // tile.columns) * tile.items, -(-rows // tile.rows), batches


def _program(target: Target, tile: Tile, a: Ref, b: Ref, trans_a: bool, trans_b: bool) -> tuple[Kernel, dict[str, int | str], list[int]]:
    """Return the kernel of a tile, its defines, and the layout arguments, if the layout is not a define."""
    layout = {"TRANS_A": int(trans_a), "TRANS_B": int(trans_b)}
    if tile.quads:
        return GEMM_MMA, {**tile.defines(), **layout, **scales(target, tile, a, b)}, []
    return GEMM, tile.defines(), [*layout.values()]


def _launch(
    rec: Recorder, kernel: Kernel, tile: Tile, defines: Mapping[str, int | str], operands: Mapping[str, Ref | None], shape: tuple[int, int, int, int],
    batches: int, splits: int, args: list[int | EpilogueScalars],
) -> None:  # fmt: skip
    rows, columns, _, _ = shape
    rec.launch(
        kernel(**operands),
        args=[*shape, batches, *args],
        size=work_items(tile, rows, columns, batches * splits),
        local=(tile.items, 1, 1),
        defines=defines,
    )


def scales(target: Target, tile: Tile, left: Ref, right: Ref) -> dict[str, int]:
    """Return the defines LEFT_SCALE and RIGHT_SCALE of tile_mma.h: gradients are scaled before they are rounded to float16."""
    names = {"LEFT_SCALE": left, "RIGHT_SCALE": right} if tile.mma == FLOAT16 else {}
    return {name: target.gradient_scale for name, ref in names.items() if ref.role is Role.DIFF}


def bunches(splits: int) -> int:
    """Return the number of bunches into which `tile_join` (tile_gpu.h) divides the partial sums of a tile."""
    return -(-splits // max(BUNCH, math.isqrt(splits - 1) + 1))


def reduces_in_last_block(target: Target, tile: Tile, splits: int, tiles: int) -> bool:
    """Whether the last work-group of each of the `tiles` tiles adds the partial sums.

    It does if that takes no longer than a second launch and little memory.
    """
    if not target.last_block_reduction or tile.quads or tile.stages or splits == 1:
        return False
    fits = tiles * (bunches(splits) + 1) <= MAX_COMPLETION_COUNTERS and tiles * splits * tile.rows * tile.columns * FLOAT.itemsize <= SPLIT_SCRATCH
    return fits and _joining(target, tile, splits) <= _second_pass(target, splits) + family_of(target).waiting(GAP)


@dataclass(frozen=True)
class LastBlock:
    """The additional operands and defines of a product with last-block reduction.

    The operands are completion counters and partial sums. Both are empty without last-block reduction (`reduces_in_last_block`).
    """

    operands: dict[str, Ref]
    defines: dict[str, str]

    @classmethod
    def of(cls, rec: Recorder, tile: Tile, splits: int, tiles: int) -> LastBlock:
        """Return the last-block reduction of a product with `tiles` tiles."""
        if not reduces_in_last_block(rec.target, tile, splits, tiles):
            return cls({}, {})
        partials = rec.scratch("splits", (tiles, splits, tile.rows * tile.columns))
        counters = rec.completion_counters.view((tiles * (bunches(splits) + 1),))
        return cls({"counters": counters, "parts": partials}, {"DEVICE_FENCE": rec.target.device_fence})


@functools.cache
def _split_sum(family: str) -> Kernel:
    """Return split_sum of split_sum.h in the program of a file that includes it."""
    return Kernel(f"{family}.split_sum", read("part"), SIGN, read("bias"), write("y", bf16="RESULT"), can=Can(helper=True))


def sum_splits(
    rec: Recorder,
    family: str,
    defines: Mapping[str, int | str],
    partials: Ref,
    bias: Ref | None,
    y: Ref,
    *,
    samples: int = 1,
    inner: int = 1,
    mergeable: bool = False,
) -> None:
    """The second pass of a split depth: y = sum over the first axis of `partials` (+ bias).

    y is `samples` rows with its batch stride. `bias` has one value per `inner` neighbouring results. `family`, with `defines`, is
    any program that includes split_sum.h.
    """
    splits, results = partials.shape
    kernel = _split_sum(family)
    rec.launch(
        (kernel if mergeable else kernel.without(SIGN.name))(part=partials, bias=partials if bias is None else bias, y=y),
        args=[splits, samples, results // samples, inner, EpilogueScalars(bias is not None, rec.accumulates(y), SLOPE_ONLY, fusable=mergeable)],
        size=(results,),
        local=(rec.target.group(SUM_ITEMS),),
        defines=defines,
    )
