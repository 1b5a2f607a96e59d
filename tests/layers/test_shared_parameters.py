"""Layers that share a parameter by its name, each in its own shape (share_mode: PERMISSIVE)."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.errors import Error

pytestmark = pytest.mark.unoptimised

SIZES = "num_output: {0} bias_term: false"
IP4, IP6 = (f"type: 'InnerProduct' inner_product_param {{ {SIZES.format(outputs)} }}" for outputs in (4, 6))
POINT = "type: 'Convolution' convolution_param { num_output: 4 bias_term: false kernel_size: 1 }"
SCALE, BIAS = (f"type: '{kind}' {kind.lower()}_param {{{{ {{}} }}}}" for kind in ("Scale", "Bias"))
WINDOW = "type: '{}' convolution_param {{ num_output: {} bias_term: false kernel_size: 3 }}"
RECURRENT = "type: '{}' recurrent_param {{ num_output: {} }}"
EMBED = "type: 'Embed' embed_param {{ num_output: {} input_dim: {} bias_term: false }}"
Shape = tuple[int, ...]
PAIRS: dict[str, tuple[str, Shape, str, Shape]] = {
    "InnerProduct": (IP4, (2, 6), IP6, (2, 4)),
    "transposed": (IP4, (2, 6), "type: 'InnerProduct' inner_product_param { num_output: 3 transpose: true bias_term: false }", (2, 8)),
    "Parameter": ("type: 'Parameter' parameter_param { shape { dim: [4, 6] } }", (), IP6, (2, 4)),
    "Convolution": (WINDOW.format("Convolution", 4), (2, 2, 5, 5), WINDOW.format("Convolution", 2), (2, 4, 5, 5)),
    "Deconvolution": (WINDOW.format("Deconvolution", 4), (2, 2, 5, 5), WINDOW.format("Deconvolution", 2), (2, 4, 5, 5)),
    "InnerProduct and Convolution": (IP4, (2, 6), POINT, (2, 6, 3, 3)),
    "Embed": (EMBED.format(4, 6), (3,), EMBED.format(6, 4), (3,)),
    "InnerProduct and Embed": (IP4, (2, 6), EMBED.format(4, 6), (3,)),
    "Scale": (SCALE.format("axis: 1"), (2, 6, 3), SCALE.format("axis: 1 num_axes: 2"), (2, 2, 3)),
    "Scale of two axes": (SCALE.format("axis: 1 num_axes: 2"), (2, 2, 3), SCALE.format("axis: 1"), (2, 6, 3)),
    "Bias": (BIAS.format("axis: 1"), (2, 6, 3), BIAS.format("axis: 1 num_axes: 2"), (2, 2, 3)),
    "Scale and Bias": (SCALE.format("axis: 1"), (2, 6, 3), BIAS.format("axis: 1 num_axes: 2"), (2, 2, 3)),
    "PReLU": ("type: 'PReLU'", (2, 1, 3), "type: 'PReLU' prelu_param { channel_shared: true }", (2, 5, 3)),
    "PReLU and Scale": ("type: 'PReLU'", (2, 6, 3), SCALE.format("axis: 1 num_axes: 2"), (2, 2, 3)),
    "LSTM": (RECURRENT.format("LSTM", 2), (2, 2, 3), RECURRENT.format("LSTM", 1), (2, 2, 6)),
    "RNN": (RECURRENT.format("RNN", 2), (2, 2, 3), RECURRENT.format("RNN", 1), (2, 2, 6)),
}


def net_text(pair: str, first: str, second: str) -> str:
    """Return a net of the two layers. `first` and `second` are inside of their param."""
    one, one_shape, two, two_shape = PAIRS[pair]
    text = "force_backward: true\n"
    for name, kind, shape, spec in (("a", one, one_shape, first), ("b", two, two_shape, second)):
        bottoms = f"bottom: '{name}'" if shape else ""
        if shape:
            text += f"layer {{ name: 'in{name}' type: 'Input' top: '{name}' input_param {{ shape {{ dim: {list(shape)} }} }} }}\n"
        if "recurrent" in kind:
            text += f"layer {{ name: 'c{name}' type: 'Input' top: 'c{name}' input_param {{ shape {{ dim: {list(shape[:2])} }} }} }}\n"
            bottoms += f" bottom: 'c{name}'"
        text += f"layer {{ name: '{name}l' {kind} {bottoms} top: '{name}y' param {{ {spec} }} }}\n"
        text += f"layer {{ name: '{name}r' type: 'Reduction' bottom: '{name}y' top: '{name}r' loss_weight: 1 reduction_param {{ operation: SUMSQ }} }}\n"
    return text


def ran(text: str, device: Any, batch: int = 0, **options: Any) -> Net:
    """Return the net after a forward and backward pass with values that depend on the names."""
    net = Net(text_format.Parse(text, proto.NetParameter()), proto.TRAIN, device=device, **options)
    for number, (name, blobs) in enumerate(net.params.items()):
        for index, blob in enumerate(blobs if name != "norm" else ()):
            seed = 0 if index == 0 else number + index  # the weight is the same in both layers
            blob.data[...] = np.random.default_rng(seed).standard_normal(blob.data.size).reshape(blob.shape)
    for name in net.inputs:
        shape = (batch, *net.blobs[name].shape[1:]) if batch else net.blobs[name].shape
        net.blobs[name].reshape(*shape)
        values = np.random.default_rng(7).standard_normal(shape)
        indices = "'Embed'" in text and len(shape) == 1
        net.blobs[name].data[...] = np.arange(len(values)) if indices else (values > 0) if name.startswith("c") else values
    net.forward()
    net.backward()
    return net


@pytest.mark.parametrize("batch", [0, 3])
@pytest.mark.parametrize("pair", PAIRS)
def test_each_layer_has_its_own_shape(device: Any, pair: str, batch: int) -> None:
    """The shared weight has the numbers of two layers with equal weights. Its gradient is the sum of theirs."""
    if batch and ("Parameter" in pair or "NN" in pair or "LSTM" in pair):
        pytest.skip("the first axis is not the batch")
    shared = ran(net_text(pair, "name: 'w'", "name: 'w' share_mode: PERMISSIVE"), device, batch)
    apart = ran(net_text(pair, "", ""), device, batch)
    for blob in ("ay", "by"):
        np.testing.assert_allclose(shared.blobs[blob].data, apart.blobs[blob].data, rtol=1e-5, atol=1e-6)
    for blob in apart.inputs:
        np.testing.assert_allclose(shared.blobs[blob].diff, apart.blobs[blob].diff, rtol=1e-5, atol=1e-5)
    weights = [apart.params[name][0] for name in ("al", "bl")]
    total = sum(np.array(weight.diff).ravel() for weight in weights)
    for name, weight in zip(("al", "bl"), weights):
        assert shared.params[name][0].shape == weight.shape
        np.testing.assert_allclose(np.array(shared.params[name][0].diff).ravel(), total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair != "Deconvolution"])
def test_strict_needs_one_shape(pair: str) -> None:
    with pytest.raises(Error, match="cannot share param 'w' owned by layer 'al'") as caught:
        Net(text_format.Parse(net_text(pair, "name: 'w'", "name: 'w'"), proto.NetParameter()), proto.TRAIN)
    assert "set share_mode: PERMISSIVE in this param, because the counts agree" in str(caught.value)


def test_permissive_needs_one_count() -> None:
    text = net_text("InnerProduct", "name: 'w'", "name: 'w' share_mode: PERMISSIVE").replace("num_output: 6", "num_output: 5")
    with pytest.raises(Error, match="it is 4 x 6 there, 5 x 4 here") as caught:
        Net(text_format.Parse(text, proto.NetParameter()), proto.TRAIN)
    assert "give both layers the settings that make the shapes equal" in str(caught.value)


def test_scale_is_fused_in_its_own_shape(device: Any) -> None:
    """A BatchNorm layer that is fused with a Scale layer reads the Scale's weight as a vector."""
    losses = []
    for first, second in (("name: 'w'", "name: 'w' share_mode: PERMISSIVE"), ("", "")):
        text = net_text("Scale of two axes", first, second)
        text = text.replace("layer { name: 'bl'", "layer { name: 'norm' type: 'BatchNorm' bottom: 'b' top: 'n' }\nlayer { name: 'bl'")
        net = ran(text.replace("bottom: 'b' top: 'by'", "bottom: 'n' top: 'by'"), device, keep=[])
        losses.append(float(net.blobs["br"].data))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
