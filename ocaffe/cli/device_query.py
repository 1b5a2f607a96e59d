"""`ocaffe device_query`: Caffe's fields that exist in OpenCL, and the properties that ocaffe uses."""
from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ocaffe.cl.device import DeviceInfo, System, choose, choose_several, gpu_remedy, gpus, list_devices, no_opencl
from ocaffe.cl.discovery import discover
from ocaffe.cl.makers import maker_of
from ocaffe.cli.flags import Parser, device_flags
from ocaffe.errors import Error
from ocaffe.shown import Lines, lines_of, say

_LABEL_WIDTH = 31  # Caffe's column
_FLAGS = ("gpu_overlap_nv", "kernel_exec_timeout_nv")


def main(argv: Sequence[str]) -> int:
    parser = Parser("device_query", "Show the OpenCL devices and the files of their drivers.")
    device_flags(parser)
    options = parser.parse(argv)
    say(device_query_text(options.gpu or None, options.device or None))
    return 0


def device_query_text(gpu: str | None = None, spec: str | None = None) -> Lines:
    """Return the report: one field per line, with an empty line between devices.

    `spec` and `gpu` are those of `choose_several`. Without them, and for gpu = 'all', the report covers every device.
    Raises Error for a device that does not exist.
    """
    devices = list_devices()
    if not devices:
        raise no_opencl()
    default = _default(devices)
    paragraphs = [_paragraph(_device_lines(devices, device, device is default)) for device in _chosen(devices, gpu, spec)]
    left_out = _paragraph((*_left_out(), *_without_opencl(devices)))
    first, *more = [*paragraphs, *([left_out] if left_out else [])]
    return Lines(first, *(line for paragraph in more for line in ("", paragraph)))


def _default(devices: Sequence[DeviceInfo]) -> DeviceInfo | None:
    """Return the device that a command without flags uses."""
    try:
        return choose(devices, default=os.environ.get("OCAFFE_DEVICE"))
    except Error:
        return None


def _chosen(devices: Sequence[DeviceInfo], gpu: str | None, spec: str | None) -> list[DeviceInfo]:
    return choose_several(devices, spec, gpu) if spec or gpu not in (None, "", "all") else list(devices)


def _without_opencl(devices: Sequence[DeviceInfo]) -> Iterator[tuple[str, object]]:
    """Yield the GPUs of the machine for whose makers OpenCL has no device, with the commands that install it."""
    present = {maker_of(device.cl_device) for device in devices if device.kind == "gpu"}
    remedy = gpu_remedy(System.of_this_machine(), present).strip()
    if remedy:
        yield "GPU without OpenCL", Lines(*(" " * _LABEL_WIDTH * bool(row) + line for row, line in enumerate(remedy.split("\n  "))))


def _paragraph(lines: Iterable[tuple[str, object]]) -> Lines:
    return Lines(*(_line(label, value) for label, value in lines))


def _line(label: str, value: object) -> str:
    text = f"{label + ':':<{_LABEL_WIDTH}}{value}"
    return lines_of(text) if isinstance(value, Lines) else text


def _device_lines(devices: Sequence[DeviceInfo], info: DeviceInfo, is_default: bool) -> Iterator[tuple[str, object]]:
    device, target = info.cl_device, info.target
    gpu = f" (--gpu {gpus(devices).index(info)})" if info.kind == "gpu" else ""
    yield "Device id", info.number + gpu + (", the default" if is_default else "")
    if info.unusable:
        yield "Cannot be used", info.unusable
    yield from _nvidia(device, ("Major revision number", "compute_capability_major_nv"))
    yield from _nvidia(device, ("Minor revision number", "compute_capability_minor_nv"))
    yield "Name", info.name
    yield "Kind", _kind(info)
    if info.kind == "gpu" and maker_of(device) in ("AMD", "Intel"):
        yield "Tested", f"compiled for by {maker_of(device)}'s compiler, not run on its GPUs (docs/devices.md); `ocaffe selftest` tests this one"
    yield "Platform", info.platform_name
    yield "Platform version", info.platform_version
    yield "OpenCL version", info.version
    yield "Driver version", info.driver_version
    if info.runtime is not None:
        yield "Runtime library", f"{info.runtime.library} ({info.runtime.origin})"
    elif discover().chosen_by_user:
        yield "Runtime library", f"chosen by {discover().chosen_by_user}"
    yield "Total global memory", target.global_memory
    yield "Free global memory", target.free_memory
    yield "Maximum allocation", target.max_allocation
    yield "Total shared memory per block", target.local_memory
    yield from _nvidia(device, ("Total registers per block", "registers_per_block_nv"), ("Warp size", "warp_size_nv"))
    yield "Memory alignment", target.alignment
    yield "Vector width", f"{target.vector_width} floats"
    yield "Maximum threads per block", target.max_work_group
    yield "Maximum dimension of block", ", ".join(map(str, device.max_work_item_sizes))
    yield "Clock rate", info.clock * 1000  # kHz, as Caffe prints it
    yield "Total constant memory", device.max_constant_buffer_size
    yield from _nvidia(device, ("Concurrent copy and execution", "gpu_overlap_nv"))
    yield "Number of multiprocessors", target.compute_units
    yield from _nvidia(device, ("Kernel execution timeout", "kernel_exec_timeout_nv"))
    for quirk in info.quirks:
        limits = ", ".join(f"{name} <= {bound}" for name, bound in quirk.limits.items())
        yield "Quirk", quirk.reason + (f" [{limits}]" if limits else "") + (" [chosen last]" if quirk.avoid else "")
    yield "Extensions", " ".join(sorted(target.extensions))


def _kind(info: DeviceInfo) -> str:
    if info.kind == "cpu":
        return "CPU"
    return "GPU, shares the host's memory" if info.target.unified_memory else "GPU with its own memory"


def _nvidia(device: Any, *fields: tuple[str, str]) -> Iterator[tuple[str, object]]:
    """Yield fields that only NVIDIA's driver provides (cl_nv_device_attribute_query)."""
    if "cl_nv_device_attribute_query" in device.extensions:
        for label, name in fields:
            value = getattr(device, name)
            yield label, ("No", "Yes")[bool(value)] if name in _FLAGS else value


def _left_out() -> Iterator[tuple[str, object]]:
    for runtime in discover().runtimes:
        if runtime.problem:
            yield "Runtime left out", f"{runtime.library}: {runtime.problem}"
        elif not runtime.devices:
            hidden = "rusticl" in runtime.library.lower() and not os.environ.get("RUSTICL_ENABLE")
            hint = "; Mesa's rusticl has the devices of the drivers in RUSTICL_ENABLE, such as radeonsi, iris, panfrost or freedreno" if hidden else ""
            yield "Runtime without devices", f"{runtime.library} ({runtime.origin}){hint}"
