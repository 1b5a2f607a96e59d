"""List the OpenCL devices of the machine and select one: `list_devices`, `select_device`, `Device`."""
from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ocaffe.cl import tuned_tables, unit_trial, wgmma_trial
from ocaffe.cl.conflicts import absences
from ocaffe.cl.discovery import Runtime, discover, import_pyopencl
from ocaffe.cl.fences import device_fence
from ocaffe.cl.free_memory import context_bytes, free_memory
from ocaffe.cl.limits import with_bounds
from ocaffe.cl.makers import GROUPS, closed_nodes, commands_for, makers_of_cards
from ocaffe.cl.quirks import Facts, Quirk, limited, quirks_of
from ocaffe.errors import Error
from ocaffe.ir import matrix_units
from ocaffe.ir.target import MATHS, TENSOR_MATHS, Target
from ocaffe.shown import Lines, lines_of
from ocaffe.support import log
from ocaffe.support.switches import Switches
from ocaffe.support.whole import whole

# The first pattern found in 'platform, vendor' (lower case) determines the runtime. PoCL on an NVIDIA card counts as PoCL.
RUNTIMES = (
    ("portable computing language", "pocl"), ("oclgrind", "oclgrind"), ("rusticl", "rusticl"), ("clover", "clover"),
    ("openclon12", "d3d12"), ("apple", "apple"), ("nvidia", "nvidia"), ("amd", "amd"), ("advanced micro devices", "amd"),
    ("intel", "intel"), ("arm platform", "arm"), ("qualcomm", "qualcomm"),
)  # fmt: skip
# Preference if several runtimes offer one processor. CPU: Intel's runtime before PoCL. It is as fast, and its binaries are
# complete, while PoCL compiles again at a kernel's first launch. It offers all memory, PoCL a quarter in pieces of 2 GiB.
# GPU: the vendor's own runtime before others.
PREFERENCE = {("cpu", "intel"): 2, ("cpu", "pocl"): 1, ("gpu", "pocl"): -1, ("gpu", "rusticl"): -1}
LANES = {"nvidia": 128, "amd": 64, "intel": 8}  # fp32 lanes of one compute unit, to compare cards of different vendors
GPU_VECTOR_WIDTH = 4  # floats: the lanes of a GPU are scalar (NVIDIA reports 1); there the widest load of 16 bytes counts
MINIMUM_VERSION = (1, 2)
FORKS = ("cpu", "intel")  # kind and runtime that run in forked processes too: Intel's CPU runtime gets its threads back
INTEL_LANES = {"corei7": 4, "corei7-avx": 8, "core-avx2": 8}  # values of CL_CONFIG_CPU_TARGET_ARCH below AVX-512
_process = 0  # the one that opened the first device of another runtime
_is_fork = False  # whether this process is a copy of that one


@dataclass(frozen=True)
class DeviceInfo:
    """A device as OpenCL lists it, without a context."""

    number: str  # 'PLATFORM:INDEX'
    name: str
    platform_name: str
    platform_version: str
    version: str  # OpenCL version, as the device reports it
    driver_version: str
    target: Target
    clock: int  # MHz
    quirks: tuple[Quirk, ...]
    unusable: str  # why the device cannot be used; empty if it can
    runtime: Runtime | None  # its driver, if known
    cl_device: Any

    @property
    def kind(self) -> str:
        return self.target.kind

    @property
    def facts(self) -> tuple[str, ...]:
        """The strings that identify device and driver."""
        return self.name, self.platform_name, self.platform_version, self.driver_version

    @property
    def avoid(self) -> bool:
        return any(quirk.avoid for quirk in self.quirks)

    def __str__(self) -> str:
        return f"{self.number}  {self.name} ({self.platform_name} {self.driver_version}, {self.kind.upper()})"

    def rank(self) -> tuple:
        """Return a sort key. The device with the highest rank is the default."""
        target = self.target
        speed = target.compute_units * LANES.get(target.runtime, 32) * max(self.clock, 1)
        return (
            not self.unusable,
            not self.avoid,
            not target.is_cpu,
            not target.unified_memory,
            PREFERENCE.get((target.kind, target.runtime), 0),
            speed,
            target.global_memory,
        )


