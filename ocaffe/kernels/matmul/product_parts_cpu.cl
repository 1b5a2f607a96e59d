/* Kernels before and after the products and convolutions for CPU runtimes: packing the left operand for the register tile, adding gradients
   that were summed in slices, and the gradient of the bias.

   V   floats of a native vector
   KC  columns that a work-item of `pack` packs

   Work-items: see each kernel. */
#include "common.h"
#include "tile_cpu.h"

#define MOST_HEIGHT 16 /* maximum height of a panel */

/* Pack a matrix or filters in the order in which the register tile reads them: panels of `height` rows, padded with zeros:
   [group][block][panel][depth][height]. A block is `rows` of the `total` rows of a group.
   Element (row, k) is w[group * group_step + row * row_step + k / inner * outer_step + k % inner * inner_step + first]. A row_step or
   outer_step of 0 is the operand's stride. Whole vectors are written even where they exceed a column; the next column overwrites the excess.
   Work-item: KC columns k of a panel. */
SINGLE void ENTRY(pack)(OPERAND_RESTRICT(const float, w), OPERAND_RESTRICT(float, packed), int total, int rows, int depth, int group_step, int row_step,
                 int inner, int outer_step, int inner_step, int first, int height) {
  LOCATE(w); LOCATE(packed);
  row_step = row_step ? row_step : (int)w_stride, outer_step = outer_step ? outer_step : (int)w_stride;
  const int panels = (rows + height - 1) / height, panel = get_global_id(1), g = get_global_id(2);
  const int r0 = panel % panels * height, r = panel / panels * rows + r0, valid = min(height, min(rows - r0, total - r));
  const int k0 = get_global_id(0) * KC, k1 = min(depth, k0 + KC);
  w += (ulong)g * group_step + (ulong)r * row_step + first;
  packed += ((ulong)g * get_global_size(1) + panel) * depth * height;
  const int groups = (height - 1) / V * V; /* the first row of the last vector of rows */
  int k = k0;
  if (inner_step == 1 && (inner >= depth || outer_step == inner)) { /* columns are contiguous: V of them are transposed at a time */
    float turned[(MOST_HEIGHT + 1) * V] __attribute__((aligned(64)));
    for (; k + V <= k1; k += V) {
      for (int i0 = groups; i0 >= 0; i0 -= V) {
        vec block[V];
#pragma unroll
        for (int i = 0; i < V; i++) block[i] = i0 + i < valid ? GLOBAL(w + (ulong)(i0 + i) * row_step + k) : (vec)(0);
        transpose(block);
#pragma unroll
        for (int i = 0; i < V; i++) PRIVATE(turned + i * height + i0) = block[i];
      }
      for (int i = 0; i < height; i++) GLOBAL(packed + (ulong)k * height + i * V) = PRIVATE(turned + i * V);
    }
  } else if (row_step == 1 && valid == height && r + groups + V <= total && inner == 1) { /* rows are contiguous: a column is read and written as vectors */
    for (; k < k1 - V / height - 1; k++)
      for (int i = groups; i >= 0; i -= V) GLOBAL(packed + (ulong)k * height + i) = GLOBAL(w + (ulong)k * outer_step + i);
  }
  for (int j = k % inner, at = k / inner * outer_step + j * inner_step; k < k1; k++, at += inner_step) {
    if (j++ == inner) at += outer_step - inner * inner_step, j = 1;
    for (int i = 0; i < height; i++) packed[(ulong)k * height + i] = i < valid ? w[at + i * row_step] : 0.0f;
  }
}

/* sum[i] (+)= sum over slices of part[slice][i], always in the same order. Work-item: `share` elements. */
SINGLE void ENTRY(add_slices)(OPERAND_RESTRICT(const float, part), OPERAND_RESTRICT(float, sum), int slices, int count, int share, int accumulate) {
  LOCATE(part); LOCATE(sum);
  const int first = get_global_id(0) * share, last = min(count, first + share);
  int i = first;
  for (; i + V <= last; i += V) {
    vec v = accumulate ? GLOBAL(sum + i) : (vec)(0);
    for (int s = 0; s < slices; s++) v += GLOBAL(part + s * part_stride + i);
    GLOBAL(sum + i) = v;
  }
  for (; i < last; i++) {
    float v = accumulate ? sum[i] : 0.0f;
    for (int s = 0; s < slices; s++) v += part[s * part_stride + i];
    sum[i] = v;
  }
}

/* db[channel] = sum of dy over a slice of `share` samples and all positions. Work-item: channel, slice. */
SINGLE void ENTRY(backward_bias)(OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(float, db), int batch, int P, int share, int accumulate) {
  LOCATE(dy); LOCATE(db);
  const int o = get_global_id(0), n0 = get_global_id(1) * share, n1 = min(batch, n0 + share);
  vec sums[2] = {(vec)(0), (vec)(0)};
  float rest = 0.0f;
  for (int n = n0; n < n1; n++) {
    global const float* from = dy + n * dy_stride + (ulong)o * P;
    int p = 0;
    for (; p + 2 * V <= P; p += 2 * V) {
      sums[0] += GLOBAL(from + p);
      sums[1] += GLOBAL(from + p + V);
    }
    for (; p < P; p++) rest += from[p];
  }
  float lanes[V];
  PRIVATE(lanes) = sums[0] + sums[1];
  for (int i = 0; i < V; i++) rest += lanes[i];
  db += get_global_id(1) * db_stride;
  db[o] = accumulate ? db[o] + rest : rest;
}
