/* Direct depthwise convolution for work-groups: output o depends only on channel o / multiplier.
   Filters are [outputs][KERNEL_H][KERNEL_W].

   forward          y[n][o] = x[n][o / multiplier] * w[o] (+ bias[o], or factor and offset: epilogue.h), then the fused ReLU (slope 1: none);
                    with CHANNEL_REDUCTION also channel reductions of it (channel_reduction.h)
   backward_data    dx[n][c] = sum over the outputs of channel c, as a gather (+ bias[c]: a deconvolution), then the ReLU or the fused ReLU
                    backward (fused_relu.h)
   backward_filter  dw[o] = sum over samples and positions of dy * x, of one slice of `part` samples, at dw + slice * dw_stride. The last
                    group of an output adds the slices (DEVICE_FENCE), otherwise split_sum does (split_sum.h)

   Defines: per axis H, W the window: KERNEL_ (taps), STRIDE_, PAD_, DILATION_ (pixels); DEVICE_FENCE: last-block reduction (common.h).
   Work-items: strip_gpu.h. In forward a group has `together` whole planes of a sample, or one of `pieces` of a plane. In backward_filter a
   work-group of ITEMS per (output, slice) loops over the strips. The argument `each` is used only by conv_depthwise_cpu.cl. */
#include "common.h"
#include "epilogue.h"
#include "channel_reduction.h"
#include "split_sum.h"
#include "strip_gpu.h"

#include "plane_window.h"

#ifndef ITEMS
#define ITEMS 256
#endif
#define MOST_ITEMS 128 /* maximum size of a group in forward */
#define TAPS (KERNEL_H * KERNEL_W)
#define FEW (TAPS <= 81) /* backward_filter keeps a sum per tap in registers; it exists only for this many taps */
#if FEW && STRIDE_H <= 4 && STRIDE_W <= 4
#define UNROLLED _Pragma("unroll")
#else
#define UNROLLED
#endif
#define SIZES int batch, int outputs, int multiplier, int h, int w, int oh, int ow
#define WITHIN(i, size) ((uint)(i) < (uint)(size))
#ifdef CHANNEL_REDUCTION
/* Return the sum of v over the `length` work-items that share a plane, added as a tree. `place` is the number of this work-item among them,
   `line` their local memory. */
