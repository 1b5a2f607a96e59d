/* Pooling over windows in H x W or D x H x W, one work-item for each element of the result. Used on GPUs, and on CPUs for the cases that
 * pooling_cpu.cl does not support. Defines: see pooling.h; STEP_*: words of the step buffer (ocaffe/ir/recorder.py).
 *
 * Work-items: (elements of a sample, samples).
 */
#include "pooling.h"

#ifndef STEP_ITERATION
#define STEP_ITERATION 1
#define STEP_PASS 2
#define STEP_SAMPLE 3
#define STEP_OTHER_RANKS 5
#endif
#ifndef DH
#define DH 1
#define DW 1
#endif

/* Sizes of image and result. Without VOLUME both depths are the constant 1. */
#ifdef VOLUME
#ifndef KD
#define KD 2
#define SD 2
#define PD 0
#endif
#ifndef DD
#define DD 1
#endif
#define SIZES const int count, const int D, const int H, const int W, const int OD, const int OH, const int OW
#else
#define KD 1
#define SD 1
#define PD 0
#define DD 1
#define D 1
#define OD 1
#define SIZES const int count, const int H, const int W, const int OH, const int OW
#endif

/* Declare the plane of work-item i, and its slice, row and column in it. */
#define ELEMENT(d, h, w, count)                                                           \
  const int i = get_global_id(0), n = get_global_id(1);                                   \
  if (i >= (count)) return;                                                               \
  const int plane = i / (d * h * w), slice = i / (h * w) % d, row = i / w % h, column = i % w;

/* Taps along one axis of the window that begins at `first`: the first one inside the image, and the one after the last. */
#define FIRST_TAP(first, dilation) (max(0, -(first) + dilation - 1) / dilation)
#define LAST_TAP(first, kernel, dilation, size) min(kernel, ((size) - (first) + dilation - 1) / dilation)

/* The part of the window at (slice, row, column) that is inside the image. */
#define WINDOW                                                                                                        \
  const int z0 = slice * SD - PD, y0 = row * SH - PH, x0 = column * SW - PW;                                          \
  const int front = FIRST_TAP(z0, DD), top = FIRST_TAP(y0, DH), left = FIRST_TAP(x0, DW);                             \
  const int back = LAST_TAP(z0, KD, DD, D), bottom = LAST_TAP(y0, KH, DH, H), right = LAST_TAP(x0, KW, DW, W);        \
  x += n * x_stride + (long)plane * D * H * W + ((long)z0 * H + y0) * W + x0;

#define EACH_PIXEL                      \
  for (int e = front; e < back; e++)    \
    for (int a = top; a < bottom; a++)  \
      for (int b = left; b < right; b++)

#define PIXEL x[(e * DD * H + a * DH) * W + b * DW]
#define PLACE ((e * KH + a) * KW + b)

#if METHOD == MAX
#define CHOOSE                          \
  int at = -1;                          \
  float result = -FLT_MAX;              \
  EACH_PIXEL {                          \
    const float v = PIXEL;              \
    if (v > result) {                   \
      result = v;                       \
      at = PLACE;                       \
    }                                   \
  }

kernel void forward(OPERAND(const float, x), OPERAND(float, y), SIZES) {
  LOCATE(x);
  LOCATE(y);
  ELEMENT(OD, OH, OW, count)
  WINDOW
  CHOOSE
  y[n * y_stride + i] = result;
}

kernel void forward_index(OPERAND(const float, x), OPERAND(float, y), OPERAND(INDEX, index), SIZES) {
  LOCATE(x);
  LOCATE(y);
  LOCATE(index);
  ELEMENT(OD, OH, OW, count)
  WINDOW
  CHOOSE
  y[n * y_stride + i] = result;
  index[n * index_stride + i] = at;
}
#endif

#if METHOD == AVE
#define AREA(r, c, s) (EXTENT((s) * SD - PD, KD, PD, D) * EXTENT((r) * SH - PH, KH, PH, H) * EXTENT((c) * SW - PW, KW, PW, W))

kernel void forward(OPERAND(const float, x), OPERAND(float, y), SIZES) {
  LOCATE(x);
  LOCATE(y);
  ELEMENT(OD, OH, OW, count)
  WINDOW
  float sum = 0;
  EACH_PIXEL sum += PIXEL;
  y[n * y_stride + i] = sum / AREA(row, column, slice);
}
#endif

