"""Convolution from patches in local memory (kernels/convolution/dense_gpu/conv_patch_mma.cl), compared with numpy in float64 on operands rounded to bfloat16.

CPU runtimes compute the products by float multiply-adds from the same local memory. They compile for seconds, so their tiles are small and their
geometries few.
"""
from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.cl.device import Device
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution.dense_gpu import conv_gpu, conv_patch_mma
from ocaffe.kernels.convolution.dense_gpu.conv_patch_mma import FILTER_TILES, PATCH_TILES
from ocaffe.kernels.convolution.geometry.conv_geometry import Axes, ConvGeometry
from ocaffe.kernels.convolution.geometry.conv_window import product_shape
from ocaffe.kernels.expression.expression import ReluBackward, pointwise, reduce
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.kernels.matmul.gemm_gpu import BFLOAT16, Choice, Tile
from ocaffe.passes import bf16
from ocaffe.passes.channel_reduction_fusion import fuse_channel_reductions
from ocaffe.passes.relu_backward_fusion import fuse_relu_backward
from tests.harness import execute, of_kind
from tests.kernels.test_gpu_kernels import check_convolution, close, geometry, recorder
from tests.passes.test_bf16 import check, check_directions, shapes_of
from tests.passes.test_channel_reduction_fusion import statistics, value

THREE, FIVE = {"kernel": (1, 3, 3), "pad": (0, 1, 1)}, {"kernel": (1, 5, 5), "pad": (0, 2, 2)}
BLOCKS, ROWS = PATCH_TILES[-1], Tile(32, 64, 4, 8, 32, 16, BFLOAT16, stages=2, patches=True)  # a step has one tap; a step has a row of taps
SMALL = [BLOCKS, ROWS]
H100 = Target(kind="gpu", runtime="nvidia", compute_units=132, tensor_cores=True, math="bf16")


class Patches:
    """An engine for check_convolution with a separate tile for each direction."""

    def __init__(self, tile: Tile, splits: int = 1, filters: int = 0) -> None:
        self.tile, self.splits, self.filters = tile, splits, FILTER_TILES[filters]

    def choice(self, g: ConvGeometry, direction: str) -> Choice:
        tile = self.filters if direction == "backward_filter" else self.tile
        return Choice(conv_patch_mma.with_step(g, tile, direction), self.splits)

    def forward(self, rec: Recorder, g: ConvGeometry, x: Ref, w: Ref, bias: Ref | None, y: Ref, choice: Choice | None = None) -> None:
        conv_gpu.forward(rec, g, x, w, bias, y, self.choice(g, "forward"))

    def backward_data(self, rec: Recorder, g: ConvGeometry, dy: Ref, w: Ref, dx: Ref, choice: Choice | None = None) -> None:
        conv_gpu.backward_data(rec, g, dy, w, dx, self.choice(g, "backward_data"))

    def backward_filter(self, rec: Recorder, g: ConvGeometry, x: Ref, dy: Ref, dw: Ref, choice: Choice | None = None) -> None:
        if conv_patch_mma.possible(g, "backward_filter"):
            conv_gpu.backward_filter(rec, g, x, dy, dw, self.choice(g, "backward_filter"))
        else:
            conv_gpu.backward_filter(rec, g, x, dy, dw, Choice(conv_gpu.with_step(g, gemm_gpu.QUAD_TILES["bf16"][-1], "backward_filter")))


