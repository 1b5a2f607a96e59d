/* Bilinear resampling with aligned corners of a part of each plane, and its adjoint. No defines.
 *
 * Output i of `outs` is at i * ratio of `ins`, ratio = (ins - 1) / (outs - 1); its value is interpolated from the two neighbours. The adjoint
 * processes one axis at a time, as a gather: an input adds the outputs that read it, in order.
 * Work-items: (pieces of `piece` elements of a sample, samples).
 */
#include "common.h"

/* Where output i reads along an axis: the input before it, the step to the next one (0 at the last), and the weight of the next one. */
#define AT(i, ratio, ins, first, step, weight)  \
  const float first##_exact = (i) * (ratio);    \
  const int first = min((int)first##_exact, (ins)-1), step = first < (ins)-1; \
  const float weight = first##_exact - first;

/* Loop over the elements i of this work-item, with coordinates (a, b, c) of which c is fastest. Incrementing is cheaper than dividing. */
#define EACH(i, a, b, c, sizes_b, sizes_c)                                                    \
  const int n = get_global_id(1), first_##i = get_global_id(0) * piece, last_##i = min(first_##i + piece, count); \
  for (int i = first_##i, c = i % sizes_c, b = i / sizes_c % sizes_b, a = i / sizes_c / sizes_b; i < last_##i;    \
       i++, c++, b += c == sizes_c, c = c == sizes_c ? 0 : c, a += b == sizes_b, b = b == sizes_b ? 0 : b)

/* y (channels x OH x OW) from the h x w pixels of x (channels x H x W) that begin at `begin`, `begin`. */
kernel void ENTRY(forward)(OPERAND(const float, x), OPERAND(float, y), const int count, const int piece, const int H, const int W, const int begin,
                    const int h, const int w, const int OH, const int OW, const float ratio_h, const float ratio_w) {
  LOCATE(x);
  LOCATE(y);
  EACH(i, plane, row, column, OH, OW) {
    AT(row, ratio_h, h, top, down, low)
    AT(column, ratio_w, w, left, right, far)
    global const float* p = x + n * x_stride + ((long)plane * H + begin + top) * W + begin + left;
    y[n * y_stride + i] = (1 - low) * ((1 - far) * p[0] + far * p[right]) + low * ((1 - far) * p[down * W] + far * p[down * W + right]);
  }
}

/* dx (blocks x full x inner) from dy (blocks x outs x inner): the adjoint along the middle axis. forward reads `ins` places from `begin` on. */
kernel void ENTRY(backward)(OPERAND(const float, dy), OPERAND(float, dx), const int count, const int piece, const int full, const int begin,
                     const int ins, const int outs, const int inner, const float ratio, const float scale, const int accumulate) {
  LOCATE(dy);
  LOCATE(dx);
  EACH(i, block, at, k, full, inner) {
    const int place = at - begin;
    float sum = 0;
    if (place >= 0 && place < ins) {
      /* The outputs between place - 1 and place + 1, and one more on either side to allow for rounding; their weights decide. */
      const int from = max(0, (int)((place - 1) * scale) - 1), to = min(outs - 1, (int)((place + 1) * scale) + 1);
      global const float* p = dy + n * dy_stride + (long)block * outs * inner + k;
      for (int o = from; o <= to; o++) {
        AT(o, ratio, ins, first, step, weight)
        const float share = (first == place ? 1 - weight : 0) + (first + step == place ? weight : 0);
        sum += share * p[(long)o * inner];
      }
    }
    global float* q = dx + n * dx_stride + i;
    *q = accumulate ? *q + sum : sum;
  }
}
