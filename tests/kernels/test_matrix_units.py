"""Products on AMD's and Intel's matrix units, compared with numpy in float64.

CPU runtimes have no such units. There the instruction is a C function with the maker's documented layout (emulated_unit.h): it reads the operands
that the lanes of a wave hold, and gives each lane its results. All other code is that of the real devices.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from ocaffe.cl import program
from ocaffe.ir import matrix_units
from ocaffe.ir.matrix_units import UNITS
from ocaffe.ir.target import MATHS, Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.dense_gpu import conv_gpu, conv_mma
from ocaffe.kernels.convolution.winograd import winograd_gpu
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.kernels.matmul.gemm_gpu import UNIT_SHAPES, Choice, Tile, unit_tile
from ocaffe.passes.channel_reduction_fusion import fuse_channel_reductions
from tests.harness import execute
from tests.kernels.test_gpu_kernels import WINDOWS, check_convolution, check_gemm, geometry, random_size, recorder, small
from tests.passes.test_channel_reduction_fusion import GEOMETRIES, statistics

MODES = [(unit, math) for unit, own in UNITS.items() for math in own.depth]
SMALLEST = UNIT_SHAPES[-1]
# One mode for each way in which a header loads its operands; the sweeps run all.
LAYOUTS = [("MFMA of CDNA", "bf16"), ("MFMA of CDNA 3", "tf32"), ("WMMA of RDNA 3", "bf16"), ("WMMA of RDNA 4", "fp16"), ("DPAS of Xe-HPG", "fp16"),
           ("DPAS of Xe-HPC and Xe2", "bf16")]  # fmt: skip


def emulated(unit: str, math: str, shape: tuple[int, int, int, int] = SMALLEST) -> Tile:
    tile = unit_tile(unit, math, *shape)
    return replace(tile, unit=(*tile.unit, ("EMULATED_MATRIX_UNIT", '"emulated_unit.h"')))


class Product(NamedTuple):
    """Arguments of check_gemm."""

    m: int
    n: int
    k: int
    splits: int
    how: dict[str, Any]


def products(tile: Tile, count: int, seed: int) -> Iterator[Product]:
    """Yield products with one row or column, with edges at and beside those of a tile and of a step, and of random sizes. All layouts and splits occur."""
    rng = np.random.default_rng(seed)
    near = [1, 2, 5, *(n + d for n in (tile.rows, tile.columns) for d in (-1, 0, 1)), 2 * tile.columns]
    deep = [1, 2, 3, *(n + d for n in (tile.depth, 2 * tile.depth) for d in (-1, 0, 1)), 8 * tile.depth + 5]
    for case, (trans_a, trans_b) in zip(range(count), itertools.cycle(itertools.product((False, True), repeat=2))):
        m, n = (int(rng.choice(near)) if rng.random() < 0.6 else int(rng.integers(1, 2 * tile.rows)) for _ in range(2))
        k = int(rng.choice(deep)) if rng.random() < 0.6 else int(rng.integers(1, 5 * tile.depth))
        offset, gap = ((0, 0), (3, 2), (4, 4))[case // 4 % 3]
        yield Product(m, n, k, (1, 1, 2)[case // 5 % 3], {"trans_a": trans_a, "trans_b": trans_b, "offset": offset, "gap": gap, "add": case // 7 % 2 == 1})


def check(device: Any, tile: Tile, product: Product) -> None:
    check_gemm(device, product.m, product.n, product.k, Choice(tile, product.splits), **product.how)


@pytest.mark.parametrize(("unit", "math"), LAYOUTS)
def test_products(device: Any, unit: str, math: str) -> None:
    """One layout of the operands only, since each is a program."""
    tile = emulated(unit, math)
    how = {"trans_a": False, "trans_b": True}
    check(device, tile, Product(67, 69, tile.depth + 3, 1, how))
    check(device, tile, Product(64, 128, 2 * tile.depth, 1, {**how, "add": True}))
    check(device, tile, Product(1, 70, 5, 1, {**how, "offset": 3, "gap": 2}))


def test_convolutions(device: Any) -> None:
    g = geometry(2, 33, 30, (1, 7, 6), **WINDOWS["3x3"])
    check_convolution(device, conv_gpu, g, choice=small(g, 2, emulated("MFMA of CDNA 2", "fp16")))


@pytest.mark.parametrize(("unit", "math"), [("MFMA of CDNA 2", "fp16"), ("WMMA of RDNA 4", "bf16"), ("DPAS of Xe-HPG", "bf16")])
def test_channel_reductions(device: Any, unit: str, math: str) -> None:
    """The statistics of BatchNorm, which the convolution collects. The lanes that share a row add up their columns."""
    g = GEOMETRIES["many tiles"]
    rec = recorder(device.target, phase="forward", last_block=False)
    x, w, y = (Ref(name, shape, Role.ACTIVATION) for name, shape in (("x", g.input_shape), ("w", g.weight_shape), ("y", g.output_shape)))
    conv_gpu.forward(rec, g, x, w, None, y, Choice(conv_gpu.with_step(g, emulated(unit, math))))
    written = statistics(rec, y, False)
    rec.launches = fuse_channel_reductions(rec.launches)
    assert any("CHANNEL_REDUCTION" in dict(launch.call.defines) for launch in rec.launches if launch.call is not None)
    rng = np.random.default_rng(3)
    got, mean, variance = execute(rec, device.context, {x: rng.standard_normal(x.shape), w: 1 + rng.standard_normal(w.shape)}, [y, *written])
    exact = got.reshape(y.shape).astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean((0, 2, 3, 4)), rtol=0, atol=1e-6 * np.abs(exact).max())
    np.testing.assert_allclose(variance, exact.var((0, 2, 3, 4)), rtol=1e-5)


MISTAKES = [  # a header's text, and one with another layout
    ("MFMA of CDNA 2", "fp16", "tile_mfma.h", "#define LANE_COLUMN(lane) ((lane) / 16 * 4)", "#define LANE_COLUMN(lane) ((lane) % 16 / 4 * 4)"),
    ("WMMA of RDNA 3", "fp16", "tile_wmma.h", "#define RIGHT_LINE(lane) ((lane) % 2 * 8 + (lane) % 16 / 2)", "#define RIGHT_LINE(lane) ((lane) % 16)"),
    ("DPAS of Xe-HPC and Xe2", "tf32", "tile_dpas.h", "line + e * 2 + lane / 8", "line + e + lane / 8 * 4"),
]


@pytest.mark.parametrize(("unit", "math", "file", "right", "wrong"), MISTAKES, ids=lambda value: value if value in UNITS else "")
def test_a_wrong_layout_is_found(device: Any, monkeypatch: pytest.MonkeyPatch, unit: str, math: str, file: str, right: str, wrong: str) -> None:
    read = program.kernel_text

    def changed(name: str) -> str:
        text = read(name)
        assert name != file or text.count(right) == 1
        return text.replace(right, wrong) if name == file else text

    monkeypatch.setattr(program, "kernel_text", changed)
    tile = emulated(unit, math)
    tile = replace(tile, unit=(*tile.unit, ("MISTAKE", "1")))  # another program than the right one
    with pytest.raises(AssertionError, match="of the largest magnitude"):
        check(device, tile, Product(64, 64, tile.depth, 1, {"trans_a": False, "trans_b": True}))


@pytest.mark.sweep
@pytest.mark.parametrize("shape", UNIT_SHAPES, ids=str)
@pytest.mark.parametrize(("unit", "math"), MODES)
def test_many_products(device: Any, unit: str, math: str, shape: tuple[int, int, int, int]) -> None:
    """200 products on the smallest tile, and 40 on each of the others."""
    tile = emulated(unit, math, shape)
    for product in products(tile, 200 if shape == SMALLEST else 40, MODES.index((unit, math))):
        check(device, tile, product)


@pytest.mark.sweep
@pytest.mark.parametrize("window", ["1x1", "3x3", "3x3 stride 2", "7x4 mixed"])
@pytest.mark.parametrize(("unit", "math"), MODES)
def test_many_convolutions(device: Any, unit: str, math: str, window: str) -> None:
    """Four problems in three directions, among them groups, few channels, planes of whole vectors, and unaligned views."""
    rng = np.random.default_rng(list(WINDOWS).index(window))
    for case, (channels, group) in enumerate(((16, 1), (40, 2), (3, 1), (70, 1))):
        size = (1, 6, 10) if case % 2 and window != "7x4 mixed" else random_size(rng, WINDOWS[window])
        g = geometry(3, channels * group, int(rng.integers(8, 80)) * group, size, group=group, **WINDOWS[window])
        odd = case % 2
        check_convolution(device, conv_gpu, g, add=odd == 1, offset=4 * odd, gap=8 * odd, choice=small(g, (1, 3)[case // 2], emulated(unit, math)))


@pytest.mark.parametrize(("unit", "math"), [("MFMA of CDNA 2", "bf16"), ("DPAS of Xe-HPC and Xe2", "tf32")])
def test_what_is_not_finite(device: Any, unit: str, math: str) -> None:
    """Inf and NaN reach their rows and columns, as with float multiply-adds. All other results stay exact."""
    rec = recorder(device.target, phase="forward")
    a, b, c = (Ref(name, shape, Role.ACTIVATION) for name, shape in (("a", (70, 24)), ("b", (24, 66)), ("c", (70, 66))))
    gemm_gpu.record(rec, a, b, c, False, False, None, Choice(emulated(unit, math)))
    feeds = {a: np.ones(a.shape), b: np.full(b.shape, 2.0)}
    feeds[a][3, 5], feeds[a][7, 1], feeds[b][2, 40] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        want = feeds[a] @ feeds[b]
    want[7] = want[3, 40] = np.nan
    np.testing.assert_array_equal(execute(rec, device.context, feeds, [c])[0], want)


# Without a device


@pytest.mark.parametrize(("unit", "math"), MODES)
def test_tiles_fit_kernels(unit: str, math: str) -> None:
    """The conditions of kernels/matmul/gemm_mma.cl, conv_mma.cl and tile_mma.h."""
    own = UNITS[unit]
    for tile in gemm_gpu.unit_tiles(unit, math):
        wave_columns = own.wave // own.lane_rows * tile.item_columns
        assert tile.quads and tile.item_columns % own.columns == 0 and tile.item_columns % 4 == 0
        assert tile.rows % tile.warp_rows == 0 and tile.columns % wave_columns == 0 and tile.items % own.wave == 0
        assert tile.items % 128 == 0 and tile.items <= 256  # AMD's limit
        for lines in (tile.rows, tile.columns):
            assert tile.items % lines == 0 and lines * 4 // tile.items in (1, 2, 4)


def test_devices() -> None:
    """AMD's devices by name under AMD's runtime, Intel's by extension."""
    names = {"gfx908": "MFMA of CDNA", "gfx90a:sramecc+:xnack-": "MFMA of CDNA 2", "gfx942:sramecc+:xnack-": "MFMA of CDNA 3", "gfx1100": "WMMA of RDNA 3",
             "gfx1151": "WMMA of RDNA 3", "gfx1201": "WMMA of RDNA 4", "gfx1030": "", "gfx906": "", "gfx1250": "", "gfx950": ""}  # fmt: skip
    assert {name: matrix_units.unit_of("amd", name, ()) for name in names} == names
    assert matrix_units.unit_of("rusticl", "gfx1100", ()) == ""
    able, wide = "cl_intel_subgroup_matrix_multiply_accumulate", "cl_intel_subgroup_2d_block_io"
    found = [matrix_units.unit_of("intel", "Arc", extensions) for extensions in ((able,), (able, wide), (wide,))]
    assert found == ["DPAS of Xe-HPG", "DPAS of Xe-HPC and Xe2", ""] and matrix_units.unit_of("nvidia", "gfx90a", (able,)) == ""