GEOMETRIES = {
    "odd": geometry(2, 24, 20, (1, 5, 7), **THREE),
    "groups, 28 wide": geometry(2, 80, 40, (1, 7, 28), group=2, **THREE),
    "no pad, 56 wide": geometry(1, 8, 70, (1, 6, 58), (1, 3, 3)),
    "5 x 5": geometry(2, 40, 33, (1, 9, 12), **FIVE),
    "1 x 4": geometry(2, 24, 20, (1, 6, 9), (1, 1, 4), pad=(0, 0, 2)),
    "7 x 1": geometry(2, 24, 20, (1, 9, 8), (1, 7, 1), pad=(0, 3, 0)),
    "3 channels": geometry(3, 3, 70, (1, 9, 12), **THREE),
    "whole blocks": geometry(2, 32, 32, (1, 5, 7), **THREE),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_floats(device: Any, name: str) -> None:
    """Kernels round float operands.

    Cases have partial rectangles, rows and blocks, add to results or not, and have aligned and unaligned operands.
    """
    g = GEOMETRIES[name]
    filters = {"odd": 1, "3 channels": 3}.get(name, 0)
    engine = Patches(ROWS if name in ("odd", "3 channels") else BLOCKS, splits=1 if name.startswith("no pad") else 3, filters=filters)
    for add, offset, gap in ((False, 0, 0), (True, 3, 1)):
        check_convolution(device, engine, g, add=add, offset=offset, gap=gap, choice=Choice(engine.tile))


@pytest.fixture
def of_gpu(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(bf16, "MIN_VALUE_BYTES", 1)
    return Device(replace(device.info, target=replace(of_kind(device.target, "gpu"), math="bf16")), device)


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("name", ["even", "28 wide", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("14 wide", "10 wide")), "odd"])
def test_sixteen_bits(of_gpu: Device, name: str, offset: int) -> None:
    """Operands and results in bfloat16, aligned for copies and unaligned."""
    sizes = {"even": (2, 16, 24, (1, 8, 16)), "28 wide": (3, 40, 16, (1, 6, 28)), "14 wide": (2, 16, 24, (1, 6, 14)),
             "10 wide": (2, 16, 24, (1, 7, 10)), "odd": (2, 16, 24, (1, 7, 9))}  # fmt: skip
    g = geometry(*sizes[name], **THREE)
    check_directions(of_gpu, g, lambda way: Patches(BLOCKS, splits=2).choice(g, way), offset)


@pytest.mark.parametrize("pointwise", [False, True])
def test_one_operand_in_sixteen_bits(of_gpu: Device, pointwise: bool) -> None:
    """backward_filter with a float image, like a net's data, and a gradient in bfloat16. The parameter `wx` is the float image."""
    g = geometry(2, 24, 16, (1, 8, 8), (1, 1, 1)) if pointwise else geometry(2, 24, 16, (1, 8, 16), **THREE)
    tile, shapes = gemm_gpu.ASYNC_TILES[-1] if pointwise else FILTER_TILES[0], shapes_of(g)
    choice = Choice(conv_gpu.with_step(g, tile, "backward_filter"), 2)

    def filters(rec: Recorder, refs: dict[str, Ref]) -> None:
        conv_gpu.backward_filter(rec, g, refs["wx"], refs["dy"], refs["gw"], choice)

    check(of_gpu, {"wx": shapes["x"], "dy": shapes["dy"], "gw": shapes["gw"]}, filters, "gw", "dy")


@pytest.mark.parametrize("number", range(len(PATCH_TILES)), ids=lambda number: str(PATCH_TILES[number]))
def test_all_tiles(of_gpu: Device, device: Device, number: int) -> None:
    """Several tiles of rows, blocks and rectangles. Float operands are compared with numpy, bfloat16 operands with float operands."""
    if not device.target.tensor_cores:
        pytest.skip("CPU runtimes compile for seconds: the small tiles alone")
    engine = Patches(PATCH_TILES[number], filters=number % len(FILTER_TILES))
    for g in (geometry(3, 72, 136, (1, 12, 20), **THREE), geometry(2, 64, 64, (1, 56, 56), **THREE), geometry(2, 32, 144, (1, 14, 14), **THREE)):
        check_convolution(device, engine, g, choice=Choice(engine.tile))
        check_directions(of_gpu, g, functools.partial(engine.choice, g))


@pytest.mark.parametrize("tile", SMALL, ids=str)
def test_statistics(device: Any, tile: Tile) -> None:
    """Fused statistics of a result with partial rectangles."""
    g = GEOMETRIES["odd"]
    rec = Recorder(of_kind(device.target, "gpu", False), train=True)
    rec.enter("layer", "forward")
    x, w, b, y = value("x", *g.input_shape), value("w", *g.weight_shape), value("b", g.num_output), value("y", *g.output_shape)
    Patches(tile).forward(rec, g, x, w, b, y)
    written = statistics(rec, y, False)
    rec.launches = fuse_channel_reductions(rec.launches)
    assert any(launch.call and dict(launch.call.defines).get("CHANNEL_REDUCTION") for launch in rec.launches)
    rng = np.random.default_rng(3)
    feeds = {x: rng.standard_normal(x.shape), w: rng.standard_normal(w.shape), b: 300 + rng.standard_normal(b.shape)}
    got, mean, variance = execute(rec, device.context, feeds, [y, *written])
    exact = got.reshape(y.shape).astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean((0, 2, 3, 4)), rtol=0, atol=1e-6 * np.abs(exact).max())
    np.testing.assert_allclose(variance, exact.var((0, 2, 3, 4)), rtol=2e-4)


