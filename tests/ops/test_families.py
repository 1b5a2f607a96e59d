"""The table of families of GPUs: the row of each imitated device, and the programs that follow from it."""
from __future__ import annotations

from dataclasses import replace

import pytest

from ocaffe.cl.program import OPTIONS, ProgramKey, options_of, program_text
from ocaffe.ir.target import Target
from ocaffe.ops import gemm_gpu
from ocaffe.ops.families import FAMILIES, family_of
from tests.portability.devices import DEVICES

ROWS = {
    "gfx1030": "RDNA 2", "gfx1100": "RDNA 3", "gfx1201": "RDNA 4", "gfx90a": "CDNA 2", "gfx942": "CDNA 3", "tgl": "Intel Xe-LP", "dg2": "Intel Xe-HPG",
    "pvc": "Intel Xe-HPC", "bmg": "Intel Xe2", "h100": "NVIDIA", "gpu": "unknown", "cpu": "unknown",
}  # fmt: skip
NAMES = {
    ("amd", "gfx906:sramecc+:xnack-"): "GCN", ("amd", "gfx1151"): "RDNA 3", ("intel", "Intel(R) Arc(TM) 140V GPU (16GB)"): "Intel Xe2",
    ("intel", "Intel(R) Arc(TM) Graphics"): "Intel Xe-HPG", ("intel", "Intel(R) Arc(TM) Pro B50 Graphics"): "Intel Xe2",
    ("intel", "Intel(R) UHD Graphics 770"): "Intel Xe-LP", ("rusticl", "AMD Radeon RX 6800 XT (radeonsi, navi21, LLVM 19.1.7, DRM 3.61)"): "RDNA 2",
    ("rusticl", "Mesa Intel(R) Arc(tm) A770 Graphics (DG2)"): "Intel Xe-HPG", ("rusticl", "llvmpipe (LLVM 19.1.7, 256 bits)"): "unknown",
    ("arm", "Mali-G610 r0p0"): "unknown", ("intel", "Intel(R) Xeon(R) Processor"): "unknown",
}  # fmt: skip
FOR_COMPILERS = {"DEPTH_UNROLL", "GRF", "SUB_GROUP"}


@pytest.mark.parametrize(("imitated", "row"), ROWS.items())
def test_each_imitated_device_has_its_row(imitated: str, row: str) -> None:
    assert family_of(DEVICES[imitated].target).name == row


@pytest.mark.parametrize(("names", "row"), NAMES.items(), ids=str)
def test_names_of_devices(names: tuple[str, str], row: str) -> None:
    assert family_of(Target(kind="gpu", runtime=names[0], name=names[1])).name == row


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_tiles_are_possible(family: gemm_gpu.Family) -> None:
    """The rules of kernels/tile_gpu.h and fetch_gpu.h, and AMD's 256 work-items."""
    for tile in gemm_gpu.fma_tiles(family):
        lane_rows = tile.warp_rows // tile.item_rows
        assert tile.rows % tile.warp_rows == 0 and 32 % lane_rows == 0 and tile.columns % (32 // lane_rows * tile.item_columns) == 0
        assert tile.rows * tile.depth % (4 * tile.items) == tile.columns * tile.depth % (4 * tile.items) == 0
        assert tile.items % tile.columns == 0 or tile.columns % tile.items == 0
        assert tile.items <= 256 and tile.local_memory <= 32 << 10


@pytest.mark.parametrize("imitated", ["h100", "h100-bf16", "gpu"])
def test_programs_of_nvidia_have_no_define_for_other_compilers(imitated: str) -> None:
    target = DEVICES[imitated].target
    for tile in (*gemm_gpu.tiles_for(target), *gemm_gpu.async_tiles(target)):
        key = ProgramKey("gemm_gpu", tuple((name, str(value)) for name, value in tile.defines().items()))
        assert not FOR_COMPILERS & set(tile.defines()) and options_of(key, target) == OPTIONS
    best = gemm_gpu.choose(DEVICES["h100"].target, gemm_gpu.TILES, 4096, 4096, 4096).tile
    assert str(best) == "128x128x8 by 16x8", "the estimate of an H100 changed"


def test_intel_gets_large_threads_for_many_sums() -> None:
    """Each device gets the options that its compiler knows; others would refuse them."""
    target = DEVICES["bmg"].target
    large, small = (next(tile for tile in gemm_gpu.tiles_for(target) if tile.item_rows == rows) for rows in (8, 4))
    assert large.compiler == (("DEPTH_UNROLL", 2), ("GRF", 256), ("SUB_GROUP", 16))
    key = ProgramKey("gemm_gpu", tuple((name, str(value)) for name, value in large.defines().items()))
    assert options_of(key, target) == f"{OPTIONS} -cl-intel-256-GRF-per-thread"
    assert options_of(key, replace(target, runtime="rusticl")) == OPTIONS
    assert "#define SUB_GROUP 16" in program_text(key)
    assert small.item_columns == 8 and dict(small.compiler)["GRF"] == 256
    assert dict(gemm_gpu.tiles_for(target)[-1].compiler) == {"DEPTH_UNROLL": 2, "SUB_GROUP": 16}


def test_estimates_use_the_device() -> None:
    """The same product takes a smaller share of a larger unit, and a launch takes more cycles at a higher clock."""
    shape = (256, 4096, 1152, 1)
    costs = {name: gemm_gpu.ranked(DEVICES[name].target, gemm_gpu.tiles_for(DEVICES[name].target), *shape)[0] for name in ROWS if name != "cpu"}
    assert len(set(map(str, costs.values()))) > 1
    assert gemm_gpu.units(DEVICES["dg2"].target) == 32 and gemm_gpu.units(DEVICES["gfx1100"].target) == 48
