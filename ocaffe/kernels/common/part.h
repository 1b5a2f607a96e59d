/* Kernels as parts of a task graph (ocaffe/cl/marks.py): functions that get their work-item's number as an argument. task_graph.h ends these macros.
 *
 * Inlined into one kernel, some parts computed wrong values on Intel's runtime of 2026. Without an argument as wide as the vectors of a part, PoCL's
 * compiler would split these (see INLINE in common.h), and the part would take twice the time. */
#define WORK_ITEM const float16 wide_, const size_t *id_, const size_t *size_
#define kernel static __attribute__((noinline))
#define reqd_work_group_size(x, y, z) noinline
#define vec_type_hint(type) noinline

#define get_global_id(d) id_[d]
#define get_group_id(d) id_[d]
#define get_global_size(d) size_[d]
#define get_num_groups(d) size_[d]
#define get_local_id(d) 0
#define get_local_size(d) 1
