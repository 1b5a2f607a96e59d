/* Direct depthwise convolution for CPU runtimes with outputs narrower than a vector: output o depends only on channel o / multiplier. Filters are
   [outputs][KERNEL_H][KERNEL_W].

   forward          y[n][o] = x[n][o / multiplier] * w[o] (+ bias[o], or factor and offset), then the fused activation (epilogue.h)
   backward_data    dx[n][c] = sum over the outputs of channel c, as a gather (+ bias[c]: a deconvolution), then the activation
   backward_filter  dw[o] = sum over samples and positions of dy * x, of one slice of `part` samples, at dw + slice * dw_stride;
                    split_sum adds the slices (split_sum.h)

   The lanes of a vector are V planes. Some lines of them are transposed to [pixel][plane], padded with zeros where the window extends beyond
   the image. Every tap then is an aligned whole vector for any stride; results are transposed back. For wide images the transposition costs
   more than the empty lanes at line ends: see conv_depthwise_cpu.cl.

   V                             floats of a native vector, see tile_cpu.h
   KERNEL_, STRIDE_, PAD_, DILATION_   the window, per axis H, W, in taps and pixels
   SOURCE, RESULT                room in pixels for a block of the source and of the result: at most as many `rows` of windows as fit
   GROUPS                        maximum number of groups of V planes per work-item of backward_filter

   Work-items: (block, `each` groups of V planes, sample); of backward_filter (`each` groups, slice). */
#include "common.h"
#include "tile_cpu.h"
#include "split_sum.h"

#include "plane_window.h"
#ifndef SOURCE
#define SOURCE 2048
#define RESULT 1024
#endif
#ifndef GROUPS
#define GROUPS 8
#endif

#define TAPS (KERNEL_H * KERNEL_W)
#define UNROLLED _Pragma("unroll")
#define SIZES int batch, int outputs, int multiplier, int h, int w, int oh, int ow, int rows

/* Declare where the planes of the lanes begin. Lanes past the last plane get copies of it. */
#define LANE_PLANES(name, plane, last, size) \
  int name[V];                               \
  for (int l = 0; l < V; l++) name[l] = min(plane, last) * (size)

/* Transpose `count` consecutive pixels of V planes, from the beginning of a line at `first` on, to to[position][lane]. Lines have `width`
   pixels, with a `gap` after each. */
INLINE void OWN(turn)(global const float* x, const int* planes, int first, int count, float* to, int width, int gap) {
  for (int t = 0; t < count; t += V) {
    const int s = max(0, min(t, count - V)); /* the last vector overlaps the one before */
    int column = s % width;
    float* at = to + (s / width * (width + gap) + column) * V;
    if (count < V) {
      for (int i = 0; i < count; i++, at += V) {
        if (column == width) at += gap * V, column = 0;
        column++;
        for (int l = 0; l < V; l++) at[l] = x[planes[l] + first + i];
      }
      return;
    }
    vec block[V];
#pragma unroll
    for (int l = 0; l < V; l++) block[l] = GLOBAL(x + planes[l] + first + s);
    transpose(block);
#pragma unroll
    for (int i = 0; i < V; i++) {
      PRIVATE(at) = block[i];
      at += V;
      if (++column == width) at += gap * V, column = 0;
    }
  }
}

/* Copy the lines [y, y + lines) of planes of h x w to their places in a block that begins `left` columns before them. */
INLINE void OWN(take_lines)(global const float* x, const int* planes, int h, int w, int y, int left, int lines, int pitch, float* block) {
  const int top = max(0, y), bottom = min(h, y + lines);
  turn(x, planes, top * w, (bottom - top) * w, block + ((top - y) * pitch + left) * V, w, pitch - w);
}

/* Transpose `count` results back and write them to `valid` planes from pixel `first` on (+ the old values), with the activation. */
INLINE void OWN(give)(global float* y, const int* planes, int valid, int first, int count, const float* from, int accumulate, ACTIVATION) {
  for (int t = 0; t < count; t += V) {
    if (count - t < V && (accumulate || count < V)) {
      for (int l = 0; l < valid; l++)
        for (int i = t; i < count; i++) {
          global float* to = y + planes[l] + first + i;
          float v = from[i * V + l] + (accumulate ? *to : 0.0f);
          ACTIVATE(float, v);
          *to = v;
        }
      return;
    }
    const int s = min(t, count - V);
    vec block[V];
#pragma unroll
    for (int i = 0; i < V; i++) block[i] = PRIVATE(from + (s + i) * V);
    transpose(block);
#pragma unroll
    for (int l = 0; l < V; l++)
      if (l < valid) {
        global float* to = y + planes[l] + first + s;
        vec v = block[l];
        if (accumulate) v += GLOBAL(to);
        ACTIVATE(vec, v);
        GLOBAL(to) = v;
      }
  }
}

