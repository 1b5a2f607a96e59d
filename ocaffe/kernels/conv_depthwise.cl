/* Depthwise convolution, directly: output o sees channel o / multiplier alone. Filters are [outputs][KERNEL_H][KERNEL_W].

   forward          y[n][o] = x[n][o / multiplier] * w[o] (+ bias[o]), then the ReLU that was merged (slope 1: none)
   backward_data    dx[n][c] = sum over the outputs of channel c, each pixel gathering what it gave
   backward_filter  dw[o] = sum over samples and positions of dy * x, of one slice of `part` samples, at dw + slice * dw_stride;
                    split_sum adds several slices up

   Defines: per axis H, W the window: KERNEL_, STRIDE_, PAD_, DILATION_. VECTOR: 0 for devices with work-groups, else the width of vectors.
   VECTOR = 0: one work-item per pixel of the result (pixel, channel, sample); backward_filter: a work-group of ITEMS per (output, slice).
   VECTOR > 0: one work-item per plane of the result (channel, sample), in blocks of ROWS x COLUMNS; backward_filter: per (output, slice). */
#include "common.h"
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
#endif
#ifndef VECTOR
#define VECTOR 0
#endif

#define TAPS (KERNEL_H * KERNEL_W)
#define SIZES int batch, int outputs, int multiplier, int h, int w, int oh, int ow
#define INLINE static inline __attribute__((always_inline))

INLINE void put(global float* to, float v, int accumulate, float slope) {
  if (accumulate) v += *to;
  *to = v > 0.0f ? v : slope * v;
}

#if VECTOR == 0

#define ITEMS 256

kernel void forward(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, filter), OPERAND_RESTRICT(const float, bias),
                    OPERAND_RESTRICT(float, y), SIZES, int has_bias, int accumulate, float slope) {
  const int pixel = get_global_id(0), output = get_global_id(1), sample = get_global_id(2);
  if (pixel >= oh * ow || output >= outputs) return;
  x += x_offset + sample * x_stride + (ulong)(output / multiplier) * h * w;
  filter += filter_offset + output * TAPS;
  const int at_y = pixel / ow * STRIDE_H - PAD_H, at_x = pixel % ow * STRIDE_W - PAD_W;
  float sum = has_bias ? bias[bias_offset + output] : 0.0f;
#pragma unroll
  for (int i = 0; i < KERNEL_H; ++i) {
    const int row = at_y + i * DILATION_H;
    if ((uint)row >= (uint)h) continue;
#pragma unroll
    for (int j = 0; j < KERNEL_W; ++j) {
      const int column = at_x + j * DILATION_W;
      if ((uint)column < (uint)w) sum += filter[i * KERNEL_W + j] * x[row * w + column];
    }
  }
  put(y + y_offset + sample * y_stride + (ulong)output * oh * ow + pixel, sum, accumulate, slope);
}

