"""Matrix product and convolution of the GPU class, and depthwise convolution of both classes, compared with numpy in float64.

The kernels are standard OpenCL C, so they run on CPU runtimes too. Most cases use a tile of 16 x 32, smaller than all shipped tiles. With it, small
problems have inner tiles, edges and splits, and kernels compile fast.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import MATHS, Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.dense_gpu import conv_gpu, conv_pointwise_mma
from ocaffe.kernels.convolution.depthwise import conv_depthwise
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.kernels.matmul.families import FAMILIES
from ocaffe.kernels.matmul.gemm_gpu import ASYNC_TILES, BFLOAT16, FLOAT16, ON_TENSOR_CORES, QUAD_TILES, TENSOR_TILES, TILES, Choice, Tile
from tests.harness import changed, execute, of_kind

TF32, HALVES = 1, (BFLOAT16, FLOAT16)  # Tile.mma
TF32_TILES = ON_TENSOR_CORES["tf32"]
ROUNDED = [tile for tiles in QUAD_TILES.values() for tile in tiles]
TENSOR = pytest.mark.parametrize("tile", [*TENSOR_TILES, *TF32_TILES, *ROUNDED], ids=str)
OTHER_TILES = [tile for family in FAMILIES if family.runtime == "amd|rusticl" or family.name == "Intel Xe-LP" for tile in gemm_gpu.fma_tiles(family)]
SMALL = Tile(rows=16, columns=32, item_rows=4, item_columns=4, warp_rows=16, depth=8)


def recorder(target: Target, kind: str = "gpu", phase: str = "backward", last_block: bool = True) -> Recorder:
    rec = Recorder(of_kind(target, kind, last_block), train=True)
    rec.enter("layer", phase)
    return rec


def multiplied(values: np.ndarray, choice: Choice | None) -> np.ndarray:
    """Return the operand as rounded by its tile (Tile.mma): TF32 rounds halves away from zero, 16 bits to even; three parts are exact."""
    values = values.astype(np.float32)
    bits = values.view(np.uint32)
    mma = choice.tile.mma if choice is not None else 0
    if mma == TF32:
        return ((bits + 0x1000) & 0xFFFFE000).view(np.float32).astype(np.float64)
    if mma == BFLOAT16:
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32).astype(np.float64)
    return (values.astype(np.float16) if mma == FLOAT16 else values).astype(np.float64)


def can_run(device: Any, tile: Tile, kinds: tuple[int, ...]) -> None:
    """Skip a tile that the device cannot run.

    CPU runtimes emulate the products of `kinds` (Tile.mma) by float multiply-adds. They compile for seconds, so they run only small tiles.
    """
    if not device.target.tensor_cores and (tile.rows * tile.columns > 64 * 64 or tile.mma not in kinds):
        pytest.skip("not for this runtime")


def close(got: np.ndarray, want: np.ndarray, tolerance: float = 1e-5) -> None:
    assert got.shape == want.shape
    error = np.abs(got - want).max() / max(np.abs(want).max(), 1e-30)
    assert error < tolerance, f"{error:.1e} of the largest magnitude"


def tensor(name: str, shape: tuple[int, ...], role: Role = Role.ACTIVATION, offset: int = 0, gap: int = 0) -> Ref:
    """Return a dense Ref, or a view at `offset` with gaps of `gap` elements between samples."""
    if not offset and not gap:
        return Ref(name, shape, role)
    stride = math.prod(shape[1:]) + gap
    return Ref(f"{name}.all", (shape[0], stride + offset), role).view(shape, offset, stride + offset)


def accumulating(rec: Recorder, ref: Ref) -> Ref:
    """Mark a diff as written by an earlier node, so that later launches must add to it."""
    rec._pending.add(rec._diff_key(ref))
    rec.enter("layer", "backward")
    assert rec.accumulates(ref)
    return ref


# -- matrix product --------------------------------------------------------------------------------------------------------


def check_gemm(
    device: Any, m: int, n: int, k: int, choice: Choice, *, trans_a: bool, trans_b: bool, offset: int = 0, gap: int = 0, add: bool = False,
    last_block: bool = True,
) -> None:
    rng = np.random.default_rng(m * 10007 + n * 101 + k)
    rec = recorder(device.target, last_block=last_block)
    a_shape, b_shape = ((k, m) if trans_a else (m, k)), ((n, k) if trans_b else (k, n))
    a, b = tensor("a", a_shape, offset=offset, gap=gap), tensor("b", b_shape, offset=offset, gap=gap)
    c, bias = tensor("c", (m, n), Role.DIFF, offset, gap), Ref("bias", (n,), Role.PARAMETER)
    feeds = {a: rng.standard_normal(a_shape), b: rng.standard_normal(b_shape)}
    left, right = multiplied(feeds[a], choice), multiplied(feeds[b], choice)
    want = (left.T if trans_a else left) @ (right.T if trans_b else right)
    if add:
        feeds[accumulating(rec, c)] = rng.standard_normal((m, n))
        want += feeds[c]
    else:
        feeds[bias] = rng.standard_normal(n)
        want += feeds[bias]
    gemm_gpu.record(rec, a, b, c, trans_a, trans_b, None if add else bias, choice)
    close(execute(rec, device.context, feeds, [c])[0], want)


@pytest.mark.parametrize(("splits", "last_block"), [(1, True), (3, True), (3, False)])
@pytest.mark.parametrize(("trans_a", "trans_b"), itertools.product((False, True), repeat=2))
def test_gemm(device: Any, trans_a: bool, trans_b: bool, splits: int, last_block: bool) -> None:
    choice, how = Choice(SMALL, splits), {"trans_a": trans_a, "trans_b": trans_b, "last_block": last_block}
    for m, n, k in ((32, 64, 48), (37, 45, 51), (1, 70, 33), (19, 1, 64), (5, 3, 1), (16, 32, 8)):
        check_gemm(device, m, n, k, choice, **how)
    check_gemm(device, 33, 40, 29, choice, **how, offset=3, gap=2)
    check_gemm(device, 32, 64, 32, choice, **how, offset=4, gap=4, add=True)
    check_gemm(device, 17, 34, 40, choice, **how, add=True)
    if splits > 1:  # the parts are added in bunches
        check_gemm(device, 33, 40, 13 * SMALL.depth, Choice(SMALL, 13), **how)


def test_many_parts_meet(device: Any) -> None:
    """There are more bunches than parts in the first bunch (`gemm_gpu.bunches`)."""
    parts, (m, n) = 192, (5, 9)
    assert not device.target.last_block_reduction or gemm_gpu.reduces_in_last_block(device.target, SMALL, parts, 1)
    check_gemm(device, m, n, parts * SMALL.depth, Choice(SMALL, parts), trans_a=False, trans_b=False)


@pytest.mark.parametrize("tile", dict.fromkeys([*TILES, *OTHER_TILES]), ids=lambda tile: f"{tile} {dict(tile.compiler).get('DEPTH_UNROLL', 'all')}")
def test_gemm_tiles(device: Any, tile: Tile) -> None:
    if device.target.is_cpu and tile.item_rows > 4:
        pytest.skip("CPU runtimes compile the large tiles for many seconds")
    check_gemm(device, tile.rows + 3, tile.columns + 5, 2 * tile.depth + 3, Choice(tile), trans_a=False, trans_b=True)
    check_gemm(device, 2 * tile.rows, tile.columns, 2 * tile.depth, Choice(tile), trans_a=True, trans_b=False)


@TENSOR
def test_gemm_on_tensor_cores(device: Any, tile: Tile) -> None:
    can_run(device, tile, HALVES)
    for (trans_a, trans_b), splits in itertools.product(itertools.product((False, True), repeat=2), (1, 2)):
        for m, n, k in ((tile.rows + 3, tile.columns + 5, 2 * tile.depth + 3), (2 * tile.rows, tile.columns, 4 * tile.depth), (1, 70, 5)):
            check_gemm(device, m, n, k, Choice(tile, splits), trans_a=trans_a, trans_b=trans_b)
    check_gemm(device, 33, 40, 29, Choice(tile), trans_a=False, trans_b=True, offset=3, gap=2, add=True)


@pytest.mark.parametrize("window", ["1x1", "3x3"])
@pytest.mark.parametrize("tile", [*TENSOR_TILES, *TF32_TILES], ids=str)
def test_what_is_not_finite_in_convolutions(device: Any, tile: Tile, window: str) -> None:
    """Inf in three directions, with vector loads and two levels of sums. A tile that is recomputed reads the same operands."""
    can_run(device, tile, ())
    g = geometry(3, 32, tile.rows + 1, (1, 8, 8), **WINDOWS[window])
    rec = recorder(device.target)
    x, dy, w = Ref("x", g.input_shape, Role.ACTIVATION), Ref("dy", g.output_shape, Role.ACTIVATION), Ref("w", g.weight_shape, Role.PARAMETER)
    y, dx, dw = Ref("y", g.output_shape, Role.ACTIVATION), Ref("dx", g.input_shape, Role.DIFF), Ref("dw", g.weight_shape, Role.GRADIENT)
    choice = small(g, 1, tile)
    conv_gpu.forward(rec, g, x, w, None, y, choice)
    conv_gpu.backward_data(rec, g, dy, w, dx, choice)
    conv_gpu.backward_filter(rec, g, x, dy, dw, choice)
    feeds = {x: np.ones(x.shape), dy: np.full(dy.shape, 2.0), w: np.ones(w.shape)}
    feeds[x][1, 3, 0, 2, 5] = feeds[dy][2, 7, 0, 1, 1] = np.inf
    model = Numpy(g)
    want = [model.forward(feeds[x], feeds[w]), model.backward_data(feeds[dy], feeds[w]), model.backward_filter(feeds[x], feeds[dy])]
    for got, right in zip(execute(rec, device.context, feeds, [y, dx, dw]), want):
        np.testing.assert_array_equal(got, right)


@TENSOR
def test_what_is_not_finite_on_tensor_cores(device: Any, tile: Tile) -> None:
    """Inf and NaN reach their rows and columns, as with float multiply-adds. All other results stay exact."""
    can_run(device, tile, HALVES)
    rec = recorder(device.target, phase="forward")
    rows, columns = tile.rows + 9, 2 * tile.columns
    a, b, c = (Ref(name, shape, Role.ACTIVATION) for name, shape in (("a", (rows, 24)), ("b", (24, columns)), ("c", (rows, columns))))
    gemm_gpu.record(rec, a, b, c, False, False, None, Choice(tile))
    feeds = {a: np.ones(a.shape), b: np.full(b.shape, 2.0)}
    feeds[a][3, 5], feeds[a][7, 1], feeds[b][2, 40] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        want = feeds[a] @ feeds[b]
    want[7] = np.nan
    want[3, 40] = np.nan
    np.testing.assert_array_equal(execute(rec, device.context, feeds, [c])[0], want)


def test_gemm_merged_relu(device: Any) -> None:
    """The epilogue names the slope argument, with and without a split."""
    rng = np.random.default_rng(1)
    for splits in (1, 2):
        rec = recorder(device.target, phase="forward")
        a, b, c = Ref("a", (9, 40), Role.ACTIVATION), Ref("b", (40, 21), Role.ACTIVATION), Ref("c", (9, 21), Role.ACTIVATION)
        gemm_gpu.record(rec, a, b, c, False, False, None, Choice(SMALL, splits))
        set_slope(rec, 0.25)
        feeds = {a: rng.standard_normal(a.shape), b: rng.standard_normal(b.shape)}
        want = feeds[a] @ feeds[b]
        close(execute(rec, device.context, feeds, [c])[0], np.where(want > 0, want, 0.25 * want))


def set_slope(rec: Recorder, slope: float) -> None:
    launch = rec.launches[-1]
    assert launch.call is not None and launch.epilogue is not None and all(other.epilogue is None for other in rec.launches[:-1])
    index = launch.epilogue.activation[0]
    assert launch.scalar(index) == np.float32(1.0) and isinstance(launch.scalar(index), np.float32)
    launch.set_scalar(index, np.float32(slope))


def test_infinity_stays_where_it_is(device: Any) -> None:
    """Elements outside the product, and the zeros that replace them, change no result."""
    rec = recorder(device.target, phase="forward")
    whole_a, whole_b = Ref("a", (5, 40), Role.ACTIVATION), Ref("b", (33, 40), Role.ACTIVATION)
    a, b, c = whole_a.view((5, 7), 8, 40), whole_b.view((33, 7), 8, 40), Ref("c", (5, 33), Role.ACTIVATION)
    gemm_gpu.record(rec, a, b, c, False, True, None, Choice(SMALL))
    feeds = {whole_a: np.full((5, 40), np.inf), whole_b: np.full((33, 40), np.nan)}
    feeds[whole_a][:, 8:15] = 1.0
    feeds[whole_b][:, 8:15] = 2.0
    feeds[whole_a][2, 9] = np.inf
    want = np.full((5, 33), 14.0)
    want[2] = np.inf
    np.testing.assert_array_equal(execute(rec, device.context, feeds, [c])[0], want)


def test_parts_are_added_in_one_order(device: Any) -> None:
    """Parts are added in one order, whichever work-group is last."""
    rng = np.random.default_rng(2)
    a, b, c = Ref("a", (40, 400), Role.ACTIVATION), Ref("b", (400, 70), Role.ACTIVATION), Ref("c", (40, 70), Role.ACTIVATION)
    feeds = {a: rng.standard_normal(a.shape), b: rng.standard_normal(b.shape)}
    results = []
    for last_block in (True, True, True, False):
        rec = recorder(device.target, phase="forward", last_block=last_block)
        gemm_gpu.record(rec, a, b, c, False, False, None, Choice(SMALL, 7))
        results.append(execute(rec, device.context, feeds, [c])[0])
    assert all((result == results[0]).all() for result in results[1:])


# -- the choice of tile and splits: no device needed -----------------------------------------------------------------------

H100 = Target(kind="gpu", runtime="nvidia", compute_units=132)


def test_large_products_take_large_tiles_and_small_ones_splits() -> None:
    large = gemm_gpu.choose(H100, TILES, 4096, 4096, 4096)
    assert large == Choice(TILES[0], 1)
    small = gemm_gpu.choose(H100, TILES, 64, 500, 800)
    assert small.tile.rows * small.tile.columns <= 64 * 64 and small.splits > 1
    filters = gemm_gpu.choose(H100, TILES, 64, 576, 64 * 3136)
    assert filters.splits >= 8 and filters.splits * 64 * 576 * 4 <= gemm_gpu.SPLIT_SCRATCH


def test_devices_of_unknown_registers_get_modest_tiles() -> None:
    assert gemm_gpu.choose(replace(H100, runtime="generic"), TILES, 4096, 4096, 4096).tile.item_rows <= 8


def test_the_mode_of_arithmetic_chooses_the_tiles() -> None:
    kinds = {math: {tile.mma for tile in gemm_gpu.tiles_for(replace(H100, tensor_cores=True, math=math))} for math in MATHS}
    assert kinds == {"fp32": {0, 3}, "ieee": {0}, "tf32": {0, 1}, "bf16": {0, 2}, "fp16": {0, 4}}
    assert {tile.mma for tile in gemm_gpu.tiles_for(H100)} == {0}


@pytest.mark.parametrize(("mode", "quads"), [("fp32", ""), ("ieee", ""), ("tf32", ""), ("bf16", "1x1 3x3"), ("fp16", "1x1 3x3")])
def test_which_convolutions_go_to_which_kernels(mode: str, quads: str) -> None:
    target = replace(H100, tensor_cores=True, math=mode)
    more_taps_than_bits = geometry(2, 3, 4, (1, 8, 8), (1, 33, 3), pad=(0, 13, 0))
    for way in ("forward", "backward_data", "backward_filter"):
        for window in ("1x1", "3x3"):
            tiles = conv_gpu.tiles(target, geometry(2, 16, 16, (1, 8, 8), **WINDOWS[window]), way)
            kinds = {(tile.mma > 0, tile.quads) for tile in tiles if not tile.stages}
            assert ((True, True) in kinds) == (window in quads)
            assert ((True, False) in kinds) == (mode in ("fp32", "tf32"))
        assert not any(tile.quads for tile in conv_gpu.tiles(target, more_taps_than_bits, way))


@pytest.mark.parametrize("tile", [*TENSOR_TILES, *TF32_TILES], ids=str)
def test_where_registers_are_limited(tile: Tile) -> None:
    """Registers are limited only in TF32, for work-items with 64 sums, and not in backward_filter. Elsewhere the limit was slower."""
    rec = recorder(replace(H100, tensor_cores=True))
    g = geometry(2, 64, 128, (1, 28, 28), (1, 1, 1))
    x, dy, w = Ref("x", g.input_shape, Role.ACTIVATION), Ref("dy", g.output_shape, Role.ACTIVATION), Ref("w", g.weight_shape, Role.PARAMETER)
    conv_gpu.forward(rec, g, x, w, None, dy, Choice(tile))
    conv_gpu.backward_data(rec, g, dy, w, x, Choice(tile))
    conv_gpu.backward_filter(rec, g, x, dy, Ref("dw", g.weight_shape, Role.GRADIENT), Choice(tile))
    found = [dict(launch.call.defines).get("REGISTERS") for launch in rec.launches if launch.call]
    limit = "128" if tile.mma == TF32 and tile.item_rows * tile.item_columns == 64 else None
    assert found == [limit, limit, None]


@pytest.mark.parametrize("tile", [*TILES, *TENSOR_TILES], ids=str)
def test_tiles_meet_what_the_kernels_ask_for(tile: Tile) -> None:
    assert tile.items % 32 == 0 and tile.items <= 256 and tile.items % tile.columns == 0
    for rows in (tile.rows, tile.columns):
        assert rows * tile.depth % (4 * tile.items) == 0 and tile.items % (tile.depth // 4) == 0 and rows // 4 <= tile.items
    assert 2 * tile.depth * (tile.rows + tile.columns + (16 if tile.mma else 8)) * 4 <= 48 << 10
    for kernel in itertools.product((1,), (1, 3, 5, 7, 11, 40), (1, 3, 5, 7, 11, 40)):
        g = geometry(1, 64, 64, (1, 50, 50), kernel)
        depth = math.prod(conv_gpu.window_step(g, tile))
        assert depth <= tile.items and 2 * depth * (tile.rows + tile.columns + (16 if tile.mma else 8)) * 4 <= 48 << 10
        assert conv_gpu.window_step(g, tile)[0] % (tile.items // tile.columns) == 0


@pytest.mark.parametrize("tile", ROUNDED, ids=str)
def test_tiles_meet_what_tensor_cores_ask_for(tile: Tile) -> None:
    assert tile.item_rows * 8 == tile.warp_rows and tile.warp_rows % 32 == 0 and tile.item_columns % 8 == 0
    assert tile.items % 128 == 0 and 2 * 16 * (tile.rows + tile.columns) * 4 <= 48 << 10
    for lines in (tile.rows, tile.columns):
        assert lines * 4 // tile.items in (1, 2, 4) and tile.items % lines == 0


# -- convolution -----------------------------------------------------------------------------------------------------------


def geometry(
    batch: int,
    channels: int,
    num_output: int,
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...] = (1, 1, 1),
    pad: tuple[int, ...] = (0, 0, 0),
    dilation: tuple[int, ...] = (1, 1, 1),
    group: int = 1,
) -> ConvGeometry:
    out = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(size, kernel, stride, pad, dilation))
    return ConvGeometry(batch, channels, num_output, group, size, out, kernel, stride, pad, dilation)  # type: ignore[arg-type]


ALL = (slice(None),) * 3  # sample or output, group, channel


class Numpy:
    """The three directions in numpy, tap by tap."""

    def __init__(self, g: ConvGeometry) -> None:
        self.g = g
        self.padded = tuple(n + 2 * p for n, p in zip(g.size, g.pad))

    def taps(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """Iterate over the index of each tap in the filters, and of the part of the padded image under it."""
        g = self.g
        for tap in itertools.product(*map(range, g.kernel)):
            starts = [t * d for t, d in zip(tap, g.dilation)]
            yield ALL + tap, ALL + tuple(slice(a, a + (o - 1) * s + 1, s) for a, o, s in zip(starts, g.out, g.stride))

    def inner(self) -> tuple[Any, ...]:
        return tuple(slice(p, p + n) for p, n in zip(self.g.pad, self.g.size))

    def split(self, t: np.ndarray, channels: int) -> np.ndarray:
        return t.reshape(self.g.batch, self.g.group, channels, *t.shape[2:])

    def image(self, x: np.ndarray) -> np.ndarray:
        wide = np.zeros((self.g.batch, self.g.group, self.g.group_channels, *self.padded))
        wide[ALL + self.inner()] = self.split(x, self.g.group_channels)
        return wide

    def filters(self, w: np.ndarray) -> np.ndarray:
        return w.reshape(self.g.group, self.g.group_outputs, self.g.group_channels, *self.g.kernel)

    def forward(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        wide, filters = self.image(x), self.filters(w)
        y = sum(np.einsum("ngcdhw,goc->ngodhw", wide[part], filters[tap]) for tap, part in self.taps())
        return y.reshape(self.g.batch, self.g.num_output, *self.g.out)

    def backward_data(self, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
        dys, filters = self.split(dy, self.g.group_outputs), self.filters(w)
        wide = np.zeros((self.g.batch, self.g.group, self.g.group_channels, *self.padded))
        for tap, part in self.taps():
            wide[part] += np.einsum("ngodhw,goc->ngcdhw", dys, filters[tap])
        return wide[ALL + self.inner()].reshape(self.g.batch, self.g.channels, *self.g.size)

    def backward_filter(self, x: np.ndarray, dy: np.ndarray) -> np.ndarray:
        wide, dys = self.image(x), self.split(dy, self.g.group_outputs)
        dw = np.zeros((self.g.group, self.g.group_outputs, self.g.group_channels, *self.g.kernel))
        for tap, part in self.taps():
            dw[tap] = np.einsum("ngcdhw,ngodhw->goc", wide[part], dys)
        return dw.reshape(self.g.weight_shape)


def check_convolution(
    device: Any, engine: Any, g: ConvGeometry, *, kind: str = "gpu", add: bool = False, offset: int = 0, gap: int = 0, last_block: bool = True, **choice: Choice
) -> None:
    """Compare all directions of `engine` with numpy. With `add`, results are added to. For `offset` and `gap` see `tensor`."""
    rng = np.random.default_rng(g.batch + 10 * g.channels + 1000 * g.num_output + math.prod(g.size))
    rec = recorder(device.target, kind, last_block=last_block)
    x_shape, y_shape = (g.batch, g.channels, *g.size), (g.batch, g.num_output, *g.out)
    x, dy = tensor("x", x_shape, offset=offset, gap=gap), tensor("dy", y_shape, offset=offset, gap=gap)
    w = Ref("w", g.weight_shape, Role.PARAMETER)
    y, dx = tensor("y", y_shape, Role.DIFF, offset, gap), tensor("dx", x_shape, Role.DIFF, offset, gap)
    dw, db = Ref("dw", g.weight_shape, Role.GRADIENT), Ref("db", (g.num_output,), Role.GRADIENT)
    bias = None if add else Ref("bias", (g.num_output,), Role.PARAMETER)
    feeds = {ref: rng.standard_normal(ref.shape) for ref in (x, dy, w, *([bias] if bias else []))}
    model = Numpy(g)
    xs, dys, ws = (multiplied(feeds[ref], choice.get("choice")) for ref in (x, dy, w))
    want = {y: model.forward(xs, ws), dx: model.backward_data(dys, ws), dw: model.backward_filter(xs, dys)}
    want[db] = feeds[dy].sum((0, 2, 3, 4))
    if bias:
        want[y] += feeds[bias].reshape(-1, 1, 1, 1)
    if add:
        for ref in want:
            feeds[accumulating(rec, ref)] = rng.standard_normal(ref.shape)
            want[ref] = want[ref] + feeds[ref]
    engine.forward(rec, g, x, w, bias, y, **choice)
    engine.backward_data(rec, g, dy, w, dx, **choice)
    engine.backward_filter(rec, g, x, dy, dw, **choice)
    conv_gpu.backward_bias(rec, g, dy, db)
    for ref, got in zip(want, execute(rec, device.context, feeds, list(want))):
        close(got, want[ref])


WINDOWS: dict[str, dict[str, Any]] = {
    "1x1": {"kernel": (1, 1, 1)},
    "3x3": {"kernel": (1, 3, 3), "pad": (0, 1, 1)},
    "3x3 stride 2": {"kernel": (1, 3, 3), "stride": (1, 2, 2), "pad": (0, 1, 1)},
    "1x1 stride 2": {"kernel": (1, 1, 1), "stride": (1, 2, 2)},
    "5x5 dilated": {"kernel": (1, 5, 5), "pad": (0, 3, 2), "dilation": (1, 1, 2)},
    "7x4 mixed": {"kernel": (1, 7, 4), "stride": (1, 3, 2), "pad": (0, 3, 0), "dilation": (1, 2, 4)},
    "1x13": {"kernel": (1, 1, 13), "pad": (0, 0, 6)},
    "3-D": {"kernel": (2, 3, 2), "stride": (2, 1, 1), "pad": (1, 0, 1), "dilation": (1, 2, 1)},
}


def random_size(rng: np.random.Generator, window: dict[str, Any]) -> tuple[int, ...]:
    """Return an odd or even image size in which the window fits, with depth 1 unless the window is deeper."""
    ones = (1, 1, 1)
    reach = [(k - 1) * d + 1 - 2 * p for k, d, p in zip(window["kernel"], window.get("dilation", ones), window.get("pad", (0, 0, 0)))]
    return tuple(1 if axis == 0 and window["kernel"][0] == 1 else max(n, 1) + int(rng.integers(0, 9)) for axis, n in enumerate(reach))


def small(g: ConvGeometry, splits: int, tile: Tile = SMALL) -> Choice:
    return Choice(conv_gpu.with_step(g, tile, "forward"), splits)


@pytest.mark.parametrize("window", WINDOWS)
def test_convolution(device: Any, window: str) -> None:
    """Image sizes are kernel arguments, so a window compiles once per step shape for all images."""
    rng = np.random.default_rng(list(WINDOWS).index(window))
    for case in range(8):
        group = (1, 2, 3)[case % 3]
        channels, outputs = group * int(rng.integers(8, 20)), group * int(rng.integers(1, 24))
        g = geometry(int(rng.integers(1, 4)), channels, outputs, random_size(rng, WINDOWS[window]), group=group, **WINDOWS[window])
        offset, gap = ((0, 0), (3, 1), (4, 8), (0, 0))[case % 4]
        how = {"offset": offset, "gap": gap, "last_block": case < 6}
        check_convolution(device, conv_gpu, g, add=case % 2 == 1, **how, choice=small(g, splits=(1, 3)[case // 2 % 2]))


@TENSOR
@pytest.mark.parametrize("window", WINDOWS)
def test_convolution_on_tensor_cores(device: Any, window: str, tile: Tile) -> None:
    kinds = {"1x1": BFLOAT16, "3x3 stride 2": FLOAT16, "7x4 mixed": BFLOAT16, "3-D": FLOAT16}
    can_run(device, tile, (kinds.get(window, 0),))
    rng = np.random.default_rng(list(WINDOWS).index(window))
    for case, (channels, group) in enumerate(((16, 1), (9, 2), (32, 3), (3, 1))):
        outputs = group * int(rng.integers(8, 80))
        g = geometry(2, channels * group, outputs, random_size(rng, WINDOWS[window]), group=group, **WINDOWS[window])
        check_convolution(device, conv_gpu, g, add=case % 2 == 1, offset=3 * case % 2, choice=small(g, (1, 3)[case // 2], tile))


@pytest.mark.parametrize("tile", [SMALL, *TENSOR_TILES, *TF32_TILES], ids=str)
@pytest.mark.parametrize(("offset", "gap"), [(0, 0), (4, 8), (4, 3)])
def test_vectors(device: Any, tile: Tile, offset: int, gap: int) -> None:
    """Windows of one pixel over planes whose size is a multiple of four.

    Cases have aligned and unaligned float4, partial tiles and steps, and planes shorter than a step.
    """
    if tile is not SMALL:
        can_run(device, tile, ())
    for case, (channels, outputs, group, size) in enumerate(((64, 65, 1, (1, 6, 10)), (20, 3, 2, (1, 2, 2)), (tile.columns, tile.rows, 1, (1, 4, 8)))):
        g = geometry(5, channels * group, outputs * group, size, (1, 1, 1), group=group)
        choice = small(g, 1 + case, tile)
        shares = all(lines * choice.tile.depth % (4 * choice.tile.items) == 0 for lines in (tile.rows, tile.columns))
        assert bool(conv_gpu.defines(g, choice.tile, "forward")["VECTOR"]) == shares and (shares or case == 1)
        check_convolution(device, conv_gpu, g, offset=offset, gap=gap, add=case == 1, choice=choice)


@pytest.mark.parametrize("tile", ROUNDED, ids=str)
def test_vectors_on_tensor_cores(device: Any, tile: Tile) -> None:
    """Planes whose size is a multiple of four, aligned to float4.

    Windows cover one pixel or several. The depth has several steps, and a partial one.
    """
    can_run(device, tile, (BFLOAT16,))
    for window, channels, group in (("1x1", 64, 1), ("1x1", 40, 2), ("3x3", 32, 1)):
        g = geometry(5, channels * group, 24 * group, (1, 6, 10), group=group, **WINDOWS[window])
        check_convolution(device, conv_gpu, g, offset=4, gap=8, add=group == 2, choice=small(g, group, tile))


@pytest.mark.parametrize("tile", ASYNC_TILES, ids=str)
def test_tiles_meet_what_copies_ask_for(tile: Tile) -> None:
    assert tile.warp_rows == 8 * tile.item_rows and tile.warp_rows % 32 == 0 and tile.items % 128 == 0
    assert tile.stages * tile.depth * (tile.rows + tile.columns) * 2 <= 48 << 10
    for lines in (tile.rows, tile.columns):
        assert lines % 64 == 0 and lines * tile.depth % (8 * tile.items) == 0 and tile.items * 8 // lines % 8 == 0


@pytest.mark.parametrize("tile", ASYNC_TILES, ids=str)
@pytest.mark.parametrize(("offset", "gap"), [(0, 0), (4, 8), (4, 3)])
def test_operands_that_are_copied(device: Any, tile: Tile, offset: int, gap: int) -> None:
    """Windows of one pixel in bfloat16 with operands in 32 bits; partial tiles, steps and depths.

    tests/passes/test_bf16.py checks that operands in 16 bits give the same results.
    """
    can_run(device, tile, (BFLOAT16,) if tile == ASYNC_TILES[-1] else ())
    for channels, outputs, group, size, splits in ((72, 70, 1, (1, 6, 10), 1), (24, 16, 2, (1, 4, 4), 1), (200, 136, 1, (1, 8, 8), 3)):
        g = geometry(3, channels * group, outputs * group, size, (1, 1, 1), group=group)
        assert all(conv_pointwise_mma.possible(g, way) for way in ("forward", "backward_data", "backward_filter"))
        check_convolution(device, conv_gpu, g, offset=offset, gap=gap, add=group == 2, choice=small(g, splits, tile))


def test_what_is_not_copied() -> None:
    """Operands are not copied for unsuitable plane or filter sizes, strided windows, and other arithmetic."""
    target = replace(H100, tensor_cores=True, math="bf16")
    whole = geometry(2, 16, 16, (1, 4, 6), (1, 1, 1))
    others = [replace(whole, size=(1, 5, 5), out=(1, 5, 5)), geometry(2, 12, 16, (1, 4, 6), (1, 1, 1)), geometry(2, 16, 16, (1, 8, 8), (1, 1, 1), (1, 2, 2))]
    assert any(tile.stages for tile in conv_gpu.tiles(target, whole, "forward"))
    assert not any(tile.stages for g in others for tile in conv_gpu.tiles(target, g, "forward"))
    assert not any(tile.stages for math in MATHS if math != "bf16" for tile in conv_gpu.tiles(replace(target, math=math), whole, "forward"))


@pytest.mark.parametrize("tile", QUAD_TILES["fp16"], ids=str)
def test_small_gradients_in_float16(device: Any, tile: Tile) -> None:
    """Gradients below float16's smallest number keep sign and size, because they are scaled before rounding."""
    can_run(device, tile, HALVES)
    rng = np.random.default_rng(2)
    rec = recorder(device.target)
    g = geometry(2, 16, 24, (1, 4, 6), (1, 3, 3), pad=(0, 1, 1))
    x, w, dy = Ref("x", (2, 16, 1, 4, 6), Role.ACTIVATION), Ref("w", g.weight_shape, Role.PARAMETER), Ref("dy", (2, 24, 1, 4, 6), Role.DIFF)
    dx, dw = Ref("dx", x.shape, Role.DIFF), Ref("dw", w.shape, Role.GRADIENT)
    a, b, c = Ref("a", (30, 20), Role.DIFF), Ref("b", (30, 40), Role.ACTIVATION), Ref("c", (20, 40), Role.GRADIENT)
    feeds = {ref: rng.standard_normal(ref.shape) * (1e-7 if ref.role is Role.DIFF else 1) for ref in (x, w, dy, a, b)}
    conv_gpu.backward_data(rec, g, dy, w, dx, Choice(tile))
    conv_gpu.backward_filter(rec, g, x, dy, dw, Choice(tile))
    gemm_gpu.record(rec, a, b, c, True, False, None, Choice(tile))
    scale, model = device.target.gradient_scale, Numpy(g)
    xs, ws, bs = (multiplied(feeds[ref], Choice(tile)) for ref in (x, w, b))
    dys, left = (multiplied(feeds[ref] * scale, Choice(tile)) / scale for ref in (dy, a))
    want = {dx: model.backward_data(dys, ws), dw: model.backward_filter(xs, dys), c: left.T @ bs}
    for ref, got in zip(want, execute(rec, device.context, feeds, list(want))):
        close(got, want[ref])


