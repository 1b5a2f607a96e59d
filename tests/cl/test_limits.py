"""Devices with small work-groups, little local memory and small buffers, imitated on the devices at hand: the kernels fit, or an error names the limit."""
from __future__ import annotations

import math
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ocaffe import proto
from ocaffe.cl import fences
from ocaffe.cl.command_list import HOST
from ocaffe.cl.device import Device, with_kind
from ocaffe.cl.limits import check_group, with_bounds
from ocaffe.cl.program import OPTIONS
from ocaffe.compiler.compile import compile_net
from ocaffe.compiler.network import phase_net
from ocaffe.errors import Error
from ocaffe.graph.build import build
from ocaffe.graph.options import NetOptions
from ocaffe.graph.parameters import ParameterGroup
from ocaffe.ir.matrix_units import UNITS
from ocaffe.ir.target import Target
from ocaffe.kernels.files import kernel_files
from ocaffe.selftest import boxes, layers
from ocaffe.selftest.case import TOLERANCE, Case, layer, normal
from ocaffe.selftest.selftest import all_cases
from ocaffe.support.switches import VARIABLE, Switches
from tests.harness import switch, switches

PACKAGE = pathlib.Path(layers.__file__).parents[1]
KIB = 1024
SIZES = [(256, 32 * KIB), (128, 32 * KIB), (64, 16 * KIB)]  # work-items of a group, bytes of local memory
CASES = [case for case in (*layers.cases(), *boxes.cases()) if isinstance(case, Case)]
# With fixed groups before, or with a last-block reduction.
SOME = ("softmax of rows", "convolution, depthwise", "convolution, groups", "detections", "pooling 3x3", "random numbers", "sums")
CHOICES = NetOptions(backward=True, hold_gradients=True)


def schedule_of(case: Case, target: Target, folder: pathlib.Path) -> list[Any]:
    phase, folder = getattr(proto, case.phase), folder / case.name
    folder.mkdir(exist_ok=True)
    case.prepare(str(folder))
    graph = build(phase_net(case.message(case.arrays(), str(folder)), phase), phase, lambda source, text: None)
    options = replace(CHOICES, backward=bool(case.smooth))
    return compile_net(graph, ParameterGroup(graph.params), target, options, Switches()).recording.schedule


@pytest.fixture(params=SIZES, ids=lambda size: f"{size[0]}-items")
def small(request: pytest.FixtureRequest, device: Device) -> Iterator[Device]:
    """The device with the kernels of GPUs and their fence, as with `--kind gpu`, and with the limits of a small one."""
    items, local = request.param
    info = with_kind(device.info, "gpu")
    yield Device(replace(info, target=replace(info.target, max_work_group=items, local_memory=local)), device)


def test_kernels_of_gpus_have_the_fence_of_gpus(small: Device, device: Device) -> None:
    able = device.target.runtime != "pocl" and bool(fences.standard(device.cl_device))
    assert small.target.device_fence == (device.target.device_fence or ("SCOPE" if able else ""))


@pytest.mark.parametrize("name", SOME)
def test_results_on_a_small_device(small: Device, name: str) -> None:
    next(case for case in CASES if case.name == name).check(small)


@pytest.mark.parametrize("items, local", SIZES)
def test_no_kernel_needs_more(items: int, local: int, tmp_path: pathlib.Path) -> None:
    target = Target(kind="gpu", runtime="amd", compute_units=40, max_work_group=items, local_memory=local)
    for case in CASES:
        calls = [launch.final() for launch in schedule_of(case, target, tmp_path) if not isinstance(launch, HOST)]
        assert [call.function for call in calls if math.prod(call.local or (1,)) > items] == [], case.name


@pytest.mark.sweep
@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_selftest_on_a_small_device(small: Device, case: Any) -> None:
    findings = case.run(small)
    assert findings and all(finding.error <= TOLERANCE for finding in findings), findings


