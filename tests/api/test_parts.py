"""Partial passes (start=, end=, hooks, repeated backward) give Caffe's results, whatever whole passes fuse or recycle.

Caffe has one buffer for each blob name.
"""
from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import ocaffe as caffe
from ocaffe.errors import Error
from ocaffe.ir.launch import roots
from tests.api.nets import LEARNING, SMALL, net, numbers
from tests.passes.random_nets import RandomNet

CHAIN = """
name: "chain" force_backward: true
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 6 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true filler { value: 3 } bias_filler { value: 1 } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "drop" type: "Dropout" bottom: "pool" top: "drop" }
layer { name: "ip" type: "InnerProduct" bottom: "drop" top: "ip" inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 1 } } }
"""
OWN_NAMES = CHAIN
for old, new in (
    ('type: "BatchNorm" bottom: "conv" top: "conv"', 'type: "BatchNorm" bottom: "conv" top: "bn"'),
    ('type: "Scale" bottom: "conv" top: "conv"', 'type: "Scale" bottom: "bn" top: "scale"'),
    ('type: "ReLU" bottom: "conv" top: "conv"', 'type: "ReLU" bottom: "scale" top: "relu"'),
    ('bottom: "conv" top: "pool"', 'bottom: "relu" top: "pool"'),
):
    OWN_NAMES = OWN_NAMES.replace(old, new)
IMAGE = numbers(4, 3, 6, 6)


def normalised(conv: np.ndarray) -> np.ndarray:
    return (conv - conv.mean((0, 2, 3), keepdims=True)) / np.sqrt(conv.var((0, 2, 3), keepdims=True) + 1e-5)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("text", [CHAIN, OWN_NAMES], ids=["in-place", "own-names"])
@pytest.mark.parametrize("before", [False, True], ids=["fresh", "after-whole-passes"])
def test_every_border_of_a_chain_that_is_one_launch(device: Any, text: str, before: bool) -> None:
    chain = net(device, text, caffe.TRAIN)
    if before:
        chain.forward(data=IMAGE)
        chain.backward(ip=numbers(4, 3))
    conv = chain.forward(data=IMAGE, end="conv")["conv"].copy()
    bn = next(iter(chain.forward(start="bn", end="bn").values())).copy()
    scale = next(iter(chain.forward(start="scale", end="scale").values())).copy()
    relu = next(iter(chain.forward(start="relu", end="relu").values())).copy()
    assert conv.any()
    close(bn, normalised(conv))
    close(scale, 3 * bn + 1)
    close(relu, np.maximum(scale, 0))
    if text is CHAIN:  # one buffer as in Caffe: a repeated layer works on the result of the last layer with that name
        close(chain.forward(start="scale", end="scale")["conv"], 3 * relu + 1)
        close(chain.blobs["conv"].data, 3 * relu + 1)


def test_what_a_script_writes_between_parts_is_what_the_next_reads(device: Any) -> None:
    chain = net(device, CHAIN, caffe.TRAIN)
    chain.forward(data=IMAGE)
    held = chain.blobs["conv"].data
    held[...] = 5
    assert (chain.forward(start="pool", end="pool")["pool"] == 5).all(), "pool reads the last value of the name"
    held[...] = -2
    close(chain.forward(start="scale", end="relu")["conv"], np.zeros_like(held))
    close(held, np.zeros_like(held))


def test_an_array_that_is_held_stays_connected_over_the_first_part(device: Any) -> None:
    small = net(device)
    image, pool = small.blobs["data"].data, small.blobs["pool"].data
    for part in ({}, {"end": "pool"}, {"end": "pool"}, {}):
        image[...] = numbers(2, 3, 8, 8, seed=len(part) + 3)
        expected = net(device, seed=0).forward(["pool"], data=image)["pool"]
        small.forward(**part)
        close(pool, expected)


def reference(device: Any, text: str = CHAIN) -> tuple[caffe.Net, np.ndarray, np.ndarray]:
    """Return a net after whole passes, the diff of its output, and the gradient of conv's weights."""
    chain, slope = net(device, text, caffe.TRAIN), numbers(4, 3, seed=7)
    chain.forward(data=IMAGE)
    chain.backward(ip=slope)
    return chain, slope, chain.params["conv"][0].diff.copy()