@pytest.mark.parametrize("size", [(5, 7), (6, 8)], ids=str)
def test_gated_sums(device: Any, size: tuple[int, int]) -> None:
    """A fused ReLU backward and the sums for BatchNorm's backward pass in one launch."""
    g = replace(GEOMETRIES["odd"], size=(1, *size), out=(1, *size))
    rec = Recorder(of_kind(device.target, "gpu", False), train=True)
    dy, w, y, x = value("dy", *g.output_shape), value("w", *g.weight_shape), value("y", *g.input_shape), value("x", *g.input_shape)
    diff, dx = Ref("y.diff", y.shape, Role.DIFF), Ref("x.diff", y.shape, Role.DIFF)
    rec.enter("other", "backward")
    pointwise(rec, "y0 = x0 + 1", reads=[y], writes=[diff])
    rec.enter("writer", "backward")
    Patches(BLOCKS).backward_data(rec, g, dy, w, diff)
    rec.enter("relu", "backward")
    pointwise(rec, "y0 = x1 > 0 ? x0 : slope * x0", reads=[diff, y], writes=[dx], scalars={"slope": 0.5}, means=ReluBackward(0.5))
    rec.enter("norm", "backward")
    mean, inverse = value("mean", g.channels), value("inverse", g.channels)
    sums = [value(f"sum{i}", g.channels) for i in range(2)]
    reduce(rec, "mean = x2; inverse = x3; h = (x1 - mean) * inverse; g = x0; v0 = g; v1 = g * h", reads=[dx, x, (mean, 1), (inverse, 1)], writes=sums,
           axes=(0, 2, 3, 4), finish="y0 = v0; y1 = v1")  # fmt: skip
    rec.launches = fuse_channel_reductions(fuse_relu_backward(rec.launches))
    defines = next(dict(launch.call.defines) for launch in rec.launches if launch.call and launch.what.startswith("conv_patch_mma.backward_data"))
    assert "FUSED_RELU" in defines and defines["CHANNEL_REDUCTION"] == "2"
    rng = np.random.default_rng(5)
    feeds = {ref: rng.standard_normal(ref.shape).astype(np.float32) for ref in (dy, w, y, x, mean, inverse)}
    got, *found = execute(rec, device.context, feeds, [dx, *sums])
    gradient = got.reshape(y.shape).astype(np.float64)
    h = (feeds[x] - feeds[mean].reshape(1, -1, 1, 1, 1)) * feeds[inverse].reshape(1, -1, 1, 1, 1)
    for array, want in zip(found, (gradient, gradient * h)):
        want = want.sum((0, 2, 3, 4))
        np.testing.assert_allclose(array, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(("name", "channel"), [("odd", 5), ("whole blocks", 0)])
def test_what_is_not_finite(device: Any, name: str, channel: int) -> None:
    """Inf and NaN reach exactly the results that depend on them.

    Padding pixels and the zeros that replace them spread neither. The image is ones, with Inf and NaN at corners.
    """
    g = GEOMETRIES[name]
    engine = Patches(ROWS)
    rec = recorder(device.target)
    x, w, y = Ref("x", g.input_shape, Role.ACTIVATION), Ref("w", g.weight_shape, Role.PARAMETER), Ref("y", g.output_shape, Role.ACTIVATION)
    dy, dw = Ref("dy", g.output_shape, Role.DIFF), Ref("dw", g.weight_shape, Role.GRADIENT)
    engine.forward(rec, g, x, w, None, y)
    engine.backward_filter(rec, g, x, dy, dw)
    feeds = {ref: np.ones(ref.shape) for ref in (x, w, dy)}
    feeds[x][1, 3, 0, -1, -1] = np.inf
    feeds[x][0, channel, 0, 0, 0] = np.nan
    got_y, got_dw = execute(rec, device.context, feeds, [y, dw])
    finite = np.isfinite(got_y.reshape(y.shape))
    want = np.ones(y.shape, bool)
    want[1, :, :, -2:, -2:] = want[0, :, :, :2, :2] = False
    np.testing.assert_array_equal(finite, want)
    got_dw = got_dw.reshape(dw.shape)
    ends = np.ones(dw.shape, bool)
    ends[:, 3, :, 1:, 1:] = ends[:, channel, :, :2, :2] = False
    np.testing.assert_array_equal(np.isfinite(got_dw), ends)
    assert (got_dw[:, 3, :, 1:, 1:] == np.inf).all() and np.isnan(got_dw[:, channel, :, :2, :2]).all()
    close(got_dw[:, 1], np.broadcast_to(np.array([[48.0, 56, 48], [60, 70, 60], [48, 56, 48]]), got_dw[:, 1].shape))


# -- which rectangles: no device needed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [*PATCH_TILES, *FILTER_TILES], ids=str)
@pytest.mark.parametrize("window", [THREE, FIVE, {"kernel": (1, 7, 1), "pad": (0, 3, 0)}], ids=["3x3", "5x5", "7x1"])
def test_rectangles_fit(tile: Tile, window: dict[str, Any]) -> None:
    direction = "backward_filter" if tile in FILTER_TILES else "forward"
    for size in (7, 14, 28, 56, 112, 224, 33, 3):
        g = geometry(2, 64, 64, (1, size, size), **window)
        shape = conv_patch_mma._rectangle_of(g, tile, direction)
        if shape is None or not conv_patch_mma.possible(g, direction):
            continue
        most = tile.depth if direction == "backward_filter" else tile.columns
        assert shape.height * shape.width <= most and (shape.width % 4 == 0 or shape.width == size)
        rows, columns = shape.height + g.kernel[1] - 1, shape.width + g.kernel[2] - 1
        patch = rows * columns
        if direction == "backward_filter":  # B_CHUNKS of the kernel: the stride of rows is a multiple of eight pixels, and there are lines of zeros
            lines = (2 * rows + g.kernel[1] - 1) * (-(-columns // 8) * 8) + 1
            elements = tile.stages * tile.rows * conv_patch_mma.PART + lines * conv_patch_mma._channels(tile)
        else:
            filters = tile.stages * conv_patch_mma._step_taps(g, tile) * tile.rows * tile.depth
            elements = filters + 2 * patch * tile.depth
            assert tile.rows * (tile.columns // tile.item_columns) * 2 <= filters  # REDUCTION_SIZE floats reuse this memory
        assert 2 * elements <= 48 << 10


@pytest.mark.parametrize("kernel", [(1, 1, 600), (1, 600, 1), (1, 1, 100)], ids=str)
def test_sides_of_patches(kernel: Axes) -> None:
    """Sides of patches are below 512, because they are packed in few bits."""
    g = geometry(2, 64, 64, (1, 700, 700), kernel)
    shapes = [conv_patch_mma._rectangle_of(g, tile, "forward") for tile in PATCH_TILES]
    sides = [max(shape.height + kernel[1], shape.width + kernel[2]) - 1 for shape in shapes if shape]
    assert all(side < 512 for side in sides) and bool(sides) == (max(kernel) < 512)
    assert sides or not conv_patch_mma.tiles(H100, g, "forward")


@pytest.mark.parametrize(("size", "wide"), [(224, 8), (300, 4), (14, 4), (150, 2), (38, 2), (75, 1), (19, 1)])
def test_elements_fetched_together(size: int, wide: int) -> None:
    """Copies are as wide as rows are aligned. No copy has less than two elements."""
    g = geometry(32, 64, 64, (1, size, size), **THREE)
    rec = recorder(H100)
    x, dy, dw = Ref("x", g.input_shape, Role.ACTIVATION), Ref("dy", g.output_shape, Role.DIFF), Ref("dw", g.weight_shape, Role.GRADIENT)
    conv_gpu.backward_filter(rec, g, x, dy, dw, Choice(conv_patch_mma.with_step(g, FILTER_TILES[0], "backward_filter"), 2))
    assert rec.launches[0].call is not None and dict(rec.launches[0].call.defines)["WIDE"] == str(wide)


@pytest.mark.parametrize("size", [224, 112, 56, 28, 14])
@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_filter"])
def test_networks_take_them(size: int, direction: str) -> None:
    g = geometry(64, 128, 128, (1, size, size), **THREE)
    tiles = conv_patch_mma.tiles(H100, g, direction)
    assert tiles and all(tile.waste <= conv_patch_mma.MAX_WASTE for tile in tiles)
    assert not conv_patch_mma.tiles(replace(H100, math="fp16"), g, direction)
    assert not conv_patch_mma.tiles(H100, replace(g, stride=(1, 2, 2), out=(1, size // 2, size // 2)), direction)
    best = gemm_gpu.ranked(H100, conv_gpu.tiles(H100, g, direction), *product_shape(g, direction))[0]
    assert best.tile.patches