GAPS: dict[str, dict[str, Any]] = {
    "in two axes": {"kernel": (1, 1, 1), "stride": (1, 2, 2)},
    "in three axes": {"kernel": (1, 1, 1), "stride": (2, 1, 3)},
    "around a pad": {"kernel": (1, 1, 1), "stride": (1, 2, 2), "pad": (0, 1, 0)},
}


@pytest.mark.parametrize("tile", [SMALL, *QUAD_TILES["bf16"]], ids=str)
@pytest.mark.parametrize("window", GAPS)
def test_gaps_that_a_stride_leaves(device: Any, window: str, tile: Tile) -> None:
    """backward_data of one tap: an element under no window becomes zero plus the bias, or keeps its value if results are added."""
    can_run(device, tile, (0, BFLOAT16))
    rng = np.random.default_rng(3)
    for case, size in enumerate(((1, 6, 8), (1, 5, 8), (1, 7, 7), (3, 2, 4), (2, 3, 6))):
        g = geometry(3, 18, 12, size, **GAPS[window])
        for add, offset in ((False, 4 * (case % 2)), (True, 0), (False, 3)):
            rec = recorder(device.target)
            dy, w = Ref("dy", (3, 12, *g.out), Role.DIFF), Ref("w", g.weight_shape, Role.PARAMETER)
            dx, bias = tensor("dx", (3, 18, *size), Role.DIFF, offset), None if add else Ref("bias", (18,), Role.PARAMETER)
            feeds = {ref: rng.standard_normal(ref.shape) for ref in (dy, w, *([bias] if bias else []))}
            choice = small(g, 1 + case % 2, tile)
            want = Numpy(g).backward_data(multiplied(feeds[dy], choice), multiplied(feeds[w], choice))
            if bias:
                want = want + feeds[bias].reshape(-1, 1, 1, 1)
            if add:
                feeds[accumulating(rec, dx)] = rng.standard_normal(dx.shape)
                want = want + feeds[dx]
            conv_gpu.backward_data(rec, g, dy, w, dx, choice, bias)
            close(execute(rec, device.context, feeds, [dx])[0], want)


