"""Whether a device of Hopper's generation runs wgmma, mbarriers and bulk copies, which its OpenCL compiler refuses (open_ptx.py).

NVIDIA does not promise that its driver builds such programs. So the first use of bf16 or tf32 on such a device runs a small product in bfloat16
(ocaffe/selftest/wgmma.py). It runs in another process, with a limit of time, while this one opens the net and starts compilers. The verdict is cached by
device, driver and program. Where the trial fails, kernels use mma.sync. Products in TF32 differ from it in the left operand alone, which is in registers.
"""
from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable

from ocaffe.cl import verdicts
from ocaffe.cl.discovery import killed_from_outside
from ocaffe.cl.verdicts import Facts
from ocaffe.ir.target import WGMMA_LOCAL_MEMORY, Target
from ocaffe.support import log
from ocaffe.support.cache import digest
from ocaffe.support.switches import Switches

CAPABILITY = 9  # the major compute capability whose devices have these instructions; later ones have others
REPORTED = 48 << 10  # bytes of local memory that the driver reports. A lower limit imitates a smaller device
SECONDS = 120  # a trial takes some seconds
REFUSED = 3  # exit status of the process: the program was not built, did not run, or computed wrong results
OTHER = (1, 2)  # Python's exit statuses after other errors, such as a device without free memory for another process
SUMS = 32  # of a work-item

# 64 x 64 sums of 16 products by one work-group of four warps. given: the operands, each 2 x 64 x 8 values in bfloat16: a chunk of 8 of the depth is 64 lines
# of 16 bytes. One bulk copy fetches both to the end of the largest local array that kernels may have. Without WGMMA: the same on any device, for tests.
SOURCE = """
#define OPERAND_BYTES 2048
#define CHUNK_BYTES 1024
#define COPIED_BYTES (2 * OPERAND_BYTES)
#define BARRIER_BYTES 128
#define BEGIN (LOCAL_BYTES - COPIED_BYTES - BARRIER_BYTES)
#ifdef WGMMA
INLINE ulong descriptor(uint at) { return (ulong)((at & 0x3ffffu) >> 4) | (ulong)(CHUNK_BYTES >> 4) << 16 | (ulong)(128 >> 4) << 32; }
INLINE void multiply(float* d, uint left, uint right) {
  asm volatile("//@wgmma.fence.sync.aligned;" : OUTPUTS :: "memory");
  asm volatile("//@wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {REGISTERS}, %32, %33, 1, 1, 1, 0, 0;"
               : OUTPUTS : "l"(descriptor(left)), "l"(descriptor(right)));
  asm volatile("//@wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("//@wgmma.wait_group.sync.aligned 0;" : OUTPUTS :: "memory");
}
#else
INLINE float element(local const uchar* at, int line, int k) {
  return as_float((uint)*(local const ushort*)(at + k / 8 * CHUNK_BYTES + line * 16 + k % 8 * 2) << 16);
}
INLINE void multiply(float* d, local const uchar* left, local const uchar* right, int item) {
  const int row = item / 32 * 16 + item % 32 / 4, column = item % 4 * 2;
  for (int j = 0; j < 32; ++j)
    for (int k = 0; k < 16; ++k) d[j] += element(left, row + j / 2 % 2 * 8, k) * element(right, column + j / 4 * 8 + j % 2, k);
}
#endif
kernel __attribute__((reqd_work_group_size(128, 1, 1))) void product(global const uint4* restrict given, global float* restrict c) {
  local uint4 memory[LOCAL_BYTES / 16] __attribute__((aligned(128)));
  const int item = get_local_id(0);
  float d[32];
#pragma unroll
  for (int j = 0; j < 32; ++j) d[j] = 0.0f;
#ifdef WGMMA
  const uint begin = (uint)(ulong)memory + BEGIN, bar = begin + COPIED_BYTES;
  if (item == 0) {
    asm volatile("//@mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(1) : "memory");
    asm volatile("//@fence.proxy.async.shared::cta;" ::: "memory");
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item == 0) {
    asm volatile("//@mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(COPIED_BYTES) : "memory");
    asm volatile("//@cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(begin), "l"(given), "r"(COPIED_BYTES), "r"(bar) : "memory");
  }
  uint done = 0;
  while (!done)
    asm volatile("//@{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "+r"(done) : "r"(bar), "r"(0) : "memory");
  multiply(d, begin, begin + OPERAND_BYTES);
#else
  if (item == 0)
    for (int i = 0; i < COPIED_BYTES / 16; ++i) memory[BEGIN / 16 + i] = given[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  multiply(d, (local const uchar*)memory + BEGIN, (local const uchar*)memory + BEGIN + OPERAND_BYTES, item);
#endif
  const int row = item / 32 * 16 + item % 32 / 4, column = item % 4 * 2;
#pragma unroll
  for (int j = 0; j < 32; ++j) c[(row + j / 2 % 2 * 8) * 64 + column + j / 4 * 8 + j % 2] = d[j];
}
""".replace("REGISTERS", ", ".join(f"%{i}" for i in range(SUMS))).replace("OUTPUTS", ", ".join(f'"+f"(d[{i}])' for i in range(SUMS)))
DEFINES = (("LOCAL_BYTES", str(WGMMA_LOCAL_MEMORY)),)


def begin(facts: Facts, number: str, target: Target) -> Callable[[], bool]:
    """Start the trial of the device `number` of the list, which has the compute capability, unless there is a verdict on it.

    Return a function that waits for the verdict: whether kernels may use wgmma.
    """
    if not Switches.read().wgmma or target.local_memory < REPORTED:
        return lambda: False
    key = digest(*facts, SOURCE, *map(str, DEFINES))[:32]
    known = verdicts.recall(key)
    if known is not None:
        return lambda: bool(known)
    trial = Trial(number)

    def passes() -> bool:
        problem, lasts = trial.outcome()
        file = verdicts.remember(key, not problem, lasts)
        if problem:
            again = f" (to try it again, delete {file})" if file else ""
            log.info("opencl:0", f"{facts[0]}: the trial of wgmma failed, products use mma.sync instead: {problem}{again}")
        return not problem

    return passes


class Trial:
    """A process that runs the trial on a device of the list."""

    def __init__(self, number: str) -> None:
        self._said = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(_command(number), env=verdicts.environment(), stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said)

    def outcome(self) -> tuple[str, bool]:
        """Wait. Return why the trial failed, or '', and whether that is about the device. It is not if a signal from outside ended the process, or OTHER."""
        with self._said, self._process as process:
            try:
                status = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                return f"no answer for {SECONDS} s", True
            finally:
                process.kill()
            self._said.seek(0)
            last = self._said.read().strip().split("\n")[-1]
        return f"exit status {status}{': ' if last else ''}{last}" if status else "", status not in OTHER and not killed_from_outside(process)


def _command(number: str) -> list[str]:
    return verdicts.command("ocaffe.selftest.wgmma", number, str(os.getpid()))
