"""With `--math bf16`, values that only kernels use are stored in bfloat16 if all their kernels support it.

Memory halves, and gradients differ by the rounding.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.cl.session import Session
from ocaffe.ir.launch import Launch, Schedule
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import BF16_ROLES, BFLOAT, FLOAT, Ref, Role, widened
from ocaffe.ir.tuned import Problem, Tuned
from ocaffe.kernels.convolution import choose
from ocaffe.kernels.convolution.dense_gpu import conv_gpu
from ocaffe.kernels.convolution.depthwise import conv_depthwise
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.winograd import winograd_gpu
from ocaffe.kernels.expression.expression import pointwise, reduce
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.kernels.matmul.gemm_gpu import Choice
from ocaffe.kernels.normalization.lrn import Response
from ocaffe.kernels.pooling.pooling import AVE, MAX, Pool
from ocaffe.passes import bf16, optimise
from ocaffe.passes.relu_backward_fusion import TOP
from ocaffe.profiling.tune import Tuner
from ocaffe.selftest.compare import Side
from tests.harness import execute, of_kind, preferring, treat_as_large, winograd_in_parts
from tests.passes.test_residual import RELU, SHAPE, SUM, convolution, gone_back

ONE, THREE = (1, 1, 1), (1, 3, 3)
GEOMETRIES = {
    "1x1": ConvGeometry(2, 40, 70, 1, (1, 8, 9), (1, 8, 9), ONE, ONE, (0, 0, 0), ONE),
    "1x1, odd": ConvGeometry(3, 12, 10, 1, (1, 5, 7), (1, 5, 7), ONE, ONE, (0, 0, 0), ONE),
    "3x3": ConvGeometry(2, 16, 24, 2, (1, 7, 9), (1, 7, 9), THREE, ONE, (0, 1, 1), ONE),
    "3x3, even": ConvGeometry(2, 16, 8, 1, (1, 8, 8), (1, 8, 8), THREE, ONE, (0, 1, 1), ONE),
    "3x3 stride 2": ConvGeometry(2, 12, 8, 1, (1, 9, 8), (1, 5, 4), THREE, (1, 2, 2), (0, 1, 1), ONE),
    "few channels": ConvGeometry(2, 3, 8, 1, (1, 9, 8), (1, 9, 8), THREE, ONE, (0, 1, 1), ONE),
}
DEPTHWISE = {
    "depthwise": ConvGeometry(2, 8, 16, 8, (1, 9, 10), (1, 9, 10), THREE, ONE, (0, 1, 1), ONE),
    "depthwise stride 2": ConvGeometry(2, 8, 8, 8, (1, 9, 10), (1, 5, 5), THREE, (1, 2, 2), (0, 1, 1), ONE),
}
QUAD = gemm_gpu.QUAD_TILES["bf16"][-1]  # emulated on devices without tensor cores
POOL = 'layer {{ name: "{0}" type: "Pooling" bottom: "{1}" top: "{0}" pooling_param {{ {2} }} }}'


def net_of_all() -> Any:
    """Return a net with every kernel that supports bf16: all kinds of convolution, poolings, sums, BatchNorm, ReLU, and a Dropout."""
    text = f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in SHAPE)} }} }} }}'
    text += convolution("first", "data", 12, 3) + POOL.format("pool", "first", "pool: MAX kernel_size: 3 stride: 2 pad: 1")
    text += convolution("a1", "pool", 12, 1, slope=0.25) + convolution("a2", "a1", 12, 1, slope=None) + SUM.format("a", "pool", "a2") + RELU.format("a", 0.0)
    text += convolution("b", "a", 12, 3, stride=2).replace("bias_term: false", "bias_term: false group: 12", 1)
    text += POOL.format("narrow", "b", "pool: AVE kernel_size: 2 stride: 1")
    text += 'layer { name: "drop" type: "Dropout" bottom: "narrow" top: "narrow" }' + POOL.format("whole", "narrow", "pool: AVE global_pooling: true")
    text += 'layer { name: "ip" type: "InnerProduct" bottom: "whole" top: "ip" inner_product_param { num_output: 5 } }'
    text += 'layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" reduction_param { operation: SUMSQ } loss_weight: 1 }'
    return text_format.Parse(text, proto.NetParameter())


def storage_types(defines: dict[str, str]) -> set[str]:
    """Return the names of operands that a program reads or writes as bfloat16."""
    return {key.removesuffix("_T") for key, value in defines.items() if key.endswith("_T") and value == bf16.TYPE}


def defined(launch: Launch) -> bool:
    """Whether the kernel of a launch treats exactly those operands as bfloat16 that are stored so."""
    if launch.call is None:
        return True
    defines = dict(launch.call.defines)
    pairs = [(slot.bf16, operand.ref.root) for operand in launch.operands if (slot := launch.slot(operand)) is not None]
    if storage_types(defines) - {name for name, _ in pairs} and not launch.kernel.can.helper:  # a helper shares the program of its product
        return False
    return all((defines.get(f"{name}_T") == bf16.TYPE) == (root.dtype == BFLOAT) if name else not root.in_bf16 for name, root in pairs)


def gradients(device: Device, keep: list[str]) -> tuple[dict[str, np.ndarray], dict[str, Ref], int]:
    """Return the gradients of all parameters, the net's root Refs by name, and the bytes of the plan."""
    with gone_back(net_of_all(), device, keep=keep, seed=1) as (net, diffs):
        found = list(net._network.nets.all())
        refs = {ref.name: ref.root for compiled in found for launch in compiled.recording.schedule for ref in (*launch.reads, *launch.writes)}
        assert all(defined(launch) for compiled in found for launch in compiled.recording.schedule)
        return diffs, refs, max(compiled.plan.lower_bound for compiled in found)


