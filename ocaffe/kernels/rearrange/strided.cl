/* A part of a tensor with steps along axis 0 and along one other axis, and its adjoint. A step may be negative. No defines.
 * A sample of the tensor is blocks x ins x inner, a sample of the part is blocks x outs x inner.
 * Work-items: (pieces of `piece` elements of a sample of the result, samples of the result).
 */
#include "common.h"

/* y[n][o] = x[start0 + n * step0][start + o * step] */
kernel void ENTRY(forward)(OPERAND(const float, x), OPERAND(float, y), const int count, const int piece, const int ins, const int outs, const int inner,
                    const int start0, const int step0, const int start, const int step) {
  LOCATE(x);
  LOCATE(y);
  const int n = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, count);
  x += (start0 + n * step0) * x_stride;
  y += n * y_stride;
  for (int i = first; i < last; i++) {
    const int k = i % inner, block = i / inner / outs, from = start + i / inner % outs * step;
    y[i] = x[((long)block * ins + from) * inner + k];
  }
}

/* dx = dy at the values that the part contains, 0 elsewhere. The part has `outs0` samples. */
kernel void ENTRY(backward)(OPERAND(const float, dy), OPERAND(float, dx), const int count, const int piece, const int ins, const int outs, const int inner,
                     const int start0, const int step0, const int start, const int step, const int outs0, const int accumulate) {
  LOCATE(dy);
  LOCATE(dx);
  const int n = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, count);
  const int sample = (n - start0) / step0, chosen = (n - start0) % step0 == 0 && sample >= 0 && sample < outs0;
  dx += n * dx_stride;
  for (int i = first; i < last; i++) {
    const int k = i % inner, block = i / inner / ins, apart = i / inner % ins - start, o = apart / step;
    const int inside = chosen && apart % step == 0 && o >= 0 && o < outs;
    const float value = inside ? dy[sample * dy_stride + ((long)block * outs + o) * inner + k] : 0;
    dx[i] = accumulate ? dx[i] + value : value;
  }
}
