"""Nets with channels in blocks have the results of nets without, and blobs that a script reads stay as they are."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import Net, proto
from ocaffe.cl.device import Device
from ocaffe.passes import layouts_cpu
from tests.harness import changed, switch

pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.fixture
def on_cpu(device: Any) -> None:
    if not device.target.is_cpu or device.target.vector_width < 8:
        pytest.skip("channels are in blocks on CPUs with vectors of 8 floats or more")


@pytest.fixture(params=[16, 8])
def own(request: pytest.FixtureRequest, device: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device with so many channels in a block. Images may need any number of copies in Caffe's order, so that small nets have blocks too."""
    if request.param > device.target.vector_width:
        pytest.skip(f"vectors of {device.target.vector_width} floats")
    monkeypatch.setattr(layouts_cpu, "MIN_FLOPS_PER_BYTE", 0)
    return changed(device, vector_width=request.param)


def conv(name: str, bottom: str, outputs: int, kernel: int, **more: int) -> str:
    numbers = " ".join(f"{key}: {value}" for key, value in more.items())
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{ num_output: {outputs} '
        f'kernel_size: {kernel} {numbers} weight_filler {{ type: "msra" }} bias_filler {{ type: "gaussian" }} }} }}'
    )


def layer(kind: str, bottoms: str, top: str, more: str = "") -> str:
    bottom = " ".join(f'bottom: "{name}"' for name in bottoms.split())
    return f'layer {{ name: "{top}_{kind}" type: "{kind}" {bottom} top: "{top}" {more} }}'


def pooling(name: str, bottom: str, height: int, width: int) -> str:
    return layer("Pooling", bottom, name, f"pooling_param {{ kernel_h: {height} kernel_w: {width} stride_h: {height} stride_w: {width} }}")


def relu(blob: str) -> str:
    return layer("ReLU", blob, blob)