@pytest.mark.parametrize("unit", UNITS)
def test_large_products_use_the_unit(unit: str) -> None:
    """In the modes that it supports, and no other. Kernels of NVIDIA alone are not chosen."""
    g = geometry(32, 256, 256, (1, 28, 28), **WINDOWS["3x3 stride 2"])
    for math in MATHS:
        target = Target(kind="gpu", runtime="amd", compute_units=60, matrix_unit=unit, math=math)
        rec = recorder(target)
        refs = {name: Ref(name, shape, Role.ACTIVATION) for name, shape in (("x", g.input_shape), ("y", g.output_shape), ("w", g.weight_shape))}
        convolution.forward(rec, g, refs["x"], refs["w"], None, refs["y"])
        convolution.backward_data(rec, g, refs["y"], refs["w"], refs["x"])
        convolution.backward_filter(rec, g, refs["x"], refs["y"], refs["w"])
        a, b, c = (Ref(name, (1024, 1024), Role.ACTIVATION) for name in "abc")
        gemm_gpu.record(rec, a, b, c, False, True, None)
        calls = [launch.call for launch in rec.launches if launch.call is not None and not launch.kernel.can.helper]
        found = {(call.program, dict(call.defines).get("MATRIX_UNIT")) for call in calls}
        header = f'"{UNITS[unit].header}"'
        able = math in UNITS[unit].depth
        assert found == ({("conv_mma", header), ("gemm_mma", header)} if able else {("conv_gpu", None), ("gemm_gpu", None)}), math
        assert all(conv_mma.possible(g, way) for way in ("forward", "backward_data", "backward_filter"))


def test_winograd_with_tf32() -> None:
    """Winograd's products in 16-bit modes are rounded to TF32 where the unit has it, else they are multiply-adds. Steps keep the depth of the unit."""
    g = geometry(16, 128, 128, (1, 28, 28), **WINDOWS["3x3"])
    for unit, own in UNITS.items():
        target = Target(kind="gpu", runtime="amd", compute_units=60, matrix_unit=unit, math="bf16")
        assert {tile.mma for tile in winograd_gpu.product_tiles(target)} == ({gemm_gpu.TF32} if "tf32" in own.depth else {0})
        rec = recorder(target)
        x, y, w = (Ref(name, shape, Role.ACTIVATION) for name, shape in (("x", g.input_shape), ("y", g.output_shape), ("w", g.weight_shape)))
        winograd_gpu.backward_filter(rec, g, x, y, w)
        for launch in rec.launches:
            defines = dict(launch.call.defines) if launch.call is not None else {}
            assert "MATRIX_UNIT" not in defines or defines["BK"] == "16"
