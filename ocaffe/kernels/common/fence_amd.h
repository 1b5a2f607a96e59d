/* The fence AMD of IS_LAST_BLOCK (common.h): AMD's compiler (LLVM's AMDGPU memory model, scope "agent"). It needs no OpenCL 2.0. */
#ifndef OCAFFE_FENCE_H
#define OCAFFE_FENCE_H
#define AMD_COUNT(before, counters) __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent"), before = atomic_inc(counters)
#define AMD_ACQUIRE __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent")
#define AMD_BARRIER CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE
#endif
