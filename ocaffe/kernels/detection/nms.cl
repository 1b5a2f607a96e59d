/* Sorting and non-maximum suppression of scored boxes (ocaffe/kernels/detection/nms.py).
 *
 * A segment is an independent list: a class of an image. One work-group processes it, so that results do not depend on timing.
 *   GROUP   work-items of a group, a power of two; 1 on CPUs
 *   BITS    bits of a digit of the sort; 32 / BITS is an even number
 *   LIMITS  1: there is an operand `limits`, the maximum length of each segment
 * Work-items: (segments * GROUP, samples) of both kernels.
 */
#include "boxes.h"

#ifndef GROUP
#define GROUP 64
#endif
#ifndef BITS
#define BITS 4
#endif
#ifndef LIMITS
#define LIMITS 0
#endif

#define DIGITS (1 << BITS)
#define COUNTERS (DIGITS * GROUP > 256 ? DIGITS * GROUP : 256)
#define DIGIT(key) ((key) >> shift & (DIGITS - 1))
#define EVERYTHING (CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)

#if GROUP == 1
#define COUNT(x) (x)++
#define LESSEN(x, value) x = min(x, value)
#else
#define COUNT(x) atomic_inc(&(x))
#define LESSEN(x, value) atomic_min(&(x), value)
#endif

