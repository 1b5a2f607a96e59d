/* Convolution in 1 to 3 dimensions by implicit GEMM, for work-groups that share tiles in local memory.

   forward          y[output][position]  = sum over (channel, tap) of w * x
   backward_data    dx[channel][position] = sum over (output, tap) of w * dy, as a gather. With a bias per channel it is the forward pass of
                    a deconvolution. It supports the fused ReLU backward (fused_relu.h)
   backward_filter  dw[output][channel, tap] = sum over (sample, position) of dy * x
   split_sum        the second pass of a product whose depth was split (split_sum.h)
   forward and backward_data can write channel reductions of their result (channel_reduction.h).

   Defines: the tile (tile_gpu.h); the window (conv_window.h);
   STEP_CHANNELS, STEP_ROWS, STEP_TAPS  the shape of a step in forward and backward_data: neighbouring channels, rows of the window and taps
           of a row. BK is their product. BN divides NT, and STEP_CHANNELS is a multiple of NT / BN
   VECTOR  1: operands are fetched as vectors (fetch_gpu.h). For windows of one pixel and stride 1, planes of a multiple of four positions and
           a multiple of four channels. If samples do not begin at multiples of 4 elements (a view of a Concat), elements are fetched singly
   DIRECTION  the kernel that the program has besides split_sum: 0 forward, 1 backward_data, 2 backward_filter. A compiler takes seconds for each
   DEVICE_FENCE  last-block reduction (common.h)

   Arguments: operands, SIZES (conv_window.h), channels of a part and number of parts (backward_filter: positions of a part), scalars.
   Filters are [outputs][channels of a group][taps].
   Group (x, y, z): columns of the result (positions of all samples; in backward_filter channels and taps), its rows, and group and split of
   the depth. In backward_data a column belongs to a phase (conv_window.h). With several splits, the last group of a tile writes the result
   (DEVICE_FENCE). Without DEVICE_FENCE the target holds one copy per split; its stride is the distance between them. */
#include "common.h"
#include "conv_window.h"
#include "epilogue.h"
#include "fetch_gpu.h"
#include "channel_reduction.h"
#include "split_sum.h"
#include "tile_gpu.h"
#include "conv_store.h"

#ifndef STEP_CHANNELS
#define STEP_CHANNELS 8
#define STEP_ROWS 1
#define STEP_TAPS 1
#endif

#ifndef VECTOR
#define VECTOR 0
#endif

#ifndef DIRECTION
#define DIRECTION 0
#endif

#define STEP_WINDOW (STEP_ROWS * STEP_TAPS)

/* For fetching filters, and both operands of backward_filter: a work-item fetches one step of the depth of every ROWS_APART-th line.
   The last NT % BK work-items fetch nothing. */
#define ROWS_APART (NT / BK)
#define PASSES_A ((BM + ROWS_APART - 1) / ROWS_APART)
#define PASSES_B ((BN + ROWS_APART - 1) / ROWS_APART)
/* For fetching the image: a work-item fetches every CHANNELS_APART-th channel of one position. */
#define CHANNELS_APART (NT / BN)
#define ITEM_CHANNELS (STEP_CHANNELS / CHANNELS_APART)

/* The first line of a work-item. Within a warp it is shifted with the depth, so that the stores to local memory use different banks. */
#define LINE(item) (((item) / BK + (item) % BK / (32 / PADDING) * (32 / BK)) % ROWS_APART)

#ifdef DEVICE_FENCE
#define COMPLETION_COUNTER counters + counters_offset, parts + parts_offset
#else
#define COMPLETION_COUNTER 0, 0
#endif
/* The number of the tile of this group, and the number of groups that work on it. */
#define TILE_NUMBER ((get_group_id(2) % groups * get_num_groups(1) + get_group_id(1)) * get_num_groups(0) + get_group_id(0))
#define SPLITS (get_num_groups(2) / groups)

#if DIRECTION < 2
#define backward DIRECTION

