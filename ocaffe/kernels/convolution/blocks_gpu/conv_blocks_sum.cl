/* The gradients of filters from the parts that conv_blocks.cl writes, one part for each split of the pixels:

     dw[output][channel][tap] = sum over (split) of parts[split][tap][output][channel]

   A launch adds up the parts of JOBS convolutions. Job n has the first items_n work-items after those of the jobs before it. A work-group has some pairs of an
   output and a channel, of `count` in all, with their taps. So it reads neighbouring pairs, and writes neighbouring taps. */
#include "common.h"
#include "jobs.h"
#ifndef ITEMS
#define ITEMS 288
#endif
#ifndef MIN_PAIRS
#define MIN_PAIRS 32
#define MAX_TAPS 32
#endif

#define PARTS(n) OPERAND_RESTRICT(const float, parts##n),
#define RESULT(n) OPERAND_RESTRICT(float, dw##n),
#define SIZES(n) int splits##n, int count##n, int taps##n, int accumulate##n, int items##n,
#define CHOOSE(n)                                                                                                \
  if (!dw && group < items##n / ITEMS) {                                                                         \
    parts = parts##n + parts##n##_offset, dw = dw##n + dw##n##_offset, apart = parts##n##_stride;                \
    splits = splits##n, count = count##n, taps = taps##n, accumulate = accumulate##n;                            \
  } else if (!dw)                                                                                                \
    group -= items##n / ITEMS;

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void sum_parts(EACH(PARTS) EACH(RESULT) EACH(SIZES) int all) {
  local float sums[MIN_PAIRS * MAX_TAPS > ITEMS ? MIN_PAIRS * MAX_TAPS : ITEMS];
  int group = get_group_id(0), splits = 0, count = 0, taps = 1, accumulate = 0;
  ulong apart = 0;
  global const float* parts = 0;
  global float* dw = 0;
  EACH(CHOOSE)
  const int item = get_local_id(0), pairs = max(MIN_PAIRS, ITEMS / taps / MIN_PAIRS * MIN_PAIRS), first = group * pairs;
  for (int i = item; i < pairs * taps; i += ITEMS) {
    const int tap = i / pairs, pair = first + i % pairs;
    float sum = 0.0f;
    if (pair < count)
#pragma unroll 8
      for (int s = 0; s < splits; ++s) sum += parts[s * apart + (ulong)tap * count + pair];
    sums[i % pairs * taps + tap] = sum;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  const int existing = min(pairs, count - first) * taps;
  dw += (ulong)first * taps;
  for (int i = item; i < existing; i += ITEMS) dw[i] = sums[i] + (accumulate ? dw[i] : 0.0f);
}
