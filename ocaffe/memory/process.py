"""The memory that the process of a training is predicted to take, and the memory that it took.

On a CPU the whole process counts: start-up (Python, ocaffe's modules, the OpenCL runtimes), the plan, and the runtime's programs and kernels, which are in no
plan (docs/memory.md, The process on a CPU). On a GPU with its own memory the driver's figure for the device counts: the context and the plan.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ocaffe.ir.launch import HOST, Schedule
from ocaffe.memory.report import size_text
from ocaffe.support.process_memory import Taken

PROGRAM_BYTES = 5 << 18  # of a built program. Measured in five nets: Intel's runtime 0.9 to 1.6 MiB, PoCL 1.7 to 2.1
KERNEL_BYTES = 8 << 10  # of a kernel with its arguments. Measured in nets of 370 to 620 kernels: Intel's runtime 8 to 12 KiB, PoCL 1 to 4


class RuntimeMemory(NamedTuple):
    """The programs and kernels that the runtime of a CPU holds for schedules, in the same process. No device is needed to count them."""

    programs: int
    kernels: int

    @classmethod
    def of(cls, schedules: Iterable[Schedule]) -> RuntimeMemory:
        calls = [launch.final() for schedule in schedules for launch in schedule if not isinstance(launch, HOST)]
        families = {(call.program, call.defines) for call in calls if not call.generated}
        return cls(len(families) + any(call.generated for call in calls), len(calls))

    @property
    def bytes(self) -> int:
        """The estimate."""
        return self.programs * PROGRAM_BYTES + self.kernels * KERNEL_BYTES

    def __str__(self) -> str:
        return f"{self.programs} programs and {self.kernels} kernels about {size_text(self.bytes)}"


def process_line(start: Taken | None, plan: int, runtime: RuntimeMemory, end: Taken | None) -> str | None:
    """Return the line of the log. `start`: before the net was read; `plan`: in bytes; `end`: after the last step. None: the system does not say."""
    if start is None or end is None:
        return None
    files = max(0, end.files - start.files)
    predicted = start.now + plan + runtime.bytes
    beside = f", of which {size_text(files)} are pages of mapped files" if files >= 1 << 20 else ""
    return (
        f"Memory of this process: predicted {size_text(predicted)} (start-up {size_text(start.now)}, plan {size_text(plan)}, {runtime}), "
        f"taken {size_text(end.peak)}{beside}"
    )


def device_line(context: int, plan: int, on_host: int, before: int | None, after: int | None) -> str | None:
    """Return the line of the log for a GPU with its own memory. All are bytes.

    `context`: of the driver. `on_host`: of the plan, in the host's memory. `before`: free on the device with a context and nothing else. `after`: free
    after the last step. None: the driver does not say.
    """
    if before is None or after is None:
        return None
    beside = f", {size_text(on_host)} of the host's memory" if on_host else ""
    return (
        f"Memory of the device: predicted {size_text(context + plan)} (context {size_text(context)}, plan {size_text(plan)}{beside}), "
        f"taken {size_text(context + before - after)} by the driver's figure, other programs included"
    )
