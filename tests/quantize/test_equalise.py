"""Equalisation: the net computes the same, and its products have weights of like size."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe.cl.device import Device
from ocaffe.convert.caffe.net import Net
from ocaffe.quantize.equalise import Pair, equalise, find_pairs
from ocaffe.quantize.images import Images
from ocaffe.quantize.observe import channel_ranges
from tests.quantize.nets import conv, data, fc, images_of, net_of, outputs_of, text

pytestmark = pytest.mark.unoptimised
RELU = text("ReLU", "a", "a", name="relu")
SLOPE = text("PReLU", "a", "a", name="prelu")
AVERAGE = "pooling_param { pool: AVE kernel_size: 2 stride: 2 }"
CASES = {
    "two convolutions": (1, [conv("data", "a", 8), RELU, conv("a", "b", 5)]),
    "groups": (1, [conv("data", "a", 8, 3, "group: 2"), RELU, conv("a", "b", 6, 3, "group: 2")]),
    "depthwise": (2, [conv("data", "a", 8), RELU, conv("a", "b", 8, 3, "group: 8"), text("ReLU", "b", "b", name="r2"), conv("b", "c", 5, 1)]),
    "a wider depthwise": (2, [conv("data", "a", 4), RELU, conv("a", "b", 8, 3, "group: 4"), conv("b", "c", 5, 1)]),
    "deconvolution": (2, [conv("data", "a", 8), RELU, conv("a", "b", 6, 2, "stride: 2 group: 2", "Deconvolution"), conv("b", "c", 5)]),
    "InnerProduct behind Flatten": (1, [conv("data", "a", 8), RELU, text("Flatten", "a", "f"), fc("f", "b", 5)]),
    "InnerProduct behind pooling": (1, [conv("data", "a", 8), RELU, text("Pooling", "a", "p", AVERAGE), fc("p", "b", 5, "transpose: true")]),
    "two InnerProducts": (1, [fc("data", "a", 8), RELU, fc("a", "b", 5)]),
    "PReLU": (1, [conv("data", "a", 8), SLOPE, conv("a", "b", 5)]),
    "MAX pooling": (1, [conv("data", "a", 8), text("Pooling", "a", "p", "pooling_param { pool: MAX kernel_size: 2 }"), conv("p", "b", 5)]),
    "a branch": (0, [conv("data", "a", 8), RELU, conv("a", "b", 5), conv("a", "c", 5)]),
    "ReLU6": (1, [conv("data", "a", 8), text("ReLU6", "a", "r"), conv("r", "b", 5)]),
    "Clip from 0 on": (1, [conv("data", "a", 8), text("Clip", "a", "r", "clip_param { min: 0 max: 2 }"), conv("r", "b", 5)]),
    "another Clip": (0, [conv("data", "a", 8), text("Clip", "a", "r", "clip_param { min: -1 max: 2 }"), conv("r", "b", 5)]),
    "TanH": (0, [conv("data", "a", 8), text("TanH", "a", "t"), conv("t", "b", 5)]),
}


def ranges_of(net: Net, pairs: list[Pair], images: Images, device: Any) -> dict[str, np.ndarray]:
    return channel_ranges(net, [pair.value for pair in pairs], images, device)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_outputs_stay(case: str, per_channel: bool, device: Device) -> None:
    pairs, layers = CASES[case]
    net = net_of(data(8, 4, 9, 9), *layers)
    first = net.arrays["a"][0]
    net.arrays["a"] = [first * np.geomspace(0.01, 10, len(first), dtype=np.float32).reshape(-1, *[1] * (first.ndim - 1)), net.arrays["a"][1]]
    images = images_of(net)
    before = outputs_of(net, images, device)
    found = find_pairs(net)
    assert len(found) == pairs
    equalise(net, found, ranges_of(net, found, images, device), per_channel)
    for old, new in zip(before, outputs_of(net, images, device)):
        np.testing.assert_allclose(new, old, rtol=1e-3, atol=1e-4 * np.abs(old).max())


def test_weights_are_of_like_size(device: Device) -> None:
    net = net_of(data(8, 4, 9, 9), *CASES["two convolutions"][1])
    first = net.arrays["a"][0]
    net.arrays["a"] = [first * np.geomspace(0.01, 10, 8, dtype=np.float32).reshape(-1, 1, 1, 1), net.arrays["a"][1]]
    pairs = find_pairs(net)
    equalise(net, pairs, ranges_of(net, pairs, images_of(net), device), per_channel=False)
    out = np.abs(net.arrays["a"][0]).max(axis=(1, 2, 3))
    taken = np.abs(net.arrays["b"][0]).max(axis=(0, 2, 3))
    np.testing.assert_allclose(out / taken, (out / taken)[0], rtol=0.01)


def test_values_are_of_like_size(device: Device) -> None:
    """With a scale for each output, a depthwise convolution takes factors at no cost."""
    net = net_of(data(8, 4, 9, 9), conv("data", "a", 8), RELU, conv("a", "b", 8, 3, "group: 8"))
    net.arrays["a"] = [array * np.geomspace(0.01, 10, 8, dtype=np.float32).reshape(-1, *[1] * (array.ndim - 1)) for array in net.arrays["a"]]
    images, pairs = images_of(net), find_pairs(net)
    before = channel_ranges(net, ["a"], images, device)
    (value,) = outputs_of(net, images, device, ("a",))
    np.testing.assert_allclose(before["a"], np.abs(value).max(axis=(0, 2, 3)), rtol=1e-5)
    equalise(net, pairs, before, per_channel=True)
    after = channel_ranges(net, ["a"], images, device)["a"]
    np.testing.assert_allclose(after, after[0], rtol=0.01)


def test_a_channel_that_reaches_the_bound_stays(device: Device) -> None:
    net = net_of(data(8, 4, 9, 9), *CASES["ReLU6"][1])
    net.arrays["a"] = [array * np.geomspace(0.01, 10, 8, dtype=np.float32).reshape(-1, *[1] * (array.ndim - 1)) for array in net.arrays["a"]]
    images, pairs, weights = images_of(net), find_pairs(net), net.arrays["a"][0].copy()
    ranges = ranges_of(net, pairs, images, device)
    equalise(net, pairs, ranges, per_channel=True)
    after, reached = ranges_of(net, pairs, images, device)["r"], ranges["r"] >= 6
    assert 0 < reached.sum() < 8
    assert (net.arrays["a"][0][reached] == weights[reached]).all()
    assert (after <= 6).all()
    assert after[~reached].min() > 3 * ranges["r"].min()


def test_channels_without_weights_stay(device: Device) -> None:
    net = net_of(data(8, 4, 9, 9), *CASES["two convolutions"][1])
    net.arrays["a"][0][3] = 0
    net.arrays["b"][0][:, 5] = 0
    pairs = find_pairs(net)
    equalise(net, pairs, ranges_of(net, pairs, images_of(net), device), per_channel=False)
    assert all(np.isfinite(array).all() for arrays in net.arrays.values() for array in arrays)
    assert (net.arrays["a"][0][3] == 0).all()
