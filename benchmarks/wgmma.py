"""An experiment: a product in TF32 by Hopper's wgmma, which OpenCL's compiler refuses, compared with ocaffe's mma.sync kernel (docs/adr/0006).

    python benchmarks/wgmma.py [--device nvidia] [--size 4096]

The compiler's target is sm_90, but wgmma belongs to sm_90a. The instructions are therefore written as comments of
inline assembly, with their operands. The PTX of the built program has registers in their places. It is opened
(ocaffe/cl/open_ptx.py) and built as a binary. c[M][N] = a[M][K] b[N][K]', tiles of
128 x 256 by two groups of four warps, 32 of the depth a step in lines of 128 bytes, two buffers.
"""
from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from ocaffe.cl.device import select_device
from ocaffe.cl.open_ptx import opened

SUMS = 128
SOURCE = """
#define ITEMS 256
#define LINE 8 /* quads */
/* Lines of 128 bytes, eight of them 1024 apart, swizzled. */
#define STEP(p) ((ulong)(((uint)(ulong)(p) & 0x3ffffu) >> 4) | 1ul << 16 | 64ul << 32 | 1ul << 62)
static inline uint tf32(float v) { uint r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v)); return r; }
static inline uint4 four(float4 v) { return (uint4)(tf32(v.x), tf32(v.y), tf32(v.z), tf32(v.w)); }
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void product(global const float* restrict a, global const float* restrict b,
                                                                          global float* restrict c, int N, int K) {
  local uint4 as[2 * 128 * LINE] __attribute__((aligned(1024)));
  local uint4 bs[2 * 256 * LINE] __attribute__((aligned(1024)));
  const int item = get_local_id(0), line = item / 8, chunk = item % 8, to = line * LINE + (chunk ^ line % 8), team = item / 128;
  a += (ulong)(get_group_id(1) * 128 + line) * K + chunk * 4;
  b += (ulong)(get_group_id(0) * 256 + line) * K + chunk * 4;
  float d[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) d[i] = 0.0f;
  float4 ra[4], rb[8];
  const int steps = K / 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) ra[i] = *(global const float4*)(a + (ulong)i * 32 * K);
#pragma unroll
  for (int i = 0; i < 8; ++i) rb[i] = *(global const float4*)(b + (ulong)i * 32 * K);
#pragma unroll
  for (int i = 0; i < 4; ++i) as[to + i * 32 * LINE] = four(ra[i]);
#pragma unroll
  for (int i = 0; i < 8; ++i) bs[to + i * 32 * LINE] = four(rb[i]);
  asm volatile("//@fence.proxy.async;" ::: "memory");
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int s = 0; s < steps; ++s) {
    const int next = min(s + 1, steps - 1) * 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) ra[i] = *(global const float4*)(a + (ulong)i * 32 * K + next);
#pragma unroll
    for (int i = 0; i < 8; ++i) rb[i] = *(global const float4*)(b + (ulong)i * 32 * K + next);
    const ulong left = STEP(as + s % 2 * (128 * LINE) + team * 64 * LINE), right = STEP(bs + s % 2 * (256 * LINE));
    asm volatile("//@wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 4; ++k)
      asm volatile("//@wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 {REGISTERS}, %128, %129, 1, 1, 1;"
                   : OUTPUTS : "l"(left + 2 * k), "l"(right + 2 * k));
    asm volatile("//@wgmma.commit_group.sync.aligned;" ::: "memory");
    local uint4 *at = as + (s + 1) % 2 * (128 * LINE) + to, *bt = bs + (s + 1) % 2 * (256 * LINE) + to;
#pragma unroll
    for (int i = 0; i < 4; ++i) at[i * 32 * LINE] = four(ra[i]);
#pragma unroll
    for (int i = 0; i < 8; ++i) bt[i * 32 * LINE] = four(rb[i]);
    asm volatile("//@fence.proxy.async;" ::: "memory");
    asm volatile("//@wgmma.wait_group.sync.aligned 0;" : OUTPUTS :: "memory");
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const int row = get_group_id(1) * 128 + team * 64 + item % 128 / 32 * 16 + item % 32 / 4, column = get_group_id(0) * 256 + item % 4 * 2;
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    *(global float2*)(c + (ulong)row * N + column + 8 * j) = (float2)(d[4 * j], d[4 * j + 1]);
    *(global float2*)(c + (ulong)(row + 8) * N + column + 8 * j) = (float2)(d[4 * j + 2], d[4 * j + 3]);
  }
}
"""


def source() -> str:
    registers = ",".join(f"%{i}" for i in range(SUMS))
    return SOURCE.replace("REGISTERS", registers).replace("OUTPUTS", ",".join(f'"+f"(d[{i}])' for i in range(SUMS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="nvidia")
    parser.add_argument("--size", type=int, default=4096, help="a multiple of 256")
    options = parser.parse_args()
    device = select_device(options.device)
    cl, n = device.cl, options.size
    ptx = cl.Program(device.context, source()).build("-cl-mad-enable").binaries[0]
    kernel = cl.Program(device.context, [device.cl_device], [opened(ptx)]).build().product
    queue = cl.CommandQueue(device.context, properties=cl.command_queue_properties.PROFILING_ENABLE)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    flags = cl.mem_flags
    buffers = [cl.Buffer(device.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=v) for v in (a, b, np.zeros((n, n), np.float32))]
    times = []
    for _ in range(12):
        event = kernel(queue, (n // 256 * 256, n // 128), (256, 1), *buffers, np.int32(n), np.int32(n))
        queue.finish()
        times.append((event.profile.end - event.profile.start) * 1e-9)
    got = np.empty((n, n), np.float32)
    cl.enqueue_copy(queue, got, buffers[2])
    want = a[:256].astype(np.float64) @ b.T
    error = np.abs(got[:256] - want).max() / np.abs(want).max()
    print(f"{device.name}: {n}^3 in TF32 by wgmma: {2 * n**3 / statistics.median(times[2:]) / 1e12:.1f} TFLOP/s, error {error:.1e} of the largest magnitude")


if __name__ == "__main__":
    main()
