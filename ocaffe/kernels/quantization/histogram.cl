/* Histogram of values by sign, exponent and leading bits of the mantissa, so that its range need not be known before the values are.
 *
 *   count   counts[group][bin], extremes[group] = largest x, largest -x
 *
 * OCTAVES powers of two from 2^FIRST on have STEPS bins each, first for positive then for negative values. Smaller magnitudes are in the first bin of
 * their sign, larger ones in the last. Bin 2 BINS has infinities and NaN. -INFINITY is an extreme if a group has no finite value.
 *
 * Each group takes a range of elements, from `begin` on `each` of them. GPUs: GROUP work-items, which count in local memory, in row `group`. CPUs: groups
 * of one work-item, which finds the bins of LANES elements at once and counts in global memory. Lane i counts in row i % ROWS of the group's: if all were
 * in one row, each of many equal values would wait for the count before it.
 */
#include "common.h"

#define STEPS_LOG2 6
#define BINS (OCTAVES << STEPS_LOG2)
#define LOWEST ((127 + (FIRST)) << STEPS_LOG2) /* in units of a step, of the biased exponent */

#ifdef GROUP
#define ROWS 1
#define INTS int
#define UINTS uint
#define AS_INTS as_int
#else
#define GROUP 1
#define LANES 16
#define INTS int16
#define UINTS uint16
#define AS_INTS as_int16
#endif

INLINE INTS bin_of(const UINTS bits) {
  const UINTS magnitude = bits & 0x7fffffffu;
  const INTS step = clamp(AS_INTS(magnitude >> (23 - STEPS_LOG2)) - LOWEST, 0, BINS - 1);
  return select(step + AS_INTS(bits >> 31) * BINS, (INTS)(2 * BINS), magnitude >= 0x7f800000u);
}

kernel void count(OPERAND(const float, x), OPERAND(uint, counts), OPERAND(float, extremes), const int size, const ulong total, const ulong each) {
  LOCATE(x);
  LOCATE(counts);
  LOCATE(extremes);
  const int group = get_group_id(0), item = get_local_id(0);
  counts += (ulong)group * ROWS * counts_stride;
#if GROUP > 1
  local uint bins[2 * BINS + 1];
  local float highest[GROUP], lowest[GROUP];
  for (int i = item; i <= 2 * BINS; i += GROUP) bins[i] = 0;
  barrier(CLK_LOCAL_MEM_FENCE);
#else
  for (int row = 0; row < ROWS; row++)
    for (int i = 0; i <= 2 * BINS; i++) counts[(ulong)row * counts_stride + i] = 0;
  float16 highs = -INFINITY, lows = -INFINITY;
#endif
  float high = -INFINITY, low = -INFINITY;
  const ulong begin = group * each, end = min(begin + each, total);
  for (ulong at = begin; at < end;) {
    const ulong sample = at / size;
    const int first = at % size, past = (int)min((ulong)size, first + (end - at));
    global const float* values = x + sample * x_stride;
    int i = first + item;
#if GROUP == 1
    for (; i + LANES <= past; i += LANES) {
      const float16 value = vload16(0, values + i);
      const int16 bin = bin_of(as_uint16(value)), finite = bin < 2 * BINS;
      highs = fmax(highs, select((float16)(-INFINITY), value, finite));
      lows = fmax(lows, select((float16)(-INFINITY), -value, finite));
      int places[LANES];
      vstore16(bin, 0, places);
      _Pragma("unroll") for (int lane = 0; lane < LANES; lane++) ++counts[(ulong)(lane % ROWS) * counts_stride + places[lane]];
    }
#endif
    for (; i < past; i += GROUP) {
      const float value = values[i];
#if GROUP > 1
      atomic_inc(bins + bin_of(as_uint(value)));
#else
      ++counts[bin_of((uint16)(as_uint(value))).s0];
#endif
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
#else
  float ends[2 * LANES];
  vstore16(highs, 0, ends);
  vstore16(lows, 1, ends);
  for (int lane = 0; lane < LANES; lane++) {
    high = fmax(high, ends[lane]);
    low = fmax(low, ends[LANES + lane]);
  }
#endif
  if (item == 0) {
    extremes[(ulong)group * extremes_stride] = high;
    extremes[(ulong)group * extremes_stride + 1] = low;
  }
}
