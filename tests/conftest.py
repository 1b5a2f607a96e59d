"""Fixtures and the quick tier. A test that uses the fixture `device` runs once on every OpenCL device.

`OCAFFE_TEST_DEVICE=0:0` (or a part of a name) selects one device. `OCAFFE_TEST_KIND=gpu` also runs the GPU kernels on CPU runtimes, with the choices of
a large GPU. This is slow, but finds most bugs of GPU kernels without a GPU. `OCAFFE_TEST_MEMORY=own` transfers batches and arrays as to a GPU with
separate memory.
"""
from __future__ import annotations

import collections
import functools
import os
import pathlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ocaffe import log
from ocaffe.cl import program
from ocaffe.cl.device import Device, DeviceInfo, choose, list_devices
from ocaffe.ir.target import Target
from ocaffe.support.switches import VARIABLE
from tests.harness import of_kind, quick_to_compile, switches, treat_as_large

CPU = 1 << 1  # CL_DEVICE_TYPE_CPU

if "verify" not in os.environ.get(VARIABLE, ""):
    os.environ[VARIABLE] = switches("verify")  # every schedule that a test compiles is checked after every pass (ocaffe/passes/verify.py)

# The quick tier, `bin/test --quick`: some tests of every package, 90 s at most. A folder includes all of its files.
# The first golden case of each layer type belongs to it too (tests/test_golden.py).
QUICK = (
    "abuse/test_harness.py", "api/test_blob.py", "api/test_classifier.py", "api/test_coord_map.py", "api/test_draw.py", "api/test_forward_backward.py",
    "api/test_io.py",
    "api/test_net.py", "api/test_net_spec.py", "api/test_solver.py", "support/test_cache.py", "cl/test_device.py", "cl/test_device_query.py",
    "cl/test_program.py", "cli/test_commands.py", "cli/test_convert.py", "cli/test_dataset.py", "cli/test_dataset_folder.py", "cli/test_layers.py",
    "cli/test_recognise.py", "data",
    "docs/test_generated.py",
    "graph", "ir/test_ref.py", "layers/test_coverage.py", "layers/test_shape.py", "memory/test_caffe.py", "memory/test_plan.py", "formats",
    "convert/test_import.py", "convert/test_layers.py", "kernels/expression/test_expression.py", "kernels/matmul/test_gemm.py",
    "parallel/test_exchanges.py", "parallel/test_sharing.py", "passes/test_common_subexpressions.py",
    "passes/test_concat_views.py", "passes/test_created.py", "passes/test_prepacked_weights.py", "passes/test_traps.py", "proto",
    "solver/test_policies.py", "solver/test_snapshot_files.py", "support/test_files.py", "support/test_log.py", "support/test_progress.py", "test_lint.py",
    "tools",
    "zoo/test_fetch.py", "zoo/test_images.py", "zoo/test_zoo.py",
)  # fmt: skip


_options_of = program.options_of


def _options_for_tests(key: program.ProgramKey, target: Target, *rest: Any) -> str:
    on_cpu = any(info.name == target.name and info.cl_device.type & CPU for info in _devices())
    return _options_of(key, target, *rest) + quick_to_compile(target, on_cpu)


program.options_of = _options_for_tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = pathlib.Path(__file__).parent
    chosen = {root / name for name in QUICK}
    assert all(path.exists() for path in chosen), "QUICK names a file that is gone"
    for item in items:
        if not chosen.isdisjoint([item.path, *item.path.parents]):
            item.add_marker("quick")


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


LOG_LEVEL = log.minimum  # fixtures of modules raise it too, so the level before a test is not the one to restore


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Restore the level of the log before each test. Some commands raise it, and the tests that follow may read lines of the log."""
    log.minimum = LOG_LEVEL
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
