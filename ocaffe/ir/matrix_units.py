"""Matrix units of AMD's and Intel's GPUs: which devices have one, and how kernels are compiled for it (docs/matrix-units.md)."""
from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

Defines = Mapping[str, int]


@dataclass(frozen=True)
class MatrixUnit:
    """A matrix unit as OpenCL C reaches it.

    header: kernels/matmul/HEADER, see MATRIX_UNIT in tile_mma.h.
    wave: work-items of a wave or sub-group. lane_rows: those in different rows of a product.
    columns: columns of a lane's sums of one product: the smallest columns of a work-item.
    depth: elements of the depth of one product, by arithmetic (`--math`); only these are supported.
    defines: other defines of the header, by arithmetic.
    filter_sums: maximum sums of a work-item in a convolution's backward_filter, which needs the most registers. With more, registers would hold one
        wave of each SIMD unit (MFMA), or be spilled (DPAS with eight work-items): benchmarks/matrix_units.json.
    copies: lanes that need the same line of an operand.
    """

    header: str
    wave: int
    lane_rows: int
    columns: int
    depth: Mapping[str, int]
    defines: Mapping[str, Defines]
    filter_sums: int
    copies: int = 1

    def program_defines(self, math: str) -> tuple[tuple[str, str], ...]:
        """Return the defines of a program for the arithmetic `math`, one of `depth`."""
        own = {name: str(value) for name, value in self.defines[math].items()}
        return (("MATRIX_UNIT", f'"{self.header}"'), *own.items())


def _mfma(depth: Mapping[str, int], words: Mapping[str, int]) -> MatrixUnit:
    return MatrixUnit("tile_mfma.h", 64, 16, 4, depth, {math: {"LANE_WORDS": words[math]} for math in depth}, 32)


def _wmma(words: int, copies: int) -> MatrixUnit:
    return MatrixUnit("tile_wmma.h", 32, 16, 8, {"fp16": 16, "bf16": 16}, {math: {"LANE_WORDS": words} for math in ("fp16", "bf16")}, 64, copies)


def _dpas(wave: int, depth: Mapping[str, int]) -> MatrixUnit:
    return MatrixUnit("tile_dpas.h", wave, wave, 8, depth, {math: {"WAVE": wave} for math in depth}, 4 * wave)


UNITS = {
    "MFMA of CDNA": _mfma({"fp16": 16, "bf16": 8}, {"fp16": 2, "bf16": 1}),
    "MFMA of CDNA 2": _mfma({"fp16": 16, "bf16": 16}, {"fp16": 2, "bf16": 2}),
    "MFMA of CDNA 3": _mfma({"fp16": 16, "bf16": 16, "tf32": 8}, {"fp16": 2, "bf16": 2, "tf32": 2}),
    "WMMA of RDNA 3": _wmma(8, 2),
    "WMMA of RDNA 4": _wmma(4, 1),
    "DPAS of Xe-HPG": _dpas(8, {"fp16": 16, "bf16": 16}),
    "DPAS of Xe-HPC and Xe2": _dpas(16, {"fp16": 16, "bf16": 16, "tf32": 8}),
}

# AMD's runtime names a device by its instruction set, for example gfx90a:sramecc+:xnack-.
_AMD = (
    (r"gfx908", "MFMA of CDNA"), (r"gfx90a", "MFMA of CDNA 2"), (r"gfx942", "MFMA of CDNA 3"),
    (r"gfx11\d\d", "WMMA of RDNA 3"), (r"gfx120[01]", "WMMA of RDNA 4"),
)  # fmt: skip
_INTEL = "cl_intel_subgroup_matrix_multiply_accumulate"
_WIDE = "cl_intel_subgroup_2d_block_io"  # on devices whose smallest sub-group has 16 work-items


def unit_of(runtime: str, name: str, extensions: Collection[str]) -> str:
    """Return the key in UNITS of a device's matrix unit, or '' if it has none that OpenCL C reaches.

    `runtime` and `extensions` as in Target, `name` of the device. Mesa's runtimes have no AMD builtins. pyopencl has no query for the sizes of sub-groups.
    """
    if runtime == "amd":
        return next((unit for pattern, unit in _AMD if re.match(pattern + r"\b", name)), "")
    if runtime == "intel" and _INTEL in extensions:
        return "DPAS of Xe-HPC and Xe2" if _WIDE in extensions else "DPAS of Xe-HPG"
    return ""


def compiler_options(defines: Mapping[str, str]) -> str:
    """Return further options for the compiler of a program with these defines.

    With the usual 128 registers of a work-item's thread, Intel's compiler spills in products on DPAS.
    """
    dpas = defines.get("MATRIX_UNIT") == '"tile_dpas.h"' and "EMULATED_MATRIX_UNIT" not in defines
    return "-cl-intel-256-GRF-per-thread" if dpas else ""


def supports(unit: str, math: str) -> bool:
    """Whether the matrix unit computes products in the arithmetic `math`."""
    return unit in UNITS and math in UNITS[unit].depth