def test_convolution_of_few_channels(device: Any) -> None:
    """Below 8 channels a step covers rows of the window, also with a stride."""
    for g in (
        geometry(2, 1, 20, (1, 13, 14), (1, 5, 5)),
        geometry(2, 3, 20, (1, 13, 14), (1, 7, 7), stride=(1, 2, 2), pad=(0, 3, 3)),
    ):
        check_convolution(device, conv_gpu, g, choice=small(g, 1))
        check_convolution(device, conv_gpu, g, choice=small(g, 3), add=True)


def test_two_levels_of_sums(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two levels of sums halve the error of a deep sum. Results are right in three directions, also with a split depth."""
    g = geometry(1, 160, 16, (1, 9, 8), (1, 5, 5), pad=(0, 2, 2))
    rng = np.random.default_rng(0)
    x, w, y = Ref("x", (1, 160, *g.size), Role.ACTIVATION), Ref("w", g.weight_shape, Role.PARAMETER), Ref("y", (1, 16, *g.out), Role.ACTIVATION)
    feeds = {x: np.float64(rng.random(x.shape, np.float32)), w: np.float64(rng.random(w.shape, np.float32))}
    want, errors = Numpy(g).forward(feeds[x], feeds[w]), []
    for levels in (1, 2):
        monkeypatch.setattr(conv_gpu, "levels", lambda *_, levels=levels: levels)
        rec = recorder(device.target, phase="forward")
        conv_gpu.forward(rec, g, x, w, None, y, choice=small(g, 1))
        errors.append(np.abs(execute(rec, device.context, feeds, [y])[0].reshape(want.shape) - want).max())
    assert errors[1] < 0.5 * errors[0]
    for splits in (1, 3):
        check_convolution(device, conv_gpu, geometry(2, 20, 9, (1, 9, 8), (1, 3, 5), pad=(0, 1, 2)), choice=small(g, splits), add=splits > 1)


def test_levels_are_for_deep_windows_and_where_there_are_registers() -> None:
    few, many = (next(tile for tile in TENSOR_TILES if tile.item_rows * tile.item_columns == sums) for sums in (32, 64))
    window, point = (geometry(1, 64, 16, (1, 50, 50), (1, n, n)) for n in (3, 1))
    cases = ((window, few), (window, SMALL), (window, many), (point, few), (window, replace(few, mma=1)))
    assert [conv_gpu.levels(*case, "forward") for case in cases] == [2, 2, 1, 1, 1]
    assert [conv_gpu.levels(window, few, direction) for direction in ("backward_data", "backward_filter")] == [1, 1]  # only 144 products; split into parts
    assert conv_gpu.levels(replace(window, num_output=64), few, "backward_data") == 2


def test_levels_follow_the_depth_of_a_part_and_of_a_phase() -> None:
    """A program's levels follow the depth of its part, although its tile is chosen for the whole depth."""

    def found(g: ConvGeometry, splits: int, direction: str) -> str:
        rec = recorder(H100)
        x, y, w = Ref("x", g.input_shape, Role.ACTIVATION), Ref("y", g.output_shape, Role.ACTIVATION), Ref("w", g.weight_shape, Role.PARAMETER)
        choice = Choice(conv_gpu.with_step(g, tile, direction), splits)
        assert str(choice) == f"{name} /{splits}" and choice.tile.levels == conv_gpu.levels(g, tile, direction)
        if direction == "forward":
            conv_gpu.forward(rec, g, x, w, None, y, choice)
        else:
            conv_gpu.backward_data(rec, g, y, w, x, choice)
        programs = {dict(launch.call.defines).get("LEVELS", "1") for launch in rec.launches if launch.call}
        return " ".join(programs)

    tile, name = TILES[-2], "32x64x10 by 4x8"
    lenet = geometry(64, 20, 50, (1, 12, 12), (1, 5, 5))
    assert [found(lenet, splits, "forward") for splits in (1, 2, 8)] == ["2", "1", "1"]  # 500, 250 and 100 products
    assert [found(lenet, splits, "backward_data") for splits in (1, 2, 8)] == ["2", "2", "1"]  # 1250, 650 and 200
    name = "32x64x8 by 4x8"
    strided = geometry(2, 64, 48, (1, 9, 9), (1, 3, 3), stride=(1, 2, 2), pad=(0, 1, 1))
    assert [found(strided, 1, direction) for direction in ("forward", "backward_data")] == ["2", "1"]  # a phase has at most 4 taps of 48 outputs
    assert found(replace(strided, num_output=64), 1, "backward_data") == "2"
    assert found(geometry(2, 64, 48, (1, 9, 9), (1, 3, 3), stride=(1, 2, 2), pad=(0, 2, 2), dilation=(1, 2, 2)), 1, "backward_data") == "2"  # all taps in one


def test_convolution_with_several_work_items_per_column(device: Any) -> None:
    g = geometry(2, 7, 18, (1, 6, 7), (1, 3, 3), pad=(0, 1, 1))
    tile = next(tile for tile in TILES if tile.items > tile.columns)
    check_convolution(device, conv_gpu, g, choice=small(g, 1, tile))


def test_a_first_layer_with_96_outputs(device: Any) -> None:
    """AlexNet's conv1: a tile has as many rows as the layer has outputs."""
    g = geometry(2, 3, 96, (1, 47, 51), (1, 11, 11), stride=(1, 4, 4))
    check_convolution(device, conv_gpu, g, choice=small(g, 1, conv_gpu.ROWS_96))
    first = geometry(64, 3, 96, (1, 227, 227), (1, 11, 11), stride=(1, 4, 4))
    others = (replace(first, num_output=64), replace(first, num_output=192), geometry(64, 16, 96, (1, 112, 112), (1, 1, 1)))
    names = [[str(tile) for tile in conv_gpu.tiles(H100, g, "forward")] for g in (first, *others)]
    assert ["96x128x11 by 12x8" in each for each in names] == [True, False, False, False]
    rec = recorder(H100)
    convolution.forward(rec, first, *(Ref(name, shape, Role.ACTIVATION) for name, shape in (("x", first.input_shape), ("w", first.weight_shape))), None,
                        Ref("y", first.output_shape, Role.ACTIVATION))  # fmt: skip
    assert dict(rec.launches[0].call.defines)["BM"] == "96"


def test_convolution_by_its_own_choice(device: Any) -> None:
    check_convolution(device, convolution, geometry(2, 6, 5, (1, 9, 8), (1, 3, 3), pad=(0, 1, 1)))


def test_convolution_merged_relu(device: Any) -> None:
    rng = np.random.default_rng(1)
    for splits in (1, 2):
        g = geometry(2, 16, 5, (1, 6, 6), (1, 1, 1))
        rec = recorder(device.target, phase="forward")
        x, w = Ref("x", (2, 16, 1, 6, 6), Role.ACTIVATION), Ref("w", g.weight_shape, Role.PARAMETER)
        y = Ref("y", (2, 5, 1, 6, 6), Role.ACTIVATION)
        conv_gpu.forward(rec, g, x, w, None, y, small(g, splits))
        set_slope(rec, 0.0)
        feeds = {x: rng.standard_normal(x.shape), w: rng.standard_normal(w.shape)}
        close(execute(rec, device.context, feeds, [y])[0], np.maximum(Numpy(g).forward(feeds[x], feeds[w]), 0))


@pytest.mark.parametrize("last_block", [False, True])
def test_bias_gradient_in_slices(device: Any, last_block: bool) -> None:
    """A large batch of few channels is split. The last work-group or a second launch adds the parts."""
    g = geometry(11, 1, 3, (1, 90, 100), (1, 1, 1))
    rec = recorder(replace(device.target, compute_units=132), last_block=last_block)
    dy, db = Ref("dy", (11, 3, 1, 90, 100), Role.DIFF), Ref("db", (3,), Role.GRADIENT)
    conv_gpu.backward_bias(rec, g, dy, db)
    assert len(rec.launches) == (1 if rec.target.last_block_reduction else 2)
    values = np.random.default_rng(0).standard_normal(dy.shape) + 0.1
    close(execute(rec, device.context, {dy: values}, [db])[0], values.sum((0, 2, 3, 4)))


# -- depthwise -------------------------------------------------------------------------------------------------------------

DEPTHWISE: dict[str, dict[str, Any]] = {
    "3x3": {"kernel": (1, 3, 3), "pad": (0, 1, 1)},
    "3x3 stride 2": {"kernel": (1, 3, 3), "stride": (1, 2, 2), "pad": (0, 1, 1)},
    "5x4 mixed": {"kernel": (1, 5, 4), "stride": (1, 2, 3), "pad": (0, 0, 4), "dilation": (1, 3, 2)},
}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("window", DEPTHWISE)
def test_depthwise(device: Any, window: str, kind: str) -> None:
    if kind == "cpu" and not device.target.is_cpu:
        pytest.skip("the CPU class is for CPU runtimes: its private tiles exhaust a GPU")
    rng = np.random.default_rng(list(DEPTHWISE).index(window))
    for case, size in enumerate(((13, 16), (21, 67), (14, 7), (1, 1), (10, 131))):
        channels, multiplier = int(rng.integers(2, 7)), (1, 3)[case % 2]
        _, rows, columns = random_size(rng, DEPTHWISE[window])
        shape = (1, max(size[0], rows), max(size[1], columns))
        g = geometry(int(rng.integers(1, 4)), channels, channels * multiplier, shape, group=channels, **DEPTHWISE[window])
        offset, gap = ((0, 0), (3, 1))[case % 2]
        check_convolution(device, conv_depthwise, g, kind=kind, add=case in (2, 3), offset=offset, gap=gap)


@pytest.mark.parametrize("size", [3, 5])
def test_rows_of_taps_are_added_up_apart(device: Any, size: int) -> None:
    """The kernel sums each row of taps separately.

    A product of 0.75 added to a sum of 2^24 is rounded away; the sum of a row of them is not. Products are exact, fused or not. One filter has
    the large product in its first row, the other in its last row, because the kernel may start with either.
    """
    g = geometry(1, 2, 2, (1, 11, 12), (1, size, size), pad=(0, size // 2, size // 2), group=2)
    dy, w, dx = Ref("dy", g.output_shape, Role.DIFF), Ref("w", g.weight_shape, Role.PARAMETER), Ref("dx", g.input_shape, Role.DIFF)
    feeds = {dy: np.ones(dy.shape), w: np.full(w.shape, 0.75)}
    filters = feeds[w].reshape(2, size, size)
    filters[0, 0], filters[1, -1] = 0, 0
    filters[0, 0, 0] = filters[1, -1, 0] = 1 << 24
    chain = 0.75 * size * (size - 1)  # a single chain of additions loses all products but one
    rec = recorder(device.target)
    conv_depthwise.backward_data(rec, g, dy, w, dx)
    error = np.abs(execute(rec, device.context, feeds, [dx])[0] - Numpy(g).backward_data(feeds[dy], feeds[w])).max()
    assert error < 0.5 * chain, f"{error} of {chain}"


@pytest.mark.parametrize("vector", [4, 8, 16])
@pytest.mark.parametrize("window", DEPTHWISE)
def test_depthwise_of_narrow_outputs(device: Any, window: str, vector: int) -> None:
    """There are more planes than vector lanes, in several blocks and slices."""
    if not device.target.is_cpu:
        pytest.skip("a kernel for CPU runtimes")
    device = changed(device, vector_width=vector)
    numbers = {"stride": (1, 1, 1), "pad": (0, 0, 0), "dilation": (1, 1, 1), **DEPTHWISE[window]}
    axes = list(zip(*(numbers[name][1:] for name in ("kernel", "stride", "pad", "dilation"))))
    for case, (out, channels, multiplier) in enumerate((((300, vector - 1), 37, 1), ((9, 1), 19, 2))):
        size = (max(1, (n - 1) * s + (k - 1) * d + 1 - 2 * p) for n, (k, s, p, d) in zip(out, axes))
        g = geometry(2 + case, channels, channels * multiplier, (1, *size), group=channels, **DEPTHWISE[window])
        check_convolution(device, convolution, g, kind="cpu", add=case == 1)
        rec = recorder(device.target, "cpu")
        x, w, y = (Ref(name, shape, Role.ACTIVATION) for name, shape in (("x", g.input_shape), ("w", g.weight_shape), ("y", g.output_shape)))
        convolution.forward(rec, g, x, w, None, y)
        assert rec.launches[0].final().program == "conv_narrow_cpu"


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_depthwise_merged_relu(device: Any, kind: str) -> None:
    rng = np.random.default_rng(1)
    g = geometry(2, 3, 3, (1, 9, 21), (1, 3, 3), pad=(0, 1, 1), group=3)
    rec = recorder(device.target, kind, phase="forward")
    x, w = Ref("x", (2, 3, 1, 9, 21), Role.ACTIVATION), Ref("w", g.weight_shape, Role.PARAMETER)
    y = Ref("y", (2, 3, 1, 9, 21), Role.ACTIVATION)
    conv_depthwise.forward(rec, g, x, w, None, y)
    set_slope(rec, 0.5)
    feeds = {x: rng.standard_normal(x.shape), w: rng.standard_normal(w.shape)}
    want = Numpy(g).forward(feeds[x], feeds[w])
    close(execute(rec, device.context, feeds, [y])[0], np.where(want > 0, want, 0.5 * want))
