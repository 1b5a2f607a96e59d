"""The choice of a device. The rules are tested on simulated machines, opening is tested on real devices."""
from __future__ import annotations

import platform
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ocaffe.cl import device as module
from ocaffe.cl import discovery
from ocaffe.cl.device import Device, DeviceInfo, System, choose, choose_several, cpu_runtime_command, gpus, list_devices, select_device, with_kind, with_math
from ocaffe.cl.discovery import Discovery, Runtime
from ocaffe.cl.quirks import Facts, limited, quirks_of
from ocaffe.errors import Error
from ocaffe.ir.target import TENSOR_MATHS, Target
from tests.harness import switch

pytestmark = pytest.mark.quick


def info(number: str, name: str, platform: str, runtime: str, kind: str = "gpu", version: str = "OpenCL 3.0", **values) -> DeviceInfo:
    target = Target(kind=kind, name=name, runtime=runtime, unified_memory=kind == "cpu", global_memory=8 << 30)
    target = replace(target, **{key: values.pop(key) for key in list(values) if hasattr(target, key)})
    facts = Facts(platform, version, name, "1.0", kind)
    made = DeviceInfo(number, name, platform, version, "OpenCL 3.0", "1.0", target, 1500, quirks_of(facts), "", None, SimpleNamespace(version="OpenCL 2.0 X"))
    return replace(made, **values)


RTX = info("0:0", "NVIDIA GeForce RTX 3070", "NVIDIA CUDA", "nvidia", compute_units=46)
GTX = info("0:1", "NVIDIA GeForce GTX 1050", "NVIDIA CUDA", "nvidia", compute_units=5)
IRIS = info("1:0", "Intel(R) Iris(R) Xe Graphics", "Intel(R) OpenCL Graphics", "intel", compute_units=96, unified_memory=True)
RADEON = info("2:0", "gfx1031", "AMD Accelerated Parallel Processing", "amd", compute_units=20)
RADEON_MESA = info("6:0", "AMD Radeon RX 6700 XT (radeonsi)", "rusticl", "rusticl", compute_units=40)
INTEL = info("3:0", "Intel(R) Core(TM) i7", "Intel(R) OpenCL", "intel", "cpu")
POCL = info("4:0", "pthread-Intel(R) Core(TM) i7", "Portable Computing Language", "pocl", "cpu", "OpenCL 3.0 PoCL 5.0  Linux")
POCL_30 = info("5:0", "pthread-Intel(R) Core(TM) i7", "Portable Computing Language", "pocl", "cpu", "OpenCL 3.0 PoCL 3.0-rc2  Linux")
RENDERER = info("7:0", "Microsoft Basic Render Driver", "OpenCLOn12", "d3d12")
ALL = [RENDERER, POCL_30, POCL, INTEL, IRIS, RADEON_MESA, GTX, RADEON, RTX]


@pytest.mark.parametrize(
    "present, best",
    [
        (ALL, RTX),
        ([IRIS, INTEL], IRIS),
        ([IRIS, GTX, POCL], GTX),
        ([RADEON_MESA, RADEON], RADEON),
        ([RADEON_MESA, POCL], RADEON_MESA),
        ([POCL_30, POCL, INTEL], INTEL),
        ([POCL_30, POCL], POCL),
        ([POCL_30], POCL_30),
        ([RENDERER, POCL], POCL),
        ([replace(RTX, unusable="no compiler"), POCL], POCL),
    ],
    ids=["all", "gpu-first", "discrete-first", "vendor-first", "mesa-alone", "intel", "pocl", "old-pocl-alone", "no-renderer", "unusable"],
)
def test_default_is_the_best_device(present: list[DeviceInfo], best: DeviceInfo) -> None:
    assert choose(present) is best
    assert choose(present[::-1]) is best


@pytest.mark.parametrize(
    "spec, chosen",
    [
        ("0:1", GTX), ("3:0", INTEL), ("3070", RTX), ("geforce gtx", GTX), ("Iris", IRIS), ("amd accelerated", RADEON), ("pocl 5", POCL),
        ("cpu", INTEL), ("GPU", RTX), ("gfx1031", RADEON), ("rusticl", RADEON_MESA),
    ],
)  # fmt: skip
def test_spec(spec: str, chosen: DeviceInfo) -> None:
    assert choose(ALL, spec) is chosen
    assert choose(ALL, default=spec) is chosen


def test_a_runtime_name_comes_before_a_processor_name() -> None:
    assert choose([POCL, INTEL], "intel") is INTEL