@pytest.mark.parametrize("text", [CHAIN, OWN_NAMES], ids=["in-place", "own-names"])
def test_backward_in_parts_is_backward(device: Any, text: str) -> None:
    chain, slope, whole = reference(device, text)
    chain.clear_param_diffs()
    chain.blobs["ip"].diff[...] = slope
    for start, end in (("ip", "drop"), ("pool", "scale"), ("bn", "bn"), ("conv", "data")):
        chain.backward(start=start, end=end)
    np.testing.assert_allclose(chain.params["conv"][0].diff, whole, rtol=1e-4, atol=1e-5 * np.abs(whole).max())


def test_backward_again_without_forward(device: Any) -> None:
    """Scripts compute a Jacobian row by row like this. The second backward cannot use planned memory of the first."""
    chain, slope, whole = reference(device)
    image_slope = chain.blobs["data"].diff.copy()
    for _ in range(2):
        chain.clear_param_diffs()
        found = chain.backward(ip=slope)["data"]
        np.testing.assert_allclose(chain.params["conv"][0].diff, whole, rtol=1e-4, atol=1e-5 * np.abs(whole).max())
        np.testing.assert_allclose(found, image_slope, rtol=1e-4, atol=1e-5 * np.abs(image_slope).max())


def test_what_whole_passes_had_on_the_device_is_given_back(device: Any) -> None:
    chain, _, _ = reference(device)
    for _ in range(2):
        chain.backward(start="pool")
        chain.forward(end="pool")
    session = chain._network.session
    assert len(session.command_lists) == 1 and set(session._persistent) <= set(roots(session.command_lists[0].schedule)) | {chain._network.group.held}


def test_the_first_part_repeats_forward_without_a_trace(device: Any) -> None:
    """Running statistics advance once, Dropout draws the same mask, and values that a script set are kept."""
    chain = net(device, CHAIN, caffe.TRAIN)
    chain.forward(data=IMAGE)
    statistics = [blob.data.copy() for blob in chain.params["bn"]]
    kept = {name: blob.data.copy() for name, blob in chain.blobs.items()}
    chain.blobs["pool"].diff[...] = 1
    assert kept["drop"].any() and not kept["drop"].all()
    chain.backward(start="pool")
    for blob, value in zip(chain.params["bn"], statistics):
        np.testing.assert_array_equal(blob.data, value)
    for name, value in kept.items():
        np.testing.assert_allclose(chain.blobs[name].data, value, rtol=1e-5, atol=1e-6)
    assert (chain.blobs["pool"].diff == 1).all() and np.abs(chain.blobs["data"].diff).max() > 0


def test_a_diff_in_the_middle_of_an_in_place_name(device: Any) -> None:
    """As in visualisations: the objective is the raw output of a convolution with an in-place ReLU."""
    small = net(device, "force_backward: true" + SMALL)
    small.forward(data=numbers(2, 3, 8, 8), end="conv")
    raw = small.blobs["conv"].data
    assert raw.min() < 0
    small.blobs["conv"].diff[...] = raw
    found = small.backward(start="conv")["data"]
    weight = small.params["conv"][0].data
    expected = np.zeros_like(found)
    for row in range(6):
        for column in range(6):
            expected[:, :, row : row + 3, column : column + 3] += np.einsum("no,oihw->nihw", raw[:, :, row, column], weight)
    close(found, expected)


def test_hooks_see_each_layer_of_a_fused_chain(device: Any) -> None:
    chain, seen = net(device, CHAIN, caffe.TRAIN), {}
    chain.after_forward(lambda index: seen.setdefault(chain._layer_names[index], chain.blobs["conv"].data.copy()))
    chain.forward(data=IMAGE)
    close(seen["bn"], normalised(seen["conv"]))
    close(seen["scale"], 3 * seen["bn"] + 1)
    close(seen["relu"], np.maximum(seen["scale"], 0))


def test_profile_leaves_layers_merged(device: Any) -> None:
    chain = net(device, CHAIN, caffe.TRAIN)
    profile = chain.profile(2)
    assert [layer.name for layer in profile.layers] == chain._layer_names and profile.forward_ms > 0
    assert not chain._engine.options.apart


