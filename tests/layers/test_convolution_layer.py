"""Convolution: the layer's parameters. tests/kernels tests the kernels, tests/test_golden.py tests all of Caffe's cases."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error
from ocaffe.formats.text import parse
from ocaffe.ir.graph import Blob, Parameter
from ocaffe.ir.recorder import Recorder
from ocaffe.ir.target import Target
from ocaffe.ir.tensor import Ref, Role
from tests.layers.single import KINDS, close, layer_of, run


def text(settings: str, bottoms: int = 1) -> str:
    blobs = " ".join(f"bottom: 'x{i}' top: 'y{i}'" for i in range(bottoms))
    return f"name: 'conv' type: 'Convolution' {blobs} convolution_param {{ {settings} }}"


def shapes(settings: str, *bottom: int) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the shape of the top and the shapes of the parameters."""
    layer = layer_of(text(settings))
    (top,) = layer.infer(bottom)
    return list(top), [spec.shape for spec in layer.parameters()]


@pytest.mark.parametrize(
    ("settings", "bottom", "top", "weight"),
    [
        ("num_output: 4 kernel_size: 3", (2, 3, 9, 10), [2, 4, 7, 8], (4, 3, 3, 3)),
        ("num_output: 4 kernel_size: 3 stride: 2 pad: 1", (2, 3, 9, 10), [2, 4, 5, 5], (4, 3, 3, 3)),
        ("num_output: 4 kernel_size: 3 kernel_size: 2 stride: 2 stride: 3", (2, 3, 9, 10), [2, 4, 4, 3], (4, 3, 3, 2)),
        ("num_output: 4 kernel_h: 3 kernel_w: 1 pad_h: 1 stride_h: 2 stride_w: 1", (2, 3, 9, 10), [2, 4, 5, 10], (4, 3, 3, 1)),
        ("num_output: 4 kernel_size: 3 dilation: 2 dilation: 4", (2, 3, 9, 10), [2, 4, 5, 2], (4, 3, 3, 3)),
        ("num_output: 4 kernel_size: 3 group: 2", (2, 6, 9, 10), [2, 4, 7, 8], (4, 3, 3, 3)),
        ("num_output: 4 kernel_size: 3 force_nd_im2col: true", (2, 3, 9, 10), [2, 4, 7, 8], (4, 3, 3, 3)),
        ("num_output: 4 kernel_size: 2", (2, 3, 9), [2, 4, 8], (4, 3, 2)),
        ("num_output: 4 kernel_size: 2", (2, 3, 4, 5, 6), [2, 4, 3, 4, 5], (4, 3, 2, 2, 2)),
        ("num_output: 4 kernel_size: 3 axis: 2", (5, 2, 3, 9, 10), [5, 2, 4, 7, 8], (4, 3, 3, 3)),
        ("num_output: 4 kernel_size: 3 axis: -3", (5, 2, 3, 9, 10), [5, 2, 4, 7, 8], (4, 3, 3, 3)),
        ("num_output: 4 kernel_size: 3 axis: 0", (3, 9, 10), [4, 7, 8], (4, 3, 3, 3)),
        ("num_output: 4 kernel_size: 2 stride: [1, 1, 1, 2]", (2, 3, 4, 5, 6, 7), [2, 4, 3, 4, 5, 3], (4, 3, 2, 2, 2, 2)),
        ("num_output: 4 kernel_size: 3 dilation_h: 2 dilation_w: 4", (2, 3, 9, 10), [2, 4, 5, 2], (4, 3, 3, 3)),
        ("num_output: 4 kernel_size: 3 filter_stride: 2", (2, 3, 9, 10), [2, 4, 5, 6], (4, 3, 3, 3)),
        ("num_output: 4 kernel_size: 3 filter_stride_h: 2 filter_stride_w: 4", (2, 3, 9, 10), [2, 4, 5, 2], (4, 3, 3, 3)),
        ("num_output: 4", (2, 3), [2, 4], (4, 3)),
        ("num_output: 4 kernel_size: 3 stride: 2", (2, 3, 4, 2), [2, 4, 1, 1], (4, 3, 3, 3)),  # the window is a pixel larger: Caffe's division rounds to 0
        ("num_output: 4 kernel_size: 5 stride: 4 pad: 1", (2, 3, 1), [2, 4, 1], (4, 3, 5)),
    ],
)
def test_shapes(settings: str, bottom: tuple[int, ...], top: list[int], weight: tuple[int, ...]) -> None:
    assert shapes(settings, *bottom) == (top, [weight, (4,)])
    assert shapes(f"{settings} bias_term: false", *bottom) == (top, [weight])


