"""Deconvolution, and the code that it shares with Convolution over many axes, compared with numpy in float64."""
from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.formats.fillers import fill
from ocaffe.ir.tensor import Ref, Role
from ocaffe.kernels.convolution import conv_unroll, convolution
from ocaffe.kernels.convolution.geometry.conv_geometry import ConvGeometry
from tests.harness import execute
from tests.kernels.matmul.test_gemm import merge_relu, recorder
from tests.layers.single import KINDS, close, layer_of, run


def text(settings: str, bottoms: int = 1, layer_type: str = "Deconvolution") -> str:
    blobs = " ".join(f"bottom: 'x{i}' top: 'y{i}'" for i in range(bottoms))
    return f"name: 'up' type: '{layer_type}' {blobs} convolution_param {{ {settings} }}"


def deconvolve(x: np.ndarray, w: np.ndarray, dy: np.ndarray, group: int, stride: Any, pad: Any, dilation: Any) -> tuple[np.ndarray, ...]:
    """Return (y, dx, dw) without bias, tap by tap.

    With y and dy as images and x and dx as results, the same function computes a convolution.
    """
    n, inputs, *spatial = x.shape
    kernel, groups, outputs = w.shape[2:], (n, group), w.shape[1]
    wide = np.zeros((2, *groups, outputs, *(s * (m - 1) + d * (k - 1) + 1 for m, k, s, d in zip(spatial, kernel, stride, dilation))))
    inner = (slice(None),) * 3 + tuple(slice(p, size - p) for p, size in zip(pad, wide.shape[4:]))
    wide[1][inner] = dy.reshape(*groups, outputs, *dy.shape[2:])
    xs, ws = x.reshape(*groups, inputs // group, *spatial), w.reshape(group, inputs // group, outputs, *kernel)
    dx, dw = np.zeros(xs.shape), np.zeros(ws.shape)
    for tap in itertools.product(*map(range, kernel)):
        part = (slice(None),) * 3 + tuple(slice(t * d, t * d + (m - 1) * s + 1, s) for t, d, m, s in zip(tap, dilation, spatial, stride))
        at = (slice(None),) * 3 + tap
        wide[0][part] += np.einsum("ngi...,gio->ngo...", xs, ws[at])
        dx += np.einsum("ngo...,gio->ngi...", wide[1][part], ws[at])
        dw[at] = np.einsum("ngip,ngop->gio", xs.reshape(*xs.shape[:3], -1), wide[1][part].reshape(*groups, outputs, -1))
    return wide[0][inner].reshape(n, group * outputs, *dy.shape[2:]), dx.reshape(x.shape), dw.reshape(w.shape)


# Windows and their images: (settings, bottom, num_output, group, kernel, stride, pad, dilation)
WINDOWS: dict[str, tuple[Any, ...]] = {
    "3x2/3x2, groups": ("group: 2 kernel_h: 3 kernel_w: 2 stride_h: 3 stride_w: 2 pad_h: 1", (2, 4, 3, 5), 6, 2, (3, 2), (3, 2), (1, 0), (1, 1)),
    "3x3, pad beyond the window": ("kernel_size: 3 pad: 3", (2, 3, 8, 9), 2, 1, (3, 3), (1, 1), (3, 3), (1, 1)),
    "2x2/3, gaps, dilated": ("kernel_size: 2 stride: 3 dilation: 2", (2, 3, 4, 5), 2, 1, (2, 2), (3, 3), (0, 0), (2, 2)),
    "depthwise 4x4/2": ("group: 3 kernel_size: 4 stride: 2 pad: 1", (2, 3, 7, 37), 3, 3, (4, 4), (2, 2), (1, 1), (1, 1)),
    "depthwise 16x16/8": ("group: 3 kernel_size: 16 stride: 8 pad: 4", (2, 3, 2, 9), 3, 3, (16, 16), (8, 8), (4, 4), (1, 1)),
    "depthwise 2x2/3, dilated, of 2 inputs": ("group: 3 kernel_size: 2 stride: 3 dilation: 2", (2, 6, 4, 5), 3, 3, (2, 2), (3, 3), (0, 0), (2, 2)),
    "four axes": ("group: 2 kernel_size: 2 stride: 2 pad: [1, 0, 0, 1]", (2, 4, 2, 3, 2, 3), 2, 2, (2,) * 4, (2,) * 4, (1, 0, 0, 1), (1,) * 4),
}
CASES = [(kind, name) for kind in KINDS for name in WINDOWS if kind == "cpu" or name.startswith(("depthwise 16", "depthwise 2", "3x2"))]


def problem(name: str) -> tuple[str, dict[str, Any], list[np.ndarray]]:
    """Return (settings without num_output, keywords of deconvolve, [x, w, dy, bias])."""
    settings, shape, outputs, group, kernel, stride, pad, dilation = WINDOWS[name]
    rng = np.random.default_rng(len(name))
    out = [s * (n - 1) + d * (k - 1) + 1 - 2 * p for n, k, s, p, d in zip(shape[2:], kernel, stride, pad, dilation)]
    shapes = [shape, (shape[1], outputs // group, *kernel), (shape[0], outputs, *out), (outputs,)]
    return settings, {"group": group, "stride": stride, "pad": pad, "dilation": dilation}, [rng.normal(size=s) for s in shapes]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_all_directions(device: Any, kind: str, name: str) -> None:
    settings, window, (x, w, dy, bias) = problem(name)
    result = run(device, kind, text(f"num_output: {len(bias)} {settings}"), [x], [dy], params=[w, bias], strided=True, held=0.5)
    y, dx, dw = deconvolve(x, w, dy, **window)
    axes = tuple(range(2, x.ndim))
    close(result.tops[0], y + bias.reshape(-1, *(1 for _ in axes)), 1e-5)
    close(result.diffs[0], dx + 0.5, 1e-5)
    close(result.param_diffs[0], dw, 1e-5)
    close(result.param_diffs[1], dy.sum((0, *axes)), 1e-5)
    if name.startswith("depthwise"):
        programs = {launch.call.program for launch in result.rec.launches if launch.call and launch.call.function == "backward_data"}
        assert programs <= {f"conv_depthwise_{kind}", f"conv_narrow_{kind}"}, "the general kernels waste most of a tile on one channel"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [1, 1 << 24], ids=["sample by sample", "all at once"])
def test_convolution_over_four_axes(device: Any, kind: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_unroll, "COLUMNS", most)
    settings, window, (dy, w, x, _) = problem("four axes")
    bias = np.arange(1.0, dy.shape[1] + 1)
    result = run(device, kind, text(f"num_output: {len(bias)} {settings}", layer_type="Convolution"), [x], [dy], params=[w, bias], strided=True, held=0.5)
    dx, y, dw = deconvolve(dy, w, x, **window)
    close(result.tops[0], y + bias.reshape(-1, 1, 1, 1, 1), 1e-5)
    close(result.diffs[0], dx + 0.5, 1e-5)
    close(result.param_diffs[0], dw, 1e-5)
    close(result.param_diffs[1], dy.sum((0, 2, 3, 4, 5)), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["3x3, pad beyond the window", "depthwise 4x4/2", "depthwise 2x2/3, dilated, of 2 inputs"])
def test_a_relu_can_be_merged(device: Any, kind: str, name: str) -> None:
    _, window, (x, w, dy, bias) = problem(name)
    triples = [(1, *window["stride"]), (0, *window["pad"]), (1, *window["dilation"])]
    size, out = (1, *dy.shape[2:]), (1, *x.shape[2:])
    g = ConvGeometry(len(x), dy.shape[1], x.shape[1], window["group"], size, out, (1, *w.shape[2:]), *triples)
    rec = recorder(replace(device.target, kind=kind), "forward")
    at = {name: Ref(name, array.shape, Role.ACTIVATION) for name, array in {"x": x, "w": w, "bias": bias, "y": dy}.items()}
    convolution.backward_data(rec, g, at["x"], at["w"], at["y"], at["bias"])
    merge_relu(rec, 0.25)
    y = deconvolve(x, w, dy, **window)[0] + bias.reshape(-1, 1, 1)
    (got,) = execute(rec, device.context, {at["x"]: x, at["w"]: w, at["bias"]: bias}, [at["y"]])
    close(got, np.where(y > 0, y, 0.25 * y), 1e-5)


def test_several_bottoms_axes_and_another_size(device: Any) -> None:
    """The leading axes are one batch, the second bottom adds to the gradients of the first, and shapes may change between runs."""
    layer = layer_of(text("num_output: 2 kernel_size: 2 stride: 2 axis: 2", 2))
    rng = np.random.default_rng(8)
    w, bias = rng.normal(size=(3, 2, 2, 2)), rng.normal(size=2)
    for height in (2, 3):
        xs, dys = rng.normal(size=(2, 2, 2, 3, height, 3)), rng.normal(size=(2, 2, 2, 2, 2 * height, 6))
        result = run(device, "cpu", layer, xs, dys, params=[w, bias])
        want = [deconvolve(x.reshape(4, 3, height, 3), w, dy.reshape(4, 2, -1, 6), 1, (2, 2), (0, 0), (1, 1)) for x, dy in zip(xs, dys)]
        for top, diff, (y, dx, _) in zip(result.tops, result.diffs, want):
            close(top, (y + bias.reshape(-1, 1, 1)).reshape(dys[0].shape), 1e-5)
            close(diff, dx.reshape(xs[0].shape), 1e-5)
        close(result.param_diffs[0], want[0][2] + want[1][2], 1e-5)


def test_bilinear_filler_resizes(device: Any) -> None:
    """A linear ramp is still a linear ramp after upsampling by 2, except at its borders."""
    layer = layer_of(text("num_output: 2 group: 2 kernel_size: 4 stride: 2 pad: 1 bias_term: false weight_filler { type: 'bilinear' }"))
    layer.infer((1, 2, 5, 6))
    (weight,) = layer.parameters()
    filters = fill(weight.filler, weight.shape, np.random.default_rng(0))
    x = np.arange(5.0).reshape(5, 1) + 10 * np.arange(6.0) + np.zeros((1, 2, 1, 1))
    result = run(device, "cpu", layer, [x], params=[filters])
    rows, columns = np.arange(1, 9) / 2 - 0.25, np.arange(1, 11) / 2 - 0.25
    close(result.tops[0][:, :, 1:9, 1:11], np.broadcast_to(rows.reshape(-1, 1) + 10 * columns, (1, 2, 8, 10)), 1e-6)


def test_the_shape_ends_where_the_last_window_does() -> None:
    layer = layer_of(text("num_output: 6 group: 3 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 5 pad_h: 1 pad_w: 0"))
    assert list(layer.infer((2, 9, 4, 5))) == [(2, 6, 7, 22)]
    assert [spec.shape for spec in layer.parameters()] == [(9, 2, 3, 2), (6,)]


@pytest.mark.parametrize(
    ("settings", "fact"),
    [
        ("kernel_size: 3", "num_output is missing"),
        ("num_output: 2 kernel_size: 3 group: 2", "group 2 does not divide the 3 input channels"),
        ("num_output: 4 kernel_size: 3 group: 3", "group 3 does not divide num_output 4"),
        ("num_output: 2 kernel_size: 3 pad: 4", "pad 4 x 4 leaves nothing of the 7 x 8 image that windows of 3 x 3 with stride 1 x 1 make of 5 x 6"),
    ],
)
def test_refused(settings: str, fact: str) -> None:
    with pytest.raises(Error, match=re.escape(fact)) as caught:
        layer_of(text(settings)).infer((2, 3, 5, 6))
    assert "'up' (Deconvolution)" in str(caught.value)


def test_refused_bottoms() -> None:
    with pytest.raises(Error, match="give each of these bottoms its own Deconvolution layer"):
        layer_of(text("num_output: 2 kernel_size: 3", 2)).infer((2, 3, 5, 5), (2, 3, 5, 6))


def test_message_of_the_type() -> None:
    assert layer_of(text("num_output: 7")).own() == proto.ConvolutionParameter(num_output=7)
