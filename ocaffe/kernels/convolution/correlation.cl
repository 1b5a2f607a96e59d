/* Correlation of two images: for each displacement, means of the products (or sums of the differences) of windows of both.
 *
 * a and b are N x channels x height x width, y is N x (rows columns) x out_height x out_width. Output (d, i, j) compares the window of a whose corner is
 * (i step + top, j step + left) with the window of b that is displaced by (d / columns + first_row, d % columns + first_column) * jump. Pixels outside the
 * images are 0.
 *
 * Defines: KH, KW: the window. SUBTRACT: |a - b| instead of a b.
 * forward: work-items (pieces of `piece` values of a sample of y, samples).
 * backward_a, backward_b: work-items (pieces of `piece` pixels of a sample, samples). Each pixel adds the gradients of all windows that cover it.
 */
#include "common.h"

#ifndef KH
#define KH 1
#endif
#ifndef KW
#define KW 1
#endif
#ifndef SUBTRACT
#define SUBTRACT 0
#endif

#define GEOMETRY const int channels, const int height, const int width, const int out_height, const int out_width, const int rows, const int columns, \
  const int first_row, const int first_column, const int jump, const int step, const int top, const int left, const float scale

#define INSIDE(r, c) ((r) >= 0 && (r) < height && (c) >= 0 && (c) < width)

kernel void ENTRY(forward)(OPERAND(const float, a), OPERAND(const float, b), OPERAND(float, y), const int count, const int piece, GEOMETRY) {
  LOCATE(a);
  LOCATE(b);
  LOCATE(y);
  const int n = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, count);
  const int pixels = out_height * out_width, plane = height * width;
  a += n * a_stride;
  b += n * b_stride;
  for (int e = first; e < last; e++) {
    const int d = e / pixels, i = e % pixels / out_width, j = e % out_width;
    const int down = (d / columns + first_row) * jump, across = (d % columns + first_column) * jump;
    float sum = 0;
    for (int u = 0; u < KH; u++)
      for (int v = 0; v < KW; v++) {
        const int r = i * step + top + u, c = j * step + left + v, in_a = INSIDE(r, c), in_b = INSIDE(r + down, c + across);
        if (!SUBTRACT && !(in_a && in_b)) continue;
        const int at_a = in_a ? r * width + c : 0, at_b = in_b ? (r + down) * width + c + across : 0;
        for (int k = 0; k < channels; k++) {
          const float p = in_a ? a[k * plane + at_a] : 0, q = in_b ? b[k * plane + at_b] : 0;
          sum += SUBTRACT ? fabs(p - q) : p * q;
        }
      }
    y[n * y_stride + e] = sum * scale;
  }
}

/* Return the sum of the gradients of the outputs of displacement `dy` whose windows cover pixel (r, c) of a. */
static float OWN(covering)(global const float* dy, const int r, const int c, const int out_height, const int out_width, const int step, const int top,
                           const int left) {
  float sum = 0;
  for (int u = 0; u < KH; u++) {
    const int i = r - top - u;
    if (i < 0 || i % step || i / step >= out_height) continue;
    for (int v = 0; v < KW; v++) {
      const int j = c - left - v;
      if (j < 0 || j % step || j / step >= out_width) continue;
      sum += dy[i / step * out_width + j / step];
    }
  }
  return sum;
}

kernel void ENTRY(backward_a)(OPERAND(const float, dy), OPERAND(const float, a), OPERAND(const float, b), OPERAND(float, da), const int count,
                              const int piece, GEOMETRY, const int accumulate) {
  LOCATE(dy);
  LOCATE(a);
  LOCATE(b);
  LOCATE(da);
  const int n = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, count), plane = height * width;
  for (int e = first; e < last; e++) {
    const int k = e / plane, r = e % plane / width, c = e % width;
    global const float* other = b + n * b_stride + (long)k * plane;
    float sum = 0;
    for (int d = 0; d < rows * columns; d++) {
      const int to_r = r + (d / columns + first_row) * jump, to_c = c + (d % columns + first_column) * jump, inside = INSIDE(to_r, to_c);
      if (!SUBTRACT && !inside) continue;
      const float gradient = covering(dy + n * dy_stride + (long)d * out_height * out_width, r, c, out_height, out_width, step, top, left);
      const float q = inside ? other[to_r * width + to_c] : 0;
      sum += gradient * (SUBTRACT ? sign(a[n * a_stride + e] - q) : q);
    }
    global float* to = da + n * da_stride + e;
    *to = (accumulate ? *to : 0) + sum * scale;
  }
}

kernel void ENTRY(backward_b)(OPERAND(const float, dy), OPERAND(const float, a), OPERAND(const float, b), OPERAND(float, db), const int count,
                              const int piece, GEOMETRY, const int accumulate) {
  LOCATE(dy);
  LOCATE(a);
  LOCATE(b);
  LOCATE(db);
  const int n = get_global_id(1), first = get_global_id(0) * piece, last = min(first + piece, count), plane = height * width;
  for (int e = first; e < last; e++) {
    const int k = e / plane, r = e % plane / width, c = e % width;
    global const float* other = a + n * a_stride + (long)k * plane;
    float sum = 0;
    for (int d = 0; d < rows * columns; d++) {
      const int from_r = r - (d / columns + first_row) * jump, from_c = c - (d % columns + first_column) * jump, inside = INSIDE(from_r, from_c);
      if (!SUBTRACT && !inside) continue;
      const float gradient = covering(dy + n * dy_stride + (long)d * out_height * out_width, from_r, from_c, out_height, out_width, step, top, left);
      const float p = inside ? other[from_r * width + from_c] : 0;
      sum += gradient * (SUBTRACT ? sign(b[n * b_stride + e] - p) : p);
    }
    global float* to = db + n * db_stride + e;
    *to = (accumulate ? *to : 0) + sum * scale;
  }
}