class Device:
    """An opened device: its context and queues. Call `close` at the end.

    `base`: an opened device of the same `info`. The new one shares its context and built programs; only the queues are new.
    """

    def __init__(self, info: DeviceInfo, base: Device | None = None) -> None:
        global _process
        check_process()
        if (info.target.kind, info.target.runtime) != FORKS:
            _process = os.getpid()
        self.cl = import_pyopencl()
        self.programs: Any = None if base is None else base.programs  # shared by all sessions (ocaffe.cl.program.Programs); None: each session has its own
        self.info = info
        self.number, self.name = info.number, info.name
        self.platform_name, self.platform_version, self.driver_version = info.platform_name, info.platform_version, info.driver_version
        self.cl_device = info.cl_device
        before = self._own_free() if base is None else None
        self.context: Any = self.cl.Context([info.cl_device]) if base is None else base.context
        self.queue = self.cl.CommandQueue(self.context, info.cl_device)
        self.upload_queue = self.cl.CommandQueue(self.context, info.cl_device)  # for transfers that overlap with kernels
        self._copy_queues: dict[bool, Any] = {}
        # Device memory that a context takes in any other process, a compiler for example; 0 if it takes memory of the host.
        self.context_bytes: int = 0
        if not info.target.unified_memory:
            self.context_bytes = context_bytes(before, self._own_free()) if base is None else base.context_bytes
        self._target, self._trial, self._lock = info.target, begin_trial(info), threading.Lock()  # not earlier: its context would count as this one's

    @property
    def target(self) -> Target:
        """The properties that kernels are chosen by. `info.target` has them without wgmma, before its trial ends. This property waits for the trial."""
        if self._trial is not None:
            with self._lock:
                if self._trial is not None:
                    self._target, self._trial = replace(self._target, wgmma=self._trial()), None
        return self._target

    @target.setter
    def target(self, target: Target) -> None:
        self._target, self._trial = target, None

    def _own_free(self) -> int | None:
        return None if self.info.target.unified_memory else self.free()

    def free(self) -> int | None:
        """Return the free bytes of the device's memory now, or None if they are unknown."""
        return free_memory(self.cl_device, self.info.target.kind, self.info.target.extensions)

    def copy_queue(self, stores: bool) -> Any:
        """Return the queue of copies to the host (`stores`) or from it (ocaffe/cl/transfers.py)."""
        if stores not in self._copy_queues:
            self._copy_queues[stores] = self.cl.CommandQueue(self.context, self.cl_device)
        return self._copy_queues[stores]

    def close(self) -> None:
        """Wait for both queues and release the context."""
        if self.context is not None:
            with contextlib.suppress(self.cl.Error):  # of a device that failed; the failure itself was raised before
                self.queue.finish()
                self.upload_queue.finish()
                for queue in self._copy_queues.values():
                    queue.finish()
            self._copy_queues.clear()
            self.queue = self.upload_queue = self.context = None

    def __repr__(self) -> str:
        return f"<Device {self.info}>"


def forked() -> bool:
    """Return whether this process was forked from one with an open device. A fork copies memory, but not the threads of OpenCL runtimes."""
    return _is_fork


def _forked() -> None:
    global _is_fork
    _is_fork = _process != 0


if hasattr(os, "register_at_fork"):  # Windows cannot fork. os.getpid() in every call would take a tenth of a small net's time in Python
    os.register_at_fork(after_in_child=_forked)


def check_process() -> None:
    """Raise Error in a forked process, where PoCL and others would wait forever."""
    if forked():
        fact = f"process {os.getpid()} was forked from process {_process}, which has an OpenCL device open, so it cannot use OpenCL"
        raise Error(fact, fix="let it prepare data as numpy arrays, or start it by multiprocessing's method 'spawn'")