INLINE float sum_of_line(local float* line, int place, int length, float v) {
  barrier(CLK_LOCAL_MEM_FENCE);
  line[place] = v;
  for (int apart = MOST_ITEMS / 2; apart > 0; apart /= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    if (place < apart && place + apart < length) line[place] += line[place + apart];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return line[0];
}
#endif

kernel void forward(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(const float, filter), REDUCTION_OPERANDS OPERAND_RESTRICT(const float, bias),
                    OPERAND_RESTRICT(RESULT_T, y), SIZES, int strips, int pieces, int together, int has_bias, int accumulate, float slope) {
#ifdef CHANNEL_REDUCTION
  local float lines[MOST_ITEMS];
#endif
  const int item = get_local_id(0), items = strips * ow, piece = get_group_id(0) % pieces, sample = get_global_id(1);
  const int own = get_group_id(0) / pieces * together + item / items, within = piece * (int)get_local_size(0) + item % items;
  const int exists = own < outputs && within < items, plane = min(own, outputs - 1);
#ifndef CHANNEL_REDUCTION
  if (!exists) return;
#endif
  const int top = within / ow * ROWS, at_y = top * STRIDE_H - PAD_H, at_x = within % ow * STRIDE_W - PAD_W;
  const int rows = exists ? min(oh - top, ROWS) : 0;
  x += x_offset + sample * x_stride + (ulong)(plane / multiplier) * h * w;
  filter += filter_offset + plane * TAPS;
  LOCATE(bias);
  float sum[ROWS];
  UNROLLED for (int r = 0; r < ROWS; ++r) sum[r] = 0.0f;
  UNROLLED for (int q = 0; q < FORWARD_ROWS(KERNEL_H, STRIDE_H, DILATION_H); ++q)
    UNROLLED for (int j = 0; j < KERNEL_W; ++j) {
      const int row = at_y + q, column = at_x + j * DILATION_W;
      if (!WITHIN(row, h) || !WITHIN(column, w) || !exists) continue;
      const float v = GET(SOURCE_T, x + row * w + column);
      UNROLLED for (int r = 0; r < ROWS; ++r)
        if (IS_TAP(q - r * STRIDE_H, KERNEL_H, DILATION_H)) sum[r] += filter[(q - r * STRIDE_H) / DILATION_H * KERNEL_W + j] * v;
    }
  const float factor = FACTOR(bias, plane), offset = OFFSET(bias, plane);
  y += y_offset + sample * y_stride + (ulong)plane * oh * ow + top * ow + within % ow;
  UNROLLED for (int r = 0; r < ROWS; ++r) {
    if (r < rows) sum[r] = put(y + r * ow, sum[r] * factor + offset, accumulate, slope, NO_SIGN(y), 0);
  }
#ifdef CHANNEL_REDUCTION
  const int length = min((int)get_local_size(0), items), place = item % length;
  local float* line = lines + item - place;
  reduced += reduced_offset + plane * (reduced_stride / outputs) + sample * pieces + piece;
  const float values = CHANNEL_REDUCTION == 1 ? sum_of_line(line, place, length, rows) : 1.0f;
  float mean = 0.0f, total = 0.0f;
  for (int pass = 0; pass < (CHANNEL_REDUCTION == 1 ? 2 : 1); ++pass) {
    total = 0.0f;
    UNROLLED for (int r = 0; r < ROWS; ++r) {
      if (r < rows) total += pass ? (sum[r] - mean) * (sum[r] - mean) : sum[r];
    }
    total = sum_of_line(line, place, length, total);
    if (!pass) mean = total / values;
  }
  if (place > 0 || own >= outputs) return;
#if CHANNEL_REDUCTION == 1
  reduced[0] = values, reduced[reduced_stride] = mean, reduced[2 * reduced_stride] = total;
#else
  reduced[0] = total;
#endif
#endif
}

#define HEIGHT BACK_ROWS(STRIDE_H)
/* Whether the sum of each row of taps is kept separately, so that fewer additions round the whole sum. With only two rows per result that
   would be one addition more. */
#define LINES (KERNEL_H > 2 * STRIDE_H)

kernel void backward_data(OPERAND_RESTRICT(const SOURCE_T, dy), OPERAND_RESTRICT(const float, filter), SIGN OPERAND_RESTRICT(const float, bias),
                          OPERAND_RESTRICT(RESULT_T, dx), SIZES, int strips, int has_bias, int accumulate, float slope) {
  STRIP_ITEM(outputs / multiplier, strips, (w + STRIDE_W - 1) / STRIDE_W)
  dy += dy_offset + sample * dy_stride + (ulong)plane * multiplier * oh * ow;
  filter += filter_offset + plane * multiplier * TAPS;
  LOCATE(bias);
  const int top = strip * HEIGHT, left = strip_column * STRIDE_W;
  float sum[HEIGHT][STRIDE_W];
  UNROLLED for (int r = 0; r < HEIGHT; ++r)
    UNROLLED for (int s = 0; s < STRIDE_W; ++s) sum[r][s] = 0.0f;
  for (int o = 0; o < multiplier; ++o, dy += oh * ow, filter += TAPS)
    UNROLLED for (int q = FIRST_BACK(KERNEL_H, STRIDE_H, PAD_H, DILATION_H); q <= LAST_BACK(HEIGHT, STRIDE_H, PAD_H); ++q) {
      const int row = top / STRIDE_H + q;
      if (!WITHIN(row, oh)) continue;
      float line[HEIGHT][STRIDE_W];
      UNROLLED for (int r = 0; r < HEIGHT; ++r)
        UNROLLED for (int s = 0; s < STRIDE_W; ++s) line[r][s] = LINES ? 0.0f : sum[r][s];
      UNROLLED for (int p = FIRST_BACK(KERNEL_W, STRIDE_W, PAD_W, DILATION_W); p <= LAST_BACK(STRIDE_W, STRIDE_W, PAD_W); ++p) {
        const int column = strip_column + p;
        if (!WITHIN(column, ow)) continue;
        const float v = GET(SOURCE_T, dy + row * ow + column);
        UNROLLED for (int r = 0; r < HEIGHT; ++r)
          UNROLLED for (int s = 0; s < STRIDE_W; ++s) {
            const int y = r + PAD_H - q * STRIDE_H, x = s + PAD_W - p * STRIDE_W;
            if (IS_TAP(y, KERNEL_H, DILATION_H) && IS_TAP(x, KERNEL_W, DILATION_W))
              line[r][s] += filter[y / DILATION_H * KERNEL_W + x / DILATION_W] * v;
          }
      }
      UNROLLED for (int r = 0; r < HEIGHT; ++r)
        UNROLLED for (int s = 0; s < STRIDE_W; ++s) sum[r][s] = LINES ? sum[r][s] + line[r][s] : line[r][s];
    }
  const int element = plane * h * w + top * w + left;
  global const SIGNS_T* signs = IF_FUSED_RELU(sign + sign_offset + sample * sign_stride, dx);
  dx += dx_offset + sample * dx_stride + element;
  UNROLLED for (int r = 0; r < HEIGHT; ++r)
    UNROLLED for (int s = 0; s < STRIDE_W; ++s)
      if (top + r < h && left + s < w)
        put(dx + r * w + s, sum[r][s] * FACTOR(bias, plane) + OFFSET(bias, plane), accumulate, slope, signs, element + r * w + s);
}

#if FEW
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void backward_filter(OPERAND_RESTRICT(const SOURCE_T, x),
                                                                               OPERAND_RESTRICT(const GIVEN_T, dy), COMPLETION_COUNTER_OPERAND
                                                                               OPERAND_RESTRICT(RESULT_T, dw) PARTS, SIZES, int each,
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

  /* The strip (sample, strip, column), and the digits of its increment by ITEMS. */
  const int strips = (oh + ROWS - 1) / ROWS;
  const int step_x = ITEMS % ow, step_y = ITEMS / ow % strips, step_sample = ITEMS / ow / strips;
  int px = item % ow, py = item / ow % strips, sample = slice * part + item / ow / strips;
  while (sample < end) {
    global const GIVEN_T* given = dy + sample * dy_stride + py * ROWS * ow + px;
    global const SOURCE_T* image = x + sample * x_stride;
    const int at_y = py * ROWS * STRIDE_H - PAD_H, at_x = px * STRIDE_W - PAD_W;
    float v[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) v[r] = py * ROWS + r < oh ? GET(GIVEN_T, given + r * ow) : 0.0f;
#pragma unroll
    for (int q = 0; q < FORWARD_ROWS(KERNEL_H, STRIDE_H, DILATION_H); ++q)
#pragma unroll
      for (int j = 0; j < KERNEL_W; ++j) {
        const int row = at_y + q, column = at_x + j * DILATION_W;
        if (!WITHIN(row, h) || !WITHIN(column, w)) continue;
        const float pixel = GET(SOURCE_T, image + row * w + column);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
          if (IS_TAP(q - r * STRIDE_H, KERNEL_H, DILATION_H)) sum[(q - r * STRIDE_H) / DILATION_H][j] += v[r] * pixel;
      }
    px += step_x;
    py += step_y;
    sample += step_sample;
    if (px >= ow) px -= ow, ++py;
    if (py >= strips) py -= strips, ++sample;
  }

#ifdef DEVICE_FENCE
  local int vote;
  LOCATE(counters), LOCATE(parts);
  const int slices = get_num_groups(1);
  global float* all = parts + (ulong)output * slices * TAPS;
#define LEAVE(t, sum) all[slice * TAPS + t] = sum
#else
  dw += dw_offset + slice * dw_stride + output * TAPS;
#define LEAVE(t, sum) put(dw + t, sum, accumulate, 1.0f, NO_SIGN(dw), 0)
#endif
#pragma unroll
  for (int t = 0; t < TAPS; ++t) {
    sums[item] = sum[t / KERNEL_W][t % KERNEL_W];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int others = ITEMS / 2; others > 0; others /= 2) {
      if (item < others) sums[item] += sums[item + others];
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (item == 0) LEAVE(t, sums[0]);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#ifdef DEVICE_FENCE
  IS_LAST_BLOCK(DEVICE_FENCE, counters + output, slices, &vote, last);
  if (!last || item >= TAPS) return;
  float total = 0.0f;
#pragma unroll 4
  for (int s = 0; s < slices; ++s) total += all[s * TAPS + item];
  put(dw + dw_offset + output * TAPS + item, total, accumulate, 1.0f, NO_SIGN(dw), 0);
#endif
}
#endif
