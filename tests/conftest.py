"""The devices of tests, and fixtures. A test that uses the fixture `device` runs once on every OpenCL device.

`OCAFFE_TEST_DEVICE=0:0` (or a part of a name) selects one device. `OCAFFE_TEST_KIND=gpu` also runs the GPU kernels on CPU runtimes, with the choices of
a large GPU. This is slow, but finds most bugs of GPU kernels without a GPU. `OCAFFE_TEST_MEMORY=own` transfers batches and arrays as to a GPU with
separate memory. Compilers of CPUs take half the time for tests with the marker `unoptimised`; `OCAFFE_TEST_OPTIMISED=1` ignores the marker.
"""
from __future__ import annotations

import collections
import functools
import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ocaffe import log
from ocaffe.cl import program
from ocaffe.cl.device import Device, DeviceInfo, choose, list_devices
from ocaffe.cl.quirks import Quirk
from ocaffe.ir.target import Target
from ocaffe.kernels.convolution.winograd import winograd_gpu
from ocaffe.kernels.matmul import gemm_gpu
from ocaffe.support.switches import VARIABLE
from tests.harness import of_kind, quick_to_compile, switches, treat_as_large

CPU = 1 << 1  # CL_DEVICE_TYPE_CPU
UNOPTIMISED = Quirk("tests with the marker unoptimised need no fast programs", options="-cl-opt-disable")

if "verify" not in os.environ.get(VARIABLE, ""):
    os.environ[VARIABLE] = switches("verify")  # every schedule that a test compiles is checked after every pass (ocaffe/passes/verify.py)

_options_of = program.options_of


def _options_for_tests(key: program.ProgramKey, target: Target, *rest: Any) -> str:
    on_cpu = any(info.name == target.name and info.cl_device.type & CPU for info in _devices())
    return _options_of(key, target, *rest) + quick_to_compile(target, on_cpu)


program.options_of = _options_for_tests


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


@functools.cache
def _unoptimised_devices() -> list[DeviceInfo]:
    return [replace(device, quirks=(*device.quirks, UNOPTIMISED)) if device.target.is_cpu else device for device in _devices()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        quickly = metafunc.definition.get_closest_marker("unoptimised") and os.environ.get("OCAFFE_TEST_OPTIMISED") != "1"
        devices = _unoptimised_devices() if quickly else _devices()
        runtimes = [device.target.runtime for device in devices]
        twice = {runtime for runtime, count in collections.Counter(runtimes).items() if count > 1}
        names = [f"{runtime}-{device.number}" if runtime in twice else runtime for runtime, device in zip(runtimes, devices)]
        nothing = [pytest.param(None, marks=pytest.mark.skip("no OpenCL device"), id="none")]
        params = [pytest.param(device, id=name) for device, name in zip(devices, names)]
        metafunc.parametrize("device", params or nothing, indirect=True, scope="session")


def pytest_collection_finish() -> None:
    """Leave modules and thousands of collected tests out of garbage collections. A collection by a test takes a second with them."""
    gc.collect()
    gc.freeze()


LOG_LEVEL = log.minimum  # fixtures of modules raise it too, so the level before a test is not the one to restore


@pytest.fixture(autouse=True)
def choices() -> None:
    """Forget the ranks of tiles before each test. Some tests change what they depend on."""
    for ranks in (gemm_gpu._ranked, winograd_gpu.cost):
        ranks.cache_clear()


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Restore the level of the log before each test. Some commands raise it, and the tests that follow may read lines of the log.

    A thread of an earlier test may have written to a captured stderr that was closed. The log must not say so in this test.
    """
    log.minimum = LOG_LEVEL
    log.stderr._channel.failed = False
    yield
    log.minimum = LOG_LEVEL


@pytest.fixture
def small_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the passes treat values of a few elements like large ones."""
    treat_as_large(monkeypatch, 64)


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = Device(request.param)
    yield opened
    opened.close()
