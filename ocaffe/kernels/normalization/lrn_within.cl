/* LRN within a channel: y = x s^-beta, s = 1 + alpha / SIZE^2 * (sum of x^2 over the SIZE x SIZE window around the pixel, zero outside).
 *   dx = dy s^-beta - 2 alpha beta / SIZE^2 * x * (sum of dy x s^(-beta-1) over the window)
 * in two steps: `terms` writes the summands, `backward` adds them; both recompute s. `share` is alpha / SIZE^2.
 *
 * SIZE      side of the window, odd
 * BETA_075  1: beta is 0.75, s^-beta is computed with square roots
 *
 * Work-items: (pixels of a sample, samples).
 */
#include "common.h"

#ifndef SIZE
#define SIZE 3
#endif
#ifndef BETA_075
#define BETA_075 1
#endif
#define HALF (SIZE / 2)

float power(const float s, const float beta) {
#if BETA_075
  const float r = 1 / sqrt(s);
  return r * sqrt(r);
#else
  return powr(s, -beta);
#endif
}

#define PIXEL                                                              \
  const int i = get_global_id(0), n = get_global_id(1);                    \
  if (i >= count) return;                                                  \
  const int row = i % (H * W) / W, column = i % W;                         \
  const int top = max(-HALF, -row), bottom = min(HALF, H - 1 - row);       \
  const int left = max(-HALF, -column), right = min(HALF, W - 1 - column);

#define SUM_OVER_WINDOW(sum, value)           \
  float sum = 0;                              \
  for (int a = top; a <= bottom; a++)         \
    for (int b = left; b <= right; b++) sum += value;

kernel void forward(OPERAND(const float, x), OPERAND(float, y), const int count, const int H, const int W, const float share,
                    const float beta) {
  LOCATE(x);
  LOCATE(y);
  PIXEL
  x += n * x_stride + i;
  SUM_OVER_WINDOW(squares, x[a * W + b] * x[a * W + b])
  y[n * y_stride + i] = *x * power(1 + share * squares, beta);
}

kernel void terms(OPERAND(const float, x), OPERAND(const float, dy), OPERAND(float, terms), const int count, const int H, const int W,
                  const float share, const float beta) {
  LOCATE(x);
  LOCATE(dy);
  LOCATE(terms);
  PIXEL
  x += n * x_stride + i;
  SUM_OVER_WINDOW(squares, x[a * W + b] * x[a * W + b])
  const float s = 1 + share * squares;
  terms[n * terms_stride + i] = dy[n * dy_stride + i] * *x * power(s, beta) / s;
}

kernel void backward(OPERAND(const float, x), OPERAND(const float, dy), OPERAND(const float, terms), OPERAND(float, dx), const int count,
                     const int H, const int W, const float share, const float beta, const int accumulate) {
  LOCATE(x);
  LOCATE(dy);
  LOCATE(terms);
  LOCATE(dx);
  PIXEL
  x += n * x_stride + i;
  terms += n * terms_stride + i;
  dx += n * dx_stride + i;
  SUM_OVER_WINDOW(squares, x[a * W + b] * x[a * W + b])
  SUM_OVER_WINDOW(sum, terms[a * W + b])
  const float d = dy[n * dy_stride + i] * power(1 + share * squares, beta) - 2 * share * beta * *x * sum;
  *dx = accumulate ? *dx + d : d;
}
