/* Pooling over windows in H x W, one work-item for each element of what is written: on GPUs; on CPUs for what pooling_cpu.cl leaves out.
 * Defines: see pooling.h; STEP_*: words of the step buffer (ocaffe/graph/recorder.py).
 *
 * Work-items: (elements of a sample, samples).
 */
#include "pooling.h"

#ifndef STEP_ITERATION
#define STEP_ITERATION 1
#define STEP_PASS 2
#define STEP_SAMPLE 3
#endif

/* The plane of work-item i, and its row and column in it. */
#define ELEMENT(h, w, count)                                \
  const int i = get_global_id(0), n = get_global_id(1);     \
  if (i >= (count)) return;                                 \
  const int plane = i / (h * w), row = i % (h * w) / w, column = i % w;

/* The part of the window at (row, column) that lies in the image. */
#define WINDOW                                                                        \
  const int y0 = row * SH - PH, x0 = column * SW - PW;                                \
  const int top = max(0, -y0), bottom = min(KH, H - y0), left = max(0, -x0), right = min(KW, W - x0); \
  x += n * x_stride + (long)plane * H * W + (long)y0 * W + x0;

#define EACH_PIXEL             \
  for (int a = top; a < bottom; a++) \
    for (int b = left; b < right; b++)

#if METHOD == MAX
#define CHOOSE                          \
  int at = -1;                          \
  float result = -FLT_MAX;              \
  EACH_PIXEL {                          \
    const float v = x[a * W + b];       \
    if (v > result) {                   \
      result = v;                       \
      at = a * KW + b;                  \
    }                                   \
  }

kernel void forward(OPERAND(const float, x), OPERAND(float, y), const int count, const int H, const int W, const int OH, const int OW) {
  LOCATE(x);
  LOCATE(y);
  ELEMENT(OH, OW, count)
  WINDOW
  CHOOSE
  y[n * y_stride + i] = result;
}

kernel void forward_index(OPERAND(const float, x), OPERAND(float, y), OPERAND(INDEX, index), const int count, const int H, const int W,
                          const int OH, const int OW) {
  LOCATE(x);
  LOCATE(y);
  LOCATE(index);
  ELEMENT(OH, OW, count)
  WINDOW
  CHOOSE
  y[n * y_stride + i] = result;
  index[n * index_stride + i] = at;
}
#endif

#if METHOD == AVE
kernel void forward(OPERAND(const float, x), OPERAND(float, y), const int count, const int H, const int W, const int OH, const int OW) {
  LOCATE(x);
  LOCATE(y);
  ELEMENT(OH, OW, count)
  WINDOW
  float sum = 0;
  EACH_PIXEL sum += x[a * W + b];
  y[n * y_stride + i] = sum / (EXTENT(y0, KH, PH, H) * EXTENT(x0, KW, PW, W));
}
#endif

#if METHOD == STOCHASTIC
/* One pixel, with a probability that is its share of the sum. */
kernel void forward_index(OPERAND(const float, x), OPERAND(const uint, step), OPERAND(float, y), OPERAND(INDEX, index), const int count,
                          const int H, const int W, const int OH, const int OW, const uint key0, const uint key1) {
  LOCATE(x);
  LOCATE(step);
  LOCATE(y);
  LOCATE(index);
  ELEMENT(OH, OW, count)
  WINDOW
  float sum = 0;
  EACH_PIXEL sum += x[a * W + b];
  const float aim = uniform01(philox((uint4)(i, n + step[STEP_SAMPLE], step[STEP_ITERATION], step[STEP_PASS]), (uint2)(key0, key1)).x) * sum;
  int at = -1, last = -1;
  float result = 0, passed = 0, value = 0;
  EACH_PIXEL {
    const float v = x[a * W + b];
    passed += v;
    last = a * KW + b;
    value = v;
    if (at < 0 && passed > aim) {
      at = last;
      result = v;
    }
  }
  /* rounding, or a sum of zero: the last one */
  y[n * y_stride + i] = at < 0 ? value : result;
  index[n * index_stride + i] = at < 0 ? last : at;
}

/* The expectation of the above. */
kernel void forward(OPERAND(const float, x), OPERAND(float, y), const int count, const int H, const int W, const int OH, const int OW) {
  LOCATE(x);
  LOCATE(y);
  ELEMENT(OH, OW, count)
  WINDOW
  float sum = 0, squares = 0;
  EACH_PIXEL {
    sum += x[a * W + b];
    squares += x[a * W + b] * x[a * W + b];
  }
  y[n * y_stride + i] = sum > 0 ? squares / sum : 0;
}
#endif

/* Each pixel gathers from the outputs whose windows hold it. */
#define EACH_OUTPUT                                                                     \
  for (int r = FIRST_OUT(row, KH, SH, PH); r <= LAST_OUT(row, SH, PH, OH); r++)         \
    for (int c = FIRST_OUT(column, KW, SW, PW); c <= LAST_OUT(column, SW, PW, OW); c++)

#if METHOD == AVE
kernel void backward(OPERAND(const float, dy), OPERAND(float, dx), const int count, const int H, const int W, const int OH, const int OW,
                     const int accumulate) {
  LOCATE(dy);
  LOCATE(dx);
  ELEMENT(H, W, count)
  dy += n * dy_stride + (long)plane * OH * OW;
  dx += n * dx_stride + i;
  float sum = 0;
  EACH_OUTPUT sum += dy[r * OW + c] / (EXTENT(r * SH - PH, KH, PH, H) * EXTENT(c * SW - PW, KW, PW, W));
  *dx = accumulate ? *dx + sum : sum;
}
#else
kernel void backward(OPERAND(const float, dy), OPERAND(const INDEX, index), OPERAND(float, dx), const int count, const int H, const int W,
                     const int OH, const int OW, const int accumulate) {
  LOCATE(dy);
  LOCATE(index);
  LOCATE(dx);
  ELEMENT(H, W, count)
  dy += n * dy_stride + (long)plane * OH * OW;
  index += n * index_stride + (long)plane * OH * OW;
  dx += n * dx_stride + i;
  float sum = 0;
  EACH_OUTPUT {
    if (index[r * OW + c] == (row - r * SH + PH) * KW + column - c * SW + PW) sum += dy[r * OW + c];
  }
  *dx = accumulate ? *dx + sum : sum;
}
#endif

/* The index as Caffe's mask top: place in the plane, -1 for none. */
kernel void mask(OPERAND(const INDEX, index), OPERAND(float, y), const int count, const int H, const int W, const int OH,
                 const int OW) {
  LOCATE(index);
  LOCATE(y);
  ELEMENT(OH, OW, count)
  const INDEX at = index[n * index_stride + i];
  const int there = (row * SH - PH + at / KW) * W + column * SW - PW + at % KW;
  y[n * y_stride + i] = at < KH * KW ? there : -1;
}