@pytest.mark.parametrize("spec", ["nvidia", "pocl", "9:9", "voodoo", "00:0"])
def test_spec_that_fits_none_or_several_lists_them(spec: str) -> None:
    with pytest.raises(Error) as raised:
        choose(ALL, spec)
    text = str(raised.value)
    assert f"--device {spec} matches" in text and "PLATFORM:INDEX" in text
    for fits in (RTX, GTX) if spec == "nvidia" else (POCL, POCL_30) if spec == "pocl" else ALL:
        assert str(fits) in text


def test_flags_come_before_the_environment_and_that_before_the_solver() -> None:
    assert choose(ALL, "iris", default="cpu") is IRIS
    assert choose(ALL, gpu="1", default="cpu") is gpus(ALL)[1]
    assert choose(ALL, solver_mode_cpu=True) is INTEL
    assert choose(ALL, default="iris", solver_mode_cpu=True) is IRIS
    assert choose(ALL, gpu="0", solver_mode_cpu=True).kind == "gpu"
    with pytest.raises(Error, match="both choose a device"):
        choose(ALL, "cpu", "0")


def test_gpu_numbers_count_discrete_cards_first() -> None:
    machine = [IRIS, RTX, GTX, INTEL]
    assert [choose(machine, gpu=str(i)) for i in range(3)] == [RTX, GTX, IRIS]
    assert choose([INTEL, GTX], gpu="all") is GTX


@pytest.mark.parametrize("gpu, count", [("0,1", 2), ("all", 3), ("0, 1,2", 3)])
def test_several_gpus_are_refused(gpu: str, count: int) -> None:
    with pytest.raises(Error) as raised:
        choose([IRIS, RTX, GTX, INTEL], gpu=gpu)
    assert f"--gpu {gpu} lists {count} GPUs" in str(raised.value) and "fix: --gpu 0" in str(raised.value)


@pytest.mark.parametrize(
    "ask, chosen",
    [
        ({"gpu": "all"}, [RTX, GTX, IRIS]), ({"gpu": "2,0"}, [IRIS, RTX]), ({"gpu": "1"}, [GTX]), ({"gpu": "0, 0"}, [RTX, RTX]),
        ({"spec": "cpu,3070"}, [INTEL, RTX]), ({"spec": "0:1"}, [GTX]),
    ],
)  # fmt: skip
def test_lists_of_devices(ask: dict, chosen: list[DeviceInfo]) -> None:
    assert choose_several([IRIS, RTX, GTX, INTEL], **ask) == chosen


def test_all_gpus_are_those_that_can_be_used() -> None:
    broken = replace(RTX, unusable="its driver has no OpenCL compiler")
    assert choose_several([broken, GTX, INTEL], gpu="all") == [GTX]
    with pytest.raises(Error, match="cannot be used"):
        choose_several([broken, broken], gpu="all")


@pytest.mark.parametrize(
    "ask, fact",
    [
        ({"gpu": "0,,1"}, "--gpu is '0,,1'"), ({"spec": "cpu,"}, "--device is 'cpu,'"), ({"gpu": "0,3"}, "--gpu 3: there is no such GPU"),
        ({"spec": "cpu,voodoo"}, "--device voodoo matches no device"), ({"spec": "cpu", "gpu": "0"}, "both choose a device"),
        ({"spec": "cpu", "gpu": "all"}, "both choose a device"),
    ],
)  # fmt: skip
def test_wrong_lists_of_devices(ask: dict, fact: str) -> None:
    with pytest.raises(Error, match=fact):
        choose_several([IRIS, RTX, GTX, INTEL], **ask)


def test_all_gpus_where_there_is_none() -> None:
    with pytest.raises(Error, match="--gpu all: OpenCL has no GPU here"):
        choose_several([INTEL], gpu="all")


@pytest.mark.parametrize("gpu", ["3", "-1", "x"])
def test_gpu_number_that_is_not_there(gpu: str) -> None:
    with pytest.raises(Error) as raised:
        choose([IRIS, RTX, GTX, INTEL], gpu=gpu)
    assert "no such GPU" in str(raised.value) and "2  Intel(R) Iris(R) Xe Graphics" in str(raised.value)


def test_gpu_asked_for_where_there_is_none_names_what_there_is() -> None:
    with pytest.raises(Error) as raised:
        choose([POCL, INTEL], gpu="0")
    assert str(POCL) in str(raised.value) and f"leave out --gpu to run on '{INTEL.name}'" in str(raised.value)


def test_solver_mode_cpu_without_a_cpu_runtime() -> None:
    with pytest.raises(Error) as raised:
        choose([RTX], solver_mode_cpu=True)
    assert "solver_mode: CPU: OpenCL has no CPU here, only 0:0" in str(raised.value) and "--device 0:0" in str(raised.value)


