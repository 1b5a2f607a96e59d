"""Matrix product on CPU runtimes (gemm_cpu.cl), and the register tile that convolution shares with it."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ocaffe.ir.kernel import JOIN, Can, Kernel, read, reads, write
from ocaffe.ir.launch import EpilogueScalars
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref
from ocaffe.ir.tuned import Problem

GEMM = Kernel("gemm_cpu.gemm", *reads("packed", "b", "bias"), write("c"), can=JOIN)
GEMM_OF_FEW = Kernel("gemm_few_cpu.few", *reads("a", "b", "bias"), write("c"), can=JOIN)
PACK = Kernel("product_parts_cpu.pack", read("w"), write("packed"), can=Can(join=True, helper=True))
ONE = (1, 1, 1)
ITEMS_PER_CORE = 4  # work-items per core, so that cores idle only briefly at the end
WIDE, MANY = 4, 40  # see gemm_cpu.cl; half of WIDE is better with fewer panels of rows, which then stay in the caches
FEW = 4  # maximum panels of rows that count as few
SIDE, MAX_FEW_ROWS = 4, 24  # see gemm_few_cpu.cl; with 32 rows packing pays: 4096 x 9216 26 ms instead of 29
MIN_ITEM_MULTIPLY_ADDS = 1 << 15  # multiply-adds that justify a work-item of gemm_few_cpu: some microseconds
WIDTHS = (1, 2, 4, 8, 16)  # panels of columns that tuning measures
HEIGHTS = {16: (13, 12, 11, 10, 8, 4), 8: (6, 5, 4), 4: (6, 5, 4)}  # vector width -> heights of a tile, for 32 or 16 registers; the first is the default
SETUP = 5  # cost of a step's loads, loop and latency, in rows of a tile; measured with another process on the core


class Panels(NamedTuple):
    """The panels of columns of op(b) that a work-item keeps: their rows and their number."""

    deep: int
    wide: int

    def __str__(self) -> str:
        return f"{self.deep}x{self.wide}"


def record(rec: Recorder, a: Ref, b: Ref, c: Ref, trans_a: bool, trans_b: bool, bias: Ref | None) -> None:
    """Record the packing of op(a) and the product. See gemm() for the operands."""
    (m, n), k = c.shape, a.shape[0 if trans_a else 1]
    defines = tile(rec.target)
    if m <= MAX_FEW_ROWS and trans_b and not trans_a:
        _few(rec, a, b, c, bias)
        return
    panels_a, panels_c = ceil(m, defines["MR"]), ceil(n, columns(defines))
    packed = rec.scratch("packed", (panels_a, k, defines["MR"]))
    steps = [0, 1, 1, 0, 0, 0] if trans_a else [0, 0, k, 0, 1, 0]  # see the kernel: strides of groups, rows and columns, and the offset
    pack(rec, a, packed, m, m, k, steps, defines["MR"])
    problem = Problem("gemm", (m, n, k, int(trans_a), int(trans_b)), rec.target.math)
    kept = rec.target.tuned.choose(problem, _candidates(rec, defines["KC"], k, panels_a, panels_c, trans_b))
    rows = _rows_each(rec, panels_a, panels_c, kept.wide)
    _product(rec, packed, b, c, (m, n, k), trans_b, kept, rows, EpilogueScalars(bias is not None, rec.accumulates(c)), bias)


def record_batches(rec: Recorder, a: Ref, b: Ref, c: Ref, batches: int, trans_a: bool, trans_b: bool) -> None:
    """Record the products of `ocaffe.kernels.matmul.gemm.batched_gemm` as two launches: all packing, and all products."""
    (m, n), k = (c.shape[0] // batches, c.shape[1]), a.shape[0] // batches if trans_a else a.shape[1]
    defines = tile(rec.target)
    panels_a, panels_c = ceil(m, defines["MR"]), ceil(n, columns(defines))
    packed = rec.scratch("packed", (batches, panels_a, k, defines["MR"]))
    pack(rec, a, packed, m, m, k, [m * k, 1, 1, 0, 0, 0] if trans_a else [m * k, 0, k, 0, 1, 0], defines["MR"])
    deep = max(1, min(k, defines["KC"]))
    wide = min(WIDE * defines["KC"] // deep, panels_c)
    rows = ceil(panels_a, share_out(rec, ceil(panels_c, wide) * batches, panels_a))
    _product(rec, packed, b, c, (m, n, k), trans_b, Panels(deep, wide), rows, EpilogueScalars(False, rec.accumulates(c), fusable=False), batches=batches)


def _product(
    rec: Recorder, packed: Ref, b: Ref, c: Ref, sizes: tuple[int, int, int], trans_b: bool, kept: Panels, rows: int, epilogue: EpilogueScalars,
    bias: Ref | None = None, batches: int = 1,
) -> None:  # fmt: skip
    """Record the product of packed panels and b. A work-item computes `rows` panels of rows."""
    defines = tile(rec.target)
    rec.launch(
        GEMM(packed=packed, b=b, bias=bias or packed, c=c),
        args=[*sizes, trans_b, *kept, rows * defines["MR"], epilogue],
        size=(ceil(ceil(sizes[1], columns(defines)), kept.wide), ceil(packed.shape[-3], rows), batches),
        local=ONE,
        defines=defines,
    )


def pack(rec: Recorder, w: Ref, packed: Ref, total: int, rows: int, depth: int, steps: Sequence[int], height: int) -> None:
    """Pack `total` x `depth` elements of each group as panels of `height` rows, separately for each `rows` of them.

    `steps` are the strides and the offset in w.
    """
    defines = tile(rec.target)
    rec.launch(
        PACK(w=w, packed=packed),
        args=[total, rows, depth, *steps, height],
        size=(ceil(depth, defines["KC"]), packed.shape[-3], packed.shape[0] if len(packed.shape) > 3 else 1),
        local=ONE,
        defines=defines,
    )


def _few(rec: Recorder, a: Ref, b: Ref, c: Ref, bias: Ref | None) -> None:
    """Record the product of few rows of a and a transposed b. Nothing is packed, and b is read once, in order (gemm_few_cpu.cl)."""
    (m, k), n = a.shape, b.shape[0]
    share = ceil(ceil(n, share_out(rec, 1, ceil(m * n * k, MIN_ITEM_MULTIPLY_ADDS))), SIDE) * SIDE
    args = [m, n, k, share, EpilogueScalars(bias is not None, rec.accumulates(c))]
    rec.launch(
        GEMM_OF_FEW(a=a, b=b, bias=bias or a, c=c),
        args=args,
        size=(ceil(n, share), 1, 1),
        local=ONE,
        defines={"V": tile(rec.target)["V"], "ROWS": min(m, 4)},
    )


def _estimate(rec: Recorder, most: int, k: int, panels_a: int, panels_c: int, trans_b: bool) -> tuple[int, int]:
    """Return the rows and panels of columns of op(b) that a work-item keeps.

    With few rows of a, reading b from memory takes the time. It is therefore read in long runs: along the depth if b is
    transposed, else along the columns.
    """
    few = panels_a <= FEW
    deep = max(1, min(k, most // 8 if few and not trans_b else most))
    wide = 1 if few and trans_b else min((WIDE if panels_a >= MANY else WIDE // 2) * most // deep, panels_c)
    while wide > 1 and ceil(panels_c, wide) * ceil(panels_a, _rows_each(rec, panels_a, panels_c, wide)) < ITEMS_PER_CORE * rec.target.compute_units:
        wide -= 1
    return deep, wide


def _candidates(rec: Recorder, most: int, k: int, panels_a: int, panels_c: int, trans_b: bool) -> list[Panels]:
    """Return the estimate, then all other panels that fit private memory."""
    first = Panels(*_estimate(rec, most, k, panels_a, panels_c, trans_b))
    depths = {first.deep, *(min(k, most // divisor) for divisor in (1, 2, 4, 8) if k)}
    others = (Panels(deep, wide) for deep in sorted(depths, reverse=True) for wide in WIDTHS if wide <= panels_c and wide * deep <= WIDE * most)
    return list(dict.fromkeys([first, *others]))


def _rows_each(rec: Recorder, panels_a: int, panels_c: int, wide: int) -> int:
    """Return the panels of rows per work-item, which has `wide` panels of columns."""
    return ceil(panels_a, share_out(rec, ceil(panels_c, wide), panels_a))


def tile(target: Target, rows: int = 0) -> dict[str, int]:
    """Return V, NV, MR, KC of tile_cpu.h for products of `rows` rows."""
    width = next((width for width in HEIGHTS if width <= target.vector_width), 4)
    return {"V": width, "NV": 2, "MR": height(width, rows), "KC": 512}


def height(vector: int, rows: int) -> int:
    """Return the height of tiles over `rows` rows with the least estimated time, padding included."""
    return min(HEIGHTS[vector], key=lambda height: ceil(rows, height) * (height + SETUP))


def columns(defines: dict[str, int]) -> int:
    """Return the width of a tile, NR."""
    return defines["NV"] * defines["V"]


def ceil(a: int, b: int) -> int:
    return -(-a // b)


def even(count: int, most: int, unit: int = 1) -> int:
    """Return the size of equal shares of about `most`, a multiple of `unit`."""
    return ceil(ceil(count, ceil(count, most)), unit) * unit


def share_out(rec: Recorder, items: int, most: int) -> int:
    """Return the number of shares, at most `most`, of each of `items` pieces of work, so that all cores have enough work."""
    return max(1, min(most, ceil(ITEMS_PER_CORE * rec.target.compute_units, items)))
