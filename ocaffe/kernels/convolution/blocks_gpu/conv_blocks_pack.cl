/* The filters of a convolution in the order of conv_blocks.cl, in bfloat16 or rounded to TF32 (block_operands.h):

     packed[tile of rows][block][step][cb / LINE][nt][LINE]

   Rows are outputs, in each tile in the order of row_of_column, and the depth are channels, in blocks of cb; with `back` it is the reverse. The tiles of a group
   of channels follow each other. Zeros follow rows and depths that do not exist; the depth of the products is a multiple of 16. A step is a tap. With a stride of 2, which has 3x3 taps, they are ordered by
   phase: 4, then 3 5, 1 7, and 0 2 6 8. With `back` and a stride of 1 they are mirrored, so that backward_data is forward with other sizes.

   A work-item makes the 8 elements of one row in each step, so that neighbours write neighbouring lines and each reads its taps from one line.

   A launch packs the filters of JOBS convolutions. Job n has the first count_n work-items after those of the jobs before it. */
#include "block_operands.h"
#include "jobs.h"

#define FILTERS(n) OPERAND_RESTRICT(const float, filters##n),
#define PACKED(n) OPERAND_RESTRICT(uint, packed##n),
#define SIZES(n) int rows##n, int depth##n, int taps##n, int stride##n, int back##n, int nt##n, int cb##n, int count##n,
#define CHOOSE(n)                                                                                                                       \
  if (!filters && i < count##n) {                                                                                                      \
    filters = filters##n + filters##n##_offset, packed = packed##n + packed##n##_offset;                                               \
    rows = rows##n, depth = depth##n, taps = taps##n, stride = stride##n, back = back##n, nt = nt##n, cb = cb##n;                      \
  } else if (!filters)                                                                                                                 \
    i -= count##n;

kernel void pack(EACH(FILTERS) EACH(PACKED) EACH(SIZES) int all) {
  int i = get_global_id(0), rows = 0, depth = 0, taps = 0, stride = 0, back = 0, nt = 1, cb = 8;
  if (i >= all) return;
  global const float* filters = 0;
  global uint* packed = 0;
  EACH(CHOOSE)
  const int blocks = (depth + 15) / 16 * 16 / cb, parts = cb / 8, own = i % nt, part = i / nt % parts, above = i / (nt * parts);
  const int tiles = (rows + nt - 1) / nt, group = above / blocks / tiles; /* of channels */
  const int row = above / blocks % tiles * nt + row_of_column(own), d0 = above % blocks * cb + part * 8;
  filters += (ulong)group * rows * depth * taps;
  for (int step = 0; step < taps; ++step) {
    const int tap = stride == 2 ? (int)(0x862071534ul >> 4 * step) & 15 : back ? taps - 1 - step : step;
    float each[8];
    for (int e = 0; e < 8; ++e) {
      const int d = d0 + e;
      each[e] = row >= rows || d >= depth ? 0.0f : filters[(back ? (ulong)d * rows + row : (ulong)row * depth + d) * taps + tap];
    }
    const float8 v = (float8)(each[0], each[1], each[2], each[3], each[4], each[5], each[6], each[7]);
    put_filters(packed, (ulong)(above * taps + step) * parts + part, nt, own, v);
  }
}
