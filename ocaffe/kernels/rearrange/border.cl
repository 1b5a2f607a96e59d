/* Padding of the middle axis of blocks x ins x inner, by reflection (without repeating the edge) or by copies of the edge, and its adjoint.
 * No defines.
 * Work-items: (pieces of `piece` elements of a sample of the result, samples).
 */
#include "common.h"

/* y (blocks x outs x inner) from x. */
kernel void ENTRY(forward)(OPERAND(const float, x), OPERAND(float, y), const int count, const int piece, const int ins, const int outs, const int inner,
                    const int begin, const int mirrored) {
  LOCATE(x);
  LOCATE(y);
  const int n = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, count);
  for (int i = first; i < last; i++) {
    const int k = i % inner, block = i / inner / outs, place = i / inner % outs - begin;
    const int from = !mirrored ? clamp(place, 0, ins - 1) : place < 0 ? -place : place >= ins ? 2 * (ins - 1) - place : place;
    y[n * y_stride + i] = x[n * x_stride + ((long)block * ins + from) * inner + k];
  }
}

/* dx from dy (blocks x outs x inner). */
kernel void ENTRY(backward)(OPERAND(const float, dy), OPERAND(float, dx), const int count, const int piece, const int ins, const int outs, const int inner,
                     const int begin, const int mirrored, const int accumulate) {
  LOCATE(dy);
  LOCATE(dx);
  const int n = get_global_id(1), begin_i = get_global_id(0) * piece, end_i = min(begin_i + piece, count);
  for (int i = begin_i; i < end_i; i++) {
    const int k = i % inner, block = i / inner / ins, place = i / inner % ins;
    global const float* p = dy + n * dy_stride + (long)block * outs * inner + k;
    float sum = 0;
    if (mirrored) {
      const int behind = outs - begin - ins, beyond = ins - 1 - place;  /* the width of the border at the end, and the number of elements after this one */
      sum = p[(long)(begin + place) * inner];
      if (place > 0 && place <= begin) sum += p[(long)(begin - place) * inner];
      if (beyond > 0 && beyond <= behind) sum += p[(long)(begin + ins - 1 + beyond) * inner];
    } else {
      const int from = place == 0 ? 0 : begin + place, to = place == ins - 1 ? outs - 1 : begin + place;
      for (int o = from; o <= to; o++) sum += p[(long)o * inner];
    }
    global float* q = dx + n * dx_stride + i;
    *q = accumulate ? *q + sum : sum;
  }
}
