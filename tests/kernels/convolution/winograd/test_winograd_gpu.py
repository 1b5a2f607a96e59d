"""Winograd's convolution of the GPU class, compared with numpy in float64, and the choice of it. CPU runtimes run it too."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.graph.record import record as record_net
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.winograd import winograd_gpu
from ocaffe.kernels.matmul.gemm_gpu import ON_TENSOR_CORES
from tests.harness import SMALL_TILE, execute, preferring
from tests.kernels.convolution.test_convolution import RESULTS, arrays, geometry, record, reference, refs
from tests.kernels.convolution.winograd.test_winograd import GEOMETRIES
from tests.kernels.matmul.test_gemm import close, hold, merge_relu, recorder
from tests.kernels.test_gpu_kernels import can_run

SIDES = (winograd_gpu.EXACT, winograd_gpu.MIDDLE, winograd_gpu.LARGE)
TOLERANCE = 1e-5  # relative to the largest magnitude; the transforms add rounding errors
H100 = Target(kind="gpu", runtime="nvidia", compute_units=132, tensor_cores=True)


def preferred(device: Any, out: int = 0) -> tuple[str, ...]:
    """Return the names of Winograd's algorithm, with tiles of `out` x `out` in forward and backward_data. CPU runtimes use the small tile of products."""
    sides = (f"winograd {out}",) if out else ()
    return (*sides, "winograd", *((SMALL_TILE,) if device.target.is_cpu else ()))


def run(
    device: Any, g: ConvGeometry, out: int = 0, *, strided: bool = False, add: bool = False, tolerance: float = TOLERANCE, workspace: int = H100.workspace
) -> list[np.ndarray]:
    """Compute y, dx, dw, db, compare them with the reference and return them."""
    given = arrays(g)
    want = reference(g, *given.values())
    at = refs(g, given, want, strided)
    rec = recorder(replace(device.target, kind="gpu", workspace=workspace))
    feeds = {at[key]: array for key, array in given.items()}
    if add:
        at["y"] = Ref("y", at["y"].shape, Role.DIFF)
        for number, result in enumerate(RESULTS):
            hold(rec, at[result])
            feeds[at[result]] = np.random.default_rng(number).standard_normal(at[result].shape)
            want[result] = want[result] + feeds[at[result]]
    with rec.prefer(*preferred(device, out)):
        record(rec, g, at)
    used = {launch.call.function for launch in rec.launches if launch.call and launch.call.program == "winograd_gpu"}
    assert used == {"operands", "output", "gradients", "window"}
    assert not any(launch.call and launch.call.program == "conv_gpu" for launch in rec.launches)
    got = execute(rec, device.context, feeds, [at[result] for result in RESULTS])
    for result, array in zip(RESULTS, got):
        close(array, want[result], tolerance)
    return got


of_sides = pytest.mark.parametrize("out", SIDES)


@of_sides
@pytest.mark.parametrize("name", GEOMETRIES)
def test_geometries(device: Any, name: str, out: int) -> None:
    run(device, GEOMETRIES[name], out)


@of_sides
@pytest.mark.parametrize("name", ["edges cut tiles", "groups", "rows longer than a vector of tiles"])
@pytest.mark.parametrize("add", [False, True])
def test_samples_apart_and_accumulation(device: Any, name: str, add: bool, out: int) -> None:
    """Positions of samples follow the batch stride. Results are added to diffs of earlier nodes."""
    run(device, GEOMETRIES[name], out, strided=True, add=add)


@of_sides
def test_rows_of_whole_vectors(device: Any, out: int) -> None:
    """Rows are read and written as vectors if tiles have an even side."""
    run(device, GEOMETRIES["whole tiles"], out)
    run(device, GEOMETRIES["whole tiles"], out, add=True)


@pytest.mark.parametrize(("name", "samples"), [("a pixel a sample", 300), ("edges cut tiles", 20)])
def test_some_tiles_after_others(device: Any, name: str, samples: int) -> None:
    """A small workspace takes several passes. Two runs give the same bits."""
    g = replace(GEOMETRIES[name], batch=samples)
    assert all(winograd_gpu.Tiling.of(replace(H100, workspace=1), g, out).pieces > 1 for out in SIDES)
    for first, second in zip(*(run(device, g, add=True, workspace=1) for _ in range(2))):
        np.testing.assert_array_equal(first, second)