#if METHOD == STOCHASTIC
/* Select one pixel, with a probability proportional to its value. */
kernel void forward_index(OPERAND(const float, x), OPERAND(const uint, step), OPERAND(float, y), OPERAND(INDEX, index), SIZES,
                          const uint key0, const uint key1) {
  LOCATE(x);
  LOCATE(step);
  LOCATE(y);
  LOCATE(index);
  ELEMENT(OD, OH, OW, count)
  WINDOW
  float sum = 0;
  EACH_PIXEL sum += PIXEL;
  const uint number = n * (step[STEP_OTHER_RANKS] + 1) + step[STEP_SAMPLE];
  const float aim = uniform01(philox((uint4)(i, number, step[STEP_ITERATION], step[STEP_PASS]), (uint2)(key0, key1)).x) * sum;
  int at = -1, last = -1;
  float result = 0, passed = 0, value = 0;
  EACH_PIXEL {
    const float v = PIXEL;
    passed += v;
    last = PLACE;
    value = v;
    if (at < 0 && passed > aim) {
      at = last;
      result = v;
    }
  }
  /* none selected, by rounding or because the sum is zero: take the last pixel */
  y[n * y_stride + i] = at < 0 ? value : result;
  index[n * index_stride + i] = at < 0 ? last : at;
}

/* The expectation of forward_index. */
kernel void forward(OPERAND(const float, x), OPERAND(float, y), SIZES) {
  LOCATE(x);
  LOCATE(y);
  ELEMENT(OD, OH, OW, count)
  WINDOW
  float sum = 0, squares = 0;
  EACH_PIXEL {
    sum += PIXEL;
    squares += PIXEL * PIXEL;
  }
  y[n * y_stride + i] = sum > 0 ? squares / sum : 0;
}
#endif

/* Each pixel gathers from the outputs whose windows span it. */
#define SPAN(kernel, dilation) ((kernel - 1) * dilation + 1)
#define EACH_OUTPUT                                                                                          \
  for (int s = FIRST_OUT(slice, SPAN(KD, DD), SD, PD); s <= LAST_OUT(slice, SD, PD, OD); s++)                \
    for (int r = FIRST_OUT(row, SPAN(KH, DH), SH, PH); r <= LAST_OUT(row, SH, PH, OH); r++)                  \
      for (int c = FIRST_OUT(column, SPAN(KW, DW), SW, PW); c <= LAST_OUT(column, SW, PW, OW); c++)

#define BACKWARD                               \
  dy += n * dy_stride + (long)plane * OD * OH * OW; \
  dx += n * dx_stride + i;                     \
  float sum = 0;

#if METHOD == AVE
kernel void backward(OPERAND(const float, dy), OPERAND(float, dx), SIZES, const int accumulate) {
  LOCATE(dy);
  LOCATE(dx);
  ELEMENT(D, H, W, count)
  BACKWARD
  EACH_OUTPUT sum += dy[(s * OH + r) * OW + c] / AREA(r, c, s);
  *dx = accumulate ? *dx + sum : sum;
}
#else
kernel void backward(OPERAND(const float, dy), OPERAND(const INDEX, index), OPERAND(float, dx), SIZES, const int accumulate) {
  LOCATE(dy);
  LOCATE(index);
  LOCATE(dx);
  ELEMENT(D, H, W, count)
  BACKWARD
  index += n * index_stride + (long)plane * OD * OH * OW;
  EACH_OUTPUT {
    /* the offset of the pixel in the window; it is a tap if the dilation divides all three coordinates */
    const int z = slice - s * SD + PD, y = row - r * SH + PH, x = column - c * SW + PW;
    const int tap = z % DD == 0 && y % DH == 0 && x % DW == 0;
    if (tap && index[(s * OH + r) * OW + c] == (z / DD * KH + y / DH) * KW + x / DW) sum += dy[(s * OH + r) * OW + c];
  }
  *dx = accumulate ? *dx + sum : sum;
}
#endif

/* The index as Caffe's mask top: the position in the image, -1 for none. */
kernel void mask(OPERAND(const INDEX, index), OPERAND(float, y), SIZES) {
  LOCATE(index);
  LOCATE(y);
  ELEMENT(OD, OH, OW, count)
  const INDEX at = index[n * index_stride + i];
  const int z = slice * SD - PD + at / (KW * KH) * DD, a = row * SH - PH + at / KW % KH * DH, b = column * SW - PW + at % KW * DW;
  y[n * y_stride + i] = at < KD * KH * KW ? (z * H + a) * W + b : -1;
}
