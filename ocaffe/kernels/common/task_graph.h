/* A task graph: the launches of a schedule in one kernel, for CPUs (ocaffe/cl/task_graph.py, docs/adr/0019). The text before it defines the parts.
 *
 * BUFFERS   parameters: the buffers of all operands
 * LIST      the names of these parameters
 * CALLS     cases of a switch: the calls of the parts, with their arguments from `launch`
 *
 * A task is a work-group of a launch, which has one work-item. The tasks of a launch are divided into one share per core. A work-group of this kernel
 * takes the tasks of its own share, then those that are left of other shares, then goes on to the next launch. So a core finds most of its operands in
 * its caches, and no core is idle while another has tasks to begin.
 * A launch begins when the launches are complete whose results it reads or whose operands it overwrites. A work-group that waits has seen all tasks of
 * these launches taken, by work-groups that run. OpenCL does not promise that they continue, for example if two threads share a core. So patience is
 * limited to a number of polls: a work-group that has lost it ends, and the others do the rest.
 */
#undef kernel
#undef reqd_work_group_size
#undef vec_type_hint
#undef get_global_id
#undef get_group_id
#undef get_global_size
#undef get_num_groups
#undef get_local_id
#undef get_local_size

#define LINE 16 /* ints of a cache line: counters of different cores share none */

/* The words of a launch in the table. */
#define TASKS 0
#define SIZE 1
#define PART 4
#define NEEDED 5 /* the number of launches from the first one on that must be complete */

/* counters, 0 before and after: the work-groups that have ended; the complete tasks of each launch; the taken tasks of each share of each launch. */
kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16))) void task_graph(
    global const ulong* table, volatile global int* counters, const int launches, const int width, const int first, const int cores,
    int patience BUFFERS) {
  global void* const buffers[] = {LIST};
  const int groups = get_num_groups(0), own = get_group_id(0) * cores / groups;
  volatile global int *complete = counters + LINE, *shares = complete + LINE * launches;
  int ready = 0;
  table += first;
  for (int j = 0; j < launches && patience; j++, shares += LINE * cores) {
    global const ulong* launch = table + j * width;
    const ulong tasks = launch[TASKS];
    const int needed = launch[NEEDED];
    const size_t size[3] = {launch[SIZE], launch[SIZE + 1], launch[SIZE + 2]};
    for (int c = 0; c < cores && patience; c++) {
      const int share = (own + c) % cores, begin = tasks * share / cores, end = tasks * (share + 1) / cores;
      volatile global int* taken = shares + LINE * share;
      while (begin + *taken < end) {
        while (ready < needed && patience) {
          if (complete[LINE * ready] == (int)table[ready * width + TASKS]) ready++;
          else patience--;
        }
        if (!patience) break;
        const int task = begin + atomic_inc(taken);
        if (task >= end) break;
        mem_fence(CLK_GLOBAL_MEM_FENCE);
        const size_t id[3] = {task % size[0], task / size[0] % size[1], task / (size[0] * size[1])};
        switch ((int)launch[PART]) { CALLS }
        mem_fence(CLK_GLOBAL_MEM_FENCE);
        atomic_inc(complete + LINE * j);
      }
    }
  }
  if (atomic_inc(counters) == groups - 1) {
    for (int i = 0; i < 1 + launches * (1 + cores); i++) counters[LINE * i] = 0;
  }
}
