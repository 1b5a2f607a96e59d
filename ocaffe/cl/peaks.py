"""Measure the peak rates of a device: float multiply-adds in registers, and a copy in memory; the time of a launch; and the link to the host.

Each takes less than a second.
"""
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ocaffe.cl.host_memory import host_buffer
from ocaffe.cl.program import ProgramKey, Programs

if TYPE_CHECKING:
    from ocaffe.cl.device import Device

# multiply_adds: each work-item runs `steps` rounds of SUMS independent multiply-adds on vectors of WIDTH floats.
# copy: vectors of WIDTH floats. On CPUs a work-item copies `each` adjacent vectors; on GPUs adjacent work-items copy adjacent vectors.
TEXT = """
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
typedef PASTE(float, WIDTH) vec;
#define SUMS 12
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1), vec_type_hint(vec))) void multiply_adds(global float* out, float a, float b, int steps) {
  vec s[SUMS];
  _Pragma("unroll") for (int i = 0; i < SUMS; i++) s[i] = (vec)(a * i + get_local_id(0));
  const vec x = (vec)(a), y = (vec)(b);
  for (int k = 0; k < steps; k++) _Pragma("unroll") for (int i = 0; i < SUMS; i++) s[i] = s[i] * x + y;
  vec total = s[0];
  _Pragma("unroll") for (int i = 1; i < SUMS; i++) total += s[i];
  float lanes[WIDTH];
  PASTE(vstore, WIDTH)(total, 0, lanes);
  for (int i = 1; i < WIDTH; i++) lanes[0] += lanes[i];
  out[get_global_id(0)] = lanes[0];
}
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1), vec_type_hint(vec))) void copy(global const vec* x, global vec* y, int each) {
  const size_t first = NEIGHBOURS ? get_global_id(0) : get_global_id(0) * each, step = NEIGHBOURS ? get_global_size(0) : 1;
  for (int k = 0; k < each; k++) y[first + k * step] = x[first + k * step];
}
"""
EMPTY = "kernel void nothing(global float* x) { if (get_global_id(0) > 1) x[0] = 0; }\n"
LAUNCHES, LAUNCH_ROUNDS = 200, 20  # the least of the rounds counts: few of them catch a GPU at its full clock
SUMS = 12
LONG = 8e-3  # minimum seconds of a run of multiply-adds: shorter runs do not raise the clock
RUNS = 5
LINKED = 64 << 20  # bytes of a copy between device and host
COPIED = 256 << 20  # bytes of both buffers of a copy, more than caches hold
MEMORY_DIVISOR = 8  # at most 1 / MEMORY_DIVISOR of the free memory


@dataclass(frozen=True)
class Peaks:
    """GFLOP/s of float multiply-adds (two FLOPs each), and GB/s of a copy, which counts read and written bytes."""

    gflops: float
    gbytes: float

    def seconds(self, flops: float, nbytes: float) -> float:
        """Return the minimum time of this work at peak rates."""
        return max(1e-9 * flops / self.gflops, 1e-9 * nbytes / self.gbytes)


def measure_peaks(device: Device, programs: Programs) -> Peaks:
    """Measure both peaks, each as the best of RUNS runs."""
    cl, target = device.cl, device.target
    width, group = (target.vector_width, 1) if target.is_cpu else (4, target.group(256))
    defines = (("GROUP", str(group)), ("NEIGHBOURS", str(int(not target.is_cpu))), ("WIDTH", str(width)))
    key = ProgramKey(TEXT, defines)
    program = programs.build_all([key])[key]
    items = target.compute_units * (4 if target.is_cpu else 8 * group)
    vectors = min(COPIED, target.max_allocation // 2, target.available_memory // MEMORY_DIVISOR) // (8 * width)
    each = max(1, vectors // (items if target.is_cpu else vectors // 4))
    movers = vectors // each // group * group
    buffers = [cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 4 * width * vectors) for _ in range(2)]
    for buffer in buffers:  # so that every page is allocated
        cl.enqueue_fill_buffer(device.queue, buffer, np.float32(1), 0, 4 * width * vectors)
    device.queue.finish()
    multiply, copy = cl.Kernel(program, "multiply_adds"), cl.Kernel(program, "copy")
    copy.set_args(*buffers, np.int32(each))
    queue = profiled(device)

    def best(kernel: Any, size: int) -> float:
        return min(seconds(device, queue, kernel, size, group) for _ in range(RUNS))

    steps, taken = 256, 0.0
    while taken < LONG:
        steps *= 2
        multiply.set_args(buffers[0], np.float32(0.999), np.float32(0.001), np.int32(steps))
        taken = seconds(device, queue, multiply, items, group)
    fastest, copied = best(multiply, items), best(copy, movers)
    for buffer in buffers:
        buffer.release()
    return Peaks(2e-9 * items * SUMS * width * steps / fastest, 2e-9 * movers * each * 4 * width / copied)


def profiled(device: Device) -> Any:
    """Return a new queue whose commands have times."""
    return device.cl.CommandQueue(device.context, device.cl_device, properties=device.cl.command_queue_properties.PROFILING_ENABLE)


def seconds(device: Device, queue: Any, kernel: Any, size: int, group: int) -> float:
    """Run a kernel whose arguments are set on a profiled queue, and return its time."""
    event = device.cl.enqueue_nd_range_kernel(queue, kernel, (size,), (group,))
    event.wait()
    return 1e-9 * float(event.profile.end - event.profile.start)


def link_rates(device: Device) -> tuple[float, float]:
    """Return bytes/s of copies to the host's memory (host_memory.py), and of copies from it. The device must have such memory."""
    cl, size = device.cl, min(LINKED, device.target.max_allocation)
    host, own = host_buffer(device, size), cl.Buffer(device.context, cl.mem_flags.READ_WRITE, size)
    cl.enqueue_fill_buffer(device.queue, own, np.float32(1), 0, size // 4 * 4)  # so that every page is allocated
    device.queue.finish()
    queue = profiled(device)

    def taken(source: Any, target: Any) -> float:
        event = cl.enqueue_copy(queue, target, source, byte_count=size)
        event.wait()
        return 1e-9 * float(event.profile.end - event.profile.start)

    found = [size / min(taken(*ends) for _ in range(RUNS)) for ends in ((own, host), (host, own))]
    for buffer in (host, own):
        buffer.release()
    return found[0], found[1]


def launch_seconds(device: Device, programs: Programs) -> float:
    """Return the time of a launch in a sequence of launches that do nothing."""
    cl, key = device.cl, ProgramKey(EMPTY)
    kernel = cl.Kernel(programs.build_all([key])[key], "nothing")
    buffer = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 4)  # the kernel does not keep it alive
    kernel.set_args(buffer)

    def launched() -> float:
        device.queue.finish()
        begin = time.perf_counter()
        for _ in range(LAUNCHES):
            cl.enqueue_nd_range_kernel(device.queue, kernel, (1,), (1,))
        device.queue.finish()
        return time.perf_counter() - begin

    launched()
    return min(launched() for _ in range(LAUNCH_ROUNDS)) / LAUNCHES
