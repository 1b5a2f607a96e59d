"""Writes the tables of docs/matrix-units.md: `python docs/make_matrix_units.py`.

The table of programs is from benchmarks/matrix_units.json (tests/portability/matrix_units.py). The estimates are computed here.
"""
from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from ocaffe.ir.matrix_units import UNITS
from ocaffe.kernels.matmul.gemm_gpu import LINE_WORDS, Tile, unit_tiles

DOCS = pathlib.Path(__file__).parent
PAGE, RESULTS = DOCS / "matrix-units.md", DOCS.parent / "benchmarks/matrix_units.json"
LINE = LINE_WORDS * 4  # bytes of a line in local memory
FLOAT = 4  # bytes


class Card(NamedTuple):
    """A card as its maker describes it. A unit is a compute unit of AMD or an Xe core of Intel.

    flops: per cycle of a unit, by mode. local: bytes of local memory per cycle of a unit. bandwidth: GB/s.
    """

    name: str
    device: str
    unit: str
    units: int
    ghz: float
    flops: dict[str, int]
    local: int
    bandwidth: int


CARDS = (
    Card("Instinct MI100", "gfx908", "MFMA of CDNA", 120, 1.502, {"fp16": 1024, "bf16": 512}, 128, 1229),
    Card("Instinct MI210", "gfx90a", "MFMA of CDNA 2", 104, 1.7, {"fp16": 1024, "bf16": 1024}, 128, 1638),
    Card("Instinct MI300X", "gfx942", "MFMA of CDNA 3", 304, 2.1, {"fp16": 2048, "bf16": 2048, "tf32": 1024}, 128, 5300),
    Card("Radeon RX 7900 XTX", "gfx1100", "WMMA of RDNA 3", 96, 2.5, {"fp16": 512, "bf16": 512}, 128, 960),
    Card("Radeon RX 9070 XT", "gfx1201", "WMMA of RDNA 4", 64, 2.97, {"fp16": 1024, "bf16": 1024}, 128, 640),
    Card("Arc A770", "dg2", "DPAS of Xe-HPG", 32, 2.1, {"fp16": 2048, "bf16": 2048}, 128, 560),
    Card("Data Center GPU Max 1550", "pvc", "DPAS of Xe-HPC and Xe2", 128, 1.6, {"fp16": 4096, "bf16": 4096, "tf32": 2048}, 512, 3277),
    Card("Arc B580", "bmg", "DPAS of Xe-HPC and Xe2", 20, 2.85, {"fp16": 2048, "bf16": 2048, "tf32": 1024}, 128, 456),
)
ESTIMATE = ("card", "mode", "peak, TFLOP/s", "tile", "matrix unit", "local memory", "memory", "bound, operands in cache", "bound, none in cache")
PROGRAMS = ("device", "mode", "instruction", "programs", "per step", "in the programs", "registers", "waves of a SIMD unit", "bytes of scratch or spilled")


class Cycles(NamedTuple):
    """Cycles of a unit for one step of a work-group."""

    matrix: float
    local: float
    memory: float


def cycles(card: Card, math: str, tile: Tile) -> Cycles:
    """Return the cycles of each resource. They overlap at best."""
    own = UNITS[card.unit]
    wave_columns = own.wave // own.lane_rows * tile.item_columns
    waves = tile.items // own.wave
    copies = 2 if card.unit == "WMMA of RDNA 3" else 1  # lanes 16 to 31 read what lanes 0 to 15 read
    local = waves * (tile.warp_rows + wave_columns) * LINE * copies + (tile.rows + tile.columns) * LINE
    memory = (tile.rows + tile.columns) * tile.depth * FLOAT
    per_cycle = card.bandwidth / (card.units * card.ghz)
    return Cycles(2 * tile.rows * tile.columns * tile.depth / card.flops[math], local / card.local, memory / per_cycle)


def estimates() -> Iterator[list[str]]:
    for card in CARDS:
        for math, flops in card.flops.items():
            tile = unit_tiles(card.unit, math)[0]
            found = cycles(card, math, tile)
            peak = flops * card.units * card.ghz / 1000
            bounds = (found.matrix / max(found.matrix, found.local), found.matrix / max(found))
            shares = [f"{peak * bound:.0f} TFLOP/s, {bound:.0%}" for bound in bounds]
            yield [card.name, math, f"{peak:.0f}", f"{tile.rows} x {tile.columns} x {tile.depth}", *(f"{n:.0f}" for n in found), *shares]


def programs() -> Iterator[list[str]]:
    rows: list[dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    for device, math in dict.fromkeys((row["device"], row["math"]) for row in rows):
        own = [row for row in rows if (row["device"], row["math"]) == (device, math)]
        copies = _range(row["found"] / row["predicted"] for row in own)
        waves = _range(row["occupancy"] for row in own) if own[0]["occupancy"] else "-"
        instructions = ", ".join(sorted({f"`{row['instruction']}`" for row in own}))
        registers, spilled = _range(row["registers"] for row in own), str(max(row["spilled"] for row in own))
        yield [device, math, instructions, str(len(own)), _range(row["predicted"] for row in own), f"{copies} x", registers, waves, spilled]


def _range(values: Any) -> str:
    found = sorted(set(values))
    return f"{found[0]:g}" if len(found) == 1 else f"{found[0]:g} to {found[-1]:g}"


def _table(head: tuple[str, ...], rows: Iterator[list[str]]) -> str:
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)])


def page() -> str:
    """Return the text of the page with new tables."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (("estimate", _table(ESTIMATE, estimates())), ("programs", _table(PROGRAMS, programs()))):
        section = f"<!-- table {name} -->\n\n{table}\n\n<!-- end -->"
        text = re.sub(rf"<!-- table {name} -->\n.*?<!-- end -->", lambda found, section=section: section, text, flags=re.S)
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
