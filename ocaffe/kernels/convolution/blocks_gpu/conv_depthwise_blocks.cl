/* Depthwise convolution on channels in blocks of 8, as in block_operands.h: output o depends only on channel o.
   Functions and defines are those of conv_depthwise_gpu.cl, for a multiplier of 1. SIGN, FUSED_RELU: fused_relu.h.

   A work-item computes the eight channels of a strip (strip_gpu.h) of ITEMS neighbours in a group. Item i of a block counts columns, then strips, then
   samples. Group (x, y): items, blocks. In backward_filter, group (x, y) is a slice of `part` items of a block. */
#include "block_operands.h"
#include "fused_relu.h"
#include "epilogue.h"
#include "channel_reduction.h"
#include "split_sum.h"
#include "strip_gpu.h"

#include "plane_window.h"
#ifndef ITEMS
#define ITEMS 128
#endif
#define TAPS (KERNEL_H * KERNEL_W)
#define UNROLLED _Pragma("unroll")
#define SIZES int batch, int channels, int h, int w, int oh, int ow
#define SHARERS (ITEMS / 8) /* of the work-items, with the sum of one channel */
#define WITHIN(i, size) ((uint)(i) < (uint)(size))

/* The filters of a block: taps[tap] has those of the eight channels. */
INLINE void load_taps(local float8* taps, global const float* filter, int block) {
  for (int i = get_local_id(0); i < TAPS * 8; i += ITEMS) ((local float*)taps)[i] = filter[(block * 8 + i % 8) * TAPS + i / 8];
  barrier(CLK_LOCAL_MEM_FENCE);
}

/* Return the sum of the values of ITEMS / SHARERS work-items for one channel: of each work-item for another part of them and of the eight channels. */
INLINE float share_of(local float8* lines, float8 v) {
  const int item = get_local_id(0);
  float share = 0.0f;
  lines[item] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  UNROLLED for (int n = 0; n < ITEMS / SHARERS; ++n) share += ((local const float*)lines)[n * ITEMS + item];
  return share;
}