def list_devices() -> list[DeviceInfo]:
    """Return every device of every platform in the loader's order, unusable ones included. Without OpenCL the list is empty."""
    cl = import_pyopencl()
    platforms = _platforms(cl)
    if platforms:  # otherwise `no_opencl` says it
        for absence in absences([platform.name for platform in platforms]):
            log.warn_once("opencl:0", Lines(*f"OpenCL runtime {absence.fact}".split("\n"), f"  fix: {absence.fix}"))
    devices = []
    for p, platform in enumerate(platforms):
        try:
            members = platform.get_devices()
        except cl.Error:  # DEVICE_NOT_FOUND: a driver without its hardware
            continue
        devices += [_describe(cl, f"{p}:{i}", platform, member) for i, member in enumerate(members)]
    return devices


def _platforms(cl: Any) -> list[Any]:
    try:
        return list(cl.get_platforms())
    except cl.Error:  # PLATFORM_NOT_FOUND_KHR: the loader has no runtime
        return []


def _lanes(runtime: str, native: int) -> int:
    """Return the floats in a vector of a CPU, at least four (SSE, NEON).

    Intel's runtime compiles for the instructions in CL_CONFIG_CPU_TARGET_ARCH, but reports the processor's vectors.
    """
    limit = INTEL_LANES.get(os.environ.get("CL_CONFIG_CPU_TARGET_ARCH", ""), native) if runtime == "intel" else native
    return max(4, min(native, limit))


