"""Facts about families of GPUs: tiles of matrix products, what a compiler needs to keep them in registers, and the rates of `gemm_gpu.cost`.

A row is a maker's generation. The first row whose patterns match a device's runtime and name counts (`family_of`). `unit` below is the part of a GPU that
runs a work-group: NVIDIA's SM, AMD's compute unit (CDNA) or pair of them (RDNA), Intel's Xe-core. Numbers without another source are those of the card in
the row's comment, by its maker's data sheet. docs/devices.md says what the makers' compilers make of each row.
"""
from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace

from ocaffe.ir.target import Target

LAUNCH = 14000  # cycles of a launch of an H100
Shape = tuple[int, int, int, int, int, int]  # rows, columns, item_rows, item_columns, warp_rows, depth of gemm_gpu.Tile


@dataclass(frozen=True)
class Family:
    """One generation of GPUs.

    `runtime`, `device`: regular expressions for Target.runtime and Target.name. Upper and lower case are equal.
    `tiles`: tiles of float multiply-adds. `max_sums`: maximum sums that a work-item can keep in registers.
    `unroll`: steps of the depth that the inner loop unrolls (DEPTH_UNROLL in tile_gpu.h); 0: the whole loop.
    `many_sums`: from so many sums per work-item on, Intel's compiler gets 256 registers per thread (GRF); 0: never.
    `sub_group`: the work-items of a thread (SUB_GROUP); 0: Intel's compiler chooses.
    `engines`: the number of OpenCL's compute units in one unit.
    `lanes`: multiply-adds of a unit per cycle. `registers`: 32-bit registers of a unit.
    `extra_registers`: registers of a work-item in addition to its sums; 0: those of gemm_gpu.RATES. `least_registers`: those that it has at least.
    `local_memory`: bytes of a unit; 0: not counted. `local_floats`: floats of local memory that a unit loads per cycle.
    `memory_floats`: floats to or from global memory per unit and cycle. `launch`: cycles of a launch.
    `matrix`: multiply-adds of the matrix unit per unit and cycle, with operands of 16 bits; 0: those of gemm_gpu.RATES.
    `matrix_registers`: registers of a work-item on the matrix unit in addition to its sums (benchmarks/matrix_units.json).
    `caches`: the number of second-level caches that units do not share. A fence of the whole device then writes results back to memory.
    """

    name: str
    runtime: str
    device: str
    tiles: tuple[Shape, ...]
    max_sums: int = 64
    unroll: int = 0
    many_sums: int = 0
    sub_group: int = 0
    engines: int = 1
    lanes: int = 128
    registers: int = 65536
    extra_registers: int = 0
    least_registers: int = 0
    local_memory: int = 0
    local_floats: int = 32
    memory_floats: float = 3
    launch: int = LAUNCH
    matrix: int = 0
    matrix_registers: int = 0
    caches: int = 1

    def waiting(self, cycles: float) -> float:
        """Return the cycles that take as long as `cycles` of an H100. No other latencies were measured, and they depend little on the clock."""
        return cycles * self.launch / LAUNCH

    def compiler_defines(self, sums: int) -> tuple[tuple[str, int], ...]:
        """Return the defines that make the family's compiler keep a work-item's sums in registers."""
        wanted = {"DEPTH_UNROLL": self.unroll, "GRF": 256 if 0 < self.many_sums <= sums else 0, "SUB_GROUP": self.sub_group}
        return tuple((name, value) for name, value in wanted.items() if value)


COMMON: tuple[Shape, ...] = (
    (128, 128, 16, 8, 64, 8), (64, 128, 8, 8, 32, 8), (64, 64, 8, 8, 32, 16), (32, 128, 4, 8, 32, 16), (32, 64, 4, 8, 32, 16), (32, 32, 4, 4, 32, 16),
)  # fmt: skip
# AMD: 256 work-items instead of 16 x 8 sums, whose kernels took 224 registers and scratch (clang 21).
WAVES_OF_32: tuple[Shape, ...] = ((128, 128, 8, 8, 32, 8), *COMMON[1:])
# AMD with 64 work-items in a wave: a group of 64 work-items is one wave, so at a depth of 16 local memory would leave three waves for four SIMD units.
WAVES_OF_64: tuple[Shape, ...] = (*WAVES_OF_32[:2], (64, 64, 8, 8, 32, 8), (32, 128, 4, 8, 32, 16), (32, 64, 4, 8, 32, 8), (32, 32, 4, 4, 32, 8))
# Intel's Xe-LP has 128 registers of 8 floats for 8 work-items. 64 sums spilled up to 92 of them (ocloc 26.27), so there are larger groups with 32 sums.
HALF_SUMS: tuple[Shape, ...] = ((64, 128, 4, 8, 32, 16), (64, 64, 4, 8, 32, 16), *COMMON[3:])

# Older GPUs of AMD: GCN and CDNA 1. Radeon VII: 60 units at 1.75 GHz, 1 TB/s. 256 registers of 64 lanes per SIMD unit ("Vega ISA", 2017). Not compiled here.
GCN = Family("GCN", "amd", "", WAVES_OF_64, unroll=2, lanes=64, registers=4 * 256 * 64, extra_registers=80, local_memory=64 << 10, memory_floats=2.4,
             launch=14000, matrix=512, matrix_registers=110)  # fmt: skip
# Iris Xe (96 engines): 6 units of 16 engines at 1.35 GHz, 68 GB/s. An engine has 8 lanes, and 7 threads with 4 KiB of registers each; there is no
# mode with 256. Older GPUs have the same engines, 8 per unit. Intel's runtime for CPUs has the same vendor: a CPU with the kernels of GPUs has no row.
XE_LP = Family("Intel Xe-LP", "intel", r"graphics|tgl", HALF_SUMS, max_sums=32, unroll=1, engines=16, registers=16 * 7168, least_registers=128,
               local_memory=64 << 10, memory_floats=2.1, launch=11000)  # fmt: skip

