"""`python -m ocaffe.selftest.wgmma NUMBER PARENT`: the process of ocaffe/cl/wgmma_trial.py. The exit status is 0 if the program runs and its results are right.

NUMBER is the device's in the list, PARENT the number of the process that started this one.
"""
from __future__ import annotations

import os
import sys

import numpy as np

from ocaffe.cl import open_ptx, wgmma_trial
from ocaffe.cl.child import end_with_parent
from ocaffe.cl.device import Device, choose, list_devices
from ocaffe.cl.program import ProgramKey, Programs
from ocaffe.support import log


def wrong(device: Device, *, emulated: bool = False) -> str:
    """Build and run the program of the trial. Return a text if results are wrong, else ''. Raises BuildError and errors of OpenCL.

    `emulated`: the program of other devices, without wgmma.
    """
    key = ProgramKey(wgmma_trial.SOURCE, (*wgmma_trial.DEFINES, *(() if emulated else ((open_ptx.DEFINE, "1"),))))
    program = Programs(device, "trial").build_all([key])[key]  # an empty folder of other programs tells of a first start (Programs.expect)
    values = np.random.default_rng(0).integers(-9, 10, (2, 64, 16)).astype(np.float32)  # exact in bfloat16, and so are the sums
    given = (values.view(np.uint32) >> 16).astype(np.uint16).reshape(2, 64, 2, 8).transpose(0, 2, 1, 3)
    cl, flags = device.cl, device.cl.mem_flags
    operands = cl.Buffer(device.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=np.ascontiguousarray(given))
    got = np.full((64, 64), np.nan, np.float32)
    result = cl.Buffer(device.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=got)
    kernel = cl.Kernel(program, "product")
    kernel.set_args(operands, result)
    cl.enqueue_nd_range_kernel(device.queue, kernel, (128,), (128,))
    cl.enqueue_copy(device.queue, got, result)
    count = int((got != values[0] @ values[1].T).sum())
    return f"{count} of {got.size} results are wrong" if count else ""


def main() -> None:
    number, parent = sys.argv[1:]
    end_with_parent(int(parent))
    log.quiet()
    device = Device(choose(list_devices(), number))
    try:
        problem = wrong(device)
    except Exception as error:  # any failure of a driver
        said = str(error).split("\n")
        problem = ": ".join([said[0], *[line.strip() for line in said[1:] if "error" in line.lower()][:1]])  # of a BuildError, with one line of the compiler
    if problem:
        log.tell(problem)
    sys.stderr.flush()
    os._exit(wgmma_trial.REFUSED if problem else 0)  # some runtimes crash when they are unloaded


if __name__ == "__main__":
    main()