/* Copy the filters of the lanes' outputs, first + l * step, to to[tap][lane], times their factors. */
INLINE void OWN(take_filters)(global const float* filter, int first, int step, int last, global const float* bias, ulong bias_stride, int has_bias, int divisor,
                         float* to) {
  for (int l = 0; l < V; l++) {
    const int o = min(first + l * step, last);
    const float factor = FACTOR(bias, o / divisor);
    for (int t = 0; t < TAPS; t++) to[t * V + l] = filter[o * TAPS + t] * factor;
  }
}

#define X_LINES(rows) (((rows) - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1)
#define X_PITCH (PAD_W + max(w, (ow - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1 - PAD_W))
#define X_TAP(i, j) (((i) * DILATION_H * pitch + (j) * DILATION_W) * V)

SINGLE void ENTRY(forward)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, filter), OPERAND_RESTRICT(const float, bias),
                    OPERAND_RESTRICT(float, y), SIZES, int each, int has_bias, int accumulate, ACTIVATION) {
  LOCATE(x); LOCATE(filter); LOCATE(bias); LOCATE(y);
  const int y0 = get_global_id(0) * rows, on = min(rows, oh - y0), lines = X_LINES(on), pitch = X_PITCH, sample = get_global_id(2);
  float block[SOURCE * V] __attribute__((aligned(64)));
  float made[RESULT * V] __attribute__((aligned(64)));
  float taps[TAPS * V] __attribute__((aligned(64)));
  float lanes[V] __attribute__((aligned(64)));
  for (int i = 0; i < lines * pitch; i++) PRIVATE(block + i * V) = (vec)(0);
  x += sample * x_stride;
  y += sample * y_stride;
  for (int o = get_global_id(1) * each * V, end = min(outputs, o + each * V); o < end; o += V) {
    LANE_PLANES(from, (o + l) / multiplier, (outputs - 1) / multiplier, h * w);
    LANE_PLANES(to, o + l, outputs - 1, oh * ow);
    for (int l = 0; l < V; l++) lanes[l] = OFFSET(bias, min(o + l, outputs - 1));
    take_filters(filter, o, 1, outputs - 1, bias, bias_stride, has_bias, 1, taps);
    take_lines(x, from, h, w, y0 * STRIDE_H - PAD_H, PAD_W, lines, pitch, block);
    const vec start = PRIVATE(lanes);
    for (int r = 0; r < on; r++) {
      const float* at = block + r * STRIDE_H * pitch * V;
      float* result = made + r * ow * V;
      for (int c = 0; c < ow; c++, at += STRIDE_W * V) {
        vec sum = start;
        UNROLLED for (int t = 0; t < TAPS; t++) sum += PRIVATE(taps + t * V) * PRIVATE(at + X_TAP(t / KERNEL_W, t % KERNEL_W));
        PRIVATE(result + c * V) = sum;
      }
    }
    give(y, to, min(V, outputs - o), y0 * ow, on * ow, made, accumulate, GIVEN_ACTIVATION);
  }
}

SINGLE void ENTRY(backward_filter)(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(float, dw), SIZES, int each, int part,
                            int accumulate) {
  LOCATE(x); LOCATE(dy);
  const int slice = get_global_id(1), first = get_global_id(0) * each * V, groups = min(each, (outputs - first + V - 1) / V);
  float block[SOURCE * V] __attribute__((aligned(64)));
  float given[RESULT * V] __attribute__((aligned(64)));
  float sums[GROUPS * TAPS * V] __attribute__((aligned(64)));
  for (int i = 0; i < groups * TAPS; i++) PRIVATE(sums + i * V) = (vec)(0);
  for (int sample = slice * part; sample < min(batch, (slice + 1) * part); sample++)
    for (int y0 = 0; y0 < oh; y0 += rows) {
      const int on = min(rows, oh - y0), lines = X_LINES(on), pitch = X_PITCH;
      for (int i = 0; i < lines * pitch; i++) PRIVATE(block + i * V) = (vec)(0);
      for (int k = 0; k < groups; k++) {
        const int o = first + k * V;
        LANE_PLANES(from, (o + l) / multiplier, (outputs - 1) / multiplier, h * w);
        LANE_PLANES(grad, o + l, outputs - 1, oh * ow);
        take_lines(x + sample * x_stride, from, h, w, y0 * STRIDE_H - PAD_H, PAD_W, lines, pitch, block);
        take_lines(dy + sample * dy_stride, grad, oh, ow, y0, 0, on, ow, given);
        vec sum[TAPS];
        UNROLLED for (int t = 0; t < TAPS; t++) sum[t] = PRIVATE(sums + (k * TAPS + t) * V);
        for (int r = 0; r < on; r++) {
          const float* at = block + r * STRIDE_H * pitch * V;
          const float* d = given + r * ow * V;
          for (int c = 0; c < ow; c++, at += STRIDE_W * V) {
            const vec v = PRIVATE(d + c * V);
            UNROLLED for (int t = 0; t < TAPS; t++) sum[t] += v * PRIVATE(at + X_TAP(t / KERNEL_W, t % KERNEL_W));
          }
        }
        UNROLLED for (int t = 0; t < TAPS; t++) PRIVATE(sums + (k * TAPS + t) * V) = sum[t];
      }
    }
  dw += dw_offset + slice * dw_stride;
  for (int k = 0; k < groups; k++)
    for (int l = 0; l < min(V, outputs - first - k * V); l++)
      for (int t = 0; t < TAPS; t++) {
        global float* to = dw + (first + k * V + l) * TAPS + t;
        *to = sums[(k * TAPS + t) * V + l] + (accumulate ? *to : 0.0f);
      }
}

