/* Rows of a table by their numbers: Embed, BatchReindex, Filter.
 *
 *   gather        y[m] = x[number of m] (+ bias); `fill` if that is not a row of x
 *   sum_matching  x[r] = sum of y[m] over all m of number r, in order: one group for each r and block of columns (GPUs)
 *   chain, sum_chains   the same for CPUs: one work-item makes a list of the m of each number; then a work-item adds each piece of a row of x
 *   select_rows   numbers of the rows whose selector is not 0, their count, and the place of each row among them (-1: not selected): one group
 *
 * Defines: NUMBER, the type of a number; GROUP, work-items of a group. Rows have `inner` elements. Numbers and rows of y are in samples of
 * `run`; x has one row per sample.
 */
#include "common.h"

#ifndef NUMBER
#define NUMBER float
#endif
#ifndef GROUP
#define GROUP 128
#endif
#define COLUMNS 4 /* columns of a work-item of sum_matching, GROUP apart */
#define BLOCK 64  /* columns that sum_chains keeps in registers */

/* Return the row that m names, or -1 if there is none. Fractions are truncated, as in Caffe. */
static int number_of(global const NUMBER* number, const ulong stride, const int m, const int run, const int rows) {
  const NUMBER value = number[(m / run) * stride + m % run];
  return value > -1 && value < rows ? (int)value : -1;
}

#define NUMBER_OF(m) number_of(number, number_stride, m, run, rows)
#define ROW(y, m) (y + ((m) / run) * y##_stride + (ulong)((m) % run) * inner)

/* Work-items: each copies a piece of `piece` elements of a row, of `pieces` in a row. */
kernel void gather(OPERAND(const float, x), OPERAND(const NUMBER, number), OPERAND(const float, bias), OPERAND(float, y), const int count,
                   const int rows, const int run, const int inner, const int piece, const int pieces, const int has_bias, const float fill,
                   const int accumulate) {
  LOCATE(x);
  LOCATE(number);
  LOCATE(bias);
  LOCATE(y);
  const int m = get_global_id(0) / pieces;
  if (m >= count) return;
  const int row = NUMBER_OF(m), first = get_global_id(0) % pieces * piece, last = min(first + piece, inner);
  global float* to = ROW(y, m);
  x += row < 0 ? 0 : row * x_stride;
  int i = first;
  for (; i + 16 <= last; i += 16) {
    float16 value = fill;
    if (row >= 0) value = vload16(0, x + i);
    if (row >= 0 && has_bias) value += vload16(0, bias + i);
    if (accumulate) value += vload16(0, to + i);
    vstore16(value, 0, to + i);
  }
  for (; i < last; i++) {
    const float value = row < 0 ? fill : has_bias ? x[i] + bias[i] : x[i];
    to[i] = accumulate ? to[i] + value : value;
  }
}

/* A group tests GROUP numbers at a time, marks those of its row in a bit mask, and then adds their rows in order. */
kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void sum_matching(OPERAND(const float, y), OPERAND(const NUMBER, number),
                                                                            OPERAND(float, x), const int count, const int rows,
                                                                            const int run, const int inner, const int blocks,
                                                                            const int accumulate) {
  LOCATE(y);
  LOCATE(number);
  LOCATE(x);
  local uint marks[(GROUP + 31) / 32];
  const int id = get_local_id(0), row = get_group_id(0) / blocks, column = get_group_id(0) % blocks * GROUP * COLUMNS + id;
  float sums[COLUMNS];
  for (int j = 0; j < COLUMNS; j++) sums[j] = 0;
  for (int base = 0; base < count; base += GROUP) {
    if (id % 32 == 0) marks[id / 32] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (base + id < count && NUMBER_OF(base + id) == row) atomic_or(marks + id / 32, 1u << id % 32);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int word = 0; word < (GROUP + 31) / 32; word++) {
      for (uint left = marks[word]; left; left &= left - 1) {
        const int m = base + word * 32 + 31 - (int)clz(left & -left);
        for (int j = 0; j < COLUMNS; j++)
          if (column + j * GROUP < inner) sums[j] += ROW(y, m)[column + j * GROUP];
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  x += row * x_stride;
  for (int j = 0; j < COLUMNS; j++) {
    const int i = column + j * GROUP;
    if (i < inner) x[i] = accumulate ? x[i] + sums[j] : sums[j];
  }
}

/* first[r]: the first m of number r; next[m]: the one after m; -1: none. One work-item. */
kernel void chain(OPERAND(const NUMBER, number), OPERAND(int, first), OPERAND(int, next), const int count, const int rows, const int run) {
  LOCATE(number);
  LOCATE(first);
  LOCATE(next);
  for (int row = 0; row < rows; row++) first[row] = -1;
  for (int m = count - 1; m >= 0; m--) {
    const int row = NUMBER_OF(m);
    if (row < 0) continue;
    next[m] = first[row];
    first[row] = m;
  }
}

/* Work-items: each computes a piece of `piece` elements of a row of x. */
kernel void sum_chains(OPERAND(const float, y), OPERAND(const int, first), OPERAND(const int, next), OPERAND(float, x), const int rows,
                       const int run, const int inner, const int piece, const int pieces, const int accumulate) {
  LOCATE(y);
  LOCATE(first);
  LOCATE(next);
  LOCATE(x);
  const int row = get_global_id(0) / pieces, begin = get_global_id(0) % pieces * piece, end = min(begin + piece, inner);
  if (row >= rows) return;
  x += row * x_stride;
  int i = begin;
  for (; i + BLOCK <= end; i += BLOCK) {
    float16 a = 0, b = 0, c = 0, d = 0;
    for (int m = first[row]; m >= 0; m = next[m]) {
      global const float* from = ROW(y, m) + i;
      a += vload16(0, from);
      b += vload16(1, from);
      c += vload16(2, from);
      d += vload16(3, from);
    }
    if (accumulate) {
      a += vload16(0, x + i);
      b += vload16(1, x + i);
      c += vload16(2, x + i);
      d += vload16(3, x + i);
    }
    vstore16(a, 0, x + i);
    vstore16(b, 1, x + i);
    vstore16(c, 2, x + i);
    vstore16(d, 3, x + i);
  }
  for (; i < end; i++) {
    float sum = 0;
    for (int m = first[row]; m >= 0; m = next[m]) sum += ROW(y, m)[i];
    x[i] = accumulate ? x[i] + sum : sum;
  }
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void select_rows(OPERAND(const float, selector), OPERAND(int, chosen),
                                                                           OPERAND(int, place), OPERAND(int, extent), const int count) {
  LOCATE(selector);
  LOCATE(chosen);
  LOCATE(place);
  LOCATE(extent);
  local int sums[GROUP];
  const int id = get_local_id(0);
  int before = 0;
  for (int base = 0; base < count; base += GROUP) {
    const int n = base + id, wanted = n < count && selector[n * selector_stride] != 0;
    sums[id] = wanted;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int apart = 1; apart < GROUP; apart *= 2) {
      const int other = id >= apart ? sums[id - apart] : 0;
      barrier(CLK_LOCAL_MEM_FENCE);
      sums[id] += other;
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    const int at = before + sums[id] - 1;
    if (n < count) place[n] = wanted ? at : -1;
    if (wanted) chosen[at] = n;
    before += sums[GROUP - 1];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (id == 0) *extent = before;
}
