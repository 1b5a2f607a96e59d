/* The fence SCOPE of IS_LAST_BLOCK (common.h): the memory model of OpenCL 2.0 and 3.0, for devices with acquire-release atomics of device scope
   (ocaffe/cl/fences.py). The first barrier orders the group's writes before the increment, which releases them to the device. The group that
   reads the last count acquires the writes of all groups with it, and its second barrier passes them on to its other work-items. */
#ifndef OCAFFE_FENCE_H
#define OCAFFE_FENCE_H
#define SCOPE_COUNT(before, counters) \
  before = atomic_fetch_add_explicit((global atomic_uint*)(counters), 1u, memory_order_acq_rel, memory_scope_device)
#define SCOPE_ACQUIRE
#define SCOPE_BARRIER CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE
#endif