@pytest.mark.parametrize("ask", [{"spec": "0:0"}, {"gpu": "0"}, {}])
def test_unusable_device_is_refused_with_its_reason(ask: dict) -> None:
    with pytest.raises(Error, match=r"RTX 3070.* cannot be used: its driver has no OpenCL compiler"):
        choose([replace(RTX, unusable="its driver has no OpenCL compiler")], **ask)


@pytest.mark.parametrize(
    "facts, reason",
    [
        ({"available": False}, "not available"),
        ({"compiler_available": False}, "no OpenCL compiler"),
        ({"version": "OpenCL 1.1 Mesa"}, "OpenCL 1.1, ocaffe needs OpenCL 1.2"),
        ({}, ""),
        ({"version": "OpenCL 3.1 (Build 0)"}, ""),
    ],
)
def test_what_makes_a_device_unusable(facts: dict, reason: str) -> None:
    device = SimpleNamespace(**{"available": True, "compiler_available": True, "version": "OpenCL 1.2 CUDA", **facts})
    found = module._why_unusable(device)
    assert reason in found and bool(found) == bool(reason)


@pytest.mark.parametrize(
    "system, machine, libc, tool, command",
    [
        ("linux", "x86_64", "glibc", "apt-get", "pip install intel-opencl-rt intel-cmplr-lib-rt"),
        ("win32", "AMD64", "", "", "pip install intel-opencl-rt intel-cmplr-lib-rt"),
        ("linux", "x86_64", "", "apk", "apk add pocl"),
        ("linux", "aarch64", "glibc", "apt-get", "sudo apt-get install pocl-opencl-icd"),
        ("linux", "aarch64", "glibc", "dnf", "sudo dnf install pocl"),
        ("linux", "ppc64le", "glibc", "", "PoCL package of your distribution"),
        ("darwin", "arm64", "", "", "nothing to install"),
    ],
)
def test_the_command_that_installs_a_runtime(system: str, machine: str, libc: str, tool: str, command: str) -> None:
    assert command in cpu_runtime_command(System(system, machine, bool(libc), has=lambda name: name == tool))


def test_without_opencl_the_error_names_the_command(monkeypatch) -> None:
    broken = Runtime("/opt/x.so", "x.icd", problem="a trial in another process ended with SIGABRT")
    monkeypatch.setattr(module, "list_devices", list)
    monkeypatch.setattr(module, "discover", lambda: Discovery((broken,)))
    with pytest.raises(Error) as raised:
        select_device()
    text = str(raised.value)
    assert "no OpenCL device on this machine" in text and "/opt/x.so: a trial in another process ended with SIGABRT" in text
    system = System.of_this_machine()
    assert raised.value.fix == cpu_runtime_command(system) and (system.platform, system.machine) == (sys.platform, platform.machine())


def test_without_opencl_because_of_the_users_own_setting(monkeypatch) -> None:
    monkeypatch.setattr(module, "list_devices", list)
    monkeypatch.setattr(module, "discover", lambda: Discovery(chosen_by_user="OCL_ICD_VENDORS=/nowhere"))
    with pytest.raises(Error, match="OCL_ICD_VENDORS=/nowhere leads to no runtime"):
        select_device()


@pytest.mark.parametrize(
    "version, width, avoid",
    [("PoCL 3.0-rc2  Linux", 8, True), ("PoCL 1.8", 8, True), ("PoCL 3.1+debian", 16, False), ("PoCL 5.0", 16, False)],
)
def test_quirk_of_old_pocl(version: str, width: int, avoid: bool) -> None:
    quirks = quirks_of(Facts("Portable Computing Language", f"OpenCL 3.0 {version}", "pthread-cascadelake"))
    assert limited(Target(vector_width=16), quirks).vector_width == width
    assert any(quirk.avoid for quirk in quirks) == avoid


def test_quirk_of_rusticl_on_a_cpu() -> None:
    (quirk,) = quirks_of(Facts("rusticl", "OpenCL 3.0", "llvmpipe (LLVM 19.1.7, 256 bits)", "25.0.7"))
    assert quirk.options == "-DNO_PREFETCH" and not quirk.avoid


def test_quirks_touch_nobody_else() -> None:
    assert not any(device.quirks for device in (RTX, IRIS, RADEON, RADEON_MESA, INTEL, POCL))


