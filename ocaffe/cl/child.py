"""Child process with one of three purposes. It tests a runtime, which may abort the process, or it builds programs or launches kernels, because compilers
hold one lock per process.

Run it as a file: `python child.py probe|build|launch SYS_PATH PYOPENCL_HOME PARENT`, SYS_PATH as JSON, PARENT a process number. It imports
nothing from ocaffe, so it starts fast. Results go to the original stdout; text that a runtime prints to stdout goes to stderr.
"""
from __future__ import annotations

import json
import mmap
import os
import pickle
import signal
import sys
import warnings
from typing import Any

# Local memory, a barrier and a loop: a runtime with a broken work-group pass miscompiles these.
PROBE_SOURCE = """
kernel __attribute__((reqd_work_group_size(8, 1, 1)))
void probe(global float* x, local float* tile, const float factor) {
  const int i = get_local_id(0), first = get_group_id(0) * 8;
  tile[i] = x[first + i];
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum = 0;
  for (int k = 0; k <= i; k++) sum += tile[7 - k] * factor;
  x[first + i] = sum;
}
"""


def probe(cl: Any) -> dict[str, Any]:
    """Build and run a kernel on every device of every visible platform. `problem` is empty if all results are correct."""
    import numpy as np

    try:
        platforms = cl.get_platforms()
    except cl.Error:  # -1001: the loader found no platform
        platforms = []
    found: list[tuple[str, str]] = []
    devices, problem = 0, ""
    for platform in platforms:
        found.append((platform.name, platform.version))
        try:
            usable = [device for device in platform.get_devices() if device.available and device.compiler_available]
        except cl.Error:  # DEVICE_NOT_FOUND: a driver without its hardware
            continue
        for device in usable:
            context = cl.Context([device])
            queue = cl.CommandQueue(context)
            given = np.arange(32, dtype=np.float32)
            buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=given)
            kernel = cl.Kernel(cl.Program(context, PROBE_SOURCE).build(), "probe")
            kernel(queue, (32,), (8,), buffer, cl.LocalMemory(32), np.float32(2))
            result = np.empty_like(given)
            cl.enqueue_copy(queue, result, buffer)
            queue.finish()
            devices += 1
            if not np.allclose(result.reshape(4, 8), 2 * given.reshape(4, 8)[:, ::-1].cumsum(1)):
                problem = f"a test kernel gave wrong numbers on {device.name.strip()}"
    return {"platforms": found, "devices": devices, "problem": problem}


def find_device(cl: Any, platform_version: str, name: str, index: int) -> Any:
    """Return the device of workers.identity."""
    platforms = [platform for platform in cl.get_platforms() if platform.version == platform_version]
    return [device for platform in platforms for device in platform.get_devices() if device.name == name][index]


def serve_builds(cl: Any, out: Any) -> None:
    """Read the device's identity and whether binaries are wanted, then pairs (OpenCL C or a binary, options).

    Answer each pair with (True, (binary or b"", compiler's messages)) or (False, build log).
    """
    requests = sys.stdin.buffer
    identity, wanted = pickle.load(requests)
    device = find_device(cl, *identity)
    context = cl.Context([device])
    pickle.dump("ready", out)
    out.flush()
    while True:
        try:
            source, options = pickle.load(requests)
        except EOFError:
            return
        try:
            program = cl.Program(context, source) if isinstance(source, str) else cl.Program(context, [device], [source])
            program.build(options)
            answer: tuple[bool, Any] = (True, (program.binaries[0] if wanted else b"", program.get_build_info(device, cl.program_build_info.LOG)))
        except cl.Error as error:
            answer = (False, str(error))
        program = None  # released at once, because a driver may load it to the device
        pickle.dump(answer, out)
        out.flush()


def launch_kernels(cl: Any) -> None:
    """Run one work-group of each kernel, so that the runtime compiles it (first_launches.py). Operands that a kernel reads are zero."""
    identity, size, launches = pickle.load(sys.stdin.buffer)
    context = cl.Context([find_device(cl, *identity)])
    queue = cl.CommandQueue(context)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    read, written = (cl.Buffer(context, flags, hostbuf=mmap.mmap(-1, size)) for _ in range(2))  # zeros that take memory only where they are used
    programs: dict[tuple[str, str], Any] = {}
    for source, options, function, local, arguments in launches:
        if (source, options) not in programs:
            programs[source, options] = cl.Program(context, source).build(options)
        kernel = cl.Kernel(programs[source, options], function)
        kernel.set_args(*({"r": read, "w": written, "rw": written}[given] if isinstance(given, str) else given for given in arguments))
        cl.enqueue_nd_range_kernel(queue, kernel, local, local)
        queue.finish()


def end_with_parent(parent: int) -> None:
    """Let Linux kill this process when the thread that started it ends, in any way. Otherwise a compiler or a trial runs on for seconds."""
    if sys.platform in ("linux", "android"):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it ended before
            os._exit(1)


def main() -> None:
    purpose, sys.path[:], home = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
    end_with_parent(int(sys.argv[4]))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an abort is an expected result here: write no core file
    os.environ["PYOPENCL_NO_CACHE"] = "1"
    warnings.simplefilter("ignore")
    try:
        import pyopencl as cl
    except ImportError:
        os._exit(77)  # discovery.NO_PYOPENCL

    if home:
        os.environ["PYOPENCL_HOME"] = home  # see discovery.import_pyopencl
    if purpose == "probe":
        out.write(json.dumps(probe(cl)).encode())
        out.flush()
    elif purpose == "build":
        serve_builds(cl, out)
    else:
        launch_kernels(cl)
    sys.stderr.flush()
    os._exit(0)  # some runtimes crash or hang while a process unloads them


if __name__ == "__main__":
    main()
