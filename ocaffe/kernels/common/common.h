/* Shared by all kernels: operands (docs/kernels.md), the last-block reduction and counter-based random numbers. */
#ifndef OCAFFE_COMMON_H
#define OCAFFE_COMMON_H

/* An operand is three arguments: the slab, the offset of the tensor in it, and the distance between two samples. Offset and distance are in elements. */
#define OPERAND(T, x) global T* x, const ulong x##_offset, const ulong x##_stride
#define OPERAND_RESTRICT(T, x) global T* restrict x, const ulong x##_offset, const ulong x##_stride
#define LOCATE(x) x += x##_offset

/* For functions that kernels call. If they were not inlined, PoCL's compiler would pass vectors of half the width (LLVM prefers 256 bits
   where no argument is wider) and pass arguments in memory. A transposition of 16 vectors would then take 600 instructions. */
#define INLINE static inline __attribute__((always_inline))

#include "bf16_operands.h"

/* Operands of kernels with a last-block reduction: completion counters and partial results. */
#ifdef DEVICE_FENCE
#define COMPLETION_COUNTER_OPERAND OPERAND(uint, counters),
#define PARTS , OPERAND(float, parts)
#else
#define COMPLETION_COUNTER_OPERAND
#define PARTS
#endif

/* Last-block reduction. Each of `parts` work-groups writes its part of a result; then all its work-items execute this macro.
   It declares `last`: whether this group is the last one to arrive. The last group may read all parts, through a pointer that is not `restrict`.
   fence     Target.device_fence
   counters  a completion counter in global memory, 0 before and after
   vote      an int in local memory
   One work-item orders memory for its group. Only the last group executes an acquire, because an acquire invalidates the cache. */
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
  barrier(fence##_BARRIER);                            \
  const int last = *(vote);                            \
  barrier(CLK_LOCAL_MEM_FENCE) /* the next statements may reuse *vote */

/* Fences: PTX for NVIDIA from compute capability 7; CPU for processors, whose stores become visible in order. Others have a file each (fence_*.h).
   COUNT releases the group's writes and counts it, ACQUIRE follows in the last group, BARRIER passes the acquired writes on to its work-items. */
#define PTX_COUNT(before, counters) asm volatile("atom.release.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"((ulong)(counters)) : "memory")
#define PTX_ACQUIRE asm volatile("fence.acq_rel.gpu;" ::: "memory")
#define PTX_BARRIER CLK_LOCAL_MEM_FENCE
#define CPU_COUNT(before, counters) mem_fence(CLK_GLOBAL_MEM_FENCE), before = atomic_inc(counters)
#define CPU_ACQUIRE mem_fence(CLK_GLOBAL_MEM_FENCE)
#define CPU_BARRIER CLK_LOCAL_MEM_FENCE

/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): four random words that are a pure function of
   counter and key. A mask can therefore be recomputed at any time, in any order, on any device. */
static uint4 OWN(philox)(uint4 counter, uint2 key) {
  for (int round = 0; round < 10; round++) {
    const uint low0 = counter.x * 0xD2511F53u, high0 = mul_hi(counter.x, 0xD2511F53u);
    const uint low2 = counter.z * 0xCD9E8D57u, high2 = mul_hi(counter.z, 0xCD9E8D57u);
    counter = (uint4)(high2 ^ counter.y ^ key.x, low2, high0 ^ counter.w ^ key.y, low0);
    key += (uint2)(0x9E3779B9u, 0xBB67AE85u);
  }
  return counter;
}

/* Convert the upper 24 bits of a random word to a float in [0, 1). Every value is exact, so all devices agree. */
static float OWN(uniform01)(uint word) { return (float)(word >> 8) * 0x1p-24f; }

#endif
