"""Limits of a device: bounds that the user sets, and the refusal of kernels that need larger work-groups or more local memory than a device has."""
from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

from ocaffe.errors import Error
from ocaffe.ir.launch import Call, Launch
from ocaffe.ir.target import OTHER_DEVICE, Target
from ocaffe.shown import Lines, command
from ocaffe.support.switches import VARIABLE, Switches


def with_bounds(target: Target) -> Target:
    """Return the target with the upper bounds of the user's switches."""
    bounds: dict[str, Any] = {name: min(getattr(target, name), bound) for name, bound in Switches.read().limits}
    return replace(target, **bounds)


def _smaller(items: int) -> Lines:
    """Return the line for a shell that sets the bound, with the user's other switches."""
    kept = [word for word in os.environ.get(VARIABLE, "").split(",") if word and not word.strip().startswith("limits=")]
    bounds = dict(Switches.read().limits) | {"max_work_group": items}
    words = [*kept, "limits=" + ":".join(f"{name}={bound}" for name, bound in bounds.items())]
    return Lines(command("export", f"{VARIABLE}={','.join(words)}"), "    which makes ocaffe use smaller groups; run the command again")


def check_group(device: Any, kernel: Any, launch: Launch, call: Call) -> None:
    """Raise Error if the device cannot run a built kernel in the work-groups of `call`. `device`: an ocaffe.cl.device.Device.

    The compiler may allow smaller groups than the device if the kernel needs many registers.
    """
    items = math.prod(call.local or (1,))
    if items == 1:
        return
    target, info = device.target, device.cl.kernel_work_group_info
    name = f"layer '{launch.layer}': the kernel {launch.what or call.function}"
    if items > target.max_work_group:
        fact = f"{name} needs work-groups of {items} work-items, '{device.name}' allows {target.max_work_group} (CL_DEVICE_MAX_WORK_GROUP_SIZE)"
        raise Error(fact, fix=OTHER_DEVICE)
    allowed = kernel.get_work_group_info(info.WORK_GROUP_SIZE, device.cl_device)
    required = kernel.get_work_group_info(info.COMPILE_WORK_GROUP_SIZE, device.cl_device)  # NVIDIA's driver rounds `allowed` down to a power of two
    if items > allowed and items != math.prod(required):
        fact = f"{name} needs work-groups of {items} work-items, as built for '{device.name}' it allows {allowed} (CL_KERNEL_WORK_GROUP_SIZE)"
        raise Error(fact, fix=_smaller(allowed))
    if target.runtime == "nvidia":  # its kernels run with more local memory than the device reports; the driver refuses a launch of those that need too much
        return
    used = kernel.get_work_group_info(info.LOCAL_MEM_SIZE, device.cl_device)
    if used > target.static_local_memory:
        fact = f"{name} needs {used} bytes of local memory, '{device.name}' has {target.static_local_memory} (CL_DEVICE_LOCAL_MEM_SIZE)"
        raise Error(fact, fix=OTHER_DEVICE)