/* Return the sum of `value` over the work-items before this one; total: over all. */
int sum_before(const int value, local int* sums, int* total) {
#if GROUP == 1
  *total = value;
  return 0;
#else
  const int item = get_local_id(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  sums[item] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int step = 1; step < GROUP; step *= 2) {
    const int other = item >= step ? sums[item - step] : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    sums[item] += other;
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  *total = sums[GROUP - 1];
  return sums[item] - value;
#endif
}

/* Return an integer with the order of the score; 0 and -0 are equal. */
uint key_of(const float score) {
  const uint bits = score == 0 ? 0 : as_uint(score);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

#define SCORE(i) scores[(ulong)(i) * segments]
#define EACH(i, first, end, step) for (int i = first; i < (end); i += step)

/* order: the candidates with a score above `threshold`, at most the `most` highest ones. With `sort` they are sorted by descending score, ties
 * by ascending number; otherwise by number. counts: their number. keys, other_order, other_keys: scratch with the length of order. */
kernel void rank(OPERAND(const float, scores),
#if LIMITS
                 OPERAND(const int, limits),
#endif
                 OPERAND(int, order), OPERAND(int, counts), OPERAND(uint, keys), OPERAND(int, other_order), OPERAND(uint, other_keys),
                 const int count, const int segments, const int most, const float threshold, const int skipped, const int sort) {
  local int counters[COUNTERS], sums[GROUP];
  const int item = get_local_id(0), segment = get_group_id(0), sample = get_group_id(1);
  LOCATE(scores);
  LOCATE(order);
  LOCATE(counts);
  LOCATE(keys);
  LOCATE(other_order);
  LOCATE(other_keys);
  counts += sample * counts_stride + segment;
  if (segment == skipped) {
    if (item == 0) *counts = 0;
    return;
  }
  scores += sample * scores_stride + segment;
  order += sample * order_stride + (ulong)segment * most;
  keys += sample * keys_stride + (ulong)segment * most;
  other_order += sample * other_order_stride + (ulong)segment * most;
  other_keys += sample * other_keys_stride + (ulong)segment * most;
  int limit = most;
#if LIMITS
  LOCATE(limits);
  limit = clamp(limits[sample * limits_stride + segment], 0, most);
#endif

  /* A work-item has a contiguous run of candidates, so its results come after those of the work-items before it. */
  const int share = (count + GROUP - 1) / GROUP, first = min(item * share, count), end = min(first + share, count);
  int own = 0, all, equals = 0;
  EACH(i, first, end, 1) own += SCORE(i) > threshold;
  sum_before(own, sums, &all);

  /* If there are too many: find the key `last` of the last candidate to take, digit by digit, and `equals`, the number of candidates with that
   key to take. */
  uint last = 0;
  const bool too_many = all > limit;
  const int listed = min(all, limit);
  if (too_many && limit > 0) {
    equals = limit;
    for (int shift = 24; shift >= 0; shift -= 8) {
      barrier(CLK_LOCAL_MEM_FENCE);
      EACH(i, item, 256, GROUP) counters[i] = 0;
      barrier(CLK_LOCAL_MEM_FENCE);
      EACH(i, item, count, GROUP) {
        const float score = SCORE(i);
        const uint key = key_of(score);
        if (score > threshold && key >> shift >> 8 == last) COUNT(counters[key >> shift & 255]);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      int digit = 255;
      while (equals > counters[digit]) equals -= counters[digit--];
      last = last << 8 | digit;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }

  int above = 0, same = 0, unused;
  EACH(i, first, end, 1) {
    const float score = SCORE(i);
    const uint key = key_of(score);
    above += score > threshold && key > last;
    same += score > threshold && key == last;
  }
  above = sum_before(above, sums, &unused);
  same = sum_before(same, sums, &unused);
  EACH(i, first, listed > 0 ? end : 0, 1) {
    const float score = SCORE(i);
    const uint key = key_of(score);
    const bool is_above = score > threshold && key > last, is_same = score > threshold && key == last;
    if (is_above || (is_same && same < equals)) {
      const int at = above + min(same, equals);
      order[at] = i;
      keys[at] = ~key;
    }
    above += is_above;
    same += is_same;
  }
  if (item == 0) *counts = listed;
  if (!sort) return;

  /* Radix sort from the lowest digit. The number of passes is even, so that the result is in `order`. */
  const int part = (listed + GROUP - 1) / GROUP, from = min(item * part, listed), to = min(from + part, listed);
  for (int shift = 0; shift < 32; shift += BITS) {
    barrier(EVERYTHING);
    EACH(digit, 0, DIGITS, 1) counters[digit * GROUP + item] = 0;
    EACH(i, from, to, 1) counters[DIGIT(keys[i]) * GROUP + item]++;
    barrier(CLK_LOCAL_MEM_FENCE);
    int sum = 0;
    EACH(i, item * DIGITS, (item + 1) * DIGITS, 1) sum += counters[i];
    sum = sum_before(sum, sums, &unused);
    EACH(i, item * DIGITS, (item + 1) * DIGITS, 1) {
      const int own_count = counters[i];
      counters[i] = sum;
      sum += own_count;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH(i, from, to, 1) {
      const int at = counters[DIGIT(keys[i]) * GROUP + item]++;
      other_order[at] = order[i];
      other_keys[at] = keys[i];
    }
    global int* swap_order = order;
    global uint* swap_keys = keys;
    order = other_order;
    keys = other_keys;
    other_order = swap_order;
    other_keys = swap_keys;
  }
}

#define BOX(i) vload4(0, boxes + (ulong)(i) * box_step)

/* kept: the candidates of `order` that overlap no previously kept one by more than the threshold; at most `most`, at least of size `smallest`.
 * Each kept candidate multiplies the threshold by `eta` while it is above 0.5. kept may be order. own_boxes: 0 if all samples have the same boxes;
 * box_step: floats from a candidate's box to the next; segment_step: from a segment's boxes to the next, 0 if all have the same. */
kernel void suppress(OPERAND(const float, boxes), OPERAND(const int, order), OPERAND(const int, counts), OPERAND(int, kept),
                     OPERAND(int, kept_counts), const int listed, const int room, const int most, const int own_boxes, const int box_step,
                     const int segment_step, float threshold, const float eta, const float smallest, const float pixel) {
  local int first;
  local float4 chosen;
  const int item = get_local_id(0), segment = get_group_id(0), sample = get_group_id(1);
  LOCATE(boxes);
  LOCATE(order);
  LOCATE(counts);
  LOCATE(kept);
  LOCATE(kept_counts);
  boxes += own_boxes * sample * boxes_stride + segment * segment_step;
  order += sample * order_stride + (ulong)segment * listed;
  kept += sample * kept_stride + (ulong)segment * room;
  const int count = counts[sample * counts_stride + segment];
  int found = 0;
  for (int tile = 0; tile < count && found < most; tile += GROUP) {
    const int candidate = tile + item < count ? order[tile + item] : -1;
    const float4 box = candidate < 0 ? (float4)(0) : BOX(candidate);
    float largest = candidate < 0 || box_size(box, pixel) < smallest ? INFINITY : 0; /* overlap with a kept box */
    for (int k = 0; k < found && largest <= threshold; k++) largest = fmax(largest, box_overlap(box, BOX(kept[k]), pixel));
    /* The next candidate of the tile that is not suppressed suppresses those after it. */
    for (int turn = 0; turn < GROUP && found < most;) {
      barrier(CLK_LOCAL_MEM_FENCE);
      if (item == 0) first = GROUP;
      barrier(CLK_LOCAL_MEM_FENCE);
      if (item >= turn && largest <= threshold) LESSEN(first, item);
      barrier(CLK_LOCAL_MEM_FENCE);
      const int next = first;
      if (item == next) {
        kept[found] = candidate;
        chosen = box;
      }
      barrier(EVERYTHING);
      if (next < GROUP) {
        found++;
        largest = fmax(largest, box_overlap(box, chosen, pixel));
        if (eta < 1 && threshold > 0.5f) threshold *= eta;
      }
      turn = next + 1;
    }
  }
  if (item == 0) kept_counts[sample * kept_counts_stride + segment] = found;
}