PRODUCT = 'inner_product_param { num_output: 7 weight_filler { type: "msra" } }'
NETS = {
    "first layers": ((2, 3, 31, 37), conv("a", "x", 32, 7, stride=2, pad=3) + relu("a") + conv("y", "a", 10, 1)),
    "strides, dilation": (
        (2, 32, 23, 29), conv("a", "x", 48, 3, stride=2, pad=1) + conv("b", "a", 32, 3, pad=2, dilation=2) + conv("y", "b", 10, 1),
    ),
    "Winograd": ((2, 16, 19, 26), conv("a", "x", 64, 1) + conv("b", "a", 96, 3, pad=1) + relu("b") + conv("y", "b", 10, 1)),
    "groups": ((3, 32, 14, 14), conv("a", "x", 64, 1) + conv("b", "a", 64, 3, pad=1, group=2) + conv("y", "b", 10, 1)),
    "empty channels": (
        (2, 16, 14, 17), conv("a", "x", 24, 1) + conv("b", "a", 120, 1) + conv("c", "b", 24, 3, pad=1) + layer("Eltwise", "a c", "s")
        + conv("d", "s", 24, 3, pad=1) + conv("y", "d", 10, 1),
    ),
    "depthwise": (
        (2, 16, 15, 21), conv("a", "x", 32, 1) + conv("b", "a", 32, 3, pad=1, group=32) + layer("ReLU6", "b", "b")
        + conv("c", "b", 32, 5, pad=2, stride=2, group=32) + conv("d", "c", 32, 3, pad=2, dilation=2, group=32) + conv("y", "d", 10, 1),
    ),
    "pooling": (
        (2, 16, 15, 18), conv("a", "x", 32, 3, pad=1) + layer("Pooling", "a", "p", "pooling_param { kernel_size: 3 stride: 2 }")
        + layer("Pooling", "p", "q", "pooling_param { pool: AVE kernel_size: 3 stride: 1 pad: 1 }") + conv("b", "q", 32, 1)
        + layer("Pooling", "b", "r", "pooling_param { pool: AVE global_pooling: true }") + layer("InnerProduct", "r", "y", PRODUCT),
    ),
    "LRN": (
        (2, 16, 15, 18), conv("a", "x", 64, 3, pad=1) + layer("LRN", "a", "p", "lrn_param { alpha: 0.3 }") + conv("b", "p", 32, 1)
        + layer("LRN", "b", "b", "lrn_param { local_size: 9 alpha: 0.3 beta: 0.6 k: 2 }") + conv("c", "b", 32, 1)
        + layer("LRN", "c", "c", "lrn_param { local_size: 1 alpha: 0.3 }") + conv("y", "c", 10, 1),
    ),
    "Concat": (
        (2, 16, 12, 12), conv("a", "x", 32, 1) + conv("b", "a", 48, 3, pad=1) + relu("b") + conv("c", "a", 16, 5, pad=2) + layer("Concat", "b c", "s")
        + relu("s") + layer("Pooling", "s", "p", "pooling_param { kernel_size: 3 stride: 1 pad: 1 }") + conv("y", "p", 10, 1),
    ),
    "residual sums": (
        (2, 16, 12, 13), conv("a", "x", 32, 1) + layer("BatchNorm", "a", "a") + layer("Scale", "a", "a", "scale_param { bias_term: true }") + relu("a")
        + conv("b", "a", 32, 3, pad=1) + layer("BatchNorm", "b", "b") + layer("Eltwise", "a b", "s") + relu("s") + conv("y", "s", 10, 1),
    ),
    "other readers": (
        (2, 16, 12, 12), conv("a", "x", 32, 5, pad=2) + layer("LRN", "a", "n") + conv("b", "n", 32, 5, pad=2) + layer("Sigmoid", "b", "b2")
        + layer("Eltwise", "b b2", "s") + layer("InnerProduct", "s", "y", PRODUCT),
    ),
}  # fmt: skip
VIEWS = {  # Reshape gives images channels or pixels that are no whole blocks of the image before
    "channels from rows": (
        (2, 64, 16, 16), conv("a", "x", 64, 5, pad=2) + layer("Reshape", "a", "r", "reshape_param { shape { dim: 0 dim: 128 dim: 8 dim: 16 } }")
        + conv("b", "r", 64, 5, pad=2) + conv("y", "b", 10, 1),
    ),
    "rows of text": (  # as in a net that reads lines of text
        (1, 3, 32, 100), conv("a", "x", 32, 5, pad=2) + relu("a") + pooling("p", "a", 8, 2)
        + layer("Reshape", "p", "r", "reshape_param { shape { dim: 0 dim: -1 dim: 1 dim: 50 } }") + conv("b", "r", 64, 5, pad=2) + relu("b")
        + conv("y", "b", 10, 1),
    ),
    "an expression": (
        (2, 64, 16, 16), conv("a", "x", 64, 5, pad=2) + layer("Reshape", "a", "r", "reshape_param { shape { dim: 0 dim: 128 dim: 8 dim: 16 } }")
        + layer("Eltwise", "r r", "q") + conv("b", "q", 64, 5, pad=2) + conv("y", "b", 10, 1),
    ),
    "pooling": (
        (2, 64, 16, 16), conv("a", "x", 64, 5, pad=2) + layer("Reshape", "a", "r", "reshape_param { shape { dim: 0 dim: 128 dim: 8 dim: 16 } }")
        + layer("Pooling", "r", "p", "pooling_param { kernel_size: 3 stride: 2 }") + conv("y", "p", 10, 1),
    ),
    "more pixels": (
        (2, 64, 16, 16), conv("a", "x", 64, 5, pad=2) + layer("Reshape", "a", "r", "reshape_param { shape { dim: 0 dim: 64 dim: 8 dim: 32 } }")
        + conv("b", "r", 64, 5, pad=2) + conv("y", "b", 10, 1),
    ),
    "more samples": (
        (2, 64, 16, 16), conv("a", "x", 64, 5, pad=2) + layer("Reshape", "a", "r", "reshape_param { shape { dim: 4 dim: 32 dim: 16 dim: 16 } }")
        + conv("b", "r", 64, 5, pad=2) + conv("y", "b", 10, 1),
    ),
    "empty channels": (
        (2, 64, 16, 16), conv("a", "x", 24, 5, pad=2) + layer("Reshape", "a", "r", "reshape_param { shape { dim: 0 dim: 48 dim: 8 dim: 16 } }")
        + conv("b", "r", 64, 5, pad=2) + conv("y", "b", 10, 1),
    ),
    "one pixel": (
        (2, 64, 4, 4), conv("a", "x", 64, 3, pad=1) + layer("Reshape", "a", "r", "reshape_param { shape { dim: 0 dim: 1024 dim: 1 dim: 1 } }")
        + conv("b", "r", 1024, 5, pad=4, group=1024) + conv("y", "b", 10, 1),
    ),
}  # fmt: skip
PROGRAMS = {"Winograd": "winograd_blocked_cpu", "depthwise": "conv_depthwise_blocked_cpu", "pooling": "pooling_blocked_cpu"}