@pytest.fixture
def of_gpu(device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device that runs the GPU kernels in bfloat16, on tensor cores or emulated, with small tiles, which compile fast."""
    treat_as_large(monkeypatch, 1)
    quads = gemm_gpu.QUAD_TILES["bf16"][-1:]
    monkeypatch.setattr(conv_gpu, "tiles_for", lambda *_: (*quads, gemm_gpu.TILES[-1]))
    monkeypatch.setattr(gemm_gpu, "tiles_for", lambda *_: gemm_gpu.TILES[-1:])
    monkeypatch.setattr(winograd_gpu, "product_tiles", lambda _: gemm_gpu.TILES[-1:])
    return Device(replace(device.info, target=replace(of_kind(device.target, "gpu"), math="bf16")), device)


Recorded = Callable[[Recorder, dict[str, Ref]], None]


def refs_of(shapes: dict[str, tuple[int, ...]]) -> dict[str, Ref]:
    """Return Refs by name. The first letter gives the role: `d` diff, `w` parameter, `g` gradient, else activation."""
    roles = {"d": Role.DIFF, "w": Role.PARAMETER, "g": Role.GRADIENT}
    return {name: Ref(name, shape, roles.get(name[0], Role.ACTIVATION)) for name, shape in shapes.items()}


def check(device: Device, shapes: dict[str, tuple[int, ...]], record: Recorded, outputs: str, halves: str, phase: str = "backward") -> None:
    """Check that `record` computes the same `outputs` after lowering to bf16, up to the rounding of `halves`.

    `halves` are the Refs that must become bfloat16. All Refs have values before the run.
    """
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16 << 16 for name, shape in shapes.items()}
    results = []
    for sixteen in (False, True):
        refs = refs_of(shapes)
        rec = Recorder(replace(device.target), train=True)
        rec.enter("layer", phase)
        record(rec, refs)
        if sixteen:
            bf16.lower_to_bf16(rec.launches, rec.target)
            assert {name for name, ref in refs.items() if ref.root.dtype == BFLOAT} == set(halves.split())
        feeds = {ref: bits >> 16 if ref.dtype == BFLOAT else bits.view(np.float32) for name, ref in refs.items() if ref.base is None for bits in [arrays[name]]}
        got = execute(rec, device.context, feeds, [refs[name] for name in outputs.split()])
        results.append([widened(array) if array.dtype == BFLOAT else array for array in got])
    for name, want, got in zip(outputs.split(), *results):
        step = 2.0**-8 if name in halves.split() else 1e-6  # half of bfloat16's resolution
        assert np.isfinite(want).all()
        np.testing.assert_array_less(np.abs(got - want), step * np.abs(want) + 1e-6 * np.abs(want).max(), err_msg=name)


def shapes_of(g: ConvGeometry) -> dict[str, tuple[int, ...]]:
    x, y = (g.batch, g.channels, *g.size), (g.batch, g.num_output, *g.out)
    return {"x": x, "w": g.weight_shape, "y": y, "dy": y, "dx": x, "gw": g.weight_shape}


POINTWISE = {
    "copies of 8": ConvGeometry(3, 24, 40, 1, (1, 4, 6), (1, 4, 6), ONE, ONE, (0, 0, 0), ONE),
    "copies of 4": ConvGeometry(3, 72, 16, 1, (1, 6, 6), (1, 6, 6), ONE, ONE, (0, 0, 0), ONE),
    "copied groups": ConvGeometry(2, 32, 32, 2, (1, 8, 12), (1, 8, 12), ONE, ONE, (0, 0, 0), ONE),
}
TENSOR_CORES = [*((name, True, 1) for name in GEOMETRIES), ("3x3", True, 2)]
MULTIPLY_ADDS = [("1x1", False, 1), ("3x3 stride 2", False, 1), ("few channels", False, 1), ("1x1", False, 2)]


def with_tile(g: ConvGeometry, tile: gemm_gpu.Tile, splits: int) -> Callable[[str], Choice]:
    return lambda way: Choice(conv_gpu.with_step(g, tile, way), splits)


def check_directions(device: Device, g: ConvGeometry, direction: Callable[[str], Choice], offset: int = 0) -> None:
    """Check operands and results in bfloat16, also results that are added to. `offset` is the start of operands in their roots."""
    shapes = shapes_of(g)
    given = {name: (g.batch, math.prod(shapes[name][1:]) + offset) if offset else shapes[name] for name in ("x", "dy")}

    def view(refs: dict[str, Ref], name: str) -> Ref:
        return refs[name].view(shapes[name], offset, given[name][1]) if offset else refs[name]

    def forward(rec: Recorder, refs: dict[str, Ref]) -> None:
        conv_gpu.forward(rec, g, view(refs, "x"), refs["w"], None, refs["y"], direction("forward"))

    def backward(rec: Recorder, refs: dict[str, Ref]) -> None:
        conv_gpu.backward_data(rec, g, view(refs, "dy"), refs["w"], refs["dx"], direction("backward_data"))

    def add(rec: Recorder, refs: dict[str, Ref]) -> None:
        rec._written |= {refs["dx"]}
        backward(rec, refs)

    def filters(rec: Recorder, refs: dict[str, Ref]) -> None:
        conv_gpu.backward_filter(rec, g, view(refs, "x"), view(refs, "dy"), refs["gw"], direction("backward_filter"))

    shapes_given = {**shapes, **given}
    check(device, {key: shapes_given[key] for key in ["x", "w", "y"]}, forward, "y", "x y", "forward")
    if g.channels >= 8:
        for record in (backward, add):
            check(device, {key: shapes_given[key] for key in ["dy", "w", "dx"]}, record, "dx", "dy dx")
    check(device, {key: shapes_given[key] for key in ["x", "dy", "gw"]}, filters, "gw", "x dy")


@pytest.mark.parametrize(("name", "quads", "splits"), TENSOR_CORES + MULTIPLY_ADDS)
def test_convolution(of_gpu: Device, name: str, quads: bool, splits: int) -> None:
    check_directions(of_gpu, GEOMETRIES[name], with_tile(GEOMETRIES[name], QUAD if quads else gemm_gpu.TILES[-1], splits))


@pytest.mark.parametrize("tile", gemm_gpu.ASYNC_TILES, ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_copied_operands(of_gpu: Device, device: Device, name: str, tile: gemm_gpu.Tile) -> None:
    """Operands at aligned and unaligned positions."""
    if not device.target.tensor_cores and tile != gemm_gpu.ASYNC_TILES[-1]:
        pytest.skip("CPU runtimes compile for seconds: the smallest tile alone")
    for offset in (0, 3):
        check_directions(of_gpu, POINTWISE[name], with_tile(POINTWISE[name], tile, 2 if name == "copies of 4" else 1), offset)


@pytest.mark.parametrize("tile", [gemm_gpu.ASYNC_TILES[-1], QUAD, gemm_gpu.TILES[-1]], ids=str)
def test_parts_of_a_result_in_sixteen_bits_are_floats(of_gpu: Device, tile: gemm_gpu.Tile) -> None:
    """Parts are float, also if operands are float, because the kernel that adds them shares the program. The parameter `wx` stays float."""
    g = POINTWISE["copies of 4"]
    shapes = shapes_of(g)

    def forward(rec: Recorder, refs: dict[str, Ref]) -> None:
        conv_gpu.forward(rec, g, refs["wx"], refs["w"], None, refs["y"], with_tile(g, tile, 2)("forward"))

    def product(rec: Recorder, refs: dict[str, Ref]) -> None:
        for a, y, splits in (("wa", "y", 2), ("wb", "dz", 1)):
            gemm_gpu.record(rec, refs[a], refs["w"], refs[y], False, False, None, Choice(tile, splits))

    check(of_gpu, {"wx": shapes["x"], "w": shapes["w"], "y": shapes["y"]}, forward, "y", "y", "forward")
    if tile.quads:
        check(of_gpu, {"wa": (40, 256), "wb": (40, 256), "w": (256, 48), "y": (40, 48), "dz": (40, 48)}, product, "y dz", "y", "forward")


@pytest.mark.parametrize("out", [2, 3, 4])
def test_winograd(of_gpu: Device, out: int) -> None:
    g = GEOMETRIES["3x3, even"]
    shapes = shapes_of(g)

    def forward(rec: Recorder, refs: dict[str, Ref]) -> None:
        with winograd_in_parts(rec, out):
            choose.record(rec, "forward", g, refs["x"], refs["w"], None, refs["y"])

    def filters(rec: Recorder, refs: dict[str, Ref]) -> None:
        winograd_gpu.backward_filter(rec, g, refs["x"], refs["dy"], refs["gw"])

    check(of_gpu, {key: shapes[key] for key in ["x", "w", "y"]}, forward, "y", "x y", "forward")
    check(of_gpu, {key: shapes[key] for key in ["x", "dy", "gw"]}, filters, "gw", "x dy")


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise(of_gpu: Device, name: str) -> None:
    g = DEPTHWISE[name]
    shapes = shapes_of(g)

    def forward(rec: Recorder, refs: dict[str, Ref]) -> None:
        conv_depthwise.forward(rec, g, refs["x"], refs["w"], None, refs["y"])

    def backward(rec: Recorder, refs: dict[str, Ref]) -> None:
        rec._written |= {refs["dx"]}
        conv_depthwise.backward_data(rec, g, refs["dy"], refs["w"], refs["dx"])

    def filters(rec: Recorder, refs: dict[str, Ref]) -> None:
        conv_depthwise.backward_filter(rec, g, refs["x"], refs["dy"], refs["gw"])

    check(of_gpu, {key: shapes[key] for key in ["x", "w", "y"]}, forward, "y", "x y", "forward")
    check(of_gpu, {key: shapes[key] for key in ["dy", "w", "dx"]}, backward, "dx", "dy dx")
    check(of_gpu, {key: shapes[key] for key in ["x", "dy", "gw"]}, filters, "gw", "x dy")


@pytest.mark.parametrize("whole", [False, True], ids=["windows", "planes"])
@pytest.mark.parametrize(("method", "has_fused_relu"), [(MAX, False), (MAX, True), (AVE, False)], ids=["MAX", "MAX with fused ReLU backward", "AVE"])
def test_pooling(of_gpu: Device, method: int, has_fused_relu: bool, whole: bool) -> None:
    image, kernel, outputs = (9, 10), (9, 10) if whole else (3, 2), (1, 1) if whole else (4, 5)
    pool = Pool(method, kernel, (1, 1) if whole else (2, 2), (0, 0), image, outputs)
    shapes = {"x": (2, 5, *image), "y": (2, 5, *outputs), "dy": (2, 5, *outputs), "dx": (2, 5, *image)}

    def both(rec: Recorder, refs: dict[str, Ref]) -> None:
        index = rec.saved("index", refs["y"].shape, np.dtype(pool.index_dtype)) if method == MAX else None
        pool.forward(rec, refs["x"], refs["y"], index)
        if not has_fused_relu:  # a launch that adds to its result does not read the sign of its top
            rec._written |= {refs["dx"]}
        pool.backward(rec, refs["dy"], index, refs["dx"])
        if has_fused_relu:
            launch = rec.launches[-1]
            launch.put("sign", refs["y"])
            launch.define(np.float32(0.25), FUSED_RELU=TOP)

    check(of_gpu, shapes, both, "y dx", "x y dy dx")


def test_lrn(of_gpu: Device) -> None:
    response = Response(5, 1e-1, 0.75, 2.0)
    shapes = dict.fromkeys(("x", "y", "dy", "dx"), (2, 7, 5, 6))

    def both(rec: Recorder, refs: dict[str, Ref]) -> None:
        response.across(rec, refs["x"], refs["y"])
        rec._written |= {refs["dx"]}
        response.across_backward(rec, refs["x"], refs["dy"], refs["dx"])

    check(of_gpu, shapes, both, "y dx", "x y dy dx")


def test_rounding(of_gpu: Device) -> None:
    """Round to nearest, ties to even, also to infinity. Inf and NaN stay. Numbers below 2^-126 may become zero, as in float."""
    values = np.float32([1.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, -1 - 2.0**-8, 3.4e38, np.inf, -np.inf, np.nan, -0.0, 2.0**-126, 0.1])
    want = np.float32([1.0, 1.0, 1 + 2.0**-6, 1 + 2.0**-7, -1.0, np.inf, np.inf, -np.inf, np.nan, 0.0, 2.0**-126, 0.10009765625])
    rec = Recorder(of_gpu.target, train=True)
    x, y = Ref("x", (1, values.size), Role.CONSTANT), Ref("y", (1, values.size), Role.ACTIVATION)
    pointwise(rec, "y0 = x0", reads=[x], writes=[y])
    bf16.lower_to_bf16(rec.launches, rec.target)
    [got] = execute(rec, of_gpu.context, {x: values}, [y])
    np.testing.assert_array_equal(widened(got)[0], want)


def test_sums_of_everything(of_gpu: Device) -> None:
    """Rows that start aligned to vectors and do not end so."""
    def total(rec: Recorder, refs: dict[str, Ref]) -> None:
        reduce(rec, "v0 = x0", reads=[refs["x"]], writes=[refs["v"]], axes=(0, 1, 2), finish="y0 = v0")

    check(of_gpu, {"x": (3, 5, 50), "v": (1,)}, total, "v", "x", "forward")


@pytest.mark.parametrize("plane", [(7, 9), (4, 9), (8, 10)], ids=["alone", "fours", "eights"])
def test_expressions(of_gpu: Device, plane: tuple[int, int]) -> None:
    """Pointwise with a small value per channel that is broadcast, a sum over planes, a part of a blob, and rows of several lengths."""
    shapes = {"x": (2, 5, *plane), "z": (2, 5, *plane), "y": (2, 5, *plane), "s": (5,), "v": (5,), "t": (2, 2, *plane)}

    def both(rec: Recorder, refs: dict[str, Ref]) -> None:
        part = refs["x"].view((2, 2, *plane), math.prod(plane), refs["x"].dense_stride)
        pointwise(rec, "y0 = fmax(x0 * x1, x2)", reads=[refs["x"], (refs["s"], 1), refs["z"]], writes=[refs["y"]])
        pointwise(rec, "y0 = 2 * x0", reads=[part], writes=[refs["t"]])
        reduce(rec, "v0 = x0 * x1", reads=[refs["x"], refs["z"]], writes=[refs["v"]], axes=(0, 2, 3), finish="y0 = v0")

    check(of_gpu, shapes, both, "y v t", "x y z s t", "forward")


@pytest.mark.parametrize(("quads", "winograd", "bits"), [(False, False, True), (True, False, False), (True, True, True)])
def test_storage(of_gpu: Device, monkeypatch: pytest.MonkeyPatch, quads: bool, winograd: bool, bits: bool) -> None:
    pack_sign_masks = optimise.pack_sign_masks
    monkeypatch.setattr(optimise, "pack_sign_masks", lambda schedule, target, everywhere: pack_sign_masks(schedule, target, everywhere=bits))
    of_gpu.target = preferring(of_gpu.target, *(["winograd"] if winograd else []), *(["mma", "direct"] if quads else ["direct", "mma"]))
    got, refs, size = gradients(of_gpu, [])
    with monkeypatch.context() as patch:
        patch.setattr(optimise, "lower_to_bf16", lambda schedule, target: schedule)
        want, plain, whole = gradients(of_gpu, [])
    halves = {name for name, ref in refs.items() if ref.dtype == BFLOAT}
    floats = {name for name, ref in plain.items() if ref.role in BF16_ROLES and not ref.persistent and ref.base is None}
    assert {"first", "a", "a1", "a2", "b", "narrow", "a.diff", "b.diff", "pool.diff"} <= halves
    if quads and not winograd:  # operands and results of InnerProduct stay float
        assert floats - halves == {"whole", "whole.diff", "ip", "ip.diff"} and size < 0.6 * whole
    for name, values in want.items():  # not the largest difference, because ReLUs and maxima may decide differently after rounding
        cosine = np.vdot(got[name], values) / (np.linalg.norm(got[name]) * np.linalg.norm(values))
        assert cosine > (0.97 if name[0] in "af" else 0.995), name
    assert size < whole


def test_what_stays(of_gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blobs that a script reads and small values stay float."""
    of_gpu.target = preferring(of_gpu.target, "mma", "direct")
    _, refs, _ = gradients(of_gpu, ["a1", "narrow"])
    assert refs["a1"].dtype == refs["narrow"].dtype == FLOAT and refs["a2"].dtype == BFLOAT
    for bits, target in ((1 << 20, of_gpu.target), (1, replace(of_gpu.target, math="tf32")), (1, replace(of_gpu.target, kind="cpu"))):
        monkeypatch.setattr(bf16, "MIN_VALUE_BYTES", bits)
        rec = Recorder(of_gpu.target, train=True)
        x, y = (Ref(name, (5, 100), Role.ACTIVATION) for name in "xy")
        pointwise(rec, "y0 = 2 * x0", reads=[x], writes=[y])
        bf16.lower_to_bf16(rec.launches, target)
        assert x.dtype == y.dtype == FLOAT
    bf16.lower_to_bf16(rec.launches, of_gpu.target)
    assert x.dtype == y.dtype == BFLOAT


def test_choices_are_measured_so(of_gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ocaffe tune` passes candidates operands of the types that they have in a net."""
    seen: list[dict[str, np.dtype]] = []
    schedules: list[Schedule] = []
    measure = Tuner._measure

    def measured(self: Tuner, trials: Any) -> dict[str, float]:
        seen.append({name: ref.dtype for name, ref in trials.tensors.items()})
        schedules.extend(trial.commands.schedule for trial in trials.candidates)
        return measure(self, trials)

    monkeypatch.setattr(Tuner, "_measure", measured)
    monkeypatch.setattr(bf16, "MIN_VALUE_BYTES", 4000)  # x is larger than this as float, and smaller in 16 bits
    tuner = Tuner(Session(of_gpu), Tuned({}))
    asked = Counter(Problem(direction, GEOMETRIES["1x1, odd"], "bf16") for direction in ("forward", "backward_filter"))
    found = list(tuner.tune(asked))
    assert len(found) == 2 and all(len(each.seconds) > 1 for each in found)
    assert len(seen) == 2 and {"x": BFLOAT, "w": FLOAT} in seen and {"x": BFLOAT, "dy": BFLOAT} in seen
    assert all(defined(launch) for launches in schedules for launch in launches)


def test_compare_sees_floats(of_gpu: Device) -> None:
    """`ocaffe compare` converts bfloat16 values to float. They equal the values of a float net up to rounding."""
    of_gpu.target = preferring(of_gpu.target, "mma", "direct")
    halves, plain = (Side(net_of_all(), proto.TRAIN, of_gpu, plain=plain).values() for plain in (False, True))
    forward = [key for key in halves if key[0] == "forward" and key in plain]
    assert len(forward) > 8
    for key in forward:
        got, want = halves[key].values, plain[key].values
        assert np.abs(got - want).mean() < 0.02 * np.abs(want).max(), key
