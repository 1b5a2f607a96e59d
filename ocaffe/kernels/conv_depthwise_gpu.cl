/* Depthwise convolution, directly, for work-groups: output o sees channel o / multiplier alone.
   Filters are [outputs][KERNEL_H][KERNEL_W].

   forward          y[n][o] = x[n][o / multiplier] * w[o] (+ bias[o], or factor and offset: common.h), then the ReLU that was merged (slope 1: none)
   backward_data    dx[n][c] = sum over the outputs of channel c, each pixel gathering what it gave (+ bias[c]: a deconvolution), then the ReLU
   backward_filter  dw[o] = sum over samples and positions of dy * x, of one slice of `part` samples, at dw + slice * dw_stride;
                    split_sum adds several slices up

   Defines: per axis H, W the window: KERNEL_, STRIDE_, PAD_, DILATION_, and PHASE_STEP_ = stride / gcd(stride, dilation), the distance
   between the taps that see one pixel.
   One work-item per pixel of the result (pixel, channel, sample); backward_filter: a work-group of ITEMS per (output, slice). `each`
   is for the CPU class. */
#include "common.h"
#include "epilogue.h"
#include "split_sum.h"

#ifndef KERNEL_W
#define KERNEL_H 3
#define KERNEL_W 3
#define STRIDE_H 1
#define STRIDE_W 1
#define PAD_H 1
#define PAD_W 1
#define DILATION_H 1
#define DILATION_W 1
#define PHASE_STEP_H 1
#define PHASE_STEP_W 1
#endif

#define ITEMS 256
#define TAPS (KERNEL_H * KERNEL_W)
#define FEW (TAPS <= 81) /* taps that are unrolled, and kept by backward_filter, which there is only with few */
#if FEW
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED
#endif
#define SIZES int batch, int outputs, int multiplier, int h, int w, int oh, int ow
#define INLINE static inline __attribute__((always_inline))

INLINE void put(global float* to, float v, int accumulate, float slope) {
  if (accumulate) v += *to;
  *to = v > 0.0f ? v : slope * v;
}

kernel void forward(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, filter), OPERAND_RESTRICT(const float, bias),
                    OPERAND_RESTRICT(float, y), SIZES, int each, int has_bias, int accumulate, float slope) {
  const int pixel = get_global_id(0), output = get_global_id(1), sample = get_global_id(2);
  if (pixel >= oh * ow || output >= outputs) return;
  x += x_offset + sample * x_stride + (ulong)(output / multiplier) * h * w;
  filter += filter_offset + output * TAPS;
  const int at_y = pixel / ow * STRIDE_H - PAD_H, at_x = pixel % ow * STRIDE_W - PAD_W;
  LOCATE(bias);
  float sum = 0.0f;
  UNROLLED for (int i = 0; i < KERNEL_H; ++i) {
    const int row = at_y + i * DILATION_H;
    if ((uint)row >= (uint)h) continue;
    UNROLLED for (int j = 0; j < KERNEL_W; ++j) {
      const int column = at_x + j * DILATION_W;
      if ((uint)column < (uint)w) sum += filter[i * KERNEL_W + j] * x[row * w + column];
    }
  }
  sum = sum * FACTOR(bias, output) + OFFSET(bias, output);
  put(y + y_offset + sample * y_stride + (ulong)output * oh * ow + pixel, sum, accumulate, slope);
}

/* The first tap that sees a pixel at `p` of the padded image, or past the window if none does. */
INLINE int first_tap(int p, int kernel_size, int stride, int dilation, int step) {
  int tap = 0;
  while (tap < step && (p - tap * dilation) % stride != 0) ++tap;
  return tap < step ? tap : kernel_size;
}