@pytest.mark.sweep
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("items, local", SIZES)
def test_golden_on_a_small_device(items: int, local: int) -> None:
    environment = {**os.environ, "OCAFFE_TEST_KIND": "gpu", VARIABLE: switches(f"limits=max_work_group={items}:local_memory={local}")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_golden.py"]
    done = subprocess.run(command, env=environment, cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


# -- refusals ------------------------------------------------------------------------------------------------------------


def test_products_need_groups_of_64(tmp_path: pathlib.Path) -> None:
    case = next(case for case in CASES if case.name == "matrix product")
    with pytest.raises(Error, match=r"(?s)need work-groups of 64 work-items.*allows 32 work-items \(CL_DEVICE_MAX_WORK_GROUP_SIZE\).*fix: choose another"):
        schedule_of(case, Target(kind="gpu", max_work_group=32), tmp_path)
    with pytest.raises(Error, match=r"and 4096 bytes \(CL_DEVICE_LOCAL_MEM_SIZE\)"):
        schedule_of(case, Target(kind="gpu", local_memory=4096), tmp_path)


BIG = Case("big", layer("Convolution", "x0", "y", "convolution_param { num_output: 32 kernel_size: 3 }"), normal(x0=(8, 3, 34, 34)), lambda x, got: {})


def test_a_tensor_larger_than_a_buffer_is_refused(tmp_path: pathlib.Path) -> None:
    """The result has 8 x 32 x 32 x 32 floats, 1 MiB."""
    schedule_of(BIG, Target(max_allocation=1 << 20), tmp_path)
    with pytest.raises(Error, match=r"(?s)layer 'y': the tensor y .*takes 1.0 MiB.*CL_DEVICE_MAX_MEM_ALLOC_SIZE.*lower batch_size from 8 to 4"):
        schedule_of(BIG, Target(max_allocation=(1 << 20) * 9 // 16), tmp_path)
    with pytest.raises(Error, match=r"(?s)all layers: the tensor parameters .*choose a device with larger buffers"):
        schedule_of(replace(BIG, net=BIG.net.replace("32", "4000"), make=normal(x0=(1, 3, 3, 3))), Target(max_allocation=100 << 10), tmp_path)


def test_nvidia_makes_larger_buffers_than_it_reports(tmp_path: pathlib.Path) -> None:
    schedule_of(BIG, Target(runtime="nvidia", max_allocation=1 << 10), tmp_path)


FACTS = SimpleNamespace(kernel_work_group_info=SimpleNamespace(WORK_GROUP_SIZE="group", LOCAL_MEM_SIZE="local", COMPILE_WORK_GROUP_SIZE="required"))


def built(group: int, local: int, required: tuple[int, int, int] = (0, 0, 0)) -> Any:
    return SimpleNamespace(get_work_group_info=lambda what, device: {"group": group, "local": local, "required": required}[what])


@pytest.mark.parametrize(
    "kernel, runtime, message",
    [
        (built(32, 0), "amd",
         r"(?s)layer 'c': the kernel f .*64 work-items.*allows 32 \(CL_KERNEL_WORK_GROUP_SIZE\).*export OCAFFE_DEBUG=\S*limits=max_work_group=32\n"),
        (built(64, 40_000), "amd", r"(?s)needs 40000 bytes of local memory.*has 32768 \(CL_DEVICE_LOCAL_MEM_SIZE\)"),
        (built(64, 32_768), "amd", ""),
        (built(64, 40_000), "nvidia", ""),
        (built(32, 0, (64, 1, 1)), "nvidia", ""),  # the compiler chose registers for groups of this size
    ],
)
def test_built_kernels_that_need_more_are_refused(kernel: Any, runtime: str, message: str) -> None:
    device = SimpleNamespace(name="Card", cl=FACTS, cl_device=None, target=Target(kind="gpu", runtime=runtime))
    launch, call = SimpleNamespace(layer="c", what="f"), SimpleNamespace(local=(64, 1), function="f")
    if not message:
        check_group(device, kernel, launch, call)  # type: ignore[arg-type]
        return
    with pytest.raises(Error, match=message):
        check_group(device, kernel, launch, call)  # type: ignore[arg-type]


def test_the_line_to_type_keeps_other_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "fuse=0,limits=local_memory=16384:max_work_group=256")
    device = SimpleNamespace(name="Card", cl=FACTS, cl_device=None, target=Target(kind="gpu", runtime="amd"))
    with pytest.raises(Error) as caught:
        check_group(device, built(32, 0), SimpleNamespace(layer="c", what="f"), SimpleNamespace(local=(64, 1), function="f"))  # type: ignore[arg-type]
    line = str(caught.value.fix).splitlines()[0]
    assert line == f"export {VARIABLE}=fuse=0,limits=local_memory=16384:max_work_group=32"
    monkeypatch.setenv(VARIABLE, line.partition("=")[2])
    assert dict(Switches.read().limits) == {"local_memory": 16384, "max_work_group": 32}


def test_hopper_has_more_local_memory_in_arrays_than_it_reports() -> None:
    hopper = Target(kind="gpu", runtime="nvidia", local_memory=48 * KIB, tensor_cores=True, wgmma=True)
    assert (hopper.static_local_memory, hopper.local_memory) == (200 * KIB, 48 * KIB)
    assert replace(hopper, wgmma=False).static_local_memory == 48 * KIB
    launch, call = SimpleNamespace(layer="c", what="f"), SimpleNamespace(local=(64, 1), function="f")
    device = SimpleNamespace(name="Card", cl=FACTS, cl_device=None, target=hopper)
    check_group(device, built(64, 200 * KIB), launch, call)  # type: ignore[arg-type]


def test_bounds_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    switch(monkeypatch, "limits=max_work_group=128:local_memory=1000000")
    bounded = with_bounds(Target())
    assert (bounded.max_work_group, bounded.local_memory) == (128, Target().local_memory)
    for text in ("max_work_group", "max_work_group=0", "group=64", "max_work_group=-1"):
        switch(monkeypatch, f"limits={text}")
        with pytest.raises(Error, match=rf"'limits' is '{text}'\n +fix: export .*limits=max_work_group=NUMBER:local_memory=NUMBER"):
            with_bounds(Target())


# -- features that a device may lack -------------------------------------------------------------------------------------


def test_kernels_use_nothing_beyond_opencl_1_2() -> None:
    """No double, no image, no 64-bit atomics, and no atomics of OpenCL 2 outside of the fences that a device must offer (Target.device_fence)."""
    assert "-cl-std=CL1.2" in OPTIONS
    absent = re.compile(r"\b(double\d*|image\w*_t|sampler_t|atom_\w+|cl_khr_\w+|generic|pipe)\b|\d\.\d+(?:e[-+]?\d+)?(?![\dfxe])")
    of_units = {"tile_mma.h", *(unit.header for unit in UNITS.values())}  # used only where the device has matrix units
    for path in (path for name, path in kernel_files().items() if name not in of_units):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.DOTALL)
        assert not (found := absent.search(code)), f"{path.name}: {found and found[0]}"


def test_commands_are_enqueued_in_order() -> None:
    assert not [path for path in PACKAGE.rglob("*.py") if "OUT_OF_ORDER" in path.read_text(encoding="utf-8")]