def test_parts_begin_with_kept_values_only(device: Any) -> None:
    planned = net(device, CHAIN, caffe.TRAIN, keep=["ip"])
    planned.forward(data=IMAGE)
    with pytest.raises(Error, match="needs blob 'pool', whose memory other blobs reuse") as caught:
        planned.forward(start="drop")
    assert "keep=['pool']" in str(caught.value.fix)
    with pytest.raises(Error, match="needs the diff of blob 'pool'") as caught:
        planned.backward(start="pool")
    assert "keep=['pool']" in str(caught.value.fix)
    with pytest.raises(Error, match="memory of blob 'pool'"):
        planned.backward(diffs=["pool"])
    with pytest.raises(Error, match="memory of blob 'pool'"):
        planned.backward(end="drop")
    assert list(planned.backward(ip=numbers(4, 3))) == [], "what was not asked for is left out where it is not kept"


def test_parts_of_a_net_with_kept_blobs(device: Any) -> None:
    chain, slope, whole = reference(device)
    planned = net(device, CHAIN, caffe.TRAIN, keep=["pool", "data"])
    planned.forward(data=IMAGE)
    planned.backward(ip=slope)
    planned.clear_param_diffs()
    planned.blobs["pool"].diff[...] = chain.blobs["pool"].diff
    planned.backward(start="pool")
    np.testing.assert_allclose(planned.params["conv"][0].diff, whole, rtol=1e-4, atol=1e-5 * np.abs(whole).max())


def test_a_limit_that_parts_cannot_keep(device: Any) -> None:
    probe = net(device, CHAIN, caffe.TRAIN, keep=[])
    probe.forward()
    limited = net(device, CHAIN, caffe.TRAIN, keep=[], memory_limit=probe.plan().total)
    limited.forward(data=IMAGE)
    with pytest.raises(Error, match=r"to run a part of the net, every blob needs its own memory(?s:.*)are allowed"):
        limited.forward(end="pool")
    assert limited.forward()["ip"].any()


def test_backward_needs_a_forward(device: Any) -> None:
    """A net that never ran has zeros, as in Caffe. After a reshape there are no values."""
    fresh = net(device, CHAIN, caffe.TRAIN)
    fresh.backward()
    assert not any(blob.diff.any() for blobs in fresh.params.values() for blob in blobs)
    chain, slope, _ = reference(device)
    chain.blobs["data"].reshape(2, 3, 6, 6)
    chain.reshape()
    with pytest.raises(Error, match="not in memory"):
        chain.backward(ip=slope[:2])


def test_nets_that_share_weights_keep_what_forward_left(device: Any) -> None:
    """The TEST net of a script that shares weights runs between forward and backward of the TRAIN net."""
    _, slope, whole = reference(device)
    first, second = net(device, CHAIN, caffe.TRAIN), net(device, CHAIN, caffe.TEST, seed=9)
    second.share_with(first)
    first.forward(data=IMAGE)
    second.forward(data=10 * numbers(4, 3, 6, 6, seed=5))
    first.backward(ip=slope)
    np.testing.assert_allclose(first.params["conv"][0].diff, whole, rtol=1e-4, atol=1e-5 * np.abs(whole).max())


class Counter(caffe.Layer):
    """Data that changes with every forward pass."""

    def setup(self, bottom: list[Any], top: list[Any]) -> None:
        self.count = 0

    def reshape(self, bottom: list[Any], top: list[Any]) -> None:
        top[0].reshape(4, 3, 6, 6)

    def forward(self, bottom: list[Any], top: list[Any]) -> None:
        self.count += 1
        top[0].data[...] = self.count * IMAGE


