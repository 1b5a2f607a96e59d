/* The `top` largest values along an axis and their indices, in descending order; of equal values the one with the larger index comes first.
 * NaN is never among them: if there are too few other values, the index is -1 and the value NaN.
 *
 * Each round finds the largest value that comes after the last one found. Positions, `mid` and `inner` as in softmax.h; in y each position has
 * `outs` numbers. Index r is written to index_at + r of these, its value to value_at + r; a negative index_at or value_at writes nothing.
 *
 * Define: GROUP, work-items per work-group of `group`.
 *
 *   maps     a work-item for each position
 *   blocks   a work-item for 16 neighbouring positions of one outer index: (blocks, outer); requires inner >= 16 (CPUs)
 *   group    a work-group for each position (GPUs, for small inner)
 */
#include "softmax.h"

#ifndef GROUP
#define GROUP 64
#endif

#define ARGUMENTS OPERAND(const float, x), OPERAND(float, y), const int positions, const int classes, const int inner, const int mid, \
                  const int top, const int outs, const int index_at, const int value_at

/* Whether (v, c) comes after (value, index). */
#define AFTER(v, c, value, index) ((v) < (value) || ((v) == (value) && (c) < (index)))

static void put(global float* y, const ulong step, const int r, const float value, const int index, const int index_at, const int value_at) {
  if (index_at >= 0) y[(index_at + r) * step] = index;
  if (value_at >= 0) y[(value_at + r) * step] = index < 0 ? NAN : value;
}

#define OUTPUTS(p) (y + scores_at(p, outs, inner, mid, y_stride))

kernel void maps(ARGUMENTS) {
  LOCATE(x);
  LOCATE(y);
  const int p = get_global_id(0);
  if (p >= positions) return;
  global const float* scores = SCORES(x, p);
  const ulong step = STEP(x);
  float last = INFINITY;
  int last_index = classes;
  for (int r = 0; r < top; r++) {
    float best = -INFINITY;
    int best_index = -1;
    for (int c = 0; c < classes; c++) {
      const float v = scores[c * step];
      if (v >= best && AFTER(v, c, last, last_index)) best = v, best_index = c;
    }
    put(OUTPUTS(p), STEP(y), r, best, best_index, index_at, value_at);
    last = best, last_index = best_index;
  }
}

kernel void blocks(ARGUMENTS) {
  LOCATE(x);
  LOCATE(y);
  /* The last block is moved back to end with the row; it stores only positions that no other block computes. */
  const int own = get_global_id(0) * 16, start = min(own, inner - 16), p = get_global_id(1) * inner + start;
  global const float* scores = SCORES(x, p);
  const ulong step = STEP(x);
  float16 last = INFINITY;
  int16 last_index = classes;
  for (int r = 0; r < top; r++) {
    float16 best = -INFINITY;
    int16 best_index = -1;
    for (int c = 0; c < classes; c++) {
      const float16 v = vload16(0, scores + c * step);
      const int16 better = v >= best && AFTER(v, (int16)(c), last, last_index);
      best = select(best, v, better);
      best_index = select(best_index, (int16)(c), better);
    }
    float values[16];
    int indices[16];
    vstore16(best, 0, values);
    vstore16(best_index, 0, indices);
    for (int j = own - start; j < 16; j++) put(OUTPUTS(p + j), STEP(y), r, values[j], indices[j], index_at, value_at);
    last = best, last_index = best_index;
  }
}

kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void group(ARGUMENTS) {
  LOCATE(x);
  LOCATE(y);
  local float values[GROUP];
  local int indices[GROUP];
  const int p = get_group_id(0), id = get_local_id(0);
  global const float* scores = SCORES(x, p);
  const ulong step = STEP(x);
  float last = INFINITY;
  int last_index = classes;
  for (int r = 0; r < top; r++) {
    float best = -INFINITY;
    int best_index = -1;
    for (int c = id; c < classes; c += GROUP) {
      const float v = scores[c * step];
      if (v >= best && AFTER(v, c, last, last_index)) best = v, best_index = c;
    }
    values[id] = best;
    indices[id] = best_index;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int apart = GROUP / 2; apart > 0; apart /= 2) {
      if (id < apart && AFTER(values[id], indices[id], values[id + apart], indices[id + apart])) {
        values[id] = values[id + apart];
        indices[id] = indices[id + apart];
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    last = values[0], last_index = indices[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id == 0) put(OUTPUTS(p), STEP(y), r, last, last_index, index_at, value_at);
  }
}
