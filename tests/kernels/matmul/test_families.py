"""The table of families of GPUs: the row of each imitated device, and the programs that follow from it."""
from __future__ import annotations

from dataclasses import replace

import pytest

from ocaffe.cl.program import OPTIONS, ProgramKey, options_of, program_text
from ocaffe.ir.target import Target
from ocaffe.kernels.convolution.dense_gpu.conv_gpu import window_step
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.kernels.matmul.families import FAMILIES, family_of
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
    ("rusticl", "Mesa Intel(R) UHD Graphics 770 (ADL-S GT1)"): "Intel Xe-LP", ("rusticl", "Mesa Intel(R) Xe Graphics (TGL GT2)"): "Intel Xe-LP",
    ("rusticl", "AMD Radeon RX 580 Series (radeonsi, polaris10, LLVM 19.1.7, DRM 3.61)"): "GCN",
    ("rusticl", "AMD Radeon 780M (radeonsi, hawk_point1, LLVM 19.1.7, DRM 3.61)"): "RDNA 3", ("amd", "gfx1250"): "GCN",
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
    """The rules of docs/kernels.md, Adding a tile."""
    for tile in gemm_gpu.fma_tiles(family):
        lane_rows = tile.warp_rows // tile.item_rows
        assert tile.rows % tile.warp_rows == 0 and 32 % lane_rows == 0 and tile.columns % (32 // lane_rows * tile.item_columns) == 0
        assert tile.rows * tile.depth % (4 * tile.items) == tile.columns * tile.depth % (4 * tile.items) == 0
        assert all(tile.items % (lines // 4) == 0 for lines in (tile.rows, tile.columns, tile.depth))
        assert tile.items % tile.columns == 0
        assert tile.items <= 256 and tile.local_memory <= 32 << 10


@pytest.mark.parametrize("channels", [1, 3, 8, 64])
def test_a_step_has_whole_lines(channels: int) -> None:
    """The work-items of a convolution fetch items / columns lines at a time, also if that is no power of two."""
    one = (1, 1, 1)
    g = ConvGeometry(2, channels, 16, 1, (1, 9, 9), (1, 9, 9), one, one, (0, 0, 0), one)
    tile = gemm_gpu.Tile(96, 64, 4, 8, 32, 24)
    assert tile.items // tile.columns == 3 and window_step(g, tile)[0] % 3 == 0


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


UNIT_OF = {"gfx90a": "MFMA of CDNA 2", "gfx1100": "WMMA of RDNA 3", "gfx1201": "WMMA of RDNA 4", "dg2": "DPAS of Xe-HPG"}
# Two devices with another choice for the same product, and the fact that makes the difference: with the second one's, the first chooses as the second.
REASONS = (
    ("matrix", "gfx90a", "gfx1201", "fp16", (2048, 4096, 4096), "128x64x32 by 4x8 mma4 /1", "128x128x32 by 4x16 mma4 /1"),
    ("local_floats", "gfx1100", "dg2", "fp16", (1024, 1024, 1024), "128x64x32 by 4x8 mma4 /1", "128x128x32 by 4x16 mma4 /1"),
    ("launch", "gfx90a", "gfx1201", "fp16", (128, 64, 1024), "32x32x8 by 4x4 /32", "64x64x32 by 4x8 mma4 /8"),
    ("memory_floats", "gfx1201", "gfx1100", "fp32", (128, 256, 256), "32x32x16 by 4x4 /1", "32x32x16 by 4x4 /4"),
)


@pytest.mark.parametrize(("fact", "first", "second", "math", "shape", "chosen", "other"), REASONS, ids=lambda value: value if isinstance(value, str) else None)
def test_choices_follow_from_a_fact(
    fact: str, first: str, second: str, math: str, shape: tuple[int, int, int], chosen: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choice(imitated: str, family: gemm_gpu.Family) -> str:
        unit = UNIT_OF[imitated] if math == "fp16" else ""
        monkeypatch.setattr(gemm_gpu, "family_of", lambda target: family)
        target = replace(DEVICES[imitated].target, math=math, matrix_unit=unit)
        return str(gemm_gpu.choose(target, gemm_gpu.tiles_for(target), *shape))

    rows = [family_of(DEVICES[name].target) for name in (first, second)]
    assert [choice(first, rows[0]), choice(second, rows[1])] == [chosen, other]
    assert choice(first, replace(rows[0], **{fact: getattr(rows[1], fact)})) == other


def test_parts_that_go_through_memory_are_added_by_a_second_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """MI300X has eight second-level caches, MI210 one. With few parts, the last work-group adds them on both."""
    family = family_of(DEVICES["gfx942"].target)
    tile = next(tile for tile in gemm_gpu.fma_tiles(family) if tile.rows == tile.columns == 128)
    assert [[gemm_gpu.reduces_in_last_block(DEVICES[name].target, tile, splits, 4) for splits in (4, 12)] for name in ("gfx90a", "gfx942")] == [
        [True, True], [True, False],
    ]  # fmt: skip
    monkeypatch.setattr(gemm_gpu, "family_of", lambda target: replace(family, caches=1))
    assert gemm_gpu.reduces_in_last_block(DEVICES["gfx942"].target, tile, 12, 4)


def test_latencies_take_the_same_time_at_each_clock() -> None:
    """The clock of the card of RDNA 4 is 12/7 of an H100's."""
    rows = {family.name: family for family in FAMILIES}
    assert rows["NVIDIA"].waiting(700) == 700 and rows["RDNA 4"].waiting(700) == 1200
