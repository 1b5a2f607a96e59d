/* Find the first label that a loss does not accept, before an update uses it (ocaffe/kernels/loss/labels.py).

   LANES  work-items; there is one work-group */
#include "common.h"
#ifndef LANES
#define LANES 1
#endif

/* Labels from 0 to classes - 1 and `ignore` are accepted, without their fractions. There are `run` labels in a sample.
   guard: 1 if a label was not accepted, the number of the loss, the position of the label, its bits. Once set it stays as it is.
   found: a copy of guard. */
kernel __attribute__((reqd_work_group_size(LANES, 1, 1)))
void check(OPERAND(const float, label), OPERAND(int, found), OPERAND(int, guard), const int count, const int run, const int classes,
           const int has_ignore, const int ignore, const int loss) {
  LOCATE(label);
  LOCATE(found);
  LOCATE(guard);
  local int firsts[LANES];
  const int lane = get_local_id(0);
  int first = count;
  for (int p = lane; p < count && first == count; p += LANES) {
    const float value = label[(p / run) * label_stride + p % run];
    if (!(value > -1 && value < classes) && !(has_ignore && !isnan(value) && (int)value == ignore)) first = p;
  }
  firsts[lane] = first;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (lane > 0) return;
  for (int i = 1; i < LANES; i++) first = min(first, firsts[i]);
  if (guard[0] == 0 && first < count) {
    guard[0] = 1;
    guard[1] = loss;
    guard[2] = first;
    guard[3] = as_int(label[(first / run) * label_stride + first % run]);
  }
  for (int i = 0; i < 4; i++) found[i] = guard[i];
}
