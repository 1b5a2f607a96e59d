"""Operations fused into a product give the results of separate launches, on all engines. They are fused only if no other launch reads between."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe.ir.recorder import Recorder
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution import convolution
from ocaffe.kernels.convolution.dense_gpu import conv_gpu
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from ocaffe.kernels.expression.expression import Bounded, ChannelAffine, Relu, ResidualSum, pointwise
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.kernels.matmul.gemm import gemm
from ocaffe.kernels.matmul.gemm_gpu import Choice
from ocaffe.passes.epilogue_fusion import fuse_epilogues
from tests.harness import execute, winograd_in_parts

ONE, THREE = (1, 1, 1), (1, 3, 3)
PLAIN = ConvGeometry(2, 6, 8, 2, (1, 7, 9), (1, 7, 9), THREE, ONE, (0, 1, 1), ONE)
DEPTHWISE = ConvGeometry(2, 8, 8, 8, (1, 7, 9), (1, 7, 9), THREE, ONE, (0, 1, 1), ONE)
DEEP = ConvGeometry(2, 300, 8, 1, (1, 5, 5), (1, 5, 5), THREE, ONE, (0, 1, 1), ONE)


def act(name: str, *shape: int) -> Ref:
    return Ref(name, shape, Role.ACTIVATION)


def conv(g: ConvGeometry, splits: int = 1) -> Callable[..., tuple[list[Ref], Ref]]:
    def make(rec: Recorder, bias: bool) -> tuple[list[Ref], Ref]:
        x, w, b = act("x", g.batch, g.channels, *g.size[1:]), act("w", *g.weight_shape), act("b", g.num_output)
        y = act("y", g.batch, g.num_output, *g.out[1:])
        if splits > 1:
            conv_gpu.forward(rec, g, x, w, b if bias else None, y, Choice(conv_gpu.with_step(g, gemm_gpu.TILES[-1], "forward"), splits))
        else:
            convolution.forward(rec, g, x, w, b if bias else None, y)
        return [x, w, b], y

    return make


def winograd(out: int) -> Callable[..., tuple[list[Ref], Ref]]:
    def make(rec: Recorder, bias: bool) -> tuple[list[Ref], Ref]:
        with winograd_in_parts(rec, out):
            return conv(PLAIN)(rec, bias)

    return make


def deconv(g: ConvGeometry) -> Callable[..., tuple[list[Ref], Ref]]:
    def make(rec: Recorder, bias: bool) -> tuple[list[Ref], Ref]:
        x, w, b = act("x", g.batch, g.num_output, *g.out[1:]), act("w", *g.weight_shape), act("b", g.channels)
        y = act("y", g.batch, g.channels, *g.size[1:])
        convolution.backward_data(rec, g, x, w, y, b if bias else None)
        return [x, w, b], y

    return make


def product(splits: int = 1) -> Callable[..., tuple[list[Ref], Ref]]:
    def make(rec: Recorder, bias: bool) -> tuple[list[Ref], Ref]:
        x, w, b, y = act("x", 5, 300), act("w", 7, 300), act("b", 7), act("y", 5, 7)
        if splits > 1:
            gemm_gpu.record(rec, x, w, y, False, True, b if bias else None, Choice(gemm_gpu.TILES[-1], splits))
        else:
            gemm(rec, x, w, y, trans_b=True, bias=b if bias else None)
        return [x, w, b], y

    return make


PRODUCTS = [
    ("cpu", "convolution", conv(PLAIN)), ("gpu", "convolution", conv(PLAIN)),
    ("gpu", "convolution in splits", conv(DEEP, 3)), ("cpu", "long sums", conv(DEEP)), ("gpu", "Winograd in parts", winograd(2)),
    ("gpu", "Winograd, 3 x 3", winograd(3)), ("gpu", "Winograd, 4 x 4", winograd(4)),
    ("cpu", "depthwise", conv(DEPTHWISE)), ("gpu", "depthwise", conv(DEPTHWISE)),
    ("cpu", "deconvolution", deconv(PLAIN)), ("gpu", "deconvolution", deconv(PLAIN)),
    ("cpu", "depthwise deconvolution", deconv(DEPTHWISE)), ("gpu", "depthwise deconvolution", deconv(DEPTHWISE)),
    ("cpu", "product", product()), ("gpu", "product", product()), ("gpu", "product in splits", product(2)),
]  # fmt: skip


def values(inputs: list[Ref]) -> dict[Ref, np.ndarray]:
    rng = np.random.default_rng(7)
    return {ref: rng.uniform(0.5, 2, ref.shape) if len(ref.shape) == 1 else rng.standard_normal(ref.shape) for ref in inputs}


LAST: dict[str, dict[str, Any]] = {
    "relu": {"text": "y0 = x0 > 0 ? x0 : slope * x0", "scalars": {"slope": 0.25}, "means": Relu(0.25)},
    "clip": {"text": "y0 = fmin(fmax(x0, low), high)", "scalars": {"low": -0.5, "high": 1.5}, "means": Bounded(-0.5, 1.5)},
}


@pytest.mark.parametrize(("bias", "activation"), [(True, "relu"), (False, "relu"), (True, "clip")])
@pytest.mark.parametrize(("kind", "name", "make"), PRODUCTS, ids=[f"{name}-{kind}" for kind, name, _ in PRODUCTS])
def test_norm_scale_sum_activation(device: Any, kind: str, name: str, make: Any, bias: bool, activation: str) -> None:
    results = []
    for fuse in (False, True):
        rec = Recorder(replace(device.target, kind=kind), train=False)
        rec.enter("earlier", "forward")
        source = act("source", *make(rec, bias)[1].shape)
        rec.launches.clear()
        other = act("other", *source.shape)
        pointwise(rec, "y0 = 2 * x0", reads=[source], writes=[other])  # the shortcut
        rec.enter("layer", "forward")
        inputs, x = make(rec, bias)
        count, channels = len(rec.launches), (x.shape[1],)
        mean, variance, weight, scale, shift = act("m", *channels), act("v", *channels), act("n", 1), act("s", *channels), act("t", *channels)
        y, z, total, result = (act(name, *x.shape) for name in ("y", "z", "total", "result"))
        norm = "mean = x1 / x3; inverse = 1 / sqrt(x2 / x3 + eps)"
        pointwise(rec, f"{norm}; y0 = (x0 - mean) * inverse", reads=[x, (mean, 1), (variance, 1), (weight, 0)], writes=[y], scalars={"eps": 0.1},
                  means=ChannelAffine(norm, "inverse", "-mean * inverse"))  # fmt: skip
        pointwise(rec, "y0 = x0 * x1 + x2", reads=[y, (scale, 1), (shift, 1)], writes=[z], means=ChannelAffine("", "x1", "x2"))
        pointwise(rec, "y0 = x0 + x1", reads=[z, other], writes=[total], means=ResidualSum())
        pointwise(rec, reads=[total], writes=[result], **LAST[activation])
        last = act("last", *x.shape)
        pointwise(rec, "y0 = x0", reads=[result], writes=[last])
        if fuse:
            rec.launches = fuse_epilogues(rec.launches)
            stays = kind == "gpu" and activation == "clip"  # these kernels support only slopes
            assert len(rec.launches) == count + 2 + stays, [launch.what for launch in rec.launches]  # plus the table and the last copy
        results.append(execute(rec, device.context, values([source, *inputs, mean, variance, weight, scale, shift]), [last])[0])
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=2e-5 * np.abs(results[0]).max())


def recorded(rec: Recorder) -> tuple[Ref, Ref]:
    rec.enter("layer", "forward")
    _, x = conv(PLAIN)(rec, True)
    y = act("sum", *x.shape)
    return x, y


def test_a_value_that_is_read_twice_stays(device: Any) -> None:
    rec = Recorder(device.target, train=False)
    x, y = recorded(rec)
    pointwise(rec, "y0 = x0 * x1", reads=[x, (act("s", 8), 1)], writes=[y], means=ChannelAffine("", "x1", "0"))
    pointwise(rec, "y0 = x0", reads=[x], writes=[act("again", *x.shape)])
    assert len(fuse_epilogues(rec.launches)) == len(rec.launches)


@pytest.mark.parametrize("factors", [(2, 8), (8, 7), (9,)], ids=["by sample", "by channel and row", "by column"])
def test_factors_that_are_not_per_channel_stay(device: Any, factors: tuple[int, ...]) -> None:
    rec = Recorder(device.target, train=False)
    x, y = recorded(rec)
    place = {2: 0, 8: 1, 9: 3}[factors[0]]
    pointwise(rec, "y0 = x0 * x1", reads=[x, (act("s", *factors), place)], writes=[y], means=ChannelAffine("", "x1", "0"))
    assert len(fuse_epilogues(rec.launches)) == len(rec.launches)


def test_a_sum_stays_where_the_other_is_wanted_later(device: Any) -> None:
    for later in (False, True):
        rec = Recorder(device.target, train=False)
        rec.enter("earlier", "forward")
        other = act("other", 2, 8, 7, 9)
        pointwise(rec, "y0 = 1", writes=[other])
        x, y = recorded(rec)
        pointwise(rec, "y0 = x0 + x1", reads=[x, other], writes=[y], means=ResidualSum())
        if later:
            pointwise(rec, "y0 = x0", reads=[other], writes=[act("last", *x.shape)])
        assert len(rec.launches) - len(fuse_epilogues(rec.launches)) == (0 if later else 1)