/* backward_data writes dx in phases: pixel p, p + pad = stride * q + phase, receives dy at q - shift from the taps of its phase. A block
   has `rows` of q with all their phases. */
#define SHIFT_H(i) ((i) * DILATION_H / STRIDE_H)
#define SHIFT_W(j) ((j) * DILATION_W / STRIDE_W)
#define DY_TAP(i, j) (((SHIFT_H(KERNEL_H - 1) - SHIFT_H(i)) * pitch - SHIFT_W(j)) * V)

SINGLE void ENTRY(backward_data)(OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(const float, filter), OPERAND_RESTRICT(const float, bias),
                          OPERAND_RESTRICT(float, dx), SIZES, int each, int has_bias, int accumulate, ACTIVATION) {
  LOCATE(dy); LOCATE(filter); LOCATE(bias); LOCATE(dx);
  const int begin_w = PAD_W / STRIDE_W, cn = (w - 1 + PAD_W) / STRIDE_W + 1 - begin_w, sample = get_global_id(2), channels = outputs / multiplier;
  const int q_h = PAD_H / STRIDE_H + get_global_id(0) * rows, on = min(rows, (h - 1 + PAD_H) / STRIDE_H + 1 - q_h);
  const int left = max(0, SHIFT_W(KERNEL_W - 1) - begin_w), lines = on + SHIFT_H(KERNEL_H - 1), pitch = left + max(ow, begin_w + cn);
  const int top = max(0, q_h * STRIDE_H - PAD_H), bottom = min(h, (q_h + on) * STRIDE_H - PAD_H);
  float block[SOURCE * V] __attribute__((aligned(64)));
  float made[RESULT * V] __attribute__((aligned(64)));
  float taps[TAPS * V] __attribute__((aligned(64)));
  float lanes[V] __attribute__((aligned(64)));
  for (int i = 0; i < lines * pitch; i++) PRIVATE(block + i * V) = (vec)(0);
  dy += sample * dy_stride;
  dx += sample * dx_stride;
  for (int c0 = get_global_id(1) * each * V, end = min(channels, c0 + each * V); c0 < end; c0 += V) {
    LANE_PLANES(to, c0 + l, channels - 1, h * w);
    for (int l = 0; l < V; l++) lanes[l] = OFFSET(bias, min(c0 + l, channels - 1));
    const vec start = PRIVATE(lanes);
    for (int before = 0; before < multiplier; before++) {
      LANE_PLANES(from, (c0 + l) * multiplier + before, outputs - 1, oh * ow);
      take_filters(filter, c0 * multiplier + before, multiplier, outputs - 1, bias, bias_stride, has_bias, multiplier, taps);
      take_lines(dy, from, oh, ow, q_h - SHIFT_H(KERNEL_H - 1), left, lines, pitch, block);
      for (int r = 0; r < on; r++)
        UNROLLED for (int phase_h = 0; phase_h < STRIDE_H; phase_h++) {
          const int p_h = (q_h + r) * STRIDE_H + phase_h - PAD_H;
          if ((uint)p_h >= (uint)h) continue;
          float* line = made + (p_h - top) * w * V;
          for (int c = 0; c < cn; c++)
            UNROLLED for (int phase_w = 0; phase_w < STRIDE_W; phase_w++) {
              const int p_w = (begin_w + c) * STRIDE_W + phase_w - PAD_W;
              if ((uint)p_w >= (uint)w) continue;
              const float* at = block + (r * pitch + left + begin_w + c) * V;
              vec sum = before ? PRIVATE(line + p_w * V) : start;
              UNROLLED for (int i = 0; i < KERNEL_H; i++)
                if (i * DILATION_H % STRIDE_H == phase_h)
                  UNROLLED for (int j = 0; j < KERNEL_W; j++)
                    if (j * DILATION_W % STRIDE_W == phase_w) sum += PRIVATE(taps + (i * KERNEL_W + j) * V) * PRIVATE(at + DY_TAP(i, j));
              PRIVATE(line + p_w * V) = sum;
            }
        }
    }
    give(dx, to, min(V, channels - c0), top * w, (bottom - top) * w, made, accumulate, GIVEN_ACTIVATION);
  }
}