kernel void backward_data(OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(const float, filter), OPERAND_RESTRICT(float, dx), SIZES,
                          int accumulate) {
  const int pixel = get_global_id(0), channel = get_global_id(1), sample = get_global_id(2);
  if (pixel >= h * w || channel * multiplier >= outputs) return;
  dy += dy_offset + sample * dy_stride + (ulong)channel * multiplier * oh * ow;
  filter += filter_offset + channel * multiplier * TAPS;
  const int at_y = pixel / w + PAD_H, at_x = pixel % w + PAD_W;
  float sum = 0.0f;
  for (int o = 0; o < multiplier; ++o, dy += oh * ow, filter += TAPS) {
#pragma unroll
    for (int i = 0; i < KERNEL_H; ++i) {
      const int row = (at_y - i * DILATION_H) / STRIDE_H;
      if (row * STRIDE_H != at_y - i * DILATION_H || (uint)row >= (uint)oh) continue;
#pragma unroll
      for (int j = 0; j < KERNEL_W; ++j) {
        const int column = (at_x - j * DILATION_W) / STRIDE_W;
        if (column * STRIDE_W == at_x - j * DILATION_W && (uint)column < (uint)ow) sum += filter[i * KERNEL_W + j] * dy[row * ow + column];
      }
    }
  }
  put(dx + dx_offset + sample * dx_stride + (ulong)channel * h * w + pixel, sum, accumulate, 1.0f);
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void backward_filter(OPERAND_RESTRICT(const float, x),
                                                                               OPERAND_RESTRICT(const float, dy),
                                                                               OPERAND_RESTRICT(float, dw), SIZES, int part,
                                                                               int accumulate) {
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

#else /* VECTOR > 0 */

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
typedef JOIN(float, VECTOR) floatv;
#define LOADV JOIN(vload, VECTOR)
#define STOREV JOIN(vstore, VECTOR)
#define VECTORS(n) (((n) + VECTOR - 1) / VECTOR)

/* A block of the result, and of the padded source it needs, which is copied so that the inner loops see neither edges nor strides. */
#define ROWS 8
#define COLUMNS 64
#define PRIVATE(name, size) float name[size] __attribute__((aligned(64)))

/* forward and backward_filter read x: split by column modulo the stride, a tap being a phase and a shift. */
#define X_SHIFT(j) ((j) * DILATION_W / STRIDE_W)
#define X_PHASE(j) ((j) * DILATION_W % STRIDE_W)
#define X_PITCH ((VECTORS(COLUMNS) + VECTORS(X_SHIFT(KERNEL_W - 1))) * VECTOR)
#define X_LINE (STRIDE_W * X_PITCH)
#define X_LINES ((ROWS - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1)

INLINE void copy_x(float* to, global const float* x, int h, int w, int y0, int x0, int rows, int columns) {
  const int lines = (rows - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1;
  const int across = VECTORS(columns) * VECTOR + X_SHIFT(KERNEL_W - 1);
  for (int i = 0; i < lines; ++i, to += X_LINE) {
    const int y = y0 * STRIDE_H - PAD_H + i;
    const int inside = (uint)y < (uint)h;
    global const float* line = x + (inside ? y * w : 0);
    for (int phase = 0; phase < STRIDE_W; ++phase) {
      float* at = to + phase * X_PITCH;
      const int first = x0 * STRIDE_W - PAD_W + phase;
      /* Elements begin .. end - 1 lie in the image. */
      const int begin = inside ? min(across, max(0, (STRIDE_W - 1 - first) / STRIDE_W)) : across;
      const int end = inside ? max(begin, min(across, w > first ? (w - first + STRIDE_W - 1) / STRIDE_W : 0)) : across;
      for (int k = 0; k < begin; ++k) at[k] = 0.0f;
      for (int k = begin; k < end; ++k) at[k] = line[first + k * STRIDE_W];
      for (int k = end; k < across; ++k) at[k] = 0.0f;
    }
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void forward(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, filter),
                                                                   OPERAND_RESTRICT(const float, bias), OPERAND_RESTRICT(float, y), SIZES,
                                                                   int has_bias, int accumulate, float slope) {
  const int output = get_global_id(0), sample = get_global_id(1);
  PRIVATE(block, X_LINES * X_LINE);
  x += x_offset + sample * x_stride + (ulong)(output / multiplier) * h * w;
  y += y_offset + sample * y_stride + (ulong)output * oh * ow;
  filter += filter_offset + output * TAPS;
  const float start = has_bias ? bias[bias_offset + output] : 0.0f;
  for (int y0 = 0; y0 < oh; y0 += ROWS)
    for (int x0 = 0; x0 < ow; x0 += COLUMNS) {
      const int rows = min(ROWS, oh - y0), columns = min(COLUMNS, ow - x0);
      copy_x(block, x, h, w, y0, x0, rows, columns);
      for (int r = 0; r < rows; ++r) {
        global float* line = y + (y0 + r) * ow + x0;
        for (int v = 0; v < columns; v += VECTOR) {
          floatv sum = (floatv)(start);
#pragma unroll
          for (int i = 0; i < KERNEL_H; ++i)
#pragma unroll
            for (int j = 0; j < KERNEL_W; ++j)
              sum += filter[i * KERNEL_W + j] *
                     LOADV(0, block + (r * STRIDE_H + i * DILATION_H) * X_LINE + X_PHASE(j) * X_PITCH + X_SHIFT(j) + v);
          if (v + VECTOR <= columns) {
            if (accumulate) sum += LOADV(0, line + v);
            STOREV(select(slope * sum, sum, sum > 0.0f), 0, line + v);
          } else {
            PRIVATE(last, VECTOR);
            STOREV(sum, 0, last);
            for (int k = v; k < columns; ++k) put(line + k, last[k - v], accumulate, slope);
          }
        }
      }
    }
}

/* backward_data reads dy and writes dx in phases: pixel p of dx, p + pad = stride * q + phase, gets dy at q - shift from the taps of its phase. */
#define DY_SHIFT_H(i) ((i) * DILATION_H / STRIDE_H)
#define DY_SHIFT_W(j) ((j) * DILATION_W / STRIDE_W)
#define DY_LINES (ROWS + DY_SHIFT_H(KERNEL_H - 1))
#define DY_LINE ((VECTORS(COLUMNS) + VECTORS(DY_SHIFT_W(KERNEL_W - 1))) * VECTOR)

INLINE void copy_dy(float* to, global const float* dy, int oh, int ow, int q_h, int q_w, int rows, int columns) {
  const int across = VECTORS(columns) * VECTOR + DY_SHIFT_W(KERNEL_W - 1), first = q_w - DY_SHIFT_W(KERNEL_W - 1);
  for (int i = 0; i < rows + DY_SHIFT_H(KERNEL_H - 1); ++i, to += DY_LINE) {
    const int y = q_h - DY_SHIFT_H(KERNEL_H - 1) + i;
    const int inside = (uint)y < (uint)oh;
    global const float* line = dy + (inside ? y * ow : 0);
    const int begin = inside ? min(across, max(0, -first)) : across;
    const int end = inside ? max(begin, min(across, ow - first)) : across;
    for (int k = 0; k < begin; ++k) to[k] = 0.0f;
    for (int k = begin; k < end; ++k) to[k] = line[first + k];
    for (int k = end; k < across; ++k) to[k] = 0.0f;
  }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void backward_data(OPERAND_RESTRICT(const float, dy),
                                                                         OPERAND_RESTRICT(const float, filter),
                                                                         OPERAND_RESTRICT(float, dx), SIZES, int accumulate) {
  const int channel = get_global_id(0), sample = get_global_id(1);
  PRIVATE(block, DY_LINES * DY_LINE);
  PRIVATE(sums, STRIDE_W * COLUMNS);
  dx += dx_offset + sample * dx_stride + (ulong)channel * h * w;
  dy += dy_offset + sample * dy_stride + (ulong)channel * multiplier * oh * ow;
  filter += filter_offset + channel * multiplier * TAPS;
  const int q_end_h = (h - 1 + PAD_H) / STRIDE_H + 1, q_end_w = (w - 1 + PAD_W) / STRIDE_W + 1;
  for (int q_h = PAD_H / STRIDE_H; q_h < q_end_h; q_h += ROWS)
    for (int q_w = PAD_W / STRIDE_W; q_w < q_end_w; q_w += COLUMNS) {
      const int rows = min(ROWS, q_end_h - q_h), columns = min(COLUMNS, q_end_w - q_w);
      for (int o = 0; o < multiplier; ++o) {
        copy_dy(block, dy + o * oh * ow, oh, ow, q_h, q_w, rows, columns);
        for (int r = 0; r < rows * STRIDE_H; ++r) {
          const int phase_h = r % STRIDE_H, p_h = q_h * STRIDE_H + r - PAD_H;
          if ((uint)p_h >= (uint)h) continue;
          for (int v = 0; v < columns; v += VECTOR)
#pragma unroll
            for (int phase = 0; phase < STRIDE_W; ++phase) {
              floatv sum = (floatv)(0.0f);
#pragma unroll
              for (int i = 0; i < KERNEL_H; ++i) {
                if (i * DILATION_H % STRIDE_H != phase_h) continue;
                const float* line = block + (r / STRIDE_H + DY_SHIFT_H(KERNEL_H - 1) - DY_SHIFT_H(i)) * DY_LINE;
#pragma unroll
                for (int j = 0; j < KERNEL_W; ++j)
                  if (j * DILATION_W % STRIDE_W == phase)
                    sum += filter[o * TAPS + i * KERNEL_W + j] * LOADV(0, line + DY_SHIFT_W(KERNEL_W - 1) - DY_SHIFT_W(j) + v);
              }
              STOREV(sum, 0, sums + phase * COLUMNS + v);
            }
          /* The phases interleaved again. Outputs after a channel's first add to it. */
          const int p_w = q_w * STRIDE_W - PAD_W, add = accumulate || o > 0;
          global float* line = dx + p_h * w;
          for (int phase = 0; phase < STRIDE_W; ++phase) {
            const int begin = p_w + phase < 0 ? 1 : 0;
            const int end = min(columns, (w - p_w - phase + STRIDE_W - 1) / STRIDE_W);
            global float* to = line + p_w + phase;
            if (add)
              for (int k = begin; k < end; ++k) to[k * STRIDE_W] += sums[phase * COLUMNS + k];
            else
              for (int k = begin; k < end; ++k) to[k * STRIDE_W] = sums[phase * COLUMNS + k];
          }
        }
      }
    }
}

kernel __attribute__((reqd_work_group_size(1, 1, 1))) void backward_filter(OPERAND_RESTRICT(const float, x),
                                                                           OPERAND_RESTRICT(const float, dy), OPERAND_RESTRICT(float, dw),
                                                                           SIZES, int part, int accumulate) {
  const int output = get_global_id(0), slice = get_global_id(1);
  PRIVATE(block, X_LINES * X_LINE);
  x += x_offset + (ulong)(output / multiplier) * h * w;
  dy += dy_offset + (ulong)output * oh * ow;
  floatv sum[TAPS];
#pragma unroll
  for (int t = 0; t < TAPS; ++t) sum[t] = (floatv)(0.0f);
  for (int sample = slice * part; sample < min(batch, (slice + 1) * part); ++sample)
    for (int y0 = 0; y0 < oh; y0 += ROWS)
      for (int x0 = 0; x0 < ow; x0 += COLUMNS) {
        const int rows = min(ROWS, oh - y0), columns = min(COLUMNS, ow - x0);
        copy_x(block, x + sample * x_stride, h, w, y0, x0, rows, columns);
        for (int r = 0; r < rows; ++r) {
          global const float* line = dy + sample * dy_stride + (y0 + r) * ow + x0;
          for (int v = 0; v < columns; v += VECTOR) {
            floatv d;
            if (v + VECTOR <= columns) {
              d = LOADV(0, line + v);
            } else {
              PRIVATE(last, VECTOR);
              STOREV((floatv)(0.0f), 0, last);
              for (int k = v; k < columns; ++k) last[k - v] = line[k];
              d = LOADV(0, last);
            }
#pragma unroll
            for (int t = 0; t < TAPS; ++t) {
              const int i = t / KERNEL_W, j = t % KERNEL_W;
              sum[t] += d * LOADV(0, block + (r * STRIDE_H + i * DILATION_H) * X_LINE + X_PHASE(j) * X_PITCH + X_SHIFT(j) + v);
            }
          }
        }
      }
  dw += dw_offset + slice * dw_stride + output * TAPS;
#pragma unroll
  for (int t = 0; t < TAPS; ++t) {
    PRIVATE(lanes, VECTOR);
    STOREV(sum[t], 0, lanes);
    float all = 0.0f;
    for (int k = 0; k < VECTOR; ++k) all += lanes[k];
    put(dw + t, all, accumulate, 1.0f);
  }
}

#endif
