/* Histogram of values by sign, exponent and leading bits of the mantissa, so that its range need not be known before the values are.
 *
 *   count   counts[group][bin], extremes[group] = largest x, largest -x
 *
 * OCTAVES powers of two from 2^FIRST on have STEPS bins each, first for positive then for negative values. Smaller magnitudes are in the first bin of
 * their sign, larger ones in the last. Bin 2 BINS has infinities and NaN. -INFINITY is an extreme if a group has no finite value.
 *
 * Each group takes a range of elements, from `begin` on `each` of them. CPUs: groups of one work-item, which count in global memory. GPUs: GROUP
 * work-items, which count in local memory.
 */
#include "common.h"

#define STEPS_LOG2 6
#define BINS (OCTAVES << STEPS_LOG2)
#define LOWEST ((127 + (FIRST)) << STEPS_LOG2) /* in units of a step, of the biased exponent */

INLINE int bin_of(const uint bits) {
  const uint magnitude = bits & 0x7fffffffu;
  const int step = clamp((int)(magnitude >> (23 - STEPS_LOG2)) - LOWEST, 0, BINS - 1);
  return magnitude >= 0x7f800000u ? 2 * BINS : step + (bits >> 31 ? BINS : 0);
}

#ifdef GROUP
#define SPACE local
#define COUNT(place) atomic_inc(place)
#else
#define GROUP 1
#define SPACE global
#define COUNT(place) ++*(place)
#endif

kernel void count(OPERAND(const float, x), OPERAND(uint, counts), OPERAND(float, extremes), const int size, const ulong total, const ulong each) {
  LOCATE(x);
  LOCATE(counts);
  LOCATE(extremes);
  const int group = get_group_id(0), item = get_local_id(0);
  counts += (ulong)group * counts_stride;
#if GROUP > 1
  local uint bins[2 * BINS + 1];
  local float highest[GROUP], lowest[GROUP];
#else
  global uint* bins = counts;
#endif
  for (int i = item; i <= 2 * BINS; i += GROUP) bins[i] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
  float high = -INFINITY, low = -INFINITY;
  const ulong begin = group * each, end = min(begin + each, total);
  for (ulong at = begin; at < end;) {
    const ulong sample = at / size;
    const int first = at % size, past = (int)min((ulong)size, first + (end - at));
    global const float* values = x + sample * x_stride;
    for (int i = first + item; i < past; i += GROUP) {
      const float value = values[i];
      COUNT(bins + bin_of(as_uint(value)));
      if (isfinite(value)) {
        high = fmax(high, value);
        low = fmax(low, -value);
      }
    }
    at += past - first;
  }
#if GROUP > 1
  highest[item] = high;
  lowest[item] = low;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = item; i <= 2 * BINS; i += GROUP) counts[i] = bins[i];
  if (item == 0)
    for (int i = 1; i < GROUP; i++) {
      high = fmax(high, highest[i]);
      low = fmax(low, lowest[i]);
    }
#endif
  if (item == 0) {
    extremes[(ulong)group * extremes_stride] = high;
    extremes[(ulong)group * extremes_stride + 1] = low;
  }
}