kernel void backward_data(OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(const float, filter), OPERAND_RESTRICT(const float, bias),
                          OPERAND_RESTRICT(float, dx), SIZES, int each, int has_bias, int accumulate, float slope) {
  const int pixel = get_global_id(0), channel = get_global_id(1), sample = get_global_id(2);
  if (pixel >= h * w || channel * multiplier >= outputs) return;
  dy += dy_offset + sample * dy_stride + (ulong)channel * multiplier * oh * ow;
  filter += filter_offset + channel * multiplier * TAPS;
  const int at_y = pixel / w + PAD_H, at_x = pixel % w + PAD_W;
  const int first_i = first_tap(at_y, KERNEL_H, STRIDE_H, DILATION_H, PHASE_STEP_H);
  const int first_j = first_tap(at_x, KERNEL_W, STRIDE_W, DILATION_W, PHASE_STEP_W);
  LOCATE(bias);
  float sum = 0.0f;
  for (int o = 0; o < multiplier; ++o, dy += oh * ow, filter += TAPS) {
    UNROLLED for (int i = first_i; i < KERNEL_H; i += PHASE_STEP_H) {
      const int row = (at_y - i * DILATION_H) / STRIDE_H;
      if ((uint)row >= (uint)oh) continue;
      UNROLLED for (int j = first_j; j < KERNEL_W; j += PHASE_STEP_W) {
        const int column = (at_x - j * DILATION_W) / STRIDE_W;
        if ((uint)column < (uint)ow) sum += filter[i * KERNEL_W + j] * dy[row * ow + column];
      }
    }
  }
  sum = sum * FACTOR(bias, channel) + OFFSET(bias, channel);
  put(dx + dx_offset + sample * dx_stride + (ulong)channel * h * w + pixel, sum, accumulate, slope);
}

#if FEW
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void backward_filter(OPERAND_RESTRICT(const float, x),
                                                                               OPERAND_RESTRICT(const float, dy),
                                                                               OPERAND_RESTRICT(float, dw), SIZES, int each,
                                                                               int part, int accumulate) {
  local float sums[ITEMS];
  const int item = get_local_id(0), output = get_group_id(0), slice = get_group_id(1);
  const int end = min(batch, (slice + 1) * part);
  x += x_offset + (ulong)(output / multiplier) * h * w;
  dy += dy_offset + (ulong)output * oh * ow;
  float sum[KERNEL_H][KERNEL_W];
#pragma unroll
  for (int i = 0; i < KERNEL_H; ++i)
#pragma unroll
    for (int j = 0; j < KERNEL_W; ++j) sum[i][j] = 0.0f;

  /* The position (sample, y, x) and what a step of ITEMS adds to it, digit by digit. */
  const int step_x = ITEMS % ow, step_y = ITEMS / ow % oh, step_sample = ITEMS / ow / oh;
  int px = item % ow, py = item / ow % oh, sample = slice * part + item / ow / oh;
  while (sample < end) {
    const float v = dy[sample * dy_stride + py * ow + px];
    global const float* image = x + sample * x_stride;
#pragma unroll
    for (int i = 0; i < KERNEL_H; ++i) {
      const int row = py * STRIDE_H - PAD_H + i * DILATION_H;
#pragma unroll
      for (int j = 0; j < KERNEL_W; ++j) {
        const int column = px * STRIDE_W - PAD_W + j * DILATION_W;
        if ((uint)row < (uint)h && (uint)column < (uint)w) sum[i][j] += v * image[row * w + column];
      }
    }
    px += step_x;
    py += step_y;
    sample += step_sample;
    if (px >= ow) px -= ow, ++py;
    if (py >= oh) py -= oh, ++sample;
  }

  dw += dw_offset + slice * dw_stride + output * TAPS;
#pragma unroll
  for (int t = 0; t < TAPS; ++t) {
    sums[item] = sum[t / KERNEL_W][t % KERNEL_W];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int others = ITEMS / 2; others > 0; others /= 2) {
      if (item < others) sums[item] += sums[item + others];
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (item == 0) put(dw + t, sums[0], accumulate, 1.0f);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
#endif
