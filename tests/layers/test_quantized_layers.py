"""FakeQuantize, Histogram, rounded weights and integers, compared with numpy on kernels of both device classes."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from numpy.lib.stride_tricks import sliding_window_view

import ocaffe
from ocaffe import proto
from ocaffe.errors import Error
from ocaffe.selftest.quantization import histogram
from tests.layers.quantized_cases import fake_quantize
from tests.layers.single import KINDS, close, run

SCALE = np.float32(0.0625)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(("fields", "zero", "least", "most"), [("", 0, -128, 127), ("zero_point: 30", 30, -128, 127), ("least: 0 most: 255", 0, 0, 255)])
def test_fake_quantize_has_the_gradient_of_lsq(device: Any, kind: str, fields: str, zero: int, least: int, most: int) -> None:
    rng = np.random.default_rng(1)
    x, dy = rng.standard_normal((4, 3, 5)).astype(np.float32) * 8, rng.standard_normal((4, 3, 5)).astype(np.float32)
    result = run(device, kind, f'name: "q" type: "FakeQuantize" fake_quantize_param {{ {fields} }}', [x], [dy], params=[np.array([SCALE])], strided=True)
    close(result.tops[0], fake_quantize(x, SCALE, zero, least, most), 1e-6)
    low, high, ratio = least - zero, most - zero, x / SCALE
    whole = np.rint(ratio)
    inside = (whole >= low) & (whole <= high)
    assert inside.any() and not inside.all()
    close(result.diffs[0], dy * inside)
    slope = np.where(whole < low, low, np.where(whole > high, high, whole - ratio))
    close(result.param_diffs[0], np.array([(dy * slope).sum() / np.sqrt(15 * high)]))


def test_fake_quantize_keeps_nan_and_bounds_infinity(device: Any, kind: str) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 0, -0.0]], np.float32)
    (y,) = run(device, kind, 'name: "q" type: "FakeQuantize"', [x], params=[np.array([SCALE])]).tops
    np.testing.assert_array_equal(y, np.array([[np.nan, 127 * SCALE, -128 * SCALE, 0, 0]], np.float32))


def test_power_of_two(device: Any, kind: str) -> None:
    x = np.linspace(-3, 3, 41, dtype=np.float32)[None]
    (y,) = run(device, kind, 'name: "q" type: "FakeQuantize" fake_quantize_param { power_of_two: true }', [x], params=[np.array([0.05])]).tops
    np.testing.assert_array_equal(y, fake_quantize(x, np.float32(0.0625)))


@pytest.mark.parametrize(("fields", "told"), [
    ("least: 3 most: 3", "least is 3, most is 3"), ("zero_point: 200", "zero_point is 200"), ("scale: 0", "scale is 0"), ("scale: inf", "scale is inf"),
])  # fmt: skip
def test_wrong_fields_of_fake_quantize_are_refused(device: Any, fields: str, told: str) -> None:
    with pytest.raises(Error, match=told):
        run(device, "cpu", f'name: "q" type: "FakeQuantize" fake_quantize_param {{ {fields} }}', [np.zeros((1, 2))], params=[np.ones(1)])


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 40, 50), (70_001,), (1, 1)])
def test_histogram(device: Any, kind: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(shape) * np.exp(rng.normal(0, 6, shape))).astype(np.float32)
    x.reshape(-1)[::7] = 0
    if x.size > 10:
        x.reshape(-1)[1:5] = [np.nan, np.inf, -np.inf, 1e-30]
    counts, extremes = run(device, kind, 'name: "h" type: "Histogram"', [x], strided=len(shape) > 1).tops
    expected, ends = histogram(x)
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_array_equal(extremes, ends.astype(np.float32))


# -- products ----------------------------------------------------------------------------------------------------------

PRODUCTS = {  # the layer, the shapes of its input and weights, and of the weights with the outputs as the kept axes
    "Convolution": ("convolution_param { num_output: 6 group: 2 kernel_size: 3 }", (2, 4, 7, 8), (6, 2, 3, 3), (6, 18), (0,)),
    "Deconvolution": ("convolution_param { num_output: 6 group: 2 kernel_size: 3 stride: 2 }", (2, 4, 5, 4), (4, 3, 3, 3), (2, 2, 3, 9), (0, 2)),
    "InnerProduct": ("inner_product_param { num_output: 5 }", (3, 2, 6), (5, 12), (5, 12), (0,)),
    "InnerProduct transposed": ("inner_product_param { num_output: 5 transpose: true }", (3, 2, 6), (12, 5), (12, 5), (1,)),
}


def on_grid(weights: np.ndarray, shape: tuple[int, ...], kept: tuple[int, ...], bits: int, per_channel: bool, power_of_two: bool) -> np.ndarray:
    form, most = weights.reshape(shape), np.float32(2 ** (bits - 1) - 1)
    axes = tuple(axis for axis in range(len(shape)) if axis not in kept) if per_channel else None
    scale = np.abs(form).max(axis=axes, keepdims=True) / most
    if power_of_two:
        scale = np.exp2(np.ceil(np.log2(scale))).astype(np.float32)
    return np.asarray((np.clip(np.rint(form / scale), -most, most) * scale).reshape(weights.shape))


def net_of(kind: str, shape: tuple[int, ...], rounding: str = "") -> Any:
    fields = PRODUCTS[kind][0]
    text = f"""force_backward: true
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {" ".join(f"dim: {size}" for size in shape)} }} }} }}
layer {{ name: "p" type: "{kind.split()[0]}" bottom: "x" top: "y" {fields} {rounding} }}"""
    return text_format.Parse(text, proto.NetParameter())


@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize(("fields", "bits", "per_channel", "power_of_two"), [
    ("", 8, True, False), ("bits: 4", 4, True, False), ("per_channel: false", 8, False, False), ("power_of_two: true", 8, True, True),
])  # fmt: skip
@pytest.mark.parametrize("phase", [proto.TRAIN, proto.TEST])
def test_products_read_rounded_weights(device: Any, kind: str, fields: str, bits: int, per_channel: bool, power_of_two: bool, phase: int) -> None:
    """Values and gradients are those of a net with the rounded weights. The weights themselves stay."""
    _, shape, weight_shape, form, kept = PRODUCTS[kind]
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal(shape).astype(np.float32), rng.standard_normal(weight_shape).astype(np.float32)
    nets = []
    for rounding, weights in ((f"weight_quantization_param {{ {fields} }}", w), ("", on_grid(w, form, kept, bits, per_channel, power_of_two))):
        net = ocaffe.Net(net_of(kind, shape, rounding), phase=phase, device=device)
        net.params["p"][0].data[...] = weights
        net.blobs["x"].data[...] = x
        net.forward()
        if phase == proto.TRAIN:
            net.blobs["y"].diff[...] = np.cos(np.arange(net.blobs["y"].count)).reshape(net.blobs["y"].shape)
            net.backward()
        nets.append(net)
    own, other = nets
    np.testing.assert_array_equal(own.params["p"][0].data, w)
    close(own.blobs["y"].data, other.blobs["y"].data, 1e-6)
    if phase == proto.TRAIN:
        close(own.params["p"][0].diff, other.params["p"][0].diff, 1e-6)
        close(own.blobs["x"].diff, other.blobs["x"].diff, 1e-6)
    for net in nets:
        net.close()


def test_an_output_without_weights_stays_zero(device: Any) -> None:
    with ocaffe.Net(net_of("InnerProduct", (3, 2, 6), "weight_quantization_param {}"), phase=proto.TEST, device=device) as net:
        net.params["p"][0].data[...] = 1
        net.params["p"][0].data[2] = 0
        net.blobs["x"].data[...] = 1
        net.forward()
        np.testing.assert_allclose(net.blobs["y"].data, np.tile([12, 12, 0, 12, 12], (3, 1)), rtol=1e-6)


@pytest.mark.parametrize(("text", "told"), [
    ('type: "ReLU" weight_quantization_param {}', "the layer is no product of weights"),
    ('type: "InnerProduct" inner_product_param { num_output: 2 } weight_quantization_param { bits: 1 }', "bits: 1"),
    ('type: "InnerProduct" inner_product_param { num_output: 2 } weight_quantization_param { input_scale: 0 }', "input_scale is 0"),
    ('type: "InnerProduct" inner_product_param { num_output: 2 transpose: true } weight_quantization_param { input_scale: 1 }', "transpose"),
    ('type: "Deconvolution" convolution_param { num_output: 2 kernel_size: 1 } weight_quantization_param { input_scale: 1 }', "Convolution and InnerProduct"),
])  # fmt: skip
def test_wrong_settings_of_products_are_refused(device: Any, text: str, told: str) -> None:
    message = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 3 dim: 3 } } }'
    with pytest.raises(Error, match=told), ocaffe.Net(
        text_format.Parse(f'{message} layer {{ name: "p" bottom: "x" top: "y" {text} }}', proto.NetParameter()), phase=proto.TEST, device=device
    ) as net:  # fmt: skip
        net.forward()


# -- integers ----------------------------------------------------------------------------------------------------------


def integer_layer(rng: np.random.Generator) -> tuple[str, tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Return the fields of a random product, the shapes of input and weights, and the window of a convolution."""
    bias = str(bool(rng.random() < 0.7)).lower()
    if rng.random() < 0.3:
        rows, depth, outputs = (int(rng.integers(1, most)) for most in (9, 300, 40))
        return f'type: "InnerProduct" inner_product_param {{ num_output: {outputs} bias_term: {bias} }}', (rows, depth), (outputs, depth), {}
    group = int(rng.choice([1, 1, 2, 3]))
    channels, outputs = group * int(rng.integers(1, 9)), group * int(rng.integers(1, 9))
    if rng.random() < 0.2:
        group = outputs = channels
    kernel, stride, pad, dilation = int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(0, 3)), int(rng.integers(1, 3))
    side = int(rng.integers(dilation * (kernel - 1) + 1, 20))
    window = {"group": group, "kernel_size": kernel, "stride": stride, "pad": pad, "dilation": dilation}
    fields = " ".join(f"{name}: {value}" for name, value in window.items())
    text = f'type: "Convolution" convolution_param {{ num_output: {outputs} bias_term: {bias} {fields} }}'
    return text, (int(rng.integers(1, 4)), channels, side, side + 1), (outputs, channels // group, kernel, kernel), window


def integer_sums(q: np.ndarray, w: np.ndarray, window: dict[str, int]) -> np.ndarray:
    """Return the exact sums of a product of integers."""
    if not window:
        return np.asarray(q @ w.T)
    group, kernel, stride, pad, dilation = window.values()
    span = dilation * (kernel - 1) + 1
    padded = np.pad(q, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    views = sliding_window_view(padded, (span, span), axis=(2, 3))[:, :, ::stride, ::stride, ::dilation, ::dilation]
    views = views.reshape(len(q), group, -1, *views.shape[2:])
    sums = np.einsum("ngchwij,gocij->ngohw", views, w.reshape(group, -1, *w.shape[1:]))
    return np.asarray(sums.reshape(len(q), -1, *sums.shape[3:]))


def check_integers(device: Any, seed: int) -> None:
    """Compare one random product with a model of a chip in numpy, bit by bit."""
    rng = np.random.default_rng(seed)
    text, shape, weight_shape, window = integer_layer(rng)
    zero, scale, bits = int(rng.integers(-60, 60)) * int(rng.integers(2)), np.float32(np.exp(rng.uniform(-8, 2))), int(rng.choice([8, 8, 8, 4, 2]))
    per_channel, power_of_two = bool(rng.random() < 0.7), bool(rng.random() < 0.3)
    rounding = f"bits: {bits} per_channel: {str(per_channel).lower()} power_of_two: {str(power_of_two).lower()}"
    message = f"""layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {" ".join(f"dim: {size}" for size in shape)} }} }} }}
layer {{ name: "p" bottom: "x" top: "y" {text} weight_quantization_param {{ {rounding} input_scale: {float(scale)!r} input_zero_point: {zero} }} }}"""
    q = rng.integers(-128 - zero, 128 - zero, shape)
    w = (rng.standard_normal(weight_shape) * np.exp(rng.uniform(-6, 1, (weight_shape[0], *[1] * (len(weight_shape) - 1))))).astype(np.float32)
    bias = (rng.standard_normal(weight_shape[0]) * np.exp(rng.uniform(-4, 3))).astype(np.float32)
    w[: int(rng.random() < 0.2)] = 0
    most = np.float32(2 ** (bits - 1) - 1)
    largest = np.abs(w.reshape(len(w), -1)).max(axis=1)
    scales = (largest if per_channel else np.full(len(w), largest.max())) / most
    with np.errstate(all="ignore"):
        if power_of_two:
            scales = np.where(scales > 0, np.exp2(np.ceil(np.log2(scales))), 0).astype(np.float32)
        by_output = scales.reshape(-1, *[1] * (w.ndim - 1))
        whole = np.where(by_output > 0, np.clip(np.rint(w / by_output), -most, most), 0).astype(np.int64)
        steps = (scale * scales).astype(np.float32)
        added = np.where(steps > 0, np.clip(np.rint(bias.astype(np.float64) / steps.astype(np.float64)), -(2**30), 2**30), 0).astype(np.int64)
    sums = integer_sums(q, whole, window)
    along = (1, -1, *[1] * (sums.ndim - 2))
    has_bias = "bias_term: true" in text
    expected = (sums + (added.reshape(along) if has_bias else 0)).astype(np.float32) * steps.reshape(along)
    if has_bias:
        expected = np.where(steps.reshape(along) > 0, expected, bias.reshape(along))
    with ocaffe.Net(text_format.Parse(message, proto.NetParameter()), phase=proto.TEST, device=device) as net:
        net.params["p"][0].data[...] = w
        if has_bias:
            net.params["p"][1].data[...] = bias
        net.blobs["x"].data[...] = q.astype(np.float32) * scale
        net.forward()
        np.testing.assert_array_equal(net.blobs["y"].data, expected, err_msg=message)


@pytest.mark.parametrize("seed", range(12))
def test_integers_equal_the_model_in_every_bit(device: Any, seed: int) -> None:
    check_integers(device, seed)


@pytest.mark.sweep
def test_integers_of_500_layers(device: Any) -> None:
    for seed in range(100, 600):
        check_integers(device, seed)


def test_integers_have_no_gradient(device: Any) -> None:
    with pytest.raises(Error, match="no gradient"), ocaffe.Net(
        net_of("InnerProduct", (3, 2, 6), "weight_quantization_param { input_scale: 1 }"), phase=proto.TRAIN, device=device
    ) as net:  # fmt: skip
        net.forward()
