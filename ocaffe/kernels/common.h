/* Shared by all kernels: the operand convention of docs/kernels.md, random numbers from a counter. */
#ifndef OCAFFE_COMMON_H
#define OCAFFE_COMMON_H

/* An operand: the slab, where the tensor begins in it and the distance between two samples, both in elements. */
#define OPERAND(T, x) global T* x, const ulong x##_offset, const ulong x##_stride
#define OPERAND_RESTRICT(T, x) global T* restrict x, const ulong x##_offset, const ulong x##_stride
#define LOCATE(x) x += x##_offset

/* A part of the kernels that call it. As a function of its own, PoCL's compiler would give it vectors of half the width (LLVM prefers 256 bits where no
   argument is wider) and arguments in memory: a transposition of 16 vectors takes 600 instructions then. */
#define INLINE static inline __attribute__((always_inline))

#include "bf16_operands.h"

/* Operands of kernels whose work-groups meet: counters and partial results. */
#ifdef DEVICE_FENCE
#define COMPLETION_COUNTER_OPERAND OPERAND(uint, counters),
#define PARTS , OPERAND(float, parts)
#else
#define COMPLETION_COUNTER_OPERAND
#define PARTS
#endif

/* Work-groups that make parts of one result: all of a group write their part, then call this together. `last` is declared as whether the other `parts` - 1
   groups have come already: then all parts are there to be read, through a pointer that is not `restrict`. `counters`, a counter in global memory, is 0 before and after.
   `vote`: an int in local memory. `fence`: Target.device_fence. One work-item orders memory for its group, and only the last group forgets what its cache holds. */
#define IS_LAST_BLOCK(fence, counters, parts, vote, last) IS_LAST_BLOCK_BY(fence, counters, parts, vote, last)
#define IS_LAST_BLOCK_BY(fence, counters, parts, vote, last)   \
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE); \
  if (get_local_id(0) == 0 && get_local_id(1) == 0) {  \
    uint before;                                       \
    fence##_COUNT(before, counters);                    \
    *(vote) = before == (uint)(parts) - 1;             \
    if (*(vote)) {                                     \
      *(counters) = 0;                                  \
      fence##_ACQUIRE;                                 \
    }                                                  \
  }                                                    \
  barrier(CLK_LOCAL_MEM_FENCE);                        \
  const int last = *(vote);                            \
  barrier(CLK_LOCAL_MEM_FENCE) /* what follows may use this memory */

/* NVIDIA's, from compute capability 7 on; and processors, which see each other's stores in their order. */
#define PTX_COUNT(before, counters) asm volatile("atom.release.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"((ulong)(counters)) : "memory")
#define PTX_ACQUIRE asm volatile("fence.acq_rel.gpu;" ::: "memory")
#define CPU_COUNT(before, counters) mem_fence(CLK_GLOBAL_MEM_FENCE), before = atomic_inc(counters)
#define CPU_ACQUIRE mem_fence(CLK_GLOBAL_MEM_FENCE)

/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): four random words that are a pure function of
   counter and key, so a mask can be made again at any time, in any order, on any device. */
static uint4 philox(uint4 counter, uint2 key) {
  for (int round = 0; round < 10; round++) {
    const uint low0 = counter.x * 0xD2511F53u, high0 = mul_hi(counter.x, 0xD2511F53u);
    const uint low2 = counter.z * 0xCD9E8D57u, high2 = mul_hi(counter.z, 0xCD9E8D57u);
    counter = (uint4)(high2 ^ counter.y ^ key.x, low2, high0 ^ counter.w ^ key.y, low0);
    key += (uint2)(0x9E3779B9u, 0xBB67AE85u);
  }
  return counter;
}

/* The upper 24 bits of a random word as a float in [0, 1): every value is exact, so all devices agree. */
static float uniform01(uint word) { return (float)(word >> 8) * 0x1p-24f; }

#endif
