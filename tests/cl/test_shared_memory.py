"""Buffers that host and device share: inputs and outputs of a net on a CPU. The host waits for commands before it reads or writes them."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ocaffe import Net, proto
from ocaffe.cl.device import Device
from ocaffe.cl.program import ProgramKey, Programs
from ocaffe.cl.session import Session
from ocaffe.cl.shared_memory import can_share, read_shared, shared_buffer, write_shared
from ocaffe.formats.text import parse

SLOW = """kernel void slow(global float* x, const int steps) {
  float v = x[0];
  for (int i = 0; i < steps; i++) v = sin(v) + 1;
  x[1] = x[0] + 0 * v;
}"""
NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: [2, 5] } } }
layer { name: "out" type: "Power" bottom: "data" top: "out" power_param { scale: 2 shift: 1 } }
"""

LONG = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: [4, 32, 96, 96] } } }
layer { name: "out" type: "Convolution" bottom: "data" top: "out" convolution_param { num_output: 64 kernel_size: 5 weight_filler { type: "msra" } } }
"""


def needs_sharing(device: Device) -> None:
    if not can_share(device):
        pytest.skip("the device does not share memory with the host")


def test_the_host_waits_for_commands(device: Device) -> None:
    needs_sharing(device)
    cl = device.cl
    programs, key = Programs(device), ProgramKey.generated([SLOW])
    programs.build_all([key])
    buffer, kernel = shared_buffer(device, 8), cl.Kernel(programs[key], "slow")
    for value in range(1, 6):
        assert write_shared(device, buffer, 0, np.array([value, 0], np.float32))
        kernel(device.queue, (1,), (1,), buffer, np.int32(200_000))
        assert write_shared(device, buffer, 0, np.array([-1], np.float32)), "the kernel has read the value before"
        result = np.empty(1, np.float32)
        assert read_shared(device, buffer, 4, result) and result[0] == value


def test_other_buffers_are_copied(device: Device) -> None:
    buffer, data = Session(device).allocate(8, "a test"), np.zeros(2, np.float32)
    assert not write_shared(device, buffer, 0, data) and not read_shared(device, buffer, 0, data)


@pytest.mark.parametrize("shares", [True, False])
def test_a_net_with_and_without(shares: bool, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    if shares:
        needs_sharing(device)
    else:
        monkeypatch.setattr("ocaffe.cl.session.can_share", lambda _: False)
    with Net(parse(NET, proto.NetParameter), proto.TEST, device=device) as net:
        assert (net._engine.current().commands.outputs.buffer.hostbuf is not None) == shares
        found: list[Any] = []
        for value in range(40):  # more runs than slots of outputs
            found.append(net.forward(data=np.full((2, 5), value, np.float32))["out"].copy())
        assert [out[1, 4] for out in found] == [2 * value + 1 for value in range(40)]
        net.blobs["out"].data[...] = 7
        np.testing.assert_array_equal(net.blobs["out"].data, 7)


def test_a_net_is_closed_while_it_runs(device: Device) -> None:
    """The queue frees shared memory after the commands that use it; else PoCL's threads would write to memory that is gone."""
    for _ in range(3):
        with Net(parse(LONG, proto.NetParameter), proto.TEST, device=device, keep=[]) as net:
            net._engine.forward(0, len(net.layers) - 1)
    device.queue.finish()
