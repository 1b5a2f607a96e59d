"""Errors of a device that fails while it works: the reason and the remedy for each OpenCL status."""
from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ocaffe.cl.program import BuildError
from ocaffe.errors import Error

P = ParamSpec("P")
R = TypeVar("R")
_ROOM = (
    "lower batch_size, end other programs that use the device, or add --memory-limit=SIZE to the command, such as 4G, which computes blobs again to need "
    "less memory"
)
_DRIVER = "see the system's log for the driver's message (`dmesg`); start again; if it happens again, try another driver or device"
_NAMES = {
    -1: "CL_DEVICE_NOT_FOUND", -2: "CL_DEVICE_NOT_AVAILABLE", -4: "CL_MEM_OBJECT_ALLOCATION_FAILURE", -5: "CL_OUT_OF_RESOURCES", -6: "CL_OUT_OF_HOST_MEMORY",
    -14: "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", -30: "CL_INVALID_VALUE", -34: "CL_INVALID_CONTEXT", -36: "CL_INVALID_COMMAND_QUEUE",
    -37: "CL_INVALID_HOST_PTR", -38: "CL_INVALID_MEM_OBJECT", -59: "CL_INVALID_OPERATION", -61: "CL_INVALID_BUFFER_SIZE", -64: "CL_INVALID_PROPERTY",
}  # fmt: skip
# status: the reason and the remedy
REASONS: dict[int, tuple[str, str]] = {
    -2: ("the device is not available any more", _DRIVER),
    -4: ("the device has too little memory", _ROOM),
    -5: ("the device has too few resources, in most cases too little memory", _ROOM),
    -6: ("the host has too little memory", "end other programs, or lower batch_size"),
    -14: ("a command failed while it ran", _DRIVER),
    -34: ("the driver has given up the context", _DRIVER),
    -36: ("the driver has given up the command queue", _DRIVER),
    -9999: ("a kernel accessed memory out of bounds, or the device was lost", _DRIVER),  # NVIDIA's
}
_RAN = -14
_WAITS = ("clWaitForEvents", "clFinish")


def status_name(code: int) -> str:
    """Return OpenCL's name of a status with the number, such as CL_OUT_OF_HOST_MEMORY, -6."""
    return f"{_NAMES[code]}, {code}" if code in _NAMES else f"OpenCL status {code}"


class DeviceFailure(Error):
    """A device that failed. `refused`: it did not take a command, so the commands before are not affected."""

    def __init__(self, fact: str, fix: str, *, refused: bool) -> None:
        super().__init__(fact, fix=fix)
        self.refused = refused


class _Explained:
    """A context, or a decorator: exceptions of OpenCL become Errors. A generator or a ContextDecorator would take microseconds of each pass of a small net."""

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def explained(*args: P.args, **named: P.kwargs) -> R:
            try:
                return function(*args, **named)
            except Exception as problem:
                error = device_failure(problem)
                if error is None:
                    raise
                raise error from problem

        return explained

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        error = None if problem is None else device_failure(problem)
        if error is not None:
            raise error from problem


explained = _Explained()


def device_failure(problem: BaseException) -> DeviceFailure | None:
    """Return the Error for an exception of OpenCL. None for all other exceptions."""
    if isinstance(problem, BuildError):
        return DeviceFailure(str(problem), "try another driver or --device; please report the message", refused=True)
    pyopencl = sys.modules.get("pyopencl")
    if pyopencl is None or not isinstance(problem, pyopencl.Error):
        return None
    code, routine = int(problem.code), str(problem.routine)
    reason, fix = REASONS.get(code, ("the driver reports an error", _DRIVER))
    return DeviceFailure(f"{reason} ({problem})", fix, refused=code != _RAN and routine not in _WAITS)
