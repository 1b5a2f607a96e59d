"""Matrix product on devices whose work-groups share local memory, and the choice of tiles that convolution shares (kernels/gemm_gpu.cl)."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ocaffe.graph.ir import Ref
from ocaffe.graph.recorder import Recorder
from ocaffe.target import Target

# A second pass reads the partial results of a split depth; they may take this many bytes of scratch.
SPLIT_SCRATCH = 16 << 20
MOST_SPLITS = 128
SUM_ITEMS = 256  # work-items of a group in split_sum


@dataclass(frozen=True)
class Tile:
    """The work of one group, kernels/tile_gpu.h: `rows` x `columns` results, of which a work-item holds `item_rows` x `item_columns`;
    `depth` is brought to local memory at a time; 32 consecutive work-items cover `warp_rows` rows."""

    rows: int
    columns: int
    item_rows: int
    item_columns: int
    warp_rows: int
    depth: int

    @property
    def items(self) -> int:
        return (self.rows // self.item_rows) * (self.columns // self.item_columns)

    def defines(self) -> dict[str, int]:
        names = {"BM": self.rows, "BN": self.columns, "TM": self.item_rows, "TN": self.item_columns, "WM": self.warp_rows}
        return {**names, "BK": self.depth}

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.depth} by {self.item_rows}x{self.item_columns}"


TILES = (
    Tile(128, 128, 16, 8, 64, 8),
    Tile(64, 128, 8, 8, 32, 8),
    Tile(64, 64, 8, 8, 32, 16),
    Tile(32, 128, 4, 8, 32, 16),
    Tile(32, 64, 4, 8, 32, 16),
    Tile(32, 32, 4, 4, 32, 16),
)

# Sums that a work-item can keep in registers. Elsewhere they spill: Intel's GPUs have 128 registers of 8 lanes for 16 work-items.
MOST_SUMS = {"nvidia": 128, "amd": 128}
FEW_SUMS = 64


@dataclass(frozen=True)
class Choice:
    """A tile and the number of parts that the depth is cut into."""

    tile: Tile
    splits: int = 1


def choose(target: Target, tiles: Sequence[Tile], rows: int, columns: int, depth: int, batches: int = 1) -> Choice:
    """The cheapest tile and split for `batches` products of rows x depth by depth x columns, by `cost`."""
    fitting = [tile for tile in tiles if tile.item_rows * tile.item_columns <= MOST_SUMS.get(target.runtime, FEW_SUMS)]
    choices = (Choice(tile, splits) for tile in fitting for splits in _splits(rows * columns * batches, depth, tile))
    return min(choices, key=lambda choice: cost(target, choice, rows, columns, depth, batches))


def _splits(results: int, depth: int, tile: Tile) -> Iterator[int]:
    """1, 2, 4, ... while each part still has several steps and the scratch is small."""
    splits = 1
    while splits == 1 or (splits <= MOST_SPLITS and depth >= splits * tile.depth * 4 and splits * results * 4 <= SPLIT_SCRATCH):
        yield splits
        splits *= 2


def cost(target: Target, choice: Choice, rows: int, columns: int, depth: int, batches: int) -> float:
    """Estimated time in clock cycles of a compute unit that does 128 multiply-adds and fetches 128 bytes of local memory in one.

    A step takes its arithmetic or its local fetches, whichever is longer. Groups on one unit hide each other's waiting for global memory and
    barriers; a group alone waits in full. A split pays for writing and reading its partial sums and for one more launch.
    """
    tile = choice.tile
    m, n = tile.item_rows, tile.item_columns
    lanes, wait, launch, floats_per_cycle = 128, 600, 9000, 3
    groups = -(-rows // tile.rows) * -(-columns // tile.columns) * batches * choice.splits
    groups_per_unit = -(-groups // target.compute_units)
    fetch_share = (tile.rows + tile.columns) / (tile.rows * tile.columns) * 6  # global fetch, index arithmetic and local store of an element
    step = tile.items / lanes * tile.depth * (max(m * n + (m + n) / 4, 4 * (m + n)) + 0.05 * m * n + fetch_share * m * n)
    resident = max(1, 65536 // (tile.items * (m * n + 72)))
    steps = -(-depth // (choice.splits * tile.depth))
    cycles = max(groups_per_unit * steps * step, -(-groups_per_unit // resident) * steps * (step + wait))
    if choice.splits > 1:
        cycles += launch + (choice.splits + 1) * 2 * rows * columns * batches / (target.compute_units * floats_per_cycle)
    return cycles


def record(
    rec: Recorder, a: Ref, b: Ref, c: Ref, trans_a: bool, trans_b: bool, bias: Ref | None, choice: Choice | None = None
) -> None:
    """c[M, N] = op(a) @ op(b) (+ bias[n] per column), added to c if it accumulates. `choice` overrules the estimate (benchmarks, tests)."""
    rows, columns = c.shape
    depth = a.shape[0] if trans_a else a.shape[1]
    choice = choice or choose(rec.target, TILES, rows, columns, depth)
    tile = choice.tile
    part = -(-depth // (choice.splits * tile.depth)) * tile.depth
    splits = max(1, -(-depth // part)) if part else 1
    last = splits == 1
    to = c if last else rec.scratch("splits", (splits * rows, columns))
    rec.launch(
        "gemm_gpu.gemm",
        reads=[a, b, bias if bias is not None and last else a],
        writes=[to],
        args=[rows, columns, depth, part, trans_a, trans_b, bias is not None and last, last and rec.accumulates(c), 1.0],
        size=(-(-columns // tile.columns) * tile.items, -(-rows // tile.rows), splits),
        local=(tile.items, 1, 1),
        defines=tile.defines(),
        slope_arg=8 if last else None,
    )
    if not last:
        parts = to.view((splits, rows * columns))
        sum_splits(rec, "gemm_gpu", tile.defines(), parts, bias, c, samples=rows, mergeable=True)


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
    """The second pass of a split depth: y = sum over the first axis of `parts` (+ bias). y is `samples` rows at its batch stride; `bias` has
    one value per `inner` neighbouring results. `family`, with `defines`, is any program that includes split_sum.h."""
    splits, results = parts.shape
    rec.launch(
        f"{family}.split_sum",
        reads=[parts, parts if bias is None else bias],
        writes=[y],
        args=[splits, samples, results // samples, inner, bias is not None, rec.accumulates(y), 1.0],
        size=(results,),
        local=(SUM_ITEMS,),
        defines=defines,
        slope_arg=6 if mergeable else None,
    )