def _describe(cl: Any, number: str, platform: Any, device: Any) -> DeviceInfo:
    kind = "cpu" if device.type & cl.device_type.CPU else "gpu"
    names = {"platform": platform.name.strip(), "platform_version": platform.version.strip()}
    name, driver = device.name.strip("\0 "), device.driver_version.strip()
    vendor = f"{names['platform']}, {device.vendor}".lower()
    extensions = frozenset(device.extensions.split())
    quirks = quirks_of(Facts(**names, device=name, driver=driver, kind=kind))
    runtime = next((runtime for pattern, runtime in RUNTIMES if pattern in vendor), "generic")
    target = Target(
        kind=kind,
        name=name,
        runtime=runtime,
        compute_units=device.max_compute_units,
        vector_width=GPU_VECTOR_WIDTH if kind == "gpu" else _lanes(runtime, device.native_vector_width_float),
        max_work_group=device.max_work_group_size,
        local_memory=device.local_mem_size,
        global_memory=device.global_mem_size,
        max_allocation=device.max_mem_alloc_size,
        argument_bytes=device.max_parameter_size,
        alignment=max(256, device.mem_base_addr_align // 8),
        extensions=extensions,
        unified_memory=kind == "cpu" or bool(device.host_unified_memory),
        tensor_cores=_capability(device, extensions) >= 8,  # the first capability with TF32
        matrix_unit=matrix_units.unit_of(runtime, name, extensions) if kind == "gpu" else "",
        device_fence=device_fence(device, kind, runtime, _capability(device, extensions)),
    )
    free = free_memory(device, kind, extensions)
    target = replace(target, free_memory=target.global_memory if free is None else min(free, target.global_memory))
    return DeviceInfo(
        number=number,
        name=name,
        platform_name=names["platform"],
        platform_version=names["platform_version"],
        version=device.version.strip(),
        driver_version=driver,
        target=with_bounds(limited(target, quirks)),
        clock=device.max_clock_frequency,
        quirks=quirks,
        unusable=_why_unusable(device),
        runtime=discover().runtime_of(platform.name, platform.version),
        cl_device=device,
    )


def _capability(device: Any, extensions: frozenset[str]) -> int:
    """Return the major compute capability of an NVIDIA device under NVIDIA's driver, which supports inline PTX; otherwise 0."""
    return int(device.compute_capability_major_nv) if "cl_nv_compiler_options" in extensions else 0


def _why_unusable(device: Any) -> str:
    if not device.available:
        return "its driver says that it is not available"
    if not device.compiler_available:
        return "its driver has no OpenCL compiler"
    found = re.match(r"OpenCL (\d+)\.(\d+)", device.version)
    if found and (int(found[1]), int(found[2])) < MINIMUM_VERSION:
        return f"it has {found[0]}, ocaffe needs OpenCL 1.2"
    return ""


def select_device(
    spec: str | None = None, gpu: str | None = None, solver_mode_cpu: bool = False, math: str | None = None, kind: str | None = None
) -> Device:
    """Open the device that the flags select; by default the best one.

    `spec` (--device, else $OCAFFE_DEVICE): 'PLATFORM:INDEX', a part of a platform's or device's name, 'cpu' or 'gpu'.
    `gpu` (--gpu): a number in the list of GPUs, or 'all' if there is one GPU.
    `solver_mode_cpu`: the solver requests a CPU. Flags and environment have priority.
    `math` (--math, else $OCAFFE_MATH, else fp32): one of target.MATHS.
    `kind` (--kind): 'cpu' or 'gpu', the class of kernels, in place of the device's own.
    Raises Error if no device matches, if several match, or without OpenCL.
    """
    math = _math(math)
    devices = list_devices()
    if not devices:
        raise no_opencl()
    return open_device(choose(devices, spec, gpu, solver_mode_cpu, os.environ.get("OCAFFE_DEVICE")), math, kind)


def open_device(info: DeviceInfo, math: str | None = None, kind: str | None = None) -> Device:
    """Open a listed device, with tuned tables. Warn of runtimes to avoid. `math` and `kind` as in `select_device`."""
    for quirk in info.quirks:
        if quirk.avoid:
            log.warn_once("opencl:0", f"{info.name} ({info.platform_name}): {quirk.reason}")
    return Device(with_tuned(with_kind(with_math(info, math), kind)))


def _near(chosen: str) -> str:
    return next(iter(difflib.get_close_matches(chosen.lower(), MATHS, 1)), MATHS[0])


def _math(math: str | None) -> str:
    chosen = math or os.environ.get("OCAFFE_MATH") or MATHS[0]
    if chosen not in MATHS:
        if math:
            raise Error(f"--math is '{chosen}'", fix=f"give --math one of {', '.join(MATHS)}")
        found = "grep -n OCAFFE_MATH ~/.bashrc ~/.profile finds the line that sets it"
        raise Error(f"OCAFFE_MATH is '{chosen}'", fix=Lines(f"export OCAFFE_MATH={_near(chosen)}", f"    {found}; the values are {', '.join(MATHS)}"))
    return chosen


def with_math(info: DeviceInfo, math: str | None = None) -> DeviceInfo:
    """Return the device info with the arithmetic of products set to `math`, else $OCAFFE_MATH, else fp32.

    Raises Error if the device does not support it, or if its matrix unit does not pass the selftest (unit_trial.py).
    """
    math = _math(math)
    on_unit = math in TENSOR_MATHS and not info.target.tensor_cores
    if on_unit:
        unit = info.target.matrix_unit
        if not matrix_units.supports(unit, math):
            modes = f"its matrix unit has only {', '.join(matrix_units.UNITS[unit].depth)}" if unit else "it has no tensor cores usable from OpenCL"
            fix = "leave out --math, to compute in float32" + (", or give it one of these" if unit else "")
            raise Error(f"--math {math}: '{info.name}' ({info.platform_name}): {modes}", fix=fix)
        unit_trial.require(info.facts, info.number, unit, math)
    scale = Switches.read().gradient_scale if math == "fp16" else 0
    only = on_unit and unit_trial.running()
    target = replace(info.target, math=math, gradient_scale=scale or info.target.gradient_scale, matrix_unit_only=only)
    return info if info.target == target else replace(info, target=target)


def begin_trial(info: DeviceInfo) -> Callable[[], bool] | None:
    """Start the trial of wgmma if the math of the device can use it. Return a function that waits for the verdict. None: other devices have no wgmma."""
    if info.target.math not in ("bf16", "tf32") or _capability(info.cl_device, info.target.extensions) != wgmma_trial.CAPABILITY:
        return None
    return wgmma_trial.begin(info.facts, info.number, info.target)


def with_kind(info: DeviceInfo, kind: str | None = None) -> DeviceInfo:
    """Return the device info with the kernels of a class, 'cpu' or 'gpu'; without `kind` with those of the device's own.

    Kernels of GPUs on a CPU have the fence of the memory model of OpenCL, as on a GPU (ocaffe/cl/fences.py). PoCL has none: its version 3.1 miscompiles
    such kernels. Raises Error for kernels of CPUs on a GPU.
    """
    if not kind or kind == info.kind:
        return info
    if kind not in ("cpu", "gpu"):
        raise Error(f"--kind is '{kind}'", fix="--kind cpu or --kind gpu")
    if kind == "cpu":
        fact = f"--kind cpu: '{info.name}' ({info.platform_name}) is a GPU, and the kernels for CPUs need more private memory than a GPU's work-items have"
        raise Error(fact, fix="leave it out")
    fence = "" if info.target.runtime == "pocl" else device_fence(info.cl_device, kind, info.target.runtime, 0)
    return replace(info, target=replace(info.target, kind=kind, vector_width=GPU_VECTOR_WIDTH, device_fence=fence))


def with_tuned(info: DeviceInfo) -> DeviceInfo:
    """Return the device info with the device's tuned tables. Raises Error for a damaged table."""
    found = tuned_tables.load(info.target)
    return replace(info, target=replace(info.target, tuned=found)) if found.choices else info


def choose(
    devices: Sequence[DeviceInfo],
    spec: str | None = None,
    gpu: str | None = None,
    solver_mode_cpu: bool = False,
    default: str | None = None,
) -> DeviceInfo:
    """Apply the rules of `select_device` to a list of devices, which is not empty. `spec` and `gpu` override the spec `default`.

    Where there is no GPU, `default` overrides `gpu`, so that old shell scripts with `-gpu 0` run unchanged.
    """
    if spec and gpu:
        raise Error(f"--device {spec} and --gpu {gpu} both choose a device", fix=f"leave out --gpu {gpu}, or --device {spec}")
    if gpu and not (default and not gpus(devices)):
        return _usable(_by_gpu_number(devices, gpu))
    if gpu:
        log.warn_once("opencl:0", f"--gpu {gpu}: OpenCL has no GPU here; OCAFFE_DEVICE={default} chooses the device")
    if spec:
        return _usable(_by_spec(devices, spec, f"--device {spec}"))
    if default:
        return _usable(_by_spec(devices, default, f"OCAFFE_DEVICE={default}"))
    if solver_mode_cpu:
        return _best_of_kind(devices, "cpu", "solver_mode: CPU")
    return _usable(max(devices, key=DeviceInfo.rank))


def choose_several(devices: Sequence[DeviceInfo], spec: str | None = None, gpu: str | None = None) -> list[DeviceInfo]:
    """Apply the rules of `choose` to each part of a list such as `0,1` (--gpu) or `nvidia,1:0` (--device), in the order of the list.

    A device may be in the list several times. --gpu all: every GPU that can be used, in the order of --gpu. Raises Error as `choose`.
    """
    if spec and gpu:
        return [choose(devices, spec, gpu)]  # raises
    if gpu == "all":
        found = gpus(devices)
        return [device for device in found if not device.unusable] or [choose(devices, gpu="0" if found else "all")]
    parts = [part.strip() for part in (spec or gpu or "").split(",")]
    if "" in parts:
        flag = f"--{'device' if spec else 'gpu'}"
        given = ",".join(filter(None, parts)) or "0"
        raise Error(f"{flag} is '{spec or gpu}', with an empty place", fix=f"{flag} {given}")
    return [choose(devices, part) if spec else choose(devices, gpu=part) for part in parts]


def gpus(devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Return the GPUs in the order of --gpu: discrete ones first, otherwise in the loader's order."""
    return sorted((device for device in devices if device.kind == "gpu"), key=lambda device: device.target.unified_memory)


def _by_gpu_number(devices: Sequence[DeviceInfo], gpu: str) -> DeviceInfo:
    found = gpus(devices)
    flag = f"--gpu {gpu}"
    if not found:
        best = max(devices, key=DeviceInfo.rank)
        install = gpu_remedy(System.of_this_machine()) or ", or install the GPU's OpenCL driver (docs/platforms.md)"
        fix = lines_of(f"leave out --gpu to run on '{best.name}', or for old scripts: export OCAFFE_DEVICE={best.number}{install}")
        raise Error(_listed(f"{flag}: OpenCL has no GPU here, only", devices), fix=fix)
    numbers = [str(i) for i in range(len(found))] if gpu == "all" else [part.strip() for part in gpu.split(",")]
    if len(numbers) > 1:
        raise Error(f"{flag} lists {len(numbers)} GPUs, and this command runs on one device", fix=f"--gpu {numbers[0] or 0}")
    if not 0 <= whole(numbers[0]) < len(found):
        listing = [f"  {i}  {device.name} ({device.platform_name})" for i, device in enumerate(found)]
        raise Error(Lines(f"{flag}: there is no such GPU, only", *listing), fix="--gpu with one of these numbers")
    return found[int(numbers[0])]


def _by_spec(devices: Sequence[DeviceInfo], spec: str, flag: str) -> DeviceInfo:
    if spec.lower() in ("cpu", "gpu"):
        return _best_of_kind(devices, spec.lower(), flag)
    if re.fullmatch(r"\d+:\d+", spec):
        found = [device for device in devices if device.number == spec]
    else:
        wanted = spec.lower()
        # The first stage with a match decides: 'intel' selects Intel's runtime, not PoCL on an Intel processor.
        stages: tuple[Callable[[DeviceInfo], bool], ...] = (
            lambda device: wanted in (device.name.lower(), device.target.runtime),
            lambda device: wanted in f"{device.platform_name} {device.platform_version}".lower(),
            lambda device: wanted in device.name.lower(),
        )
        found = next(filter(None, ([device for device in devices if stage(device)] for stage in stages)), [])
    if not found:
        fact = _listed(f"{flag} matches no device; there {'is' if len(devices) == 1 else 'are'}", devices)
        raise Error(fact, fix=f"give the number PLATFORM:INDEX or a part of a name from this list, such as {devices[0].number}")
    if len(found) > 1:
        fix = f"give the number PLATFORM:INDEX from this list, such as {found[0].number}, or a longer part of the name"
        raise Error(_listed(f"{flag} matches {len(found)} devices:", found), fix=fix)
    return found[0]


def _best_of_kind(devices: Sequence[DeviceInfo], kind: str, asked_by: str) -> DeviceInfo:
    found = [device for device in devices if device.kind == kind]
    if not found:
        # Apple's OpenCL has processors of Intel as devices, not those of Apple.
        install = "" if sys.platform == "darwin" else f"{cpu_runtime_command(System.of_this_machine())}, or "
        fix = f"{install}--device {devices[0].number}" if kind == "cpu" else "leave it out to run on a CPU"
        raise Error(_listed(f"{asked_by}: OpenCL has no {kind.upper()} here, only", devices), fix=fix)
    return _usable(max(found, key=DeviceInfo.rank))


def _usable(device: DeviceInfo) -> DeviceInfo:
    if device.unusable:
        raise Error(
            f"'{device.name}' ({device.platform_name}) cannot be used: {device.unusable}",
            fix="update its driver, or choose another device: ocaffe device_query lists them",
        )
    return device


def _listed(text: str, devices: Sequence[DeviceInfo]) -> Lines:
    return Lines(text, *(f"  {device}" for device in devices)) if len(devices) > 1 else Lines(f"{text} {devices[0]}")


def no_opencl() -> Error:
    """Return the error for an empty list of devices. It lists runtimes that do not work and names the remedy."""
    found = discover()
    if found.chosen_by_user:
        fact = f"no OpenCL device on this machine: {found.chosen_by_user} leads to no runtime that has one"
        name = found.chosen_by_user.partition("=")[0]
        line = "    and remove the line that grep finds, which sets it: ocaffe then searches for runtimes itself"
        return Error(fact, fix=Lines(f"unset {name}; grep -n {name} ~/.bashrc ~/.profile", line))
    absent = absences([platform.name for platform in _platforms(import_pyopencl())])
    fact = f"no OpenCL device {'in this process' if absent else 'on this machine'}"
    broken = [f"{runtime.library}: {runtime.problem}" for runtime in found.runtimes if runtime.problem]
    broken += [line for absence in absent for line in absence.fact.split("\n")]
    if broken:
        fact = Lines(f"{fact}; runtimes that were found but do not work:", *(f"  {each}" for each in broken))
    system = System.of_this_machine()
    return Error(fact, fix=absent[0].fix if absent else lines_of(f"{cpu_runtime_command(system)}{gpu_remedy(system)}"))


# The distribution's PoCL, for systems without a runtime on PyPI.
PACKAGE_COMMANDS = (
    ("apt-get", "sudo apt-get install pocl-opencl-icd"),
    ("dnf", "sudo dnf install pocl"),
    ("pacman", "sudo pacman -S pocl"),
    ("zypper", "sudo zypper install pocl"),
    ("apk", "apk add pocl"),
)


class System(NamedTuple):
    """The facts of a system that decide how one installs an OpenCL runtime on it."""

    platform: str  # sys.platform
    machine: str  # of the processor, as `uname -m` prints it
    glibc: bool = False  # other C libraries of Linux cannot load packages of PyPI
    android: bool = False
    has: Callable[[str], object] = shutil.which  # whether a program is installed
    cards: Sequence[str] = ()  # makers of its GPUs
    closed: Sequence[str] = ()  # device files of GPUs that this user must not open

    @classmethod
    def of_this_machine(cls) -> System:
        import platform

        android = hasattr(sys, "getandroidapilevel")
        return cls(sys.platform, platform.machine(), bool(platform.libc_ver()[0]), android, shutil.which, makers_of_cards(), closed_nodes())


def gpu_remedy(system: System, has_opencl: Collection[str] = ()) -> str:
    """Return how to get OpenCL for the GPUs of `system` whose makers are not in `has_opencl`, as lines to add to a remedy; '' without such GPUs."""
    lines = []
    for maker in system.cards:
        if maker not in has_opencl:
            commands = [*commands_for(maker, system.has)] or ["the package with OpenCL of your distribution"]
            lines += [f"for the GPU of {maker}: {'; or '.join(commands)}; docs/platforms.md lists the packages"]
            lines += [f"this user must not open {', '.join(system.closed)}: {GROUPS}"] if system.closed and maker != "NVIDIA" else []
    return "".join(f"\n  {line}" for line in dict.fromkeys(lines))


def cpu_runtime_command(system: System) -> str:
    """Return the command that installs an OpenCL runtime for the CPU."""
    if system.platform == "darwin":
        return "nothing to install, OpenCL is part of macOS: run outside of a sandbox or virtual machine that hides it"
    if system.android:
        return "pkg install pocl for the CPU, pkg install opencl-vendor-driver for the GPU (docs/platforms.md)"
    if system.machine.lower() in ("x86_64", "amd64") and (system.glibc or system.platform == "win32"):
        return "pip install intel-opencl-rt intel-cmplr-lib-rt"
    if system.platform == "win32":
        return "install the driver of the GPU's maker; there is no OpenCL runtime for this processor on PyPI"
    found = next((command for tool, command in PACKAGE_COMMANDS if system.has(tool)), None)
    return found or "install the PoCL package of your distribution"
