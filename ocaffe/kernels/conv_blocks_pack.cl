/* The filters of a convolution in the order of conv_blocks.cl, in bfloat16:

     packed[tile of rows][block][step][cb / 8][nt][8]

   Rows are outputs, and the depth are channels, in blocks of cb; with `back` it is the reverse. Zeros follow rows and depths that do not exist; the depth of
   the products is a multiple of 16. A step is a tap. With a stride of 2, which has 3x3 taps, they are ordered by phase: 4, then 3 5, 1 7, and 0 2 6 8. With
   `back` and a stride of 1 they are mirrored, so that backward_data is forward with other sizes.

   A work-item makes the 8 elements of one row in each step, so that neighbours write neighbouring lines and each reads its taps from one line. */
#include "common.h"

kernel void pack(OPERAND_RESTRICT(const float, filters), OPERAND_RESTRICT(uint, packed), int rows, int depth, int taps, int stride, int back, int nt, int cb, int count) {
  const int i = get_global_id(0);
  if (i >= count) return;
  LOCATE(filters), LOCATE(packed);
  const int blocks = (depth + 15) / 16 * 16 / cb, parts = cb / 8, own = i % nt, part = i / nt % parts, above = i / (nt * parts);
  const int row = above / blocks * nt + own, d0 = above % blocks * cb + part * 8;
  for (int step = 0; step < taps; ++step) {
    const int tap = stride == 2 ? (int)(0x862071534ul >> 4 * step) & 15 : back ? taps - 1 - step : step;
    float each[8];
    for (int e = 0; e < 8; ++e) {
      const int d = d0 + e;
      each[e] = row >= rows || d >= depth ? 0.0f : filters[(back ? (ulong)d * rows + row : (ulong)row * depth + d) * taps + tap];
    }
    const float8 v = (float8)(each[0], each[1], each[2], each[3], each[4], each[5], each[6], each[7]);
    ((global uint4*)packed)[((ulong)(above * taps + step) * parts + part) * nt + own] = narrow8(v);
  }
}
