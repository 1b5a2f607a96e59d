/* The gradient of a bias on devices with work-groups: db[c] = sum of dy over samples and positions.

   One work-group of SUM_ITEMS work-items per channel and slice of the samples (group (channel, slice)); a slice is `part` samples and
   writes at db + slice * db_stride, split_sum adds several slices up. */
#include "common.h"
#include "split_sum.h"

#ifndef SUM_ITEMS
#define SUM_ITEMS 256
#endif

kernel __attribute__((reqd_work_group_size(SUM_ITEMS, 1, 1))) void channel_sum(OPERAND_RESTRICT(const float, dy),
                                                                               OPERAND_RESTRICT(float, db), int batch, int plane,
                                                                               int part, int accumulate) {
  local float sums[SUM_ITEMS];
  const int item = get_local_id(0), channel = get_group_id(0), slice = get_group_id(1);
  const int end = min(batch, (slice + 1) * part);
  /* Sample and position advance together without a division. */
  const int samples_on = SUM_ITEMS / plane, on = SUM_ITEMS % plane;
  int sample = slice * part + item / plane, position = item % plane;
  LOCATE(dy);
  dy += (ulong)channel * plane;
  float sum = 0.0f;
  while (sample < end) {
    sum += dy[sample * dy_stride + position];
    sample += samples_on;
    position += on;
    if (position >= plane) position -= plane, ++sample;
  }
  sums[item] = sum;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int others = SUM_ITEMS / 2; others > 0; others /= 2) {
    if (item < others) sums[item] += sums[item + others];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (item == 0) {
    db += db_offset + slice * db_stride + channel;
    *db = accumulate ? *db + sums[0] : sums[0];
  }
}