NVIDIA, AMD, INTEL, ANY = "nvidia", "amd|rusticl", "intel|rusticl", ""
# The launch of an H100 takes 8 us; no other was measured, so `launch` is 8 us at the card's clock. Local memory: 128 bytes per cycle, for RDNA twice
# that, since a unit has two ("RDNA" white paper, 2019; "CDNA 2" white paper, 2021; "oneAPI GPU Optimization Guide", chapter on the architecture).
FAMILIES = (
    # H100: fitted to benchmarks/gpu_kernels_h100.txt. 128 lanes and 65536 registers per SM, 3 TB/s over 132 SMs at 1.7 GHz.
    Family("NVIDIA", NVIDIA, "", COMMON, max_sums=144),
    # Radeon RX 9070 XT: 32 units at 2.97 GHz, 640 GB/s. Registers as in RDNA 3 ("RDNA 4 Instruction Set Architecture", 2025).
    Family("RDNA 4", AMD, r"gfx12[0-4]|navi4", WAVES_OF_32, unroll=2, registers=4 * 1536 * 32, extra_registers=80, local_memory=128 << 10, local_floats=64,
           memory_floats=1.7, launch=24000, matrix=1024, matrix_registers=110),
    # Radeon RX 7900 XTX: 48 units at 2.5 GHz, 960 GB/s. 1536 registers of 32 lanes per SIMD unit, four of them ("RDNA 3 ISA", 2023).
    Family("RDNA 3", AMD, r"gfx11|navi3|phoenix|hawk|strix", WAVES_OF_32, unroll=2, registers=4 * 1536 * 32, extra_registers=80, local_memory=128 << 10,
           local_floats=64, memory_floats=2, launch=20000, matrix=512, matrix_registers=150),
    # Radeon RX 6900 XT: 40 units at 2.25 GHz, 512 GB/s. 1024 registers of 32 lanes per SIMD unit, four of them ("RDNA 2 ISA", 2020). RDNA 1 has the same.
    Family("RDNA 2", AMD, r"gfx10|navi[12]|rembrandt|raphael|vangogh", WAVES_OF_32, unroll=2, registers=4 * 1024 * 32, extra_registers=80,
           local_memory=128 << 10, local_floats=64, memory_floats=1.4, launch=18000),
    # Instinct MI300X: 304 units at 2.1 GHz, 5.3 TB/s. 512 registers of 64 lanes per SIMD unit, four of 16 lanes ("CDNA 3 ISA", 2023). Eight dies with a
    # cache each ("CDNA 3" white paper, 2023). For a fence of the device, clang 21 writes the cache back (buffer_wbl2 sc1), and not on gfx90a.
    Family("CDNA 3", AMD, r"gfx9[45]|mi3\d\d", WAVES_OF_64, unroll=2, lanes=64, registers=4 * 512 * 64, extra_registers=80, local_memory=64 << 10,
           memory_floats=2.1, launch=17000, matrix=1024, matrix_registers=110, caches=8),
    # Instinct MI210: 104 units at 1.7 GHz, 1.6 TB/s. Registers as in CDNA 3 ("CDNA 2 ISA", 2022).
    Family("CDNA 2", AMD, r"gfx90a|mi2\d\d", WAVES_OF_64, unroll=2, lanes=64, registers=4 * 512 * 64, extra_registers=80, local_memory=64 << 10,
           memory_floats=2.3, launch=14000, matrix=512, matrix_registers=110),
    GCN, replace(GCN, runtime="rusticl", device="radeonsi"),
    # Arc B580: 20 units of 8 engines at 2.67 GHz, 456 GB/s. An engine has 16 lanes and 64 KiB of registers. Without a sub-group size, some kernels
    # get 32 work-items per thread and spill.
    Family("Intel Xe2", INTEL, r"arc\S* (pro )?b\d|arc\S* 1[34]0v|battlemage|bmg|lnl", COMMON, unroll=2, many_sums=32, sub_group=16, engines=8,
           registers=8 * 16384, least_registers=128, local_memory=128 << 10, memory_floats=2.1, launch=21000, matrix=1024),
    # Data Center GPU Max 1550: 128 units of 8 engines at 1.6 GHz, 3.3 TB/s. Engines as in Xe2. Two steps spilled 26 registers.
    Family("Intel Xe-HPC", INTEL, r"gpu max|ponte vecchio|pvc", COMMON, unroll=1, many_sums=32, sub_group=16, engines=8, registers=8 * 16384,
           least_registers=128, local_memory=128 << 10, local_floats=128, memory_floats=4, launch=13000, matrix=2048),
    # Arc A770: 32 units of 16 engines at 2.1 GHz, 560 GB/s. An engine has 8 lanes and 32 KiB of registers. Also Xe-LPG ("Arc Graphics", 130T, 140T).
    Family("Intel Xe-HPG", INTEL, r"arc|gpu flex|dg2", COMMON, unroll=2, many_sums=32, engines=16, registers=16 * 8192, least_registers=128,
           local_memory=128 << 10, memory_floats=2.1, launch=17000, matrix=1024),
    XE_LP, replace(XE_LP, runtime="rusticl", device="mesa intel"),
    Family("unknown", ANY, "", COMMON),  # the constants of an H100
)  # fmt: skip


def family_of(target: Target) -> Family:
    """Return the row of a device."""
    return _family(target.runtime, target.name)


@functools.cache
def _family(runtime: str, device: str) -> Family:
    return next(row for row in FAMILIES if re.match(f"(?:{row.runtime})$" if row.runtime else "", runtime) and re.search(row.device, device, re.IGNORECASE))
