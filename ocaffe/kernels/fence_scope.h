/* IS_LAST_BLOCK (common.h) by the memory model of OpenCL 2.0 and 3.0, for devices with acquire-release atomics of device scope
   (ocaffe/cl/fences.py). The first barrier orders the group's writes before the increment, which releases them to the device. The group that
   reads the last count acquires the writes of all groups, and its second barrier passes them on to its other work-items. */
#ifndef OCAFFE_FENCE_H
#define OCAFFE_FENCE_H
#undef IS_LAST_BLOCK_BY
#define IS_LAST_BLOCK_BY(fence, counters, parts, vote, last)                                                                               \
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);                                                                                     \
  if (get_local_id(0) == 0 && get_local_id(1) == 0) {                                                                                      \
    global atomic_uint* const counter = (global atomic_uint*)(counters);                                                                   \
    *(vote) = atomic_fetch_add_explicit(counter, 1u, memory_order_acq_rel, memory_scope_device) == (uint)(parts) - 1;                      \
    if (*(vote)) atomic_store_explicit(counter, 0u, memory_order_relaxed, memory_scope_device);                                            \
  }                                                                                                                                        \
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);                                                                                     \
  const int last = *(vote);                                                                                                                \
  barrier(CLK_LOCAL_MEM_FENCE) /* the next statements may reuse *vote */
#endif
