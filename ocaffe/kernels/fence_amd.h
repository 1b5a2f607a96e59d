/* IS_LAST_BLOCK (common.h) by the fences of AMD's compiler (LLVM's AMDGPU memory model, scope "agent"). They need no OpenCL 2.0. */
#ifndef OCAFFE_FENCE_H
#define OCAFFE_FENCE_H
#undef IS_LAST_BLOCK_BY
#define IS_LAST_BLOCK_BY(fence, counters, parts, vote, last)          \
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);                \
  if (get_local_id(0) == 0 && get_local_id(1) == 0) {                 \
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");                \
    *(vote) = atomic_inc(counters) == (uint)(parts) - 1;              \
    if (*(vote)) {                                                    \
      *(counters) = 0;                                                \
      __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");              \
    }                                                                 \
  }                                                                   \
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);                \
  const int last = *(vote);                                           \
  barrier(CLK_LOCAL_MEM_FENCE) /* the next statements may reuse *vote */
#endif
