"""Fused channel reductions equal separate ones, also for a large mean. They are fused only where the convolution writes the whole blob."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.dense_gpu import conv_gpu
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.convolution.winograd import winograd_gpu
from ocaffe.kernels.expression.expression import Reduce, ReluBackward, pointwise, reduce
from ocaffe.kernels.expression.formula import parse
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.kernels.matmul.gemm_gpu import Choice
from ocaffe.passes import channel_reduction_fusion
from ocaffe.passes.channel_reduction_fusion import fuse_channel_reductions
from ocaffe.passes.relu_backward_fusion import fuse_relu_backward
from tests.harness import SMALL_TILE, execute, of_kind, preferring

ONE, NONE = (1, 1, 1), (0, 0, 0)
GEOMETRIES = {
    "groups": ConvGeometry(3, 6, 10, 2, (1, 7, 9), (1, 7, 9), (1, 3, 3), ONE, (0, 1, 1), ONE),
    "many tiles": ConvGeometry(2, 40, 70, 1, (1, 16, 17), (1, 16, 17), ONE, ONE, NONE, ONE),
    "many tiles in 16 bits": ConvGeometry(2, 3, 70, 1, (1, 16, 17), (1, 16, 17), ONE, ONE, NONE, ONE),
    "a line": ConvGeometry(4, 1, 3, 1, (1, 1, 40), (1, 1, 38), (1, 1, 3), ONE, NONE, ONE),
    "depthwise": ConvGeometry(3, 5, 10, 5, (1, 7, 7), (1, 7, 7), (1, 3, 3), ONE, (0, 1, 1), ONE),
    "depthwise in pieces": ConvGeometry(2, 3, 3, 3, (1, 81, 37), (1, 41, 19), (1, 3, 3), (1, 2, 2), (0, 1, 1), ONE),
    "Winograd, 2 x 2": ConvGeometry(3, 4, 5, 1, (1, 22, 27), (1, 22, 27), (1, 3, 3), ONE, (0, 1, 1), ONE),
    "Winograd, 2 x 2, pairs": ConvGeometry(3, 4, 5, 1, (1, 21, 26), (1, 21, 26), (1, 3, 3), ONE, (0, 1, 1), ONE),
    "Winograd, groups, 3 x 3": ConvGeometry(1, 4, 6, 2, (1, 8, 8), (1, 8, 8), (1, 3, 3), ONE, (0, 1, 1), ONE),
    "Winograd, 4 x 4": ConvGeometry(3, 4, 5, 1, (1, 38, 28), (1, 38, 28), (1, 3, 3), ONE, (0, 1, 1), ONE),
}


def value(name: str, *shape: int) -> Ref:
    return Ref(name, shape, Role.ACTIVATION)


def recorder(device: Any, monkeypatch: pytest.MonkeyPatch, chunks: int, last_block: bool) -> Recorder:
    """Return a recorder for Winograd's algorithm in several passes, and reductions in `chunks` chunks."""
    monkeypatch.setattr("ocaffe.kernels.expression.expression.chunk_count", lambda *_: chunks)
    return Recorder(preferring(replace(of_kind(device.target, "gpu", last_block), workspace=1), "depthwise", SMALL_TILE), train=True)