def test_what_cannot_be_repeated_is_told_once(device: Any) -> None:
    begin, end = CHAIN.index("layer {"), CHAIN.index('layer { name: "conv"')
    python = f'layer {{ name: "data" type: "Python" top: "data" python_param {{ module: "{__name__}" layer: "Counter" }} }}\n'
    made = net(device, CHAIN[:begin] + python + CHAIN[end:], caffe.TRAIN)
    made.forward()
    with pytest.raises(Error, match="layer 'data' gives different values each time"):
        made.backward(start="pool")
    with pytest.raises(Error, match="not in memory"):
        made.backward(start="pool")
    made.forward()
    np.testing.assert_array_equal(made.blobs["data"].data, 2 * IMAGE)
    made.backward(start="pool")
    other = net(device, CHAIN[:begin] + python + CHAIN[end:], caffe.TRAIN)
    other.forward()
    close(other.forward(end="data")["data"], 2 * IMAGE)
    with pytest.raises(Error, match="not in memory"):
        other.backward()


def test_losses_of_a_part(device: Any) -> None:
    learning = net(device, LEARNING, caffe.TRAIN)
    loss = learning.forward(data=numbers(4, 3))["loss"].copy()
    assert learning._forward(2, 2) == pytest.approx(float(loss), rel=1e-6) and learning._forward(0, 1) == 0


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(4, 60))])
def test_random_nets_in_random_parts(device: Any, seed: int) -> None:
    """Passes split at any layers give the outputs and gradients of whole passes."""
    text, dice = RandomNet(seed).text, np.random.default_rng(seed)
    whole, parts = (net(device, text, caffe.TRAIN, seed=seed) for _ in range(2))
    names, count = whole._layer_names, len(whole.layers)
    for each in (whole, parts) if seed % 2 else ():  # run a whole pass first
        each.forward()
        each.backward()
        each.clear_param_diffs()
    whole.forward()
    borders = sorted({0, count, *(int(n) for n in dice.integers(1, count, 4))})
    for begin, end in pairwise(borders):
        parts.forward(start=names[begin], end=names[end - 1])
    for name in whole.outputs:
        close(parts.blobs[name].data, whole.blobs[name].data)
    whole.backward()
    for begin, end in reversed(list(pairwise(borders))):
        parts.backward(start=names[end - 1], end=names[begin])
    for name, blobs in whole.params.items():
        for mine, other in zip(parts.params[name], blobs):
            np.testing.assert_allclose(mine.diff, other.diff, rtol=1e-3, atol=1e-4 * max(np.abs(other.diff).max(), 1e-3), err_msg=name)


FIXED = """
input: "data" input_shape { dim: 1 dim: 2 dim: 8 dim: 8 } force_backward: true
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool" pooling_param { pool: MAX kernel_size: 6 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""


@pytest.mark.parametrize("size", [14, 5])
def test_a_part_runs_with_shapes_that_later_layers_refuse(device: Any, size: int) -> None:
    """Deep Dream gives images of any size to a net whose InnerProduct fixes the size, because Caffe reshapes only the layers that it runs."""
    made, plain = net(device, FIXED, caffe.TEST), net(device, FIXED.partition("layer { name: \"pool\"")[0], caffe.TEST)
    for blob, other in zip(made.params["conv"], plain.params["conv"]):
        other.data[...] = blob.data
    whole = made.forward(data=numbers(1, 2, 8, 8))["prob"].copy()
    image = numbers(1, 2, size, size)
    for one in (made, plain):
        one.blobs["data"].reshape(1, 2, size, size)
        one.blobs["data"].data[0] = image[0]  # shapes are inferred here
        one.forward(end="relu")
        one.blobs["conv"].diff[...] = one.blobs["conv"].data
        one.backward(start="relu")
    assert made.blobs["conv"].data.shape == (1, 3, size - 2, size - 2) and made.blobs["prob"].shape == (1, 4)
    np.testing.assert_array_equal(made.blobs["conv"].data, plain.blobs["conv"].data)
    np.testing.assert_array_equal(made.blobs["data"].diff, plain.blobs["data"].diff)
    assert np.abs(made.blobs["data"].diff).sum() > 0
    with pytest.raises(Error, match=r"ip|pool"):
        made.forward()
    assert made.blobs["data"].shape == (1, 2, 8, 8)  # the last shapes that fit
    np.testing.assert_allclose(made.forward(data=numbers(1, 2, 8, 8))["prob"], whole, rtol=1e-5)
    made.blobs["data"].reshape(1, 2, size, size)
    with pytest.raises(Error, match=r"ip|pool"):
        made.reshape()
    assert made.blobs["data"].shape == (1, 2, 8, 8)
