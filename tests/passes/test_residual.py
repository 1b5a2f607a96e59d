"""A residual net with all fusions of the GPU class (BatchNorm's sums, ReLU backward, sign masks) has the gradients of a plain net."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.api.net import Net
from ocaffe.cl.device import Device
from ocaffe.passes import optimise
from tests.harness import SMALL_TILE, of_kind, preferring, switch, treat_as_large

CONVOLUTION = """
    layer {{ name: "{0}" type: "Convolution" bottom: "{1}" top: "{0}"
             convolution_param {{ num_output: {2} kernel_size: {3} pad: {4} stride: {5} bias_term: false }} }}
    layer {{ name: "{0}_bn" type: "BatchNorm" bottom: "{0}" top: "{0}" }}
    layer {{ name: "{0}_scale" type: "Scale" bottom: "{0}" top: "{0}" scale_param {{ bias_term: true }} }}"""
RELU = 'layer {{ name: "{0}_relu" type: "ReLU" bottom: "{0}" top: "{0}" relu_param {{ negative_slope: {1} }} }}'
SUM = 'layer {{ name: "{0}" type: "Eltwise" bottom: "{1}" bottom: "{2}" top: "{0}" }}'
SHAPE = (4, 3, 16, 16)


def convolution(name: str, bottom: str, outputs: int, kernel: int, stride: int = 1, slope: float | None = 0.0) -> str:
    text = CONVOLUTION.format(name, bottom, outputs, kernel, kernel // 2, stride)
    return text if slope is None else text + RELU.format(name, slope)


def residual_net() -> Any:
    """Return a net of four bottlenecks. Two of them project, and one of these strides."""
    text = f'layer {{ name: "data" type: "Input" top: "data" input_param {{ shape {{ {" ".join(f"dim: {n}" for n in SHAPE)} }} }} }}'
    text += convolution("first", "data", 8, 3)
    bottom = "first"
    for name, outputs, stride in (("a", 16, 1), ("b", 16, 1), ("c", 24, 2), ("d", 24, 1)):
        short = bottom
        if name in "ac":
            short = f"{name}0"
            text += convolution(short, bottom, outputs, 1, stride, slope=None)
        text += convolution(f"{name}1", bottom, 8, 1, stride) + convolution(f"{name}2", f"{name}1", 8, 3, slope=0.25)
        text += convolution(f"{name}3", f"{name}2", outputs, 1, slope=None) + SUM.format(name, short, f"{name}3") + RELU.format(name, 0.0)
        bottom = name
    text += f'layer {{ name: "loss" type: "Reduction" bottom: "{bottom}" top: "loss" reduction_param {{ operation: SUMSQ }} loss_weight: 1 }}'
    return text_format.Parse(text, proto.NetParameter())


@contextmanager
def gone_back(message: Any, device: Device, **options: Any) -> Iterator[tuple[Net, dict[str, np.ndarray]]]:
    """Yield a net after one forward and backward pass on random weights and data, and the gradients of its parameters."""
    rng = np.random.default_rng(0)
    net = Net(message, proto.TRAIN, device=device, **options)
    try:
        for name, blobs in net.params.items():
            for blob in blobs if not name.endswith(("bn", "BatchNorm")) else []:
                blob.data[...] = 0.3 * rng.standard_normal(blob.data.shape) + name.lower().endswith("scale")
        net.blobs["data"].data[...] = rng.standard_normal(net.blobs["data"].data.shape)
        net.forward()
        net.clear_param_diffs()
        net.backward()
        trained = {name: blobs for name, blobs in net.params.items() if not name.endswith(("bn", "BatchNorm"))}
        yield net, {f"{name}/{i}": blob.diff.copy() for name, blobs in trained.items() for i, blob in enumerate(blobs)}
    finally:
        net.close()


def gradients(device: Device) -> tuple[dict[str, np.ndarray], list[Mapping[str, str]]]:
    """Return the gradients of all parameters, and the defines of the net's launches."""
    with gone_back(residual_net(), device, keep=[]) as (net, diffs):
        launches = [launch.call for compiled in net._network.nets.all() for launch in compiled.recording.schedule]
        return diffs, [dict(call.defines) for call in launches if call is not None]


@pytest.mark.parametrize("winograd", [False, True], ids=["direct", "Winograd"])
@pytest.mark.parametrize("bits", [False, True], ids=["signs", "bits"])
def test_residual_net(device: Device, monkeypatch: pytest.MonkeyPatch, bits: bool, winograd: bool) -> None:
    treat_as_large(monkeypatch, 1)
    pack_sign_masks = optimise.pack_sign_masks
    monkeypatch.setattr(optimise, "pack_sign_masks", lambda schedule, target, everywhere: pack_sign_masks(schedule, target, everywhere=bits))
    target = preferring(of_kind(device.target, "gpu"), *(["winograd"] if winograd else []), SMALL_TILE)
    of_gpu = Device(replace(device.info, target=target), device)
    switch(monkeypatch, "fuse=0")
    plain, _ = gradients(of_gpu)
    switch(monkeypatch, "fuse=1")
    fused, defines = gradients(of_gpu)
    sums = [found for found in defines if found.get("CHANNEL_REDUCTION") == "2"]
    assert len(sums) == 11 and {found.get("FUSED_RELU") for found in sums} == {None, "2" if bits else "1"} and any("OUT" in found for found in sums) == winograd
    for name, want in plain.items():
        np.testing.assert_allclose(fused[name], want, rtol=0, atol=1e-4 * np.abs(want).max(), err_msg=name)
