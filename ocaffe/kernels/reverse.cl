/* Reverse one axis: y = x with the order of the indices of this axis reversed. If it is the axis of samples, `samples` is their number and n is 1.
 *
 * Otherwise `samples` is 0, and a sample of `count` elements is viewed as outer x n x inner; the middle axis is reversed.
 *
 * Work-items: (pieces, samples), pieces = ceil(count / piece): each writes up to `piece` elements of one sample.
 */
#include "common.h"

kernel void reverse(OPERAND(const float, x), OPERAND(float, y), const int count, const int piece, const int samples, const int n, const int inner,
                    const int accumulate) {
  LOCATE(x);
  LOCATE(y);
  const int sample = get_global_id(1);
  x += (ulong)(samples ? samples - 1 - sample : sample) * x_stride;
  y += (ulong)sample * y_stride;
  const int start = get_global_id(0) * piece;
  const int end = min(start + piece, count);
  for (int i = start; i < end; i++) {
    const int k = i / inner % n;
    const float value = x[i + (n - 1 - 2 * k) * inner];
    y[i] = accumulate ? y[i] + value : value;
  }
}
