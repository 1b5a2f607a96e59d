"""Convolution in its three directions on both device classes, through `ocaffe.kernels.convolution.convolution`, compared with numpy in float64."""
from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.dense_cpu import conv_cpu, conv_pointwise_cpu
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry, Triple
from tests.harness import execute, preferring
from tests.kernels.matmul.test_gemm import KINDS, close, hold, merge_relu, recorder


@pytest.fixture(autouse=True)
def cpu_class_on_cpus(request: pytest.FixtureRequest) -> None:
    """Skip kernels of the CPU class on GPUs.

    Their tiles take up to 128 KiB of private memory per work-item, more than a GPU has for all work-items in flight.
    """
    if "device" in request.fixturenames and not request.getfixturevalue("device").target.is_cpu and request.node.callspec.params.get("kind") != "gpu":
        pytest.skip("the CPU class is for CPU runtimes")



def geometry(
    batch: int, channels: int, num_output: int, size: Triple, kernel: Triple, stride: Triple = (1, 1, 1), pad: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1), group: int = 1,
) -> ConvGeometry:  # fmt: skip
    each = zip(size, kernel, stride, pad, dilation)
    depth, height, width = ((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in each)
    return ConvGeometry(batch, channels, num_output, group, size, (depth, height, width), kernel, stride, pad, dilation)


# Several geometries share a window, because the program of each window takes a second to build.
GEOMETRIES = {
    "3x3": geometry(2, 3, 5, (1, 7, 9), (1, 3, 3)),
    "3x3, pad 1": geometry(3, 5, 12, (1, 14, 14), (1, 3, 3), pad=(0, 1, 1)),
    "3x3, pad beyond the window": geometry(1, 2, 3, (1, 4, 5), (1, 3, 3), pad=(0, 3, 4)),
    "3x3, images smaller than a vector": geometry(7, 40, 9, (1, 3, 3), (1, 3, 3), pad=(0, 1, 1)),
    "3x3, many outputs": geometry(2, 6, 150, (1, 5, 6), (1, 3, 3), pad=(0, 1, 0)),
    "3x3, many channels": geometry(2, 90, 4, (1, 6, 6), (1, 3, 3)),
    "3x3, groups": geometry(2, 6, 8, (1, 8, 11), (1, 3, 3), pad=(0, 1, 1), group=2),
    "3x3, groups of one": geometry(2, 4, 4, (1, 9, 5), (1, 3, 3), group=4),
    "3x3, one output pixel": geometry(5, 3, 4, (1, 3, 3), (1, 3, 3)),
    "1x1": geometry(2, 40, 33, (1, 7, 7), (1, 1, 1)),
    "1x1, long sums": geometry(3, 1100, 70, (1, 9, 19), (1, 1, 1)),
    "1x1, long lines": geometry(2, 21, 27, (1, 67, 61), (1, 1, 1)),
    "1x1, groups, one pixel": geometry(3, 12, 6, (1, 1, 1), (1, 1, 1), group=3),
    "1x1, padded": geometry(2, 3, 4, (1, 5, 6), (1, 1, 1), pad=(0, 1, 2)),
    "1x1/2": geometry(2, 12, 20, (1, 9, 10), (1, 1, 1), (1, 2, 2)),
    "1x1/2x3, groups": geometry(3, 8, 12, (1, 7, 11), (1, 1, 1), (1, 2, 3), group=4),
    "1x1/2, groups of one": geometry(2, 6, 6, (1, 8, 8), (1, 1, 1), (1, 2, 2), group=6),
    "5x5 of LeNet": geometry(2, 20, 50, (1, 12, 12), (1, 5, 5)),
    "wide rows": geometry(2, 1, 3, (1, 6, 40), (1, 5, 5)),
    "5x5, rows of 8": geometry(1, 2, 11, (1, 20, 12), (1, 5, 5)),
    "7x7/2": geometry(2, 3, 6, (1, 23, 25), (1, 7, 7), (1, 2, 2), (0, 3, 3)),
    "7x7/2, last pixels unused": geometry(1, 2, 3, (1, 40, 40), (1, 7, 7), (1, 2, 2)),
    "6x6/4": geometry(2, 3, 4, (1, 33, 90), (1, 6, 6), (1, 4, 4), (0, 1, 1)),
    "3x2/3x1": geometry(2, 4, 6, (1, 11, 13), (1, 3, 2), (1, 3, 1), (0, 1, 0), group=2),
    "dilated": geometry(2, 3, 4, (1, 12, 11), (1, 3, 3), (1, 1, 1), (0, 2, 2), (1, 2, 2)),
    "dilated and strided alike": geometry(2, 3, 4, (1, 11, 13), (1, 2, 2), (1, 2, 2), (0, 0, 1), (1, 2, 4)),
    "stride beyond the window": geometry(2, 3, 4, (1, 9, 10), (1, 2, 2), (1, 3, 3)),
    "window larger than a panel": geometry(2, 2, 3, (1, 30, 30), (1, 23, 23), (1, 5, 5), (0, 4, 4)),
    "row of the window larger than a panel": geometry(1, 2, 3, (1, 1, 640), (1, 1, 600), pad=(0, 0, 7)),
    "one axis": geometry(2, 3, 4, (1, 1, 50), (1, 1, 7), (1, 1, 1), (0, 0, 3)),
    "three axes": geometry(2, 4, 6, (5, 6, 7), (2, 3, 3), (1, 2, 1), (1, 1, 0), (1, 1, 2), group=2),
}


def windows(g: ConvGeometry, padded: np.ndarray) -> np.ndarray:
    """Return a view of the padded image: batch x channels x kernel x out."""
    outer, inner = padded.strides[:2], padded.strides[2:]
    taps = tuple(step * d for step, d in zip(inner, g.dilation))
    moves = tuple(step * s for step, s in zip(inner, g.stride))
    return np.lib.stride_tricks.as_strided(padded, (g.batch, g.channels, *g.kernel, *g.out), (*outer, *taps, *moves))


def reference(g: ConvGeometry, x: np.ndarray, w: np.ndarray, bias: np.ndarray, dy: np.ndarray) -> dict[str, np.ndarray]:
    """Return y, dx, dw, db in float64."""
    whole = np.zeros((2, g.batch, g.channels, *(i + 2 * p for i, p in zip(g.size, g.pad))))
    inside = tuple(slice(p, p + i) for i, p in zip(g.size, g.pad))
    whole[0][:, :, inside[0], inside[1], inside[2]] = x
    unrolled = windows(g, whole[0]).reshape(g.batch, g.group, g.depth, g.positions)
    filters = w.reshape(g.group, g.group_outputs, g.depth)
    parts = dy.reshape(g.batch, g.group, g.group_outputs, g.positions)
    y = np.einsum("gok,ngkp->ngop", filters, unrolled).reshape(g.batch, g.num_output, *g.out)
    back = np.einsum("gok,ngop->ngkp", filters, parts).reshape(g.batch, g.channels, *g.kernel, *g.out)
    for tap in itertools.product(*map(range, g.kernel)):
        windows(g, whole[1])[(slice(None), slice(None), *tap)] += back[(slice(None), slice(None), *tap)]
    return {
        "y": y + bias.reshape(-1, 1, 1, 1),
        "dx": whole[1][:, :, inside[0], inside[1], inside[2]],
        "dw": np.einsum("ngop,ngkp->gok", parts, unrolled).reshape(g.weight_shape),
        "db": dy.sum((0, 2, 3, 4)),
    }


ROLES = {"x": Role.ACTIVATION, "w": Role.PARAMETER, "bias": Role.PARAMETER, "dy": Role.DIFF}
RESULTS = {"y": Role.ACTIVATION, "dx": Role.DIFF, "dw": Role.GRADIENT, "db": Role.GRADIENT}


def tensor(name: str, shape: tuple[int, ...], role: Role, strided: bool) -> Ref:
    """Return a Ref, or a view with gaps between samples that starts at an odd offset, like a slice of a Concat."""
    if not strided or name in ("w", "bias", "dw", "db"):
        return Ref(name, shape, role)
    stride = math.prod(shape[1:]) + 13
    return Ref(f"{name}.root", (shape[0] * stride,), role).view(shape, 5, stride, name)


def arrays(g: ConvGeometry) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(g.channels * 1000 + g.num_output)
    shapes = {"x": (g.batch, g.channels, *g.size), "w": g.weight_shape, "bias": (g.num_output,), "dy": (g.batch, g.num_output, *g.out)}
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def refs(g: ConvGeometry, given: dict[str, np.ndarray], want: dict[str, np.ndarray], strided: bool) -> dict[str, Ref]:
    return {name: tensor(name, array.shape, {**ROLES, **RESULTS}[name], strided) for name, array in (given | want).items()}


def record(rec: Recorder, g: ConvGeometry, at: dict[str, Ref], bias: bool = True) -> None:
    """Record all directions."""
    convolution.forward(rec, g, at["x"], at["w"], at["bias"] if bias else None, at["y"])
    convolution.backward_data(rec, g, at["dy"], at["w"], at["dx"])
    convolution.backward_filter(rec, g, at["x"], at["dy"], at["dw"])
    convolution.backward_bias(rec, g, at["dy"], at["db"])


def run(device: Any, target: Target, g: ConvGeometry, *, strided: bool = False) -> list[np.ndarray]:
    """Compute y, dx, dw, db, compare them with the reference and return them."""
    given = arrays(g)
    want = reference(g, *given.values())
    at = refs(g, given, want, strided)
    rec = recorder(target)
    record(rec, g, at)
    got = execute(rec, device.context, {at[name]: array for name, array in given.items()}, [at[name] for name in RESULTS])
    for name, array in zip(RESULTS, got):
        close(array, want[name])
    return got


# (kind, geometry). On CPU runtimes the GPU kernels of a window take seconds to build. tests/kernels/test_gpu_kernels.py tests all with small tiles.
ALL = [("cpu", name) for name in GEOMETRIES] + [("gpu", "3x3, pad 1"), ("gpu", "3x3, groups"), ("gpu", "three axes")]
SOME = [(kind, name) for kind, name in ALL if name in ("3x3, pad 1", "3x3, groups", "1x1", "1x1, long sums", "5x5 of LeNet", "7x7/2", "three axes")]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_geometries(device: Any, kind: str, name: str) -> None:
    run(device, replace(device.target, kind=kind), GEOMETRIES[name])


@pytest.mark.parametrize(("kind", "name"), SOME)
def test_samples_apart(device: Any, kind: str, name: str) -> None:
    """Positions of samples follow the batch stride in all operands. Gaps are neither read nor written."""
    run(device, replace(device.target, kind=kind), GEOMETRIES[name], strided=True)


@pytest.mark.parametrize(("kind", "name"), SOME)
def test_accumulation(device: Any, kind: str, name: str) -> None:
    """Results are added to diffs of earlier nodes. This includes forward, which is the backward pass of a deconvolution."""
    g = GEOMETRIES[name]
    given = arrays(g)
    want = reference(g, *given.values())
    at = refs(g, given, want, strided=True)
    at["y"] = Ref("y", at["y"].shape, Role.DIFF)
    rec = recorder(replace(device.target, kind=kind))
    feeds = {at[name]: array for name, array in given.items()}
    rng = np.random.default_rng(5)
    for result in RESULTS:
        hold(rec, at[result])
        feeds[at[result]] = rng.standard_normal(at[result].shape)
        want[result] = want[result] + feeds[at[result]]
    record(rec, g, at)
    for result, array in zip(RESULTS, execute(rec, device.context, feeds, [at[result] for result in RESULTS])):
        close(array, want[result])


@pytest.mark.parametrize(
    ("kind", "name"),
    [*(("cpu", name) for name in ("3x3, pad 1", "3x3, many channels", "1x1", "1x1, long sums", "3x3, groups of one")), ("gpu", "3x3, pad 1")],
)
@pytest.mark.parametrize("bias", [True, False])
def test_merged_relu(device: Any, kind: str, name: str, bias: bool) -> None:
    g = GEOMETRIES[name]
    given = arrays(g)
    want = reference(g, *given.values())
    at = refs(g, given, want, strided=False)
    rec = recorder(replace(device.target, kind=kind), "forward")
    convolution.forward(rec, g, at["x"], at["w"], at["bias"] if bias else None, at["y"])
    merge_relu(rec, 0.25)
    y = want["y"] if bias else want["y"] - given["bias"].reshape(-1, 1, 1, 1)
    close(execute(rec, device.context, {at[name]: array for name, array in given.items()}, [at["y"]])[0], np.where(y > 0, y, 0.25 * y))


@pytest.mark.parametrize("width", [4, 8, 16])
@pytest.mark.parametrize("name", ["3x3, pad 1", "3x3, many outputs", "1x1, long sums", "5x5 of LeNet", "7x7/2", "6x6/4"])
def test_vector_widths(device: Any, width: int, name: str) -> None:
    run(device, replace(device.target, kind="cpu", vector_width=width), GEOMETRIES[name])


@pytest.mark.parametrize("name", ["3x3, many outputs", "3x3, images smaller than a vector", "5x5 of LeNet"])
def test_many_cores_and_the_same_bits_twice(device: Any, name: str) -> None:
    """With many cores, work has more parts, and sums over the batch are split into slices, which are added in a fixed order."""
    target = replace(device.target, kind="cpu", compute_units=64)
    for first, second in zip(run(device, target, GEOMETRIES[name]), run(device, target, GEOMETRIES[name])):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["3x3, pad 1", "3x3, pad beyond the window", "3x3, groups", "dilated", "one axis"])
