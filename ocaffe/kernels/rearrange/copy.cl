/* Copy a range of one axis between two tensors that are equal in all other axes: Concat, Slice.
 *
 * Within a sample the range is `blocks` runs of `count` elements; run b begins at x_first + b * x_step in x and y_first + b * y_step in y.
 * Sample s of the launch is sample x_sample + s of x and y_sample + s of y.
 *
 * Work-items: (blocks * pieces, samples), pieces = ceil(count / piece): each copies up to `piece` elements of one run. On CPUs a piece is
 * some thousand elements, copied as vectors; on GPUs it is one element.
 */
#include "common.h"

kernel void ENTRY(copy)(OPERAND(const float, x), OPERAND(float, y), const int count, const int blocks, const int piece, const int x_sample,
                 const int y_sample, const int x_first, const int y_first, const int x_step, const int y_step, const int accumulate) {
  LOCATE(x);
  LOCATE(y);
  const int pieces = (count + piece - 1) / piece;
  const int block = get_global_id(0) / pieces;
  if (block >= blocks) return;
  x += (x_sample + get_global_id(1)) * x_stride + x_first + (ulong)block * x_step;
  y += (y_sample + get_global_id(1)) * y_stride + y_first + (ulong)block * y_step;
  int i = get_global_id(0) % pieces * piece;
  const int end = min(i + piece, count);
  if (accumulate) {
    for (; i + 16 <= end; i += 16) vstore16(vload16(0, x + i) + vload16(0, y + i), 0, y + i);
    for (; i < end; i++) y[i] += x[i];
  } else {
    for (; i + 16 <= end; i += 16) vstore16(vload16(0, x + i), 0, y + i);
    for (; i < end; i++) y[i] = x[i];
  }
}
