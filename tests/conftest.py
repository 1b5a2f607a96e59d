"""The fixture `device`: an opened device; a test that takes it runs once on every OpenCL device found.

`OCAFFE_TEST_DEVICE=0:0` (or a part of a name) picks one. `OCAFFE_TEST_KIND=gpu` runs the kernels of GPUs, as a large GPU chooses them, on CPU
runtimes too: slow, but it finds there what a GPU would find. `OCAFFE_TEST_MEMORY=own` sends batches and arrays as to a GPU that has memory of its own.
"""
from __future__ import annotations

import collections
import functools
import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ocaffe.cl.device import Device, DeviceInfo, choose, list_devices
from tests.harness import of_kind


@functools.cache
def _devices() -> list[DeviceInfo]:
    devices = [device for device in list_devices() if not device.unusable]
    wanted = os.environ.get("OCAFFE_TEST_DEVICE")
    if wanted:
        devices = [choose(devices, wanted)]
    if os.environ.get("OCAFFE_TEST_KIND") == "gpu":
        devices = [replace(device, target=replace(of_kind(device.target, "gpu"), vector_width=4, compute_units=132)) for device in devices]
    if os.environ.get("OCAFFE_TEST_MEMORY") == "own":
        devices = [replace(device, target=replace(device.target, unified_memory=False, stream_above=0)) for device in devices]
    return devices


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        devices = _devices()
        runtimes = [device.target.runtime for device in devices]
        twice = {runtime for runtime, count in collections.Counter(runtimes).items() if count > 1}
        names = [f"{runtime}-{device.number}" if runtime in twice else runtime for runtime, device in zip(runtimes, devices)]
        nothing = [pytest.param(None, marks=pytest.mark.skip("no OpenCL device"), id="none")]
        params = [pytest.param(device, id=name) for device, name in zip(devices, names)]
        metafunc.parametrize("device", params or nothing, indirect=True, scope="session")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = Device(request.param)
    yield opened
    opened.close()