def test_target_tells_what_the_device_says(device: Device) -> None:
    target, found = device.target, device.cl_device
    assert target.kind == ("cpu" if found.type & device.cl.device_type.CPU else "gpu")
    assert target.compute_units == found.max_compute_units and target.extensions == frozenset(found.extensions.split())
    assert target.alignment % (found.mem_base_addr_align // 8) == 0 and target.alignment % 256 == 0
    assert 0 < target.free_memory <= target.global_memory
    assert target.vector_width in (4, 8, 16)
    assert target.runtime != "generic", "a known runtime"


def test_both_queues_work_on_one_context(device: Device) -> None:
    cl = device.cl
    data = np.arange(1000, dtype=np.float32)
    buffer = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, data.nbytes)
    uploaded = cl.enqueue_copy(device.upload_queue, buffer, data, is_blocking=False)
    result = np.empty_like(data)
    cl.enqueue_copy(device.queue, result, buffer, wait_for=[uploaded])
    assert (result == data).all()


def test_select_by_number_environment_and_close(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(str(found) == str(device.info) for found in list_devices())
    monkeypatch.setenv("OCAFFE_DEVICE", device.number)
    for opened in (select_device(device.number), select_device()):
        assert opened.number == device.number and opened.target.name == device.name
        opened.close()
        assert opened.context is None
        opened.close()  # a second close is harmless


def test_a_device_to_avoid_warns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "list_devices", lambda: [POCL_30])
    monkeypatch.setattr(module, "Device", lambda info: info)
    monkeypatch.setattr(module.log, "_once", set())
    monkeypatch.delenv("OCAFFE_DEVICE", raising=False)
    assert select_device() is POCL_30  # type: ignore[comparison-overlap]
    assert "PoCL before 3.1" in capsys.readouterr().err


def test_the_runtime_of_a_platform_is_known(device: Device) -> None:
    if discovery.discover().chosen_by_user:
        pytest.skip("the environment directs the loader")
    assert device.info.runtime is not None and device.info.runtime.devices > 0


def test_modes_of_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Error, match=r"--math is 'fp8'(?s:.*)one of fp32, ieee, tf32"):
        select_device(math="fp8")
    monkeypatch.setenv("OCAFFE_MATH", "ieee")
    device = select_device("cpu")
    assert device.target.math == "ieee"
    device.close()
    for math in TENSOR_MATHS:
        with pytest.raises(Error, match=f"--math {math}.*has no tensor cores usable from OpenCL"):
            select_device("cpu", math=math)


def test_the_class_of_kernels_can_be_chosen() -> None:
    with pytest.raises(Error, match=r"--kind is 'tpu'(?s:.*)--kind cpu or --kind gpu"):
        with_kind(INTEL, "tpu")
    assert with_kind(INTEL) is INTEL and with_kind(INTEL, "cpu") is INTEL
    on_cpu = with_kind(INTEL, "gpu").target
    assert (on_cpu.kind, on_cpu.vector_width, on_cpu.runtime, on_cpu.device_fence) == ("gpu", 4, "intel", "SCOPE")
    assert with_kind(POCL, "gpu").target.device_fence == "" == with_kind(INTEL).target.device_fence
    with pytest.raises(Error, match=r"--kind cpu: 'NVIDIA GeForce RTX.*is a GPU"):
        with_kind(RTX, "cpu")


@pytest.mark.parametrize("scale", ["1000", "0", "-2", "half", "33554432"])
def test_the_scale_of_gradients_is_a_power_of_two(monkeypatch: pytest.MonkeyPatch, scale: str) -> None:
    card = info("0:0", "NVIDIA H100", "NVIDIA CUDA", "nvidia", tensor_cores=True)
    switch(monkeypatch, f"gradient_scale={scale}")
    with pytest.raises(Error, match=rf"'gradient_scale' is '{scale}'\n  fix: export .*gradient_scale=1\n +other values are 2, 4, 8, \.\.\., 16777216"):
        with_math(card, "fp16")
    switch(monkeypatch, "gradient_scale=4096")
    assert with_math(card, "fp16").target.gradient_scale == 4096


@pytest.mark.parametrize(
    ("runtime", "native", "arch", "lanes"),
    [
        ("intel", 16, "", 16), ("intel", 16, "core-avx2", 8), ("intel", 16, "corei7", 4), ("intel", 8, "skx", 8),
        ("pocl", 16, "core-avx2", 16), ("pocl", 1, "", 4),
    ],
)  # fmt: skip
def test_vectors_of_a_cpu(runtime: str, native: int, arch: str, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CL_CONFIG_CPU_TARGET_ARCH", arch)
    assert module._lanes(runtime, native) == lanes