def made(name: str, device: Any, keep: Sequence[str] = ("x",)) -> Net:
    shape, layers = NETS[name]
    text = f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in shape)} }} }} }} {layers}'
    net = Net(text_format.Parse(text, proto.NetParameter()), proto.TEST, device=device, keep=list(keep), seed=1)
    for name, blobs in net.params.items():
        if name.endswith("_BatchNorm"):
            for blob, value in zip(blobs, (0.1, 2.0, 1.0), strict=True):
                blob.data[...] = value
    return net


def result(net: Net) -> np.ndarray:
    net.blobs["x"].data[...] = np.random.default_rng(0).standard_normal(net.blobs["x"].data.shape)
    return np.array(net.forward()["y"])


def programs(net: Net) -> set[str]:
    return {launch.what.split(".")[0] for launch in net._engine.current().commands.schedule}


@pytest.mark.parametrize("name", NETS)
def test_results(name: str, own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    net = made(name, own)
    found = result(net)
    assert {"conv_blocked_cpu", PROGRAMS.get(name, "conv_blocked_cpu")} <= programs(net)
    assert "channel_blocks_cpu" in programs(net) or name == "pooling", "the last layer has no form for blocks, but may read one pixel per channel"
    switch(monkeypatch, "fuse=0")
    plain = made(name, own)
    assert not any("blocked" in program for program in programs(plain))
    expected = result(plain)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(result(net), found)


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_images(name: str, own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETS, name, VIEWS[name])
    found = result(made(name, own))
    switch(monkeypatch, "fuse=0")
    expected = result(made(name, own))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_read_blobs_have_no_blocks(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = made("Winograd", own, ["x", "a", "b"])
    result(kept)
    assert "winograd_blocked_cpu" not in programs(kept)
    switch(monkeypatch, "fuse=0")
    plain = made("Winograd", own, ["x", "a", "b"])
    result(plain)
    for blob in "ab":
        np.testing.assert_allclose(kept.blobs[blob].data, plain.blobs[blob].data, atol=1e-4)


def test_copies_must_be_worth_it(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts_cpu, "MIN_FLOPS_PER_BYTE", 1 << 30)
    assert not any("blocked" in program for program in programs(made("other readers", own)))
    assert "conv_blocked_cpu" in programs(made("pooling", own)), "no launch needs a copy"


def test_winograd_before_blocks(own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the image has no blocks, Winograd's product without them is faster than a direct one that makes them."""
    monkeypatch.setitem(NETS, "after LRN", ((4, 64, 28, 28), layer("LRN", "x", "n") + conv("y", "n", 64, 3, pad=1)))
    assert "winograd_cpu" in programs(made("after LRN", changed(own, compute_units=2)))


def test_ieee_is_direct(own: Device) -> None:
    net = made("Winograd", changed(own, math="ieee"))
    assert "winograd_blocked_cpu" not in programs(net) and "conv_blocked_cpu" in programs(net)


@pytest.mark.parametrize("outputs", [32, 24])
def test_histograms_read_blocks_that_are_full(outputs: int, own: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count values in any order. Empty channels would be counted, too."""
    counting = 'layer { name: "h" type: "Histogram" bottom: "a" top: "counts" top: "ends" }'
    layers = conv("a", "x", outputs, 3, pad=1) + relu("a") + counting + conv("b", "a", 32, 3) + conv("y", "b", 10, 1)
    monkeypatch.setitem(NETS, "histogram", ((2, 16, 12, 13), layers))

    def counted() -> tuple[np.ndarray, np.ndarray, Net]:
        net = made("histogram", own)
        result(net)
        return np.array(net.blobs["counts"].data), np.array(net.blobs["ends"].data), net

    counts, ends, net = counted()
    copies = [launch for launch in net._engine.current().commands.schedule if launch.what.startswith("channel_blocks_cpu")]
    assert len(copies) == (1 if outputs % own.target.vector_width == 0 else 2), "the last layer reads a copy, and the histogram none if blocks are full"
    switch(monkeypatch, "fuse=0")
    expected, extremes, _ = counted()
    assert counts.sum() == expected.sum() == 2 * outputs * 12 * 13
    np.testing.assert_allclose(ends, extremes, rtol=1e-5)
    assert np.abs(np.cumsum(counts) - np.cumsum(expected)).max() <= 2, "values near the bounds of a bin differ by rounding"
