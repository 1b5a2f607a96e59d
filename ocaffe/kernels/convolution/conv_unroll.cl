/* Convolution over any number of axes: im2col, whose product with the filters is a 1 x 1 convolution, and its adjoint.

   unroll   columns[(channel, tap)][position] = the pixel that the tap reads there, 0 outside of the image
   fold     x[channel][pixel] = sum over the taps of columns at the positions that read the pixel (+ bias per channel)

   Define: AXES, the number of axes. Operand `axes` has AXES numbers each: image, result, window, stride, padding, dilation; the last axis is
   dense.
   One work-item for `each` neighbouring elements of the result: (elements, rows or channels, samples). */
#include "common.h"

#ifndef AXES
#define AXES 4
#endif

#define SIZE(a) axes[a]
#define OUT(a) axes[AXES + (a)]
#define KERNEL(a) axes[2 * AXES + (a)]
#define STRIDE(a) axes[3 * AXES + (a)]
#define PAD(a) axes[4 * AXES + (a)]
#define DILATION(a) axes[5 * AXES + (a)]

kernel void unroll(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const int, axes), OPERAND_RESTRICT(float, columns), int pixels,
                   int positions, int taps, int each) {
  LOCATE(x); LOCATE(axes); LOCATE(columns);
  const int first = get_global_id(0) * each, row = get_global_id(1), n = get_global_id(2);
  x += n * x_stride + (ulong)(row / taps) * pixels;
  columns += n * columns_stride + (ulong)row * positions;
  for (int p = first; p < min(positions, first + each); ++p) {
    int position = p, tap = row % taps, at = 0, step = 1, inside = 1;
    for (int a = AXES - 1; a >= 0; --a) {
      const int i = position % OUT(a) * STRIDE(a) - PAD(a) + tap % KERNEL(a) * DILATION(a);
      inside = inside && (uint)i < (uint)SIZE(a);
      at += i * step;
      step *= SIZE(a);
      position /= OUT(a);
      tap /= KERNEL(a);
    }
    columns[p] = inside ? x[at] : 0.0f;
  }
}

kernel void fold(OPERAND_RESTRICT(const float, columns), OPERAND_RESTRICT(const int, axes), OPERAND_RESTRICT(const float, bias),
                 OPERAND_RESTRICT(float, x), int pixels, int positions, int taps, int each, int has_bias, int accumulate) {
  LOCATE(columns); LOCATE(axes); LOCATE(bias); LOCATE(x);
  const int first = get_global_id(0) * each, channel = get_global_id(1), n = get_global_id(2);
  columns += n * columns_stride + (ulong)channel * taps * positions;
  x += n * x_stride + (ulong)channel * pixels;
  for (int p = first; p < min(pixels, first + each); ++p) {
    float sum = has_bias ? bias[channel] : 0.0f;
    for (int t = 0; t < taps; ++t) {
      int pixel = p, tap = t, at = 0, step = 1, seen = 1;
      for (int a = AXES - 1; a >= 0; --a) {
        const int i = pixel % SIZE(a) + PAD(a) - tap % KERNEL(a) * DILATION(a);
        seen = seen && i >= 0 && i % STRIDE(a) == 0 && i / STRIDE(a) < OUT(a);
        at += i / STRIDE(a) * step;
        step *= OUT(a);
        pixel /= SIZE(a);
        tap /= KERNEL(a);
      }
      if (seen) sum += columns[(ulong)t * positions + at];
    }
    x[p] = accumulate ? x[p] + sum : sum;
  }
}