@pytest.mark.parametrize(
    ("settings", "bottom", "fact"),
    [
        ("kernel_size: 3", (2, 3, 5, 5), "num_output is missing"),
        ("num_output: 2", (2, 3, 5, 5), "kernel_size is missing"),
        ("num_output: 2 kernel_size: 0", (2, 3, 5, 5), "kernel_size is 0 x 0"),
        ("num_output: 2 kernel_size: 3 stride: 0", (2, 3, 5, 5), "stride is 0 x 0"),
        ("num_output: 2 kernel_size: 3 dilation: 0", (2, 3, 5, 5), "dilation is 0 x 0"),
        ("num_output: 2 kernel_size: 3 kernel_h: 3 kernel_w: 3", (2, 3, 5, 5), "kernel_size and kernel_h and kernel_w are both given"),
        ("num_output: 2 kernel_h: 3", (2, 3, 5, 5), "kernel_h is given alone"),
        ("num_output: 2 kernel_size: 3 stride_w: 2", (2, 3, 5, 5), "stride_w is given alone"),
        ("num_output: 2 kernel_size: 3 stride: 1 stride_h: 2 stride_w: 2", (2, 3, 5, 5), "stride and stride_h and stride_w are both given"),
        ("num_output: 2 kernel_size: 3 pad: 1 pad_w: 2", (2, 3, 5, 5), "pad and pad_w are both given"),
        ("num_output: 2 kernel_h: 3 kernel_w: 3", (2, 3, 5), "kernel_h is given, but the layer has 1 spatial axes"),
        ("num_output: 2 kernel_size: [3, 3, 3]", (2, 3, 5, 5), "kernel_size is given 3 times for 2 spatial axes"),
        ("num_output: 2 kernel_size: 3 pad: [1, 1, 1]", (2, 3, 5, 5), "pad is given 3 times for 2 spatial axes"),
        ("num_output: 4 kernel_size: 3 group: 2", (2, 3, 5, 5), "group 2 does not divide the 3 input channels"),
        ("num_output: 3 kernel_size: 3 group: 2", (2, 4, 5, 5), "group 2 does not divide num_output 3"),
        ("num_output: 3 kernel_size: 3 group: 0", (2, 4, 5, 5), "group 0 does not divide the 4 input channels"),
        ("num_output: 2 kernel_size: 7 pad: 1", (2, 3, 9, 4), "the window spans 7 x 7 pixels, more than the padded 9 x 4 image (pad 1 x 1)"),
        ("num_output: 2 kernel_size: 4 stride: 2", (2, 3, 4, 2), "the window spans 4 x 4 pixels, more than the padded 4 x 2 image"),
        ("num_output: 2 kernel_size: 3 dilation: 2", (2, 3, 5, 4), "the window spans 5 x 5 pixels"),
        ("num_output: 2 kernel_size: 3 dilation_h: 2 dilation_w: 2 dilation: 2", (2, 3, 5, 5), "dilation and dilation_h and dilation_w are both given"),
        ("num_output: 2 kernel_size: 3 filter_stride: 2 dilation: 2", (2, 3, 5, 5), "filter_stride and dilation are given"),
        ("num_output: 2 kernel_size: 3 filter_stride_h: 2", (2, 3, 9, 9), "filter_stride_h is given alone"),
        ("num_output: 2 kernel_size: 3 fuse_type: FUSED_CONV_ELTWISE_RELU", (2, 3, 5, 5), "fuse_type: FUSED_CONV_ELTWISE_RELU (of the OpenCL fork)"),
        ("num_output: 2 kernel_size: 3 fuse_type: FUSED_CONV_MAX_POOLING_RELU", (2, 3, 5, 5), "fuse_type: FUSED_CONV_MAX_POOLING_RELU"),
        ("num_output: 2 kernel_size: 3 fuse_type: FUSED_CONV_RELU relu: true", (2, 3, 5, 5), "relu: true and fuse_type: FUSED_CONV_RELU are both"),
        ("num_output: 2 kernel_size: 3 relu: true negative_slope: -1", (2, 3, 5, 5), "the negative_slope of the merged ReLU is -1"),
        ("num_output: 2 kernel_size: 1 axis: 4", (2, 3, 5, 5), "axis 4 is outside the 4 axes"),
    ],
)
def test_refused(settings: str, bottom: tuple[int, ...], fact: str) -> None:
    with pytest.raises(Error) as caught:
        layer_of(text(settings)).infer(bottom)
    assert fact in str(caught.value)
    assert "'conv' (Convolution)" in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad", "image"),
    [((3, 3), (2, 2), (0, 0), (4, 2)), ((5, 2), (3, 3), (1, 0), (1, 4)), ((4,), (4,), (0,), (1,)), ((2, 3, 5), (2, 2, 4), (0, 0, 0), (1, 3, 2))],
)
def test_windows_beyond_the_image(
    device: Any, kind: str, group: int, kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...], image: tuple[int, ...]
) -> None:
    """A single window may be larger than the padded image. The result is that of an image with zeros behind it."""
    rng = np.random.default_rng(len(kernel))
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 4, *image), (4, 4 // group, *kernel), (4,)))
    beyond = [max(k - size - 2 * p, 0) for k, size, p in zip(kernel, image, pad)]
    larger = np.pad(x, [(0, 0), (0, 0), *((0, more) for more in beyond)])
    fields = " ".join(f"{name}: [{', '.join(map(str, sizes))}]" for name, sizes in (("kernel_size", kernel), ("stride", stride), ("pad", pad)))
    layer = text(f"num_output: 4 group: {group} {fields}")
    out = layer_of(layer).infer(larger.shape)[0]
    dy = rng.standard_normal(out).astype(np.float32)
    got, expected = (run(device, kind, layer, [image], [dy], params=[w, b]) for image in (x, larger))
    close(got.tops[0], expected.tops[0], 1e-6)
    dx = expected.diffs[0]
    assert got.diffs[0] is not None and dx is not None
    close(got.diffs[0], dx[(slice(None), slice(None), *(slice(size) for size in image))], 1e-6)
    for a, b in zip(got.param_diffs, expected.param_diffs):
        close(a, b, 1e-6)


def test_bottoms_must_be_alike() -> None:
    with pytest.raises(Error, match="bottoms differ: 2 x 3 x 5 x 5 and 2 x 3 x 5 x 6"):
        layer_of(text("num_output: 2 kernel_size: 3", 2)).infer((2, 3, 5, 5), (2, 3, 5, 6))
    with pytest.raises(Error, match="2 bottoms and 1 tops"):
        layer_of(text("num_output: 2 kernel_size: 3")).infer((2, 3, 5, 5), (2, 3, 5, 5))


def convolve(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Convolve in float64 with stride 1, no padding and one group."""
    rows, columns = x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1
    taps = [(i, j) for i in range(w.shape[2]) for j in range(w.shape[3])]
    return sum(np.einsum("nchw,oc->nohw", x[:, :, i : i + rows, j : j + columns], w[:, :, i, j]) for i, j in taps)


def gradients(x: np.ndarray, w: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return dx and dw of `convolve`."""
    padded = np.pad(dy, ((0, 0), (0, 0), (w.shape[2] - 1,) * 2, (w.shape[3] - 1,) * 2))
    dx = convolve(padded, w[:, :, ::-1, ::-1].swapaxes(0, 1))
    return dx, convolve(x.swapaxes(0, 1), dy.swapaxes(0, 1)).swapaxes(0, 1)


RNG = np.random.default_rng(7)
W, B = RNG.normal(size=(4, 3, 3, 3)), RNG.normal(size=4)


@pytest.mark.parametrize("kind", KINDS)
def test_several_bottoms_share_the_filters(device: Any, kind: str) -> None:
    xs, dys = RNG.normal(size=(2, 2, 3, 6, 7)), RNG.normal(size=(2, 2, 4, 4, 5))
    result = run(device, kind, text("num_output: 4 kernel_size: 3", 2), xs, dys, params=[W, B], strided=True, held=0.5)
    wanted = [gradients(x, W, dy) for x, dy in zip(xs, dys)]
    for top, diff, x, (dx, _) in zip(result.tops, result.diffs, xs, wanted):
        close(top, convolve(x, W) + B.reshape(-1, 1, 1), 1e-5)
        close(diff, dx + 0.5, 1e-5)
    close(result.param_diffs[0], wanted[0][1] + wanted[1][1], 1e-5)
    close(result.param_diffs[1], dys.sum((0, 1, 3, 4)), 1e-5)


@pytest.mark.parametrize("axis", [2, -3])
def test_axes_before_the_channels_are_one_batch(device: Any, axis: int) -> None:
    x, dy = RNG.normal(size=(2, 3, 3, 6, 7)), RNG.normal(size=(2, 3, 4, 4, 5))
    result = run(device, "cpu", text(f"num_output: 4 kernel_size: 3 axis: {axis}"), [x], [dy], params=[W, B])
    flat, flat_dy = x.reshape(6, 3, 6, 7), dy.reshape(6, 4, 4, 5)
    dx, dw = gradients(flat, W, flat_dy)
    close(result.tops[0], (convolve(flat, W) + B.reshape(-1, 1, 1)).reshape(dy.shape), 1e-5)
    close(result.diffs[0], dx.reshape(x.shape), 1e-5)
    close(result.param_diffs[0], dw, 1e-5)


RELUS = [("relu: true", 0.0), ("relu: true negative_slope: 0.5", 0.5), ("fuse_type: FUSED_CONV_RELU relu_param { negative_slope: 0.25 }", 0.25)]


@pytest.mark.parametrize(("settings", "slope"), RELUS)
def test_relu_of_forks(device: Any, settings: str, slope: float) -> None:
    xs, dys = RNG.normal(size=(2, 2, 3, 6, 7)), RNG.normal(size=(2, 2, 4, 4, 5))
    result = run(device, "cpu", text(f"num_output: 4 kernel_size: 3 {settings}", 2), xs, dys, params=[W, B], strided=True, held=0.5)
    linear = [convolve(x, W) + B.reshape(-1, 1, 1) for x in xs]
    given = [np.where(y > 0, dy, slope * dy) for y, dy in zip(linear, dys)]
    wanted = [gradients(x, W, dy) for x, dy in zip(xs, given)]
    for top, diff, y, (dx, _) in zip(result.tops, result.diffs, linear, wanted):
        close(top, np.where(y > 0, y, slope * y), 1e-5)
        close(diff, dx + 0.5, 1e-5)
    close(result.param_diffs[0], wanted[0][1] + wanted[1][1], 1e-5)
    close(result.param_diffs[1], sum(dy.sum((0, 2, 3)) for dy in given), 1e-5)


def test_relu_of_forks_costs_no_launch(device: Any) -> None:
    """In a net it is fused into the product, like a ReLU layer."""
    x = RNG.normal(size=(2, 3, 6, 7)).astype(np.float32)
    inputs = "layer { name: 'data' type: 'Input' top: 'x0' input_param { shape { dim: 2 dim: 3 dim: 6 dim: 7 } } }"
    results, launches = [], []
    for ending in ("relu: true", ""):
        conv = f"num_output: 4 kernel_size: 3 weight_filler {{ type: 'xavier' }} {ending}"
        relu = "" if ending else "layer { name: 'relu' type: 'ReLU' bottom: 'y0' top: 'y0' }"
        net = Net(parse(f"{inputs} layer {{ {text(conv)} }} {relu}", proto.NetParameter, "net"), proto.TEST, device=device, keep=[])
        results.append(net.forward(x0=x)["y0"].copy())
        schedule = net._network.nets.compiled(net._engine.options).recording.schedule
        launches.append([launch.what for launch in schedule])
        net.close()
    np.testing.assert_array_equal(*results)
    assert results[0].min() == 0 and launches[0] == launches[1]


def test_without_spatial_axes_it_is_a_matrix_product(device: Any) -> None:
    x, w = RNG.normal(size=(5, 3)), RNG.normal(size=(4, 3))
    result = run(device, "cpu", text("num_output: 4"), [x], params=[w, B])
    close(result.tops[0], x @ w.T + B, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", ["num_output: 4", "num_output: 3 group: 3"])
@pytest.mark.parametrize("layer_type", ["Convolution", "Deconvolution"])
def test_no_samples_give_no_gradient(device: Any, kind: str, settings: str, layer_type: str) -> None:
    """The bottom may have 0 rows if a detection layer found no object."""
    described = text(f"{settings} kernel_size: 3").replace("'Convolution'", f"'{layer_type}'")
    layer = layer_of(described)
    (out,) = layer.infer((0, 3, 5, 5))
    weight, bias = (np.ones(spec.shape) for spec in layer.parameters())
    result = run(device, kind, described, [np.zeros((0, 3, 5, 5))], [np.zeros(out)], params=[weight, bias])
    assert result.tops[0].shape == out and result.diffs[0] is not None
    for gradient, parameter in zip(result.param_diffs, (weight, bias)):
        np.testing.assert_array_equal(gradient, np.zeros(parameter.shape))


def blob(name: str, shape: tuple[int, ...]) -> Blob:
    return Blob(name, shape, data=Ref(name, shape, Role.ACTIVATION), diff=Ref(f"{name}.diff", shape, Role.DIFF))


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("propagates", [True, False])
def test_backward_does_what_is_asked_for(learns: bool, propagates: bool) -> None:
    """Frozen filters get no gradient, and bottoms without propagation get no diff. The test needs no device."""
    layer = layer_of(text("num_output: 4 kernel_size: 3"))
    x, y = blob("x", (2, 3, 6, 7)), blob("y", (2, 4, 4, 5))
    layer.infer(x.shape)
    layer.params = [Parameter("conv", i, spec.shape, spec.filler) for i, spec in enumerate(layer.parameters())]
    for parameter in layer.params:
        parameter.data = Ref(f"param{parameter.index}", parameter.shape, Role.PARAMETER)
        parameter.diff = Ref(f"param{parameter.index}.diff", parameter.shape, Role.GRADIENT) if learns else None
    rec = Recorder(Target(), train=True)
    rec.enter("conv", "backward")
    layer.backward(rec, [y], [x], [propagates])
    wanted = ([x.diff] if propagates else []) + [parameter.diff for parameter in layer.params if learns]
    assert {ref for launch in rec.launches for ref in launch.writes if ref.role is not Role.SCRATCH} == set(wanted)
