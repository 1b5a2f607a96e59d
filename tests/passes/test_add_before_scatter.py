"""Branches that read the same pixels of an image scatter the sum of their gradients, and branches that read other pixels scatter their own."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from google.protobuf import text_format

from ocaffe import proto
from ocaffe.cl.device import Device
from ocaffe.kernels.pooling.pooling import is_linear_scatter
from tests.harness import of_kind, switch
from tests.passes.test_residual import gone_back

DATA = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 7 dim: 5 } } }'
LOSS = """layer {{ name: "sum" type: "Eltwise" {0} top: "sum" }}
layer {{ name: "loss" type: "Reduction" bottom: "sum" top: "loss" reduction_param {{ operation: SUMSQ }} loss_weight: 1 }}"""


def branch(name: str, bottom: str, stride: int) -> str:
    parts = f'name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}"'
    return f"layer {{ {parts} convolution_param {{ num_output: 5 kernel_size: 1 stride: {stride} bias_term: false }} }}"


def summed(*names: str) -> str:
    return LOSS.format(" ".join(f'bottom: "{name}"' for name in names))


FIRST = DATA + branch("first", "data", 1)
POOLED = 'layer { name: "max" type: "Pooling" bottom: "first" top: "max" pooling_param { kernel_size: 1 stride: 2 } }'
NETS = {  # and the launches that scatter, without the pass and with it
    "two": (FIRST + branch("a", "first", 2) + branch("b", "first", 2) + summed("a", "b"), 2, 1),
    "three": (FIRST + "".join(branch(name, "first", 2) for name in "abc") + summed("a", "b", "c"), 3, 1),
    "between": (FIRST + branch("a", "first", 2) + POOLED + branch("b", "first", 2) + summed("a", "max", "b"), 2, 2),
}


@pytest.mark.parametrize("name", NETS)
def test_gradients(device: Device, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text, plain, joined = NETS[name]
    of_gpu = Device(replace(device.info, target=of_kind(device.target, "gpu")), device)
    results = []
    for fuse, expected in (("0", plain), ("1", joined)):
        switch(monkeypatch, f"fuse={fuse}")
        with gone_back(text_format.Parse(text, proto.NetParameter()), of_gpu, keep=[]) as (net, diffs):
            launches = [launch for compiled in net._network.nets.all() for launch in compiled.recording.schedule]
            assert sum(map(is_linear_scatter, launches)) == expected
            results.append(diffs)
    for key, want in results[0].items():
        np.testing.assert_allclose(results[1][key], want, rtol=0, atol=1e-5 * np.abs(want).max(), err_msg=key)