/* Return the sum of v over the work-items of the group. */
INLINE float8 sum_of_group(local float8* lines, float8 v) {
  local float* shares = (local float*)lines;
  const int item = get_local_id(0);
  barrier(CLK_LOCAL_MEM_FENCE);
  const float share = share_of(lines, v);
  barrier(CLK_LOCAL_MEM_FENCE);
  shares[item] = share;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (item < 8) {
    float total = 0.0f;
    for (int n = 0; n < SHARERS; ++n) total += shares[n * 8 + item];
    shares[ITEMS + item] = total;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return lines[ITEMS / 8];
}

#define OFFSET8(bias, block) (has_bias ? vload8(block, bias) : (float8)(0.0f))
#define FACTOR8(bias, block) (has_bias == 2 ? vload8(block, bias + bias##_stride) : (float8)(1.0f))
#define PASSES8(sign, element) ((int8)(PASSES4(sign, element), PASSES4(sign, (element) + 4)))

/* `put` of fused_relu.h for the eight channels of a pixel. */
INLINE float8 put8(global BLOCK_T* to, float8 v, int accumulate, SLOPE_OR_ACTIVATION, global const SIGNS_T* sign, int element) {
  if (accumulate) v += GET8(BLOCK_T, to);
  v = select(slope * v, v, IF_FUSED_RELU(PASSES8(sign, element), v > 0.0f));
  v = BOUNDED_IF_DEFINED(float8, v);
  SET8(BLOCK_T, to, v);
  return v;
}

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void forward(OPERAND_RESTRICT(const BLOCK_T, x), OPERAND_RESTRICT(const float, filter), REDUCTION_OPERANDS
                                                                       OPERAND_RESTRICT(const float, bias), OPERAND_RESTRICT(BLOCK_T, y), SIZES, int has_bias,
                                                                       int accumulate, SLOPE_OR_ACTIVATION) {
  local float8 taps[TAPS];
#ifdef CHANNEL_REDUCTION
  local float8 lines[ITEMS];
#endif
  LOCATE(x), LOCATE(filter), LOCATE(bias), LOCATE(y);
  const int place = get_global_id(0), block = get_group_id(1), strips = (oh + ROWS - 1) / ROWS;
  const int column = place % ow, top = place / ow % strips * ROWS, sample = place / ow / strips, rows = sample < batch ? min(oh - top, ROWS) : 0;
  load_taps(taps, filter, block);
  const int at_y = top * STRIDE_H - PAD_H, at_x = column * STRIDE_W - PAD_W;
  x += sample * x_stride + (ulong)block * h * w * 8;
  float8 sum[ROWS];
  UNROLLED for (int r = 0; r < ROWS; ++r) sum[r] = (float8)(0.0f);
  UNROLLED for (int q = 0; q < FORWARD_ROWS(KERNEL_H, STRIDE_H, DILATION_H); ++q)
    UNROLLED for (int j = 0; j < KERNEL_W; ++j) {
      const int row = at_y + q, line = at_x + j * DILATION_W;
      if (!rows || !WITHIN(row, h) || !WITHIN(line, w)) continue;
      const float8 v = GET8(BLOCK_T, x + (row * w + line) * 8);
      UNROLLED for (int r = 0; r < ROWS; ++r)
        if (IS_TAP(q - r * STRIDE_H, KERNEL_H, DILATION_H)) sum[r] += taps[(q - r * STRIDE_H) / DILATION_H * KERNEL_W + j] * v;
    }
  const float8 factor = FACTOR8(bias, block), offset = OFFSET8(bias, block);
  y += sample * y_stride + ((ulong)(block * oh + top) * ow + column) * 8;
  UNROLLED for (int r = 0; r < ROWS; ++r) {
    if (r < rows) sum[r] = put8(y + r * ow * 8, sum[r] * factor + offset, accumulate, GIVEN_SLOPE_OR_ACTIVATION, NO_SIGN(y), 0);
  }
#ifdef CHANNEL_REDUCTION
  const float8 values = CHANNEL_REDUCTION == 1 ? sum_of_group(lines, (float8)(rows)) : (float8)(1.0f);
  float8 mean = (float8)(0.0f), total = mean;
  for (int pass = 0; pass < (CHANNEL_REDUCTION == 1 ? 2 : 1); ++pass) {
    total = (float8)(0.0f);
    UNROLLED for (int r = 0; r < ROWS; ++r) {
      if (r < rows) total += pass ? (sum[r] - mean) * (sum[r] - mean) : sum[r];
    }
    total = sum_of_group(lines, total);
    if (!pass) mean = total / values;
  }
  if (get_local_id(0) > 0) return;
  const int parts = reduced_stride / channels;
  reduced += reduced_offset + (ulong)block * 8 * parts + get_group_id(0);
  for (int e = 0; e < 8; ++e, reduced += parts) {
#if CHANNEL_REDUCTION == 1
    reduced[0] = ((const float*)&values)[e], reduced[reduced_stride] = ((const float*)&mean)[e], reduced[2 * reduced_stride] = ((const float*)&total)[e];
#else
    reduced[0] = ((const float*)&total)[e];
#endif
  }
#endif
}

#define HEIGHT BACK_ROWS(STRIDE_H)

kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void backward_data(OPERAND_RESTRICT(const BLOCK_T, dy), OPERAND_RESTRICT(const float, filter),
                                                                             SIGN OPERAND_RESTRICT(const float, bias), OPERAND_RESTRICT(BLOCK_T, dx), SIZES,
                                                                             int has_bias, int accumulate, SLOPE_OR_ACTIVATION) {
  local float8 taps[TAPS];
  LOCATE(dy), LOCATE(filter), LOCATE(bias), LOCATE(dx);
  LOCATE_SIGN;
  const int columns = (w + STRIDE_W - 1) / STRIDE_W, strips = (h + HEIGHT - 1) / HEIGHT, place = get_global_id(0), block = get_group_id(1);
  const int column = place % columns, strip = place / columns % strips, sample = place / columns / strips;
  load_taps(taps, filter, block);
  if (sample >= batch) return;
  const int top = strip * HEIGHT, left = column * STRIDE_W;
  dy += sample * dy_stride + (ulong)block * oh * ow * 8;
  float8 sum[HEIGHT][STRIDE_W];
  UNROLLED for (int r = 0; r < HEIGHT; ++r)
    UNROLLED for (int s = 0; s < STRIDE_W; ++s) sum[r][s] = (float8)(0.0f);
  UNROLLED for (int q = FIRST_BACK(KERNEL_H, STRIDE_H, PAD_H, DILATION_H); q <= LAST_BACK(HEIGHT, STRIDE_H, PAD_H); ++q)
    UNROLLED for (int p = FIRST_BACK(KERNEL_W, STRIDE_W, PAD_W, DILATION_W); p <= LAST_BACK(STRIDE_W, STRIDE_W, PAD_W); ++p) {
      const int row = top / STRIDE_H + q, line = column + p;
      if (!WITHIN(row, oh) || !WITHIN(line, ow)) continue;
      const float8 v = GET8(BLOCK_T, dy + (row * ow + line) * 8);
      UNROLLED for (int r = 0; r < HEIGHT; ++r)
        UNROLLED for (int s = 0; s < STRIDE_W; ++s) {
          const int y = r + PAD_H - q * STRIDE_H, x = s + PAD_W - p * STRIDE_W;
          if (IS_TAP(y, KERNEL_H, DILATION_H) && IS_TAP(x, KERNEL_W, DILATION_W)) sum[r][s] += taps[y / DILATION_H * KERNEL_W + x / DILATION_W] * v;
        }
    }
  const float8 factor = FACTOR8(bias, block), offset = OFFSET8(bias, block);
  const int element = ((block * h + top) * w + left) * 8;
  global const SIGNS_T* signs = IF_FUSED_RELU((global const SIGNS_T*)(sign + sample * sign_stride), NO_SIGN(dx));
  dx += sample * dx_stride + element;
  UNROLLED for (int r = 0; r < HEIGHT; ++r)
    UNROLLED for (int s = 0; s < STRIDE_W; ++s)
      if (top + r < h && left + s < w)
        put8(dx + (r * w + s) * 8, sum[r][s] * factor + offset, accumulate, GIVEN_SLOPE_OR_ACTIVATION, signs, element + (r * w + s) * 8);
}

/* dw of one slice of `part` items, at dw + slice * dw_stride. With DEVICE_FENCE the last group of a block adds the slices, otherwise split_sum does. */
kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void backward_filter(OPERAND_RESTRICT(const BLOCK_T, x), OPERAND_RESTRICT(const BLOCK_T, dy),
                                                                               COMPLETION_COUNTER_OPERAND OPERAND_RESTRICT(float, dw) PARTS, SIZES, int part,
                                                                               int accumulate) {
  local float8 lines[2][ITEMS];
  local float shares[TAPS][ITEMS];
  LOCATE(x), LOCATE(dy), LOCATE(dw);
  const int item = get_local_id(0), slice = get_group_id(0), block = get_group_id(1), strips = (oh + ROWS - 1) / ROWS;
  const int end = min(batch * strips * ow, (slice + 1) * part);
  x += (ulong)block * h * w * 8, dy += (ulong)block * oh * ow * 8;
  float8 sum[TAPS];
  UNROLLED for (int t = 0; t < TAPS; ++t) sum[t] = (float8)(0.0f);
  for (int place = slice * part + item; place < end; place += ITEMS) {
    const int column = place % ow, top = place / ow % strips * ROWS, sample = place / ow / strips;
    const int at_y = top * STRIDE_H - PAD_H, at_x = column * STRIDE_W - PAD_W;
    global const BLOCK_T* given = dy + sample * dy_stride + (top * ow + column) * 8;
    global const BLOCK_T* image = x + sample * x_stride;
    float8 v[ROWS];
    UNROLLED for (int r = 0; r < ROWS; ++r) v[r] = top + r < oh ? GET8(BLOCK_T, given + r * ow * 8) : (float8)(0.0f);
    UNROLLED for (int q = 0; q < FORWARD_ROWS(KERNEL_H, STRIDE_H, DILATION_H); ++q)
      UNROLLED for (int j = 0; j < KERNEL_W; ++j) {
        const int row = at_y + q, line = at_x + j * DILATION_W;
        if (!WITHIN(row, h) || !WITHIN(line, w)) continue;
        const float8 pixel = GET8(BLOCK_T, image + (row * w + line) * 8);
        UNROLLED for (int r = 0; r < ROWS; ++r)
          if (IS_TAP(q - r * STRIDE_H, KERNEL_H, DILATION_H)) sum[(q - r * STRIDE_H) / DILATION_H * KERNEL_W + j] += v[r] * pixel;
      }
  }
#ifdef DEVICE_FENCE
  local int vote;
  LOCATE(counters), LOCATE(parts);
  const int slices = get_num_groups(0);
  global float* all = parts + (ulong)block * slices * (8 * TAPS);
#endif
  UNROLLED for (int t = 0; t < TAPS; ++t) shares[t][item] = share_of(lines[t % 2], sum[t]);
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = item; i < 8 * TAPS; i += ITEMS) {
    float own = 0.0f;
    for (int n = 0; n < SHARERS; ++n) own += shares[i % TAPS][n * 8 + i / TAPS];
#ifdef DEVICE_FENCE
    all[slice * (8 * TAPS) + i] = own;
#else
    global float* to = dw + slice * dw_stride + block * (8 * TAPS) + i;
    *to = own + (accumulate ? *to : 0.0f);
#endif
  }
#ifdef DEVICE_FENCE
  IS_LAST_BLOCK(DEVICE_FENCE, counters + block, slices, &vote, last);
  if (!last) return;
  for (int i = item; i < 8 * TAPS; i += ITEMS) {
    float total = 0.0f;
    for (int s = 0; s < slices; ++s) total += all[s * (8 * TAPS) + i];
    global float* to = dw + block * 8 * TAPS + i;
    *to = total + (accumulate ? *to : 0.0f);
  }
#endif
}