/* ORIGIN: the coordinate of tap 0 of a position along one axis, in backward times the stride. TAP_AT: the coordinate of a tap. */
#define ORIGIN(p, stride, pad) (backward ? (p) + (pad) : (p) * (stride) - (pad))
#define TAP_AT(at, tap, stride, dilation) (backward ? ((at) - (tap) * (dilation)) / (stride) : (at) + (tap) * (dilation))

#if VECTOR
/* The sums of a tile of forward and backward_data, computed as in gemm_gpu.cl, except that columns of different samples are not contiguous. */
INLINE void gather_vectors(float acc[SUM_ROWS][TN], local float* as, local float* bs, global const SOURCE_T* source, ulong source_stride,
                           global const float* filter, const Phase f, int group, int rows, int depth, int row0, int column0, int begin, int end) {
  const int item = get_local_id(0), plane = f.positions;
  PART(a, BM, LDA, !backward, 0);
  PART(b, BN, LDB, 0, 1);
  const ulong a_row_step = backward ? 1 : depth, a_depth_step = backward ? rows : 1;
  filter += (ulong)group * rows * depth + (row0 + a_line) * a_row_step + (begin + a_depth) * a_depth_step;
  /* Columns past the end fetch the last ones and are not stored. */
  const int column = min(column0 + b_line, f.columns - 4), whole_rows = rows - row0 >= BM;
  source += column / plane * source_stride + column % plane + (ulong)(group * depth + begin + b_depth) * plane;
  const int aligned = (((size_t)source / sizeof(SOURCE_T) | source_stride | (size_t)filter / sizeof(float)) & 3) == 0;
  const ulong a_next = a_next_line * a_row_step + a_next_depth * a_depth_step, b_next = (ulong)b_next_depth * plane;
  local const float* a_from = as + tile_row(item);
  local const float* b_from = bs + tile_column(item);
  float4 ra[FOURS(BM)], rb[FOURS(BN)];
  const int steps = (end - begin + BK - 1) / BK;
  for (int exact = 0;; exact = 1) {
    tile_clear(acc);
    global const float* a_at = filter;
    global const SOURCE_T* b_at = source;
    for (int s = 0; s <= steps; ++s) {
      const int k = begin + s * BK;
      if (s < steps) {
        const int whole = aligned && k + BK <= end;
        if (whole && whole_rows) {
#pragma unroll
          for (int i = 0; i < FOURS(BM); ++i) ra[i] = *(global const float4*)(a_at + i * a_next);
        } else {
#pragma unroll
          for (int i = 0; i < FOURS(BM); ++i)
            ra[i] = FETCH_EDGE(float)(a_at + i * a_next, existing(row0 + a_line + i * a_next_line, k + a_depth + i * a_next_depth, rows, end, !backward));
        }
        if (whole) {
#pragma unroll
          for (int i = 0; i < FOURS(BN); ++i) rb[i] = GET4(SOURCE_T, b_at + i * b_next);
        } else {
#pragma unroll
          for (int i = 0; i < FOURS(BN); ++i) rb[i] = FETCH_EDGE(SOURCE_T)(b_at + i * b_next, k + b_depth + i * b_next_depth < end ? 4 : 0);
        }
        a_at += BK * a_depth_step;
        b_at += (ulong)BK * plane;
      }
      if (s > 0) tile_multiply(a_from + ((s - 1) & 1) * (BK * LDA), b_from + ((s - 1) & 1) * (BK * LDB), acc, s, exact);
      if (s < steps) {
#pragma unroll
        for (int i = 0; i < FOURS(BM); ++i)
          stage(as + (s & 1) * (BK * LDA) + i * (a_next_depth * LDA + a_next_line), a_to, ra[i], a_depth, !backward, 0);
#pragma unroll
        for (int i = 0; i < FOURS(BN); ++i) stage(bs + (s & 1) * (BK * LDB) + i * b_next_depth * LDB, b_to, rb[i], b_depth, 0, 1);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (tile_is_done(acc, exact, as)) break;
  }
}
#endif

/* forward (backward = 0) and backward_data (backward = 1): both gather `source` at the taps of each position of `target`, times the filters.
   rows, depth: channels of target and source in a group; sd, sh, sw and td, th, tw: their planes. */
INLINE void gather(local float* as, local float* bs, global uint* counters, global float* parts, global const SOURCE_T* source, ulong source_stride,
                   global const float* filter, global const float* bias, ulong bias_stride, global RESULT_T* target, ulong target_stride, int target_aligned,
                   int batch, int groups, int rows, int depth, int sd, int sh, int sw, int td, int th, int tw, int split_channels,
                   int splits, int has_bias, int accumulate, float slope, global const SIGNS_T* sign, ulong sign_stride, int sign_aligned,
                   const ChannelReduction reduction) {
  const int phases = backward ? PHASES : 1;
  const int tap_step_d = backward ? PHASE_STEP_D : 1, tap_step_h = backward ? PHASE_STEP_H : 1, tap_step_w = backward ? PHASE_STEP_W : 1;
  const int leaves = backward ? (PADDED | STRIDED | (TAPS > 1)) : PADDED;  /* a tap may be outside of the source */
  const int item = get_local_id(0);
  const int group = get_group_id(2) % groups, split = get_group_id(2) / groups;
  const Phase f = phase_of(backward, get_group_id(0) % phases, batch, td, th, tw);
  const int column0 = get_group_id(0) / phases * BN, row0 = get_group_id(1) * BM;
  if (column0 >= f.columns) return;  /* the whole group returns: phases differ in size */

  const int begin = split * split_channels, end = min(depth, begin + split_channels);
  const int steps_w = (KERNEL_W - f.tap_w + tap_step_w * STEP_TAPS - 1) / (tap_step_w * STEP_TAPS);
  const int steps_h = (KERNEL_H - f.tap_h + tap_step_h * STEP_ROWS - 1) / (tap_step_h * STEP_ROWS);
  const int steps_d = (KERNEL_D - f.tap_d + tap_step_d - 1) / tap_step_d;
  const int steps = (end - begin + STEP_CHANNELS - 1) / STEP_CHANNELS * steps_d * steps_h * steps_w;

  if (steps == 0 && accumulate && !has_bias && slope == 1.0f) return;  /* no tap contributes to this phase, so there is nothing to add */

  float acc[SUM_ROWS][TN];
#if VECTOR
  gather_vectors(acc, as, bs, source, source_stride, filter, f, group, rows, depth, row0, column0, begin, end);
#else
  /* Filters: in memory [outputs][channels][taps]. Neighbouring work-items fetch neighbouring taps, then channels (forward) or rows (backward). */
  const int a_tap = backward ? item % STEP_WINDOW : item % BK % STEP_WINDOW;
  const int a_channel = backward ? item / (STEP_WINDOW * ROWS_APART) : item % BK / STEP_WINDOW;
  const int a_row = backward ? item / STEP_WINDOW % ROWS_APART : LINE(item);
  const int a_tap_h = a_tap / STEP_TAPS * tap_step_h, a_tap_w = a_tap % STEP_TAPS * tap_step_w;
  const int a_rows = item < ROWS_APART * BK ? BM - a_row : 0, a_rows_exist = min(a_rows, rows - row0 - a_row);
  const int a_row_stride = backward ? TAPS : depth * TAPS, a_channel_stride = backward ? rows * TAPS : TAPS;
  filter += (ulong)group * rows * depth * TAPS + (ulong)(row0 + a_row) * a_row_stride + a_tap_h * KERNEL_W + a_tap_w;
  local float* a_to = as + (a_channel * STEP_WINDOW + a_tap) * LDA + a_row;

  /* The image: columns past the end fetch the last one and are not stored. */
  const int b_column = min(column0 + item % BN, f.columns - 1), b_channel = item / BN;
  const int b_position = b_column % f.positions;
  const int at_w = ORIGIN(f.from_w + b_position % f.count_w * f.stride_w, STRIDE_W, PAD_W);
  const int at_h = ORIGIN(f.from_h + b_position / f.count_w % f.count_h * f.stride_h, STRIDE_H, PAD_H);
  const int at_d = ORIGIN(f.from_d + b_position / f.count_w / f.count_h * f.stride_d, STRIDE_D, PAD_D);
  const int plane = sd * sh * sw;
  source += b_column / f.positions * source_stride + (ulong)group * depth * plane;
  /* The places of the column in even and in odd rows of bs. */
  local float* b_first = bs + b_channel * STEP_WINDOW * LDB;
  local float* b_to[2] = {b_first + RIGHT_COLUMN(b_channel * STEP_WINDOW, item % BN), b_first + RIGHT_COLUMN(b_channel * STEP_WINDOW + 1, item % BN)};

  local const float* a_from = as + tile_row(item);
  local const float* b_from = bs + tile_column(item);
  float ra[PASSES_A], rb[STEP_WINDOW][ITEM_CHANNELS];
  for (int exact = 0;; exact = 1) {
    tile_clear(acc);
    int channel = begin, tap_d = f.tap_d, tap_h = f.tap_h, tap_w = f.tap_w;
    /* Step s is fetched while step s - 1 is multiplied, so that the loads overlap the arithmetic. */
    for (int s = 0; s <= steps; ++s) {
      if (s < steps) {
        const int a_exists = channel + a_channel < end && tap_h + a_tap_h < KERNEL_H && tap_w + a_tap_w < KERNEL_W;
        const int a_limit = a_exists ? a_rows_exist : 0;
        global const float* a = filter + (ulong)(channel + a_channel) * a_channel_stride + (tap_d * KERNEL_H + tap_h) * KERNEL_W + tap_w;
#pragma unroll
        for (int i = 0; i < PASSES_A; ++i) ra[i] = i * ROWS_APART < a_limit ? a[i * ROWS_APART * a_row_stride] : 0.0f;

        const int z = TAP_AT(at_d, tap_d, STRIDE_D, DILATION_D);
#pragma unroll
        for (int r = 0; r < STEP_ROWS; ++r) {
          const int row_tap = tap_h + r * tap_step_h;
          const int y = TAP_AT(at_h, row_tap, STRIDE_H, DILATION_H);
          const int row_exists = row_tap < KERNEL_H && (!leaves || ((uint)z < (uint)sd && (uint)y < (uint)sh));
#pragma unroll
          for (int t = 0; t < STEP_TAPS; ++t) {
            const int tap = tap_w + t * tap_step_w;
            const int x = TAP_AT(at_w, tap, STRIDE_W, DILATION_W);
            const int exists = row_exists && tap < KERNEL_W && (!leaves || (uint)x < (uint)sw);
            const int limit = exists ? end - channel - b_channel : 0;
            global const SOURCE_T* b = source + (long)((z * sh + y) * sw + x) + (long)(channel + b_channel) * plane;
#pragma unroll
            for (int i = 0; i < ITEM_CHANNELS; ++i)
              rb[r * STEP_TAPS + t][i] = i * CHANNELS_APART < limit ? GET(SOURCE_T, b + i * CHANNELS_APART * plane) : 0.0f;
          }
        }

        tap_w += STEP_TAPS * tap_step_w;
        if (tap_w >= KERNEL_W) {
          tap_w = f.tap_w;
          tap_h += STEP_ROWS * tap_step_h;
          if (tap_h >= KERNEL_H) {
            tap_h = f.tap_h;
            tap_d += tap_step_d;
            if (tap_d >= KERNEL_D) tap_d = f.tap_d, channel += STEP_CHANNELS;
          }
        }
      }
      if (s > 0) tile_multiply(a_from + ((s - 1) & 1) * (BK * LDA), b_from + ((s - 1) & 1) * (BK * LDB), acc, s, exact);
      if (s < steps) {
#pragma unroll
        for (int i = 0; i < PASSES_A; ++i)
          if (i * ROWS_APART < a_rows) a_to[(s & 1) * (BK * LDA) + i * ROWS_APART] = staged(ra[i]);
#pragma unroll
        for (int t = 0; t < STEP_WINDOW; ++t)
#pragma unroll
          for (int i = 0; i < ITEM_CHANNELS; ++i) {
            const int row = i * CHANNELS_APART * STEP_WINDOW + t;
            b_to[row & 1][(s & 1) * (BK * LDB) + row * LDB] = staged(rb[t][i]);
          }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (tile_is_done(acc, exact, as)) break;
  }

#endif

#ifdef DEVICE_FENCE
  if (!tile_join(counters, parts, TILE_NUMBER, split, SPLITS, acc, as)) return;
  splits = 1;
#endif
  const ulong sample_stride = splits > 1 ? (ulong)groups * rows * td * th * tw : target_stride;
  target += splits > 1 ? split * target_stride : 0;
  store_positions(acc, f, target, sample_stride, target_aligned, groups, group, row0, rows, column0, td, th, tw, bias, bias_stride, has_bias, accumulate, slope,
                  sign, sign_stride, sign_aligned, as, reduction, backward);
}

#if DIRECTION == 0

kernel GROUP_OF_NT void forward(OPERAND_RESTRICT(const SOURCE_T, x), OPERAND_RESTRICT(const float, filter),
                                REDUCTION_OPERANDS COMPLETION_COUNTER_OPERAND OPERAND_RESTRICT(const float, bias),
                                OPERAND_RESTRICT(RESULT_T, y) PARTS, SIZES, int split_channels, int splits,
                                int has_bias, int accumulate, float slope) {
  LOCAL_TILE(as, 2 * BK * LDA > REDUCTION_SIZE ? 2 * BK * LDA : REDUCTION_SIZE);
  LOCAL_TILE(bs, 2 * BK * LDB);
  gather(as, bs, COMPLETION_COUNTER, x + x_offset, x_stride, filter + filter_offset, bias + bias_offset, bias_stride, y + y_offset, y_stride, (y_offset & 3) == 0, batch,
         groups, outputs, channels, d, h, w, od, oh, ow, split_channels, splits, has_bias, accumulate, slope, NO_SIGN(y), 0, 1, REDUCTION_ARGUMENT);
}

#else

kernel GROUP_OF_NT void backward_data(OPERAND_RESTRICT(const SOURCE_T, dy),
                                      OPERAND_RESTRICT(const float, filter),
                                      REDUCTION_OPERANDS SIGN COMPLETION_COUNTER_OPERAND OPERAND_RESTRICT(const float, bias),
                                      OPERAND_RESTRICT(RESULT_T, dx) PARTS, SIZES, int split_channels,
                                      int splits, int has_bias, int accumulate, float slope) {
  LOCAL_TILE(as, 2 * BK * LDA > REDUCTION_SIZE ? 2 * BK * LDA : REDUCTION_SIZE);
  LOCAL_TILE(bs, 2 * BK * LDB);
  gather(as, bs, COMPLETION_COUNTER, dy + dy_offset, dy_stride, filter + filter_offset, bias + bias_offset, bias_stride, dx + dx_offset, dx_stride, (dx_offset & 3) == 0,
         batch, groups, channels, outputs, od, oh, ow, d, h, w, split_channels, splits, has_bias, accumulate, slope, IF_FUSED_RELU(sign + sign_offset, dx),
         IF_FUSED_RELU(sign_stride, 0), SIGN_ALIGNED, REDUCTION_ARGUMENT);
}

#endif

#else

/* Rows: outputs; columns: (channel, tap) in the order of the filters; depth: the positions of all samples, BK per step. A work-item fetches
   every BK-th position, or four neighbours (VECTOR), of its rows of dy and its columns of the image. */
kernel OF_NT void backward_filter(OPERAND_RESTRICT(const SOURCE_T, x),
                                  OPERAND_RESTRICT(const GIVEN_T, dy), COMPLETION_COUNTER_OPERAND OPERAND_RESTRICT(RESULT_T, dw) PARTS,
                                  SIZES, int split_positions, int accumulate) {
  LOCAL_TILE(as, 2 * BK * LDA);
  LOCAL_TILE(bs, 2 * BK * LDB);
  const int item = get_local_id(0);
  const int group = get_group_id(2) % groups, split = get_group_id(2) / groups;
  const int row0 = get_group_id(1) * BM, column0 = get_group_id(0) * BN;
  const int plane = d * h * w, out_plane = od * oh * ow, columns = channels * TAPS;
  const int begin = split * split_positions, end = min(batch * out_plane, begin + split_positions);
  local const float* a_from = as + tile_row(item);
  local const float* b_from = bs + tile_column(item);
  float acc[SUM_ROWS][TN];
  const int steps = (end - begin + BK - 1) / BK;
#if VECTOR
  /* Four neighbouring positions belong to one sample. */
  PART(a, BM, LDA, 1, 0);
  PART(b, BN, LDB, 1, 1);
  const int whole_rows = outputs - row0 >= BM, whole_columns = columns - column0 >= BN;
  dy += dy_offset + (ulong)(group * outputs + row0 + a_line) * plane;
  x += x_offset + (ulong)(group * channels + column0 + b_line) * plane;
  const int in_fours = ((dy_offset | dy_stride | x_offset | x_stride) & 3) == 0;
  float4 ra[FOURS(BM)], rb[FOURS(BN)];
  for (int exact = 0;; exact = 1) {
    tile_clear(acc);
    int sample = (begin + a_depth) / plane, position = (begin + a_depth) % plane;
    for (int s = 0; s <= steps; ++s) {
      if (s < steps) {
        const int whole = in_fours && begin + s * BK + BK <= end, exist = begin + s * BK + a_depth < end ? 4 : 0;
        global const GIVEN_T* a = dy + sample * dy_stride + position;
        global const SOURCE_T* b = x + sample * x_stride + position;
        if (whole && whole_rows) {
#pragma unroll
          for (int i = 0; i < FOURS(BM); ++i) ra[i] = GET4(GIVEN_T, a + (ulong)(i * a_next_line) * plane);
        } else {
#pragma unroll
          for (int i = 0; i < FOURS(BM); ++i) ra[i] = FETCH_EDGE(GIVEN_T)(a + (ulong)(i * a_next_line) * plane, row0 + a_line + i * a_next_line < outputs ? exist : 0);
        }
        if (whole && whole_columns) {
#pragma unroll
          for (int i = 0; i < FOURS(BN); ++i) rb[i] = GET4(SOURCE_T, b + (ulong)(i * b_next_line) * plane);
        } else {
#pragma unroll
          for (int i = 0; i < FOURS(BN); ++i) rb[i] = FETCH_EDGE(SOURCE_T)(b + (ulong)(i * b_next_line) * plane, column0 + b_line + i * b_next_line < columns ? exist : 0);
        }
        position += BK % plane;
        sample += BK / plane;
        if (position >= plane) position -= plane, ++sample;
      }
      if (s > 0) tile_multiply(a_from + ((s - 1) & 1) * (BK * LDA), b_from + ((s - 1) & 1) * (BK * LDB), acc, s, exact);
      if (s < steps) {
#pragma unroll
        for (int i = 0; i < FOURS(BM); ++i) stage(as + (s & 1) * (BK * LDA) + i * a_next_line, a_to, ra[i], a_depth, 1, 0);
#pragma unroll
        for (int i = 0; i < FOURS(BN); ++i) stage(bs + (s & 1) * (BK * LDB) + i * b_next_line, b_to, rb[i], b_depth, 1, 1);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (tile_is_done(acc, exact, as)) break;
  }
#else
  const int line = LINE(item), lines = item < ROWS_APART * BK ? BM - line : 0, lines_exist = min(lines, outputs - row0 - line);
  const int b_lines = item < ROWS_APART * BK ? BN - line : 0;

  /* Columns past the end fetch the last one and are not stored. */
  int place[PASSES_B], at_d[PASSES_B], at_h[PASSES_B], at_w[PASSES_B];
#pragma unroll
  for (int i = 0; i < PASSES_B; ++i) {
    const int column = min(column0 + line + i * ROWS_APART, columns - 1);
    at_w[i] = column % KERNEL_W * DILATION_W - PAD_W;
    at_h[i] = column / KERNEL_W % KERNEL_H * DILATION_H - PAD_H;
    at_d[i] = column / (KERNEL_W * KERNEL_H) % KERNEL_D * DILATION_D - PAD_D;
    place[i] = ((column / TAPS * d + at_d[i]) * h + at_h[i]) * w + at_w[i];
  }

  /* The digits of the increment of the position (sample, z, y, x) per step. */
  const int step_x = BK % ow, step_y = BK / ow % oh, step_z = BK / ow / oh % od, step_sample = BK / ow / oh / od;
  x += x_offset + (ulong)group * channels * plane;
  dy += dy_offset + (ulong)(group * outputs + row0 + line) * out_plane;
  local float* a_to = as + item % BK * LDA + line;
  local float* b_to = bs + item % BK * LDB + RIGHT_COLUMN(item % BK, line); /* same swizzle for all lines: ROWS_APART is a multiple of four if RIGHT_COLUMN swaps columns */
  float ra[PASSES_A], rb[PASSES_B];
  for (int exact = 0;; exact = 1) {
    tile_clear(acc);
    int position = begin + item % BK;
    int px = position % ow, py = position / ow % oh, pz = position / ow / oh % od, sample = position / out_plane;
    for (int s = 0; s <= steps; ++s) {
      if (s < steps) {
        const int exists = position < end, a_limit = exists ? lines_exist : 0;
        global const GIVEN_T* a = dy + sample * dy_stride + (pz * oh + py) * ow + px;
#pragma unroll
        for (int i = 0; i < PASSES_A; ++i) ra[i] = i * ROWS_APART < a_limit ? GET(GIVEN_T, a + i * ROWS_APART * out_plane) : 0.0f;
        const int z = pz * STRIDE_D, y = py * STRIDE_H, xx = px * STRIDE_W;
        global const SOURCE_T* b = x + sample * x_stride + (z * h + y) * w + xx;
#pragma unroll
        for (int i = 0; i < PASSES_B; ++i) {
          int inside = exists;
          if (PADDED)
            inside = inside && (uint)(z + at_d[i]) < (uint)d && (uint)(y + at_h[i]) < (uint)h && (uint)(xx + at_w[i]) < (uint)w;
          rb[i] = inside ? GET(SOURCE_T, b + place[i]) : 0.0f;
        }
        position += BK;
        px += step_x;
        py += step_y;
        pz += step_z;
        sample += step_sample;
        if (px >= ow) px -= ow, ++py;
        if (py >= oh) py -= oh, ++pz;
        if (pz >= od) pz -= od, ++sample;
      }
      if (s > 0) tile_multiply(a_from + ((s - 1) & 1) * (BK * LDA), b_from + ((s - 1) & 1) * (BK * LDB), acc, s, exact);
      if (s < steps) {
#pragma unroll
        for (int i = 0; i < PASSES_A; ++i)
          if (i * ROWS_APART < lines) a_to[(s & 1) * (BK * LDA) + i * ROWS_APART] = staged(ra[i]);
#pragma unroll
        for (int i = 0; i < PASSES_B; ++i)
          if (i * ROWS_APART < b_lines) b_to[(s & 1) * (BK * LDB) + i * ROWS_APART] = staged(rb[i]);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (tile_is_done(acc, exact, as)) break;
  }
#endif

#ifdef DEVICE_FENCE
  if (!tile_join(COMPLETION_COUNTER, TILE_NUMBER, split, SPLITS, acc, as)) return;
  const int copy = 0;
#else
  const int copy = split;
#endif
  const ulong dw_place = dw_offset + copy * dw_stride + (ulong)(group * outputs + row0) * columns + column0;
  const int aligned = ((dw_place | (ulong)columns) & 3) == 0;
  tile_store(dw + dw_place, columns, outputs - row0, columns - column0, aligned, acc, accumulate, 1.0f, NO_SIGN(dw), 0, 0);
}

#endif