def test_gathering_and_scattering_agree(device: Any, name: str) -> None:
    """With stride 1 both methods work. So test each method where the other would be chosen."""
    gathers = conv_cpu.gathers(GEOMETRIES[name])
    target = preferring(replace(device.target, kind="cpu"), *(("scatter", "direct") if gathers else ("direct",)))
    assert any(call.function == "backward_data" for call in calls(GEOMETRIES[name], target)) == gathers
    run(device, target, GEOMETRIES[name])


@pytest.mark.parametrize("seed", range(4))
def test_random_geometries(device: Any, seed: int) -> None:
    """Random geometries. `out` may also be smaller than the floor formula gives."""
    rng = np.random.default_rng(seed)

    def triple(low: int, high: int) -> Triple:
        depth, height, width = (int(n) for n in rng.integers(low, high, 3, endpoint=True))
        return depth, height, width

    kernel, stride, pad, dilation, out = triple(1, 4), triple(1, 3), triple(0, 3), triple(1, 3), triple(1, 9)
    size = [(o - 1) * s + (k - 1) * d + 1 - 2 * p for o, s, k, d, p in zip(out, stride, kernel, dilation, pad)]
    depth, height, width = (max(1, n + int(rng.integers(0, 4))) for n in size)
    group = int(rng.integers(1, 4))
    channels, outputs = (group * int(n) for n in rng.integers(1, 20, 2))
    g = ConvGeometry(int(rng.integers(1, 4)), channels, outputs, group, (depth, height, width), out, kernel, stride, pad, dilation)
    run(device, replace(device.target, kind="cpu"), g)


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("width", [4, 8, 16])
def test_results_past_the_caches(device: Any, width: int, strided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large results of short sums are stored past the caches, at aligned and unaligned positions. Results that are added to use the caches."""
    monkeypatch.setattr(conv_pointwise_cpu, "STREAM_ABOVE", 0)
    target = replace(device.target, kind="cpu", vector_width=width)
    g = geometry(2, 24, 40, (1, 16, 16), (1, 1, 1))
    assert any(dict(call.defines).get("STREAM") for call in calls(g, target))
    run(device, target, g, strided=strided)


@pytest.mark.parametrize("name", ["1x1/2", "1x1", "3x3"])
@pytest.mark.parametrize("kind", KINDS)
def test_leading_axes_as_one_batch(device: Any, kind: str, name: str) -> None:
    """Samples have one axis each, as in a layer whose axis is not 1."""
    g = GEOMETRIES[name]
    given = arrays(g)
    want = reference(g, *given.values())
    at = refs(g, given, want, strided=False)
    rec = recorder(replace(device.target, kind=kind))
    views = {name: ref.view((g.batch, ref.count // g.batch)) if name in ("x", "y", "dx", "dy") else ref for name, ref in at.items()}
    record(rec, g, views)
    for result, array in zip(RESULTS, execute(rec, device.context, {at[key]: array for key, array in given.items()}, [at[key] for key in RESULTS])):
        close(array, want[result])


def test_gradients_of_seen_pixels_are_scaled() -> None:
    """float16 gradients are scaled.

    In a deconvolution's backward pass the image is a gradient. So the copy of its pixels under a strided window is a gradient too.
    """
    g = geometry(8, 64, 64, (1, 28, 28), (1, 1, 1), (1, 2, 2))
    rec = recorder(Target(kind="gpu", runtime="nvidia", compute_units=132, tensor_cores=True, math="fp16"))
    x, w, y = Ref("x", g.input_shape, Role.DIFF), Ref("w", g.weight_shape, Role.PARAMETER), Ref("y", g.output_shape, Role.DIFF)
    convolution.forward(rec, g, x, w, None, y)
    convolution.backward_filter(rec, g, x, Ref("dy", g.output_shape, Role.ACTIVATION), Ref("dw", g.weight_shape, Role.GRADIENT))
    products = [dict(launch.call.defines) for launch in rec.launches if launch.call and launch.call.program == "conv_mma" and launch.flops]
    assert len(products) == 2 and all(defines.get("RIGHT_SCALE") == "1024" for defines in products)


@pytest.mark.parametrize("kind", KINDS)
def test_infinity_and_nan_stay_where_they_are(device: Any, kind: str) -> None:
    """Inf and NaN change only results whose windows contain them. No window reads past the end of a row, channel or image."""
    g = GEOMETRIES["3x3, pad 1"]
    given = arrays(g)
    given["x"][1, 2, 0, 5, 13] = np.inf
    given["x"][0, 0, 0, 13, 0] = np.nan
    want = reference(g, *given.values())
    at = refs(g, given, want, strided=False)
    rec = recorder(replace(device.target, kind=kind), "forward")
    convolution.forward(rec, g, at["x"], at["w"], at["bias"], at["y"])
    (got,) = execute(rec, device.context, {at[name]: given[name] for name in ("x", "w", "bias")}, [at["y"]])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want["y"]))
    np.testing.assert_array_equal(np.isposinf(got), np.isposinf(want["y"]))


# -- what is recorded: no device needed ------------------------------------------------------------------------------------

CONV1 = geometry(64, 1, 20, (1, 28, 28), (1, 5, 5))
CONV2 = geometry(64, 20, 50, (1, 12, 12), (1, 5, 5))


def calls(g: ConvGeometry, target: Target) -> list[Any]:
    rec = recorder(target)
    given = {"x": (g.batch, g.channels, *g.size), "w": g.weight_shape, "bias": (g.num_output,), "dy": (g.batch, g.num_output, *g.out)}
    shapes = {**given, "y": given["dy"], "dx": given["x"], "dw": given["w"], "db": given["bias"]}
    record(rec, g, {name: Ref(name, shape, {**ROLES, **RESULTS}[name]) for name, shape in shapes.items()})
    return [launch.call for launch in rec.launches]


def programs(g: ConvGeometry, target: Target) -> set[Any]:
    return {(call.program, call.defines) for call in calls(g, target)}


def test_convolutions_share_programs() -> None:
    """The kernels before and after a convolution share one program for all windows. A window has one program per tile height."""
    target = Target(vector_width=16)
    assert [len(programs(g, target)) for g in (CONV1, CONV2)] == [2, 2]
    assert len(programs(CONV1, target) | programs(CONV2, target)) == 3


def test_an_image_of_another_size_compiles_nothing() -> None:
    other = geometry(3, 20, 50, (1, 31, 17), (1, 5, 5))
    assert programs(CONV2, Target()) == programs(other, Target())


@pytest.mark.parametrize("units", [2, 64])
def test_there_is_work_for_all_cores(units: int) -> None:
    for g in (CONV1, CONV2, geometry(8, 512, 512, (1, 7, 7), (1, 3, 3), pad=(0, 1, 1))):
        for call in calls(g, Target(compute_units=units)):
            if call.function in ("forward", "backward_data", "backward_filter"):
                assert math.prod(call.size) >= units, f"{call.function} of {g}: {call.size}"


def test_partial_gradients_are_bounded() -> None:
    """Each slice is a copy of the filters, so large filters have at most two slices for any number of cores."""
    rec = recorder(Target(compute_units=256))
    g = geometry(64, 512, 512, (1, 14, 14), (1, 5, 5), pad=(0, 2, 2))
    x, dy = Ref("x", (64, 512, 1, 14, 14), Role.ACTIVATION), Ref("dy", (64, 512, 1, 14, 14), Role.DIFF)
    convolution.backward_filter(rec, g, x, dy, Ref("dw", g.weight_shape, Role.GRADIENT))
    (slices,) = {ref for launch in rec.launches for ref in launch.writes if ref.role is Role.SCRATCH}
    assert slices.count <= 2 * math.prod(g.weight_shape)


def test_depthwise_goes_to_its_own_kernels() -> None:
    assert all(call.program in ("conv_depthwise_cpu", "conv_narrow_cpu") for call in calls(GEOMETRIES["3x3, groups of one"], Target())[:3])
    assert calls(CONV1, Target())[1].program == "conv_cpu", "one channel is no depthwise convolution"


def test_geometry_refuses_windows_outside() -> None:
    with pytest.raises(AssertionError):
        replace(GEOMETRIES["3x3"], out=(1, 6, 7))
    with pytest.raises(AssertionError):
        replace(GEOMETRIES["3x3"], group=2)