def statistics(rec: Recorder, y: Ref, more: bool) -> list[Ref]:
    """Record mean and variance as BatchNorm does. With `more` they also read another operand."""
    channels = y.shape[1]
    mean, variance, count = value("mean", channels), value("variance", channels), Ref("count", (1,), Role.STATE, value=3)
    text = "d = v0 / n; mean = x1 + d; y0 = mean; y1 = fmax(v1 / n - d * d, 0)"
    shift = y.view((channels,), 0, y.dense_stride // channels)
    reduce(rec, "d = x0 - x1; v0 = d; v1 = d * d", reads=[y, (shift, 1), *([(count, 0)] if more else [])], writes=[mean, variance], axes=(0, 2, 3, 4),
           finish=f"{text}{' * x2' if more else ''}", scalars={"n": float(y.count // channels)})  # fmt: skip
    return [mean, variance]


def side(name: str) -> int:
    """Return the outputs of a tile of Winograd's algorithm, per axis."""
    return int(name.split(" x ")[1][0])


def forward(rec: Recorder, name: str, x: Ref, w: Ref, b: Ref, y: Ref) -> None:
    """Record the convolution with the kernels that `name` states."""
    g = GEOMETRIES[name]
    if name.startswith("Winograd"):
        winograd_gpu.forward(rec, g, x, w, b, y, out=side(name))
    elif name.startswith("depthwise"):
        convolution.forward(rec, g, x, w, b, y)
    else:
        tile = gemm_gpu.QUAD_TILES["bf16"][-1] if name.endswith("16 bits") else gemm_gpu.TILES[-1]
        conv_gpu.forward(rec, g, x, w, b, y, Choice(conv_gpu.with_step(g, tile), 1))


@pytest.mark.parametrize("more", [False, True], ids=["alone", "with a weight"])
@pytest.mark.parametrize(("chunks", "last_block"), [(1, False), (3, False), (3, True)], ids=["one launch", "two launches", "groups that meet"])
@pytest.mark.parametrize("offset", [0, 3000])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_statistics(device: Any, monkeypatch: pytest.MonkeyPatch, name: str, offset: float, chunks: int, last_block: bool, more: bool) -> None:
    g = GEOMETRIES[name]
    rec = recorder(device, monkeypatch, chunks, last_block)
    rec.enter("layer", "forward")
    x, w, b = value("x", g.batch, g.channels, *g.size), value("w", *g.weight_shape), value("b", g.num_output)
    y = value("y", g.batch, g.num_output, *g.out)
    forward(rec, name, x, w, b, y)
    written = statistics(rec, y, more)
    count = len(rec.launches)
    rec.launches = fuse_channel_reductions(rec.launches)
    assert len(rec.launches) == count - (chunks > 1 and not rec.target.last_block_reduction)
    rng = np.random.default_rng(3)
    feeds = {x: rng.standard_normal(x.shape), w: rng.standard_normal(w.shape), b: offset + rng.standard_normal(b.shape)}
    got, mean, variance = execute(rec, device.context, feeds, [y, *written])
    exact = got.reshape(y.shape).astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean((0, 2, 3, 4)), rtol=0, atol=1e-6 * max(np.abs(exact).max(), 1))
    np.testing.assert_allclose(variance / (3 if more else 1), exact.var((0, 2, 3, 4)), rtol=2e-4 if offset else 1e-5)


@pytest.mark.parametrize("order", ["sums", "sums, statistics", "statistics, sums"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_sums(device: Any, monkeypatch: pytest.MonkeyPatch, name: str, order: str) -> None:
    """Sums alone or with statistics of the same values. The first reduction is fused."""
    g = GEOMETRIES[name]
    rec = recorder(device, monkeypatch, 1, False)
    rec.enter("layer", "forward")
    x, w, b = value("x", g.batch, g.channels, *g.size), value("w", *g.weight_shape), value("b", g.num_output)
    y, total = value("y", g.batch, g.num_output, *g.out), value("total", g.num_output)
    forward(rec, name, x, w, b, y)
    wanted: list[Ref] = []
    for what in order.split(", "):
        if what == "sums":
            reduce(rec, "v0 = x0", reads=[y], writes=[total], axes=(0, 2, 3, 4))
        else:
            wanted = statistics(rec, y, False)
    rec.launches = fuse_channel_reductions(rec.launches)
    kinds = {int(dict(launch.call.defines)["CHANNEL_REDUCTION"]) for launch in rec.launches if launch.call and "CHANNEL_REDUCTION" in dict(launch.call.defines)}
    assert kinds == {1 if order.startswith("statistics") else 3}
    rng = np.random.default_rng(3)
    feeds = {ref: rng.standard_normal(ref.shape) for ref in (x, w, b)}
    got, summed, *rest = execute(rec, device.context, feeds, [y, total, *wanted])
    exact = got.reshape(y.shape).astype(np.float64)
    np.testing.assert_allclose(summed, exact.sum((0, 2, 3, 4)), rtol=0, atol=1e-5 * np.abs(exact).sum((0, 2, 3, 4)).max())
    if rest:
        np.testing.assert_allclose(rest[0], exact.mean((0, 2, 3, 4)), rtol=0, atol=1e-6 * np.abs(exact).max())
        np.testing.assert_allclose(rest[1], exact.var((0, 2, 3, 4)), rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 2], ids=["whole", "two biases"])
@pytest.mark.parametrize("adds", [False, True], ids=["writes", "adds"])
@pytest.mark.parametrize("name", ["groups", "Winograd, 2 x 2, pairs"])
def test_gradients_of_biases(device: Any, name: str, adds: bool, parts: int) -> None:
    """Bias gradients of a diff with fused ReLU backward that is added to. Each bias reads its own channels."""
    g = replace(GEOMETRIES[name], channels=6, num_output=8, group=2)
    rec = Recorder(of_kind(device.target, "gpu"), train=True)
    dy, w, y = value("dy", g.batch, g.num_output, *g.out), value("w", *g.weight_shape), value("y", g.batch, 6, *g.size)
    diff, dx = Ref("y.diff", y.shape, Role.DIFF), Ref("x.diff", y.shape, Role.DIFF)
    if adds:
        rec.enter("other", "backward")
        pointwise(rec, "y0 = x0 + 1", reads=[y], writes=[diff])
    rec.enter("writer", "backward")
    with rec.prefer("winograd" if name.startswith("Winograd") else "direct"):
        convolution.backward_data(rec, g, dy, w, diff)
    rec.enter("relu", "backward")
    pointwise(rec, "y0 = x1 > 0 ? x0 : slope * x0", reads=[diff, y], writes=[dx], scalars={"slope": 0.5}, means=ReluBackward(0.5))
    rec.enter("below", "backward")
    size = 6 // parts
    biases = [value(f"b{part}", size) for part in range(parts)]
    for part, bias in enumerate(biases):
        view = dx.view((g.batch, size, *g.size), part * size * dx.dense_stride // 6, dx.dense_stride)
        reduce(rec, "v0 = x0", reads=[view], writes=[bias], axes=(0, 2, 3, 4))
    rec.launches = fuse_channel_reductions(fuse_relu_backward(rec.launches))
    sums = [launch.what for launch in rec.launches if launch.what.startswith("sum")]
    assert sums == ["sum: v0 = x0 | y0 = v0"] * parts
    assert all(launch.operands[0].ref.root.name == "writer.moments" for launch in rec.launches[-parts:])
    rng = np.random.default_rng(5)
    got, *found = execute(rec, device.context, {ref: rng.standard_normal(ref.shape) for ref in (dy, w, y)}, [dx, *biases])
    want = got.reshape(y.shape).astype(np.float64).sum((0, 2, 3, 4))
    np.testing.assert_allclose(np.concatenate(found), want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("case", ["in splits", "of other channels", "of a part"])
def test_statistics_that_stay(device: Any, case: str) -> None:
    g = replace(GEOMETRIES["groups"], channels=300, group=1) if case == "in splits" else GEOMETRIES["groups"]
    rec = Recorder(of_kind(device.target, "gpu", False), train=True)
    rec.enter("layer", "forward")
    x, w = value("x", g.batch, g.channels, *g.size), value("w", *g.weight_shape)
    y = value("y", g.batch, g.num_output, *g.out)
    if case == "in splits":
        conv_gpu.forward(rec, g, x, w, None, y, Choice(conv_gpu.with_step(g, gemm_gpu.TILES[-1]), 3))
    else:
        convolution.forward(rec, g, x, w, None, y)
    if case == "of a part":
        statistics(rec, y.view((2, *y.shape[1:])), False)
    else:
        statistics(rec, y if case == "in splits" else y.view((y.shape[0], 5, 2, *g.out[1:])), False)
    launches = list(rec.launches)
    assert fuse_channel_reductions(rec.launches) == launches


FUNCTIONS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray], dict[str, float]]] = {
    "linear": ("g = x0", np.ones_like, {}),
    "ReLU": ("pre = h * x4 + x5; g = x0 * (pre > 0 ? 1 : slope)", lambda pre: np.where(pre > 0, 1, 0.25), {"slope": 0.25}),
    "ReLU6": ("pre = h * x4 + x5; g = x0 * (pre >= min && pre <= max)", lambda pre: (pre >= -0.5) & (pre <= 1), {"min": -0.5, "max": 1.0}),
}


@pytest.mark.parametrize(("chunks", "last_block"), [(1, False), (3, False), (3, True)], ids=["one launch", "two launches", "groups that meet"])
@pytest.mark.parametrize("adds", [False, True], ids=["writes", "adds"])
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", [name for name in GEOMETRIES if not name.startswith("depthwise") and not name.endswith("16 bits")])
def test_sums_for_batch_norm(device: Any, monkeypatch: pytest.MonkeyPatch, name: str, function: str, adds: bool, chunks: int, last_block: bool) -> None:
    """The sums of BatchNorm's backward pass, including its activation, are fused into the launch that writes the gradient of its top."""
    g, (text, derivative, scalars) = GEOMETRIES[name], FUNCTIONS[function]
    rec = recorder(device, monkeypatch, chunks, last_block)
    dy, w = value("dy", g.batch, g.num_output, *g.out[1:]), value("w", *g.weight_shape)
    wide = value("wide", g.batch, g.channels + 1, *g.size[1:])  # x is the last channels of it
    plane = g.size[1] * g.size[2]
    x = wide.view((g.batch, g.channels, *g.size[1:]), plane, wide.dense_stride)
    diff = Ref("diff", x.shape, Role.DIFF)
    if adds:
        rec.enter("other", "backward")
        pointwise(rec, "y0 = x0 + 1", reads=[x], writes=[diff])
    rec.enter("writer", "backward")
    if name.startswith("Winograd"):
        winograd_gpu.backward_data(rec, g, dy, w, diff, out=side(name))
    else:
        conv_gpu.backward_data(rec, g, dy, w, diff, Choice(conv_gpu.with_step(g, gemm_gpu.TILES[-1], "backward_data"), 1))
    rec.enter("norm", "backward")
    channel = [value(word, g.channels) for word in ("mean", "inverse", *(("scale", "bias") if scalars else ()))]
    sums = [value(f"sum{i}", g.channels) for i in range(4)]
    reduce(rec, f"mean = x2; inverse = x3; h = (x1 - mean) * inverse; {text}; v0 = g; v1 = g * h", reads=[diff, x, *((ref, 1) for ref in channel)], writes=sums,
           axes=(0, 2, 3), finish="y0 = v0 / n; y1 = v1 / n; y2 = v0; y3 = v1", scalars={**scalars, "n": 10.0})  # fmt: skip
    count = len(rec.launches)
    rec.launches = fuse_channel_reductions(rec.launches)
    assert len(rec.launches) == count - (chunks > 1 and not rec.target.last_block_reduction) and rec.launches[-1].what.startswith("sum: v0 = x0; v1 = x1")
    rng = np.random.default_rng(3)
    feeds = {ref: rng.standard_normal(ref.shape).astype(np.float32) for ref in (dy, w, wide, *channel)}
    got, *found = execute(rec, device.context, feeds, [diff, *sums])
    mean, inverse, *affine = (feeds[ref].astype(np.float64).reshape(1, -1, 1, 1) for ref in channel)
    h = (feeds[wide][:, 1:] - mean) * inverse
    gradient = got.reshape(x.shape) * derivative(h * affine[0] + affine[1] if affine else h)
    for array, want in zip(found, (gradient / 10, gradient * h / 10, gradient, gradient * h)):
        want = want.sum((0, 2, 3))
        np.testing.assert_allclose(array, want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_sums_for_batch_norm_stay_in_16_bits(device: Any) -> None:
    """Products in 16 bits have no registers for these sums, so they are not fused."""
    g = GEOMETRIES["many tiles in 16 bits"]
    rec = Recorder(of_kind(device.target, "gpu"), train=True)
    dy, w, x = value("dy", g.batch, g.num_output, *g.out[1:]), value("w", *g.weight_shape), value("x", g.batch, g.channels, *g.size[1:])
    diff = Ref("diff", x.shape, Role.DIFF)
    rec.enter("writer", "backward")
    conv_gpu.backward_data(rec, g, dy, w, diff, Choice(conv_gpu.with_step(g, gemm_gpu.QUAD_TILES["bf16"][-1], "backward_data"), 1))
    rec.enter("norm", "backward")
    text = "mean = x2; inverse = x3; h = (x1 - mean) * inverse; g = x0; v0 = g; v1 = g * h"
    reads = [diff, x, *((value(word, g.channels), 1) for word in ("mean", "inverse"))]
    reduce(rec, text, reads=reads, writes=[value(f"sum{i}", g.channels) for i in range(2)], axes=(0, 2, 3), finish="y0 = v0; y1 = v1")
    launches = list(rec.launches)
    assert fuse_channel_reductions(rec.launches) == launches


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("d = x0 - x1; v0 = d; v1 = d * d", "v1 = (x0 - x1) * (x0 - x1); off = x0 - x1; v0 = off"),
        ("v0 = x0", "t = x0; v0 = t"),
        ("mean = x2; inverse = x3; h = (x1 - mean) * inverse; g = x0; v0 = g; v1 = g * h", "hat = (x1 - x2) * x3; v1 = x0 * hat; v0 = x0"),
        (
            "mean = x2; inverse = x3; h = (x1 - mean) * inverse; pre = h * x4 + x5; g = x0 * (pre > 0 ? 1 : slope); v0 = g; v1 = g * h",
            "n = (x1 - x2) * x3; a = n * x4 + x5; v0 = x0 * (a > 0 ? 1 : slope); v1 = v0 * n",
        ),
    ],
    ids=["statistics", "sum", "gradients", "gradients-behind-relu"],
)
def test_names_of_locals_do_not_matter(text: str, same: str) -> None:
    """A reduction is compared as a parsed formula: renaming a local variable loses no fusion."""
    forms = []
    for each in (text, same):
        values = tuple(sorted(name for name in parse(each).assigned if name in ("v0", "v1")))
        counts = len([name for name in parse(each).used if name.startswith("x")]), 1, 0
        slope = (("slope", np.float32(0.25)),)
        reduction = Reduce(each, "y0 = v0", values, "sum", (4, 3, 2, 2), (0, 2, 3), (None,) * counts[0], counts, slope, Target(), 1)
        forms.append(channel_reduction_fusion.form_of(reduction))
    assert forms[0] == forms[1] is not None


@pytest.mark.parametrize("text", ["v0 = x0 * x0", "d = x0 - x1; v0 = d; v1 = d * x0", "h = (x1 - x2) * x3; v0 = x0; v1 = x0 * h * 2", "v0 = x1; v1 = x0"])
def test_other_reductions_are_left_alone(text: str) -> None:
    values = tuple(sorted(name for name in parse(text).assigned if name in ("v0", "v1")))
    reduction = Reduce(text, "y0 = v0", values, "sum", (4, 3, 2, 2), (0, 2, 3), (None,) * 4, (4, 1, 0), (), Target(), 1)
    assert channel_reduction_fusion.form_of(reduction) is None