def test_tf32(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = ON_TENSOR_CORES["tf32"]
    can_run(device, tiles[0], ())
    monkeypatch.setattr(winograd_gpu, "product_tiles", lambda _: tiles)
    run(device, GEOMETRIES["more channels than a block"], tolerance=5e-3)


@of_sides
@pytest.mark.parametrize("bias", [0, 1, 2])
def test_epilogues(device: Any, bias: int, out: int) -> None:
    """Epilogues: none, offsets, or offsets and factors per output; each with a ReLU."""
    g = GEOMETRIES["groups"]
    given = arrays(g)
    table = np.stack([given["bias"], np.linspace(-2, 2, g.num_output)])
    given["bias"] = table[0] * 0
    want = reference(g, *given.values())
    at = refs(g, given, want, strided=False)
    rec = recorder(replace(device.target, kind="gpu"), "forward")
    offsets = Ref("table", table.shape, Role.PARAMETER)
    with rec.prefer(*preferred(device, out)):
        convolution.forward(rec, g, at["x"], at["w"], at["bias"] if bias == 0 else None, at["y"])
    launch = rec.launches[-1]
    assert launch.call is not None and launch.epilogue is not None
    if bias:
        launch.set_scalar(launch.epilogue.bias, np.int32(bias))
        launch.operands[-2] = replace(launch.operands[-2], ref=offsets)
    merge_relu(rec, 0.25)
    y = want["y"] * (table[1].reshape(-1, 1, 1, 1) if bias == 2 else 1) + (table[0].reshape(-1, 1, 1, 1) if bias else 0)
    feeds = {at["x"]: given["x"], at["w"]: given["w"]} | ({offsets: table} if bias else {at["bias"]: given["bias"]})
    close(execute(rec, device.context, feeds, [at["y"]])[0], np.where(y > 0, y, 0.25 * y), TOLERANCE)


def test_error_of_a_deep_sum(device: Any) -> None:
    """Positive inputs, as after a ReLU, and 512 channels are the worst case of the zoo's nets."""
    g = geometry(1, 512, 16, (1, 14, 14), (1, 3, 3), pad=(0, 1, 1))
    given = arrays(g)
    given["x"] = np.abs(given["x"])
    want = reference(g, *given.values())
    at = refs(g, given, want, strided=False)
    rec = recorder(replace(device.target, kind="gpu"))
    with rec.prefer(*preferred(device)):
        record(rec, g, at)
    for result, array in zip(RESULTS, execute(rec, device.context, {at[key]: array for key, array in given.items()}, [at[key] for key in RESULTS])):
        close(array, want[result], TOLERANCE)


@of_sides
def test_what_is_not_finite(device: Any, out: int) -> None:
    """Inf and NaN reach every output whose window contains them and no tile that does not read them.

    With tiles of 2 x 2 they reach no other output.
    """
    size = 4 * out
    g = geometry(1, 2, 3, (1, size, size), (1, 3, 3), pad=(0, 1, 1))
    rec = recorder(replace(device.target, kind="gpu"), "forward")
    x, w, y = Ref("x", (1, 2, 1, size, size), Role.ACTIVATION), Ref("w", g.weight_shape, Role.PARAMETER), Ref("y", (1, 3, 1, size, size), Role.ACTIVATION)
    with rec.prefer(*preferred(device, out)):
        convolution.forward(rec, g, x, w, None, y)
    given = {x: np.ones(x.shape), w: np.random.default_rng(0).standard_normal(w.shape)}
    inside, border = (out + 1, out + 1), (2 * out, 3 * out)  # in tile 1, 1; in tile 2, 3, and the last pixel that tile 2, 2 reads
    given[x][0, 0, 0][inside], given[x][0, 1, 0][border] = np.inf, np.nan
    finite = np.isfinite(execute(rec, device.context, given, [y])[0][0, :, 0])
    seen = np.zeros(finite.shape, bool)
    for row, column in (inside, border):
        seen[:, row - 1 : row + 2, column - 1 : column + 2] = True
    assert not finite[seen].any() and (out != 2 or finite[~seen].all())
    assert finite[:, :out].all() and finite[:, :, :out].all() and finite[:, 3 * out :].all()


# -- what is recorded: no device needed ------------------------------------------------------------------------------------


def functions(target: Target, numbers: tuple[int, int, int, int]) -> list[str]:
    batch, channels, outputs, size = numbers
    g = geometry(batch, channels, outputs, (1, size, size), (1, 3, 3), pad=(0, 1, 1))
    rec = recorder(target, "forward")
    x, y = Ref("x", (batch, channels, *g.size), Role.ACTIVATION), Ref("y", (batch, outputs, *g.out), Role.ACTIVATION)
    convolution.forward(rec, g, x, Ref("w", g.weight_shape, Role.PARAMETER), None, y)
    return [launch.call.program for launch in rec.launches if launch.call]


@pytest.mark.parametrize(("numbers", "chosen"), [((64, 256, 256, 56), True), ((64, 3, 64, 224), False), ((1, 8, 8, 14), False)])
def test_it_is_chosen_where_it_pays(numbers: tuple[int, int, int, int], chosen: bool) -> None:
    for mode in ("fp32", "ieee"):
        assert ("winograd_gpu" in functions(replace(H100, math=mode), numbers)) == chosen


def test_the_direct_product_of_16_bits_pays_longer() -> None:
    """Direct products in 16 bits win in more cases than in TF32.

    They do four times the work of Winograd with TF32 products, but move less data. Patches in bfloat16 move the least.
    """
    target = replace(H100, math="fp16")
    assert "winograd_gpu" in functions(target, (64, 512, 512, 28))
    assert "winograd_gpu" in functions(replace(H100, math="tf32"), (64, 128, 128, 112)) and "conv_mma" in functions(target, (64, 128, 128, 112))
    for problem in ((64, 512, 512, 28), (64, 128, 128, 112)):
        assert "conv_patch_mma" in functions(replace(H100, math="bf16"), problem)


@pytest.mark.parametrize(("mode", "mma"), [("fp32", "3"), ("ieee", None), ("tf32", "1"), ("bf16", "1"), ("fp16", "1")])
def test_products_are_never_rounded_to_16_bits(mode: str, mma: str | None) -> None:
    g = geometry(64, 256, 256, (1, 56, 56), (1, 3, 3), pad=(0, 1, 1))
    rec = recorder(replace(H100, math=mode))
    x, y = Ref("x", g.input_shape, Role.ACTIVATION), Ref("y", g.output_shape, Role.DIFF)
    winograd_gpu.forward(rec, g, x, Ref("w", g.weight_shape, Role.PARAMETER), None, y)
    winograd_gpu.backward_filter(rec, g, x, y, Ref("dw", g.weight_shape, Role.GRADIENT))
    products = [launch.call for launch in rec.launches if launch.call and launch.call.function == "gemm"]
    assert products and all(dict(call.defines).get("MMA") == mma and call.program == "gemm_gpu" for call in products)


def test_the_tiles_of_exact_arithmetic() -> None:
    """The smallest tiles are used for gradients, and in forward for small images, where they are hardly slower."""
    small, large = (geometry(64, 128, 128, (1, size, size), (1, 3, 3), pad=(0, 1, 1)) for size in (28, 112))
    for mode, sides in (("fp32", (2, 3, 2, 2)), ("ieee", (2, 3, 2, 2)), ("tf32", (4, 4, 4, 4))):
        target = replace(H100, math=mode)
        assert tuple(winograd_gpu.tiling(target, g, back).out for back in (False, True) for g in (small, large)) == sides


@pytest.mark.parametrize("other", [{"stride": (1, 2, 2)}, {"dilation": (1, 2, 2)}, {"kernel": (1, 5, 5)}])
def test_other_windows_are_not_for_it(other: dict[str, tuple[int, int, int]]) -> None:
    g = geometry(4, 64, 64, (1, 56, 56), **{"kernel": (1, 3, 3), **other})
    assert not winograd_gpu.possible(g)


@pytest.mark.parametrize(("batch", "most"), [(1024, 2 * 1024 * 64 * 56 * 56 * 4 // 14), (16, 64 << 20)])
def test_workspace_in_a_net(batch: int, most: int) -> None:
    """The workspace is a share of the bytes that layers write, with a minimum. The input does not count, because no layer writes it."""
    shape = f"shape {{ dim: {batch} dim: 64 dim: 56 dim: 56 }}"
    layer = 'layer {{ name: "{1}" type: "Convolution" bottom: "{0}" top: "{1}" convolution_param {{ num_output: 64 kernel_size: 3 pad: 1 }} }}'
    text = f'layer {{ name: "x" type: "Input" top: "x" input_param {{ {shape} }} }}' + "".join(layer.format(*pair) for pair in ("xa", "ab"))
    graph = build(text_format.Parse(text, proto.NetParameter()), proto.TRAIN)
    schedule = record_net(graph, ParameterGroup(graph.params), preferring(H100, "winograd"), NetOptions()).schedule
    spaces = {ref.name: ref.nbytes for launch in schedule for ref in launch.writes if ref.name in ("b.tiles", "b.products")}
    assert most // 2 < sum(spaces.values()) <= most


def test_workspace_is_bounded() -> None:
    """The workspace is bounded for any batch. All transformed tiles would be more than four times the image."""
    g = geometry(64, 64, 64, (1, 224, 224), (1, 3, 3), pad=(0, 1, 1))
    rec = recorder(H100)
    x, y = Ref("x", (64, 64, 1, 224, 224), Role.ACTIVATION), Ref("y", (64, 64, 1, 224, 224), Role.ACTIVATION)
    winograd_gpu.forward(rec, g, x, Ref("w", g.weight_shape, Role.PARAMETER), None, y)
    spaces = {ref for launch in rec.launches for ref in launch.writes if ref.role is Role.SCRATCH and "filters" not in ref.name}
    assert sum(ref.nbytes for ref in spaces) <= H100.workspace
