/* Convolution in 1 to 3 dimensions as a matrix product whose right operand is never built (implicit GEMM), for work-groups that share tiles.

   forward          y[output][position]  = sum over (channel, tap) of w * x
   backward_data    dx[channel][position] = sum over (output, tap) of w * dy, each position gathering what it gave; with a bias per channel
                    it is the forward of a deconvolution, with a gate (gate.h) the backward pass of a ReLU is done, too
   backward_filter  dw[output][channel, tap] = sum over (sample, position) of dy * x
   split_sum        the second pass of a product whose depth was split

   Defines: the tile (tile_gpu.h); per axis D, H, W the window: KERNEL_, STRIDE_, PAD_, DILATION_ and PHASE_STEP_ = stride / gcd(stride,
   dilation), the distance between taps of one phase; the shape of a step in forward and backward_data, BK = STEP_CHANNELS * STEP_ROWS *
   STEP_TAPS: neighbouring channels, rows of the window and taps in a row.
   BN divides NT, and STEP_CHANNELS is a multiple of NT / BN.

   Group (x, y, z): columns of the result (positions of all samples; channels and taps in backward_filter), its rows, and group and split of
   the depth. A phase is the set of positions in backward_data that a stride sends to the same taps: with stride 2 there are four in
   a plane, each a dense convolution with a quarter of the taps; neighbouring groups in x take the phases of the same columns, so that their scattered
   results meet in the cache. With several splits their groups meet (DEVICE_FENCE) and the last
   one writes the result, or the target holds one copy per split, its stride being the distance between them. */
#include "common.h"
#include "epilogue.h"
#include "split_sum.h"
#include "tile_gpu.h"

#ifndef KERNEL_W
#define KERNEL_D 1
#define KERNEL_H 3
#define KERNEL_W 3
#define STRIDE_D 1
#define STRIDE_H 1
#define STRIDE_W 1
#define PAD_D 0
#define PAD_H 1
#define PAD_W 1
#define DILATION_D 1
#define DILATION_H 1
#define DILATION_W 1
#define PHASE_STEP_D 1
#define PHASE_STEP_H 1
#define PHASE_STEP_W 1
#endif
#ifndef STEP_CHANNELS
#define STEP_CHANNELS 8
#define STEP_ROWS 1
#define STEP_TAPS 1
#endif

#define TAPS (KERNEL_D * KERNEL_H * KERNEL_W)
#define STEP_WINDOW (STEP_ROWS * STEP_TAPS)
#define STRIDED (STRIDE_D * STRIDE_H * STRIDE_W > 1)
#define PADDED (PAD_D + PAD_H + PAD_W > 0)

/* Fetching filters: a work-item keeps to one column of the tile and takes every ROWS_APART-th row; the last NT % BK items rest. */
#define ROWS_APART (NT / BK)
#define PASSES_A ((BM + ROWS_APART - 1) / ROWS_APART)
#define PASSES_B ((BN + ROWS_APART - 1) / ROWS_APART)
/* Fetching the image: a work-item keeps to one position and takes every CHANNELS_APART-th channel. */
#define CHANNELS_APART (NT / BN)
#define ITEM_CHANNELS (STEP_CHANNELS / CHANNELS_APART)

/* backward_filter: the line that a work-item begins with. In a warp it moves with the depth, so that the stores to local memory meet different banks. */
#define LINE(item) (((item) / BK + (item) % BK / (32 / PADDING) * (32 / BK)) % ROWS_APART)

/* Sizes, the same for all: channels and outputs are those of one group; d, h, w the image, od, oh, ow the result of the convolution. */
#define SIZES int batch, int groups, int channels, int outputs, int d, int h, int w, int od, int oh, int ow

#ifdef DEVICE_FENCE
#define MEETING arrived + arrived_offset, parts + parts_offset
#else
#define MEETING 0, 0
#endif
/* Number of the tile that a group works on, and of those that work on it. */
#define TILE_NUMBER ((get_group_id(2) % groups * get_num_groups(1) + get_group_id(1)) * get_num_groups(0) + get_group_id(0))
#define SPLITS (get_num_groups(2) / groups)

/* One axis of the window seen from a position. `at` is where tap 0 lies (backward: times the stride). */
#define ORIGIN(p, stride, pad) (backward ? (p) + (pad) : (p) * (stride) - (pad))
#define TAP_AT(at, tap, stride, dilation) (backward ? ((at) - (tap) * (dilation)) / (stride) : (at) + (tap) * (dilation))

/* The first tap of the phase of position `p`, or past the window if it has none. */
INLINE int first_tap(int p, int kernel_size, int stride, int dilation, int step) {
  int tap = 0;
  while (tap < step && (p - tap * dilation) % stride != 0) ++tap;
  return tap < step ? tap : kernel_size;
}

/* forward (backward = 0) and backward_data (backward = 1): both gather `source` at the taps of each position of `target`, times the filters.
   rows, depth: channels of target and source in a group; sd, sh, sw and td, th, tw: their planes. */
INLINE void gather(const int backward, local float* as, local float* bs, global uint* arrived, global float* parts, global const float* source, ulong source_stride,
                   global const float* filter, global const float* bias, ulong bias_stride, global float* target, ulong target_stride, int target_aligned,
                   int batch, int groups, int rows, int depth, int sd, int sh, int sw, int td, int th, int tw, int split_channels,
                   int splits, int has_bias, int accumulate, float slope, int gated, global const float* sign, ulong sign_stride, int sign_aligned) {
  const int phases = backward ? STRIDE_D * STRIDE_H * STRIDE_W : 1;
  const int tap_step_d = backward ? PHASE_STEP_D : 1, tap_step_h = backward ? PHASE_STEP_H : 1, tap_step_w = backward ? PHASE_STEP_W : 1;
  const int leaves = backward ? (PADDED | STRIDED | (TAPS > 1)) : PADDED;  /* a tap may lie outside of the source */
  const int item = get_local_id(0);
  const int phase = get_group_id(0) % phases, group = get_group_id(2) % groups, split = get_group_id(2) / groups;

  /* The positions of this phase: from_, from_ + stride, ... along each axis. */
  const int stride_d = backward ? STRIDE_D : 1, stride_h = backward ? STRIDE_H : 1, stride_w = backward ? STRIDE_W : 1;
  const int from_w = phase % stride_w, from_h = phase / stride_w % stride_h, from_d = phase / stride_w / stride_h;
  const int count_d = (td - from_d + stride_d - 1) / stride_d, count_h = (th - from_h + stride_h - 1) / stride_h;
  const int count_w = (tw - from_w + stride_w - 1) / stride_w;
  const int positions = count_d * count_h * count_w, columns = batch * positions;
  const int column0 = get_group_id(0) / phases * BN, row0 = get_group_id(1) * BM;
  if (column0 >= columns) return;  /* the whole group: phases differ in size */

  const int first_d = backward ? first_tap(from_d + PAD_D, KERNEL_D, STRIDE_D, DILATION_D, PHASE_STEP_D) : 0;
  const int first_h = backward ? first_tap(from_h + PAD_H, KERNEL_H, STRIDE_H, DILATION_H, PHASE_STEP_H) : 0;
  const int first_w = backward ? first_tap(from_w + PAD_W, KERNEL_W, STRIDE_W, DILATION_W, PHASE_STEP_W) : 0;
  const int begin = split * split_channels, end = min(depth, begin + split_channels);
  const int steps_w = (KERNEL_W - first_w + tap_step_w * STEP_TAPS - 1) / (tap_step_w * STEP_TAPS);
  const int steps_h = (KERNEL_H - first_h + tap_step_h * STEP_ROWS - 1) / (tap_step_h * STEP_ROWS);
  const int steps_d = (KERNEL_D - first_d + tap_step_d - 1) / tap_step_d;
  const int steps = (end - begin + STEP_CHANNELS - 1) / STEP_CHANNELS * steps_d * steps_h * steps_w;

  if (steps == 0 && accumulate && !has_bias && slope == 1.0f) return;  /* no tap meets this phase: nothing to add */

  /* Filters: in memory [outputs][channels][taps]. Neighbours fetch neighbours: taps, then channels (forward) or rows (backward). */
  const int a_tap = backward ? item % STEP_WINDOW : item % BK % STEP_WINDOW;
  const int a_channel = backward ? item / (STEP_WINDOW * ROWS_APART) : item % BK / STEP_WINDOW;
  const int a_row = backward ? item / STEP_WINDOW % ROWS_APART : item / BK;
  const int a_tap_h = a_tap / STEP_TAPS * tap_step_h, a_tap_w = a_tap % STEP_TAPS * tap_step_w;
  const int a_rows = item < ROWS_APART * BK ? BM - a_row : 0, a_rows_exist = min(a_rows, rows - row0 - a_row);
  const int a_row_stride = backward ? TAPS : depth * TAPS, a_channel_stride = backward ? rows * TAPS : TAPS;
  filter += (ulong)group * rows * depth * TAPS + (ulong)(row0 + a_row) * a_row_stride + a_tap_h * KERNEL_W + a_tap_w;
  local float* a_to = as + (a_channel * STEP_WINDOW + a_tap) * LDA + a_row;

  /* The image: columns past the end fetch the last one and are not stored. */
  const int b_column = min(column0 + item % BN, columns - 1), b_channel = item / BN;
  const int b_position = b_column % positions;
  const int at_w = ORIGIN(from_w + b_position % count_w * stride_w, STRIDE_W, PAD_W);
  const int at_h = ORIGIN(from_h + b_position / count_w % count_h * stride_h, STRIDE_H, PAD_H);
  const int at_d = ORIGIN(from_d + b_position / count_w / count_h * stride_d, STRIDE_D, PAD_D);
  const int plane = sd * sh * sw;
  source += b_column / positions * source_stride + (ulong)group * depth * plane;
  local float* b_to = bs + b_channel * STEP_WINDOW * LDB + item % BN;

  local const float* a_from = as + tile_row(item);
  local const float* b_from = bs + tile_column(item);
  float acc[TM][TN];
  float ra[PASSES_A], rb[STEP_WINDOW][ITEM_CHANNELS];
  for (int exact = 0;; exact = 1) {
    tile_clear(acc);
    int channel = begin, tap_d = first_d, tap_h = first_h, tap_w = first_w;
    /* Step s is fetched while step s - 1 is multiplied; the loads are in flight meanwhile. */
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
            global const float* b = source + (long)((z * sh + y) * sw + x) + (long)(channel + b_channel) * plane;
#pragma unroll
            for (int i = 0; i < ITEM_CHANNELS; ++i)
              rb[r * STEP_TAPS + t][i] = i * CHANNELS_APART < limit ? b[i * CHANNELS_APART * plane] : 0.0f;
          }
        }

        tap_w += STEP_TAPS * tap_step_w;
        if (tap_w >= KERNEL_W) {
          tap_w = first_w;
          tap_h += STEP_ROWS * tap_step_h;
          if (tap_h >= KERNEL_H) {
            tap_h = first_h;
            tap_d += tap_step_d;
            if (tap_d >= KERNEL_D) tap_d = first_d, channel += STEP_CHANNELS;
          }
        }
      }
      if (s > 0) tile_multiply(a_from + ((s - 1) & 1) * (BK * LDA), b_from + ((s - 1) & 1) * (BK * LDB), acc, exact);
      if (s < steps) {
#pragma unroll
        for (int i = 0; i < PASSES_A; ++i)
          if (i * ROWS_APART < a_rows) a_to[(s & 1) * (BK * LDA) + i * ROWS_APART] = ra[i];
#pragma unroll
        for (int t = 0; t < STEP_WINDOW; ++t)
#pragma unroll
          for (int i = 0; i < ITEM_CHANNELS; ++i)
            b_to[(s & 1) * (BK * LDB) + (i * CHANNELS_APART * STEP_WINDOW + t) * LDB] = rb[t][i];
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (tile_is_done(acc, exact, as)) break;
  }

#ifdef DEVICE_FENCE
  if (!tile_join(arrived, parts, TILE_NUMBER, split, SPLITS, acc, as)) return;
  splits = 1;
#endif
  const int target_plane = td * th * tw;
  const ulong sample_stride = splits > 1 ? (ulong)groups * rows * target_plane : target_stride;
  target += (splits > 1 ? split * target_stride : 0) + (ulong)(group * rows + row0) * target_plane;
  bias += group * rows + row0;
  const int row = tile_row(item), column = column0 + tile_column(item);
  /* Four neighbouring columns are four neighbouring places of one plane. */
  const int dense = !(backward && STRIDED);
  const int by_four = dense && target_aligned && (positions & 3) == 0 && (sample_stride & 3) == 0 && (gated != 1 || sign_aligned);
#pragma unroll
  for (int j = 0; j < TN; j += 4) {
    ulong place[4], sign_place[4];
    int element[4];
    int sample = (column + COLUMN(j)) / positions, p = column + COLUMN(j) - sample * positions;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      int at = p;
      if (!dense) {
        const int x = from_w + p % count_w * stride_w, y = from_h + p / count_w % count_h * stride_h;
        at = ((from_d + p / count_w / count_h * stride_d) * th + y) * tw + x;
      }
      place[e] = sample * sample_stride + at;
      sign_place[e] = sample * sign_stride;
      element[e] = (group * rows + row0) * target_plane + at;
      if (++p == positions) p = 0, ++sample;
    }
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      if (row + ROW(i) >= rows - row0) continue;
      global float* to = target + (ulong)(row + ROW(i)) * target_plane;
      const int more = (row + ROW(i)) * target_plane;
      const float factor = FACTOR(bias, row + ROW(i)), offset = OFFSET(bias, row + ROW(i));
      const float4 v = (float4)(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]) * factor + offset;
      if (by_four) {
        if (column + COLUMN(j) < columns) put4(to + place[0], v, accumulate, slope, gated, sign + sign_place[0], element[0] + more);
      } else {
        if (column + COLUMN(j) < columns) put(to + place[0], v.x, accumulate, slope, gated, sign + sign_place[0], element[0] + more);
        if (column + COLUMN(j) + 1 < columns) put(to + place[1], v.y, accumulate, slope, gated, sign + sign_place[1], element[1] + more);
        if (column + COLUMN(j) + 2 < columns) put(to + place[2], v.z, accumulate, slope, gated, sign + sign_place[2], element[2] + more);
        if (column + COLUMN(j) + 3 < columns) put(to + place[3], v.w, accumulate, slope, gated, sign + sign_place[3], element[3] + more);
      }
    }
  }
}

kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void forward(OPERAND_RESTRICT(const float, x), OPERAND_RESTRICT(const float, filter),
                                                                    ARRIVED OPERAND_RESTRICT(const float, bias), OPERAND_RESTRICT(float, y) PARTS,
                                                                    SIZES, int split_channels, int splits, int has_bias, int accumulate,
                                                                    float slope) {
  LOCAL_TILE(as, 2 * BK * LDA);
  LOCAL_TILE(bs, 2 * BK * LDB);
  gather(0, as, bs, MEETING, x + x_offset, x_stride, filter + filter_offset, bias + bias_offset, bias_stride, y + y_offset, y_stride, (y_offset & 3) == 0, batch,
         groups, outputs, channels, d, h, w, od, oh, ow, split_channels, splits, has_bias, accumulate, slope, 0, y, 0, 1);
}

kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void backward_data(OPERAND_RESTRICT(const float, dy),
                                                                          OPERAND_RESTRICT(const float, filter),
                                                                          OPERAND_RESTRICT(const float, sign),
                                                                          ARRIVED OPERAND_RESTRICT(const float, bias),
                                                                          OPERAND_RESTRICT(float, dx) PARTS, SIZES, int split_channels,
                                                                          int splits, int gated, int has_bias, int accumulate, float slope) {
  LOCAL_TILE(as, 2 * BK * LDA);
  LOCAL_TILE(bs, 2 * BK * LDB);
  gather(1, as, bs, MEETING, dy + dy_offset, dy_stride, filter + filter_offset, bias + bias_offset, bias_stride, dx + dx_offset, dx_stride, (dx_offset & 3) == 0,
         batch, groups, channels, outputs, od, oh, ow, d, h, w, split_channels, splits, has_bias, accumulate, slope, gated, sign + sign_offset,
         sign_stride, ((sign_offset | sign_stride) & 3) == 0);
}

/* Rows: outputs; columns: (channel, tap) as the filters have them; depth: the positions of all samples, BK of them a step. A work-item
   keeps to every BK-th position, for which it fetches rows of dy and columns of the image. */
kernel __attribute__((reqd_work_group_size(NT, 1, 1))) void backward_filter(OPERAND_RESTRICT(const float, x),
                                                                            OPERAND_RESTRICT(const float, dy), ARRIVED OPERAND_RESTRICT(float, dw) PARTS,
                                                                            SIZES, int split_positions, int accumulate) {
  LOCAL_TILE(as, 2 * BK * LDA);
  LOCAL_TILE(bs, 2 * BK * LDB);
  const int item = get_local_id(0);
  const int group = get_group_id(2) % groups, split = get_group_id(2) / groups;
  const int row0 = get_group_id(1) * BM, column0 = get_group_id(0) * BN;
  const int plane = d * h * w, out_plane = od * oh * ow, columns = channels * TAPS;
  const int begin = split * split_positions, end = min(batch * out_plane, begin + split_positions);
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

  /* What a step adds to the position (sample, z, y, x), digit by digit. */
  const int step_x = BK % ow, step_y = BK / ow % oh, step_z = BK / ow / oh % od, step_sample = BK / ow / oh / od;
  x += x_offset + (ulong)group * channels * plane;
  dy += dy_offset + (ulong)(group * outputs + row0 + line) * out_plane;
  local float* a_to = as + item % BK * LDA + line;
  local float* b_to = bs + item % BK * LDB + line;
  local const float* a_from = as + tile_row(item);
  local const float* b_from = bs + tile_column(item);
  float acc[TM][TN];
  float ra[PASSES_A], rb[PASSES_B];
  const int steps = (end - begin + BK - 1) / BK;
  for (int exact = 0;; exact = 1) {
    tile_clear(acc);
    int position = begin + item % BK;
    int px = position % ow, py = position / ow % oh, pz = position / ow / oh % od, sample = position / out_plane;
    for (int s = 0; s <= steps; ++s) {
      if (s < steps) {
        const int exists = position < end, a_limit = exists ? lines_exist : 0;
        global const float* a = dy + sample * dy_stride + (pz * oh + py) * ow + px;
#pragma unroll
        for (int i = 0; i < PASSES_A; ++i) ra[i] = i * ROWS_APART < a_limit ? a[i * ROWS_APART * out_plane] : 0.0f;
        const int z = pz * STRIDE_D, y = py * STRIDE_H, xx = px * STRIDE_W;
        global const float* b = x + sample * x_stride + (z * h + y) * w + xx;
#pragma unroll
        for (int i = 0; i < PASSES_B; ++i) {
          int inside = exists;
          if (PADDED)
            inside = inside && (uint)(z + at_d[i]) < (uint)d && (uint)(y + at_h[i]) < (uint)h && (uint)(xx + at_w[i]) < (uint)w;
          rb[i] = inside ? b[place[i]] : 0.0f;
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
      if (s > 0) tile_multiply(a_from + ((s - 1) & 1) * (BK * LDA), b_from + ((s - 1) & 1) * (BK * LDB), acc, exact);
      if (s < steps) {
#pragma unroll
        for (int i = 0; i < PASSES_A; ++i)
          if (i * ROWS_APART < lines) a_to[(s & 1) * (BK * LDA) + i * ROWS_APART] = ra[i];
#pragma unroll
        for (int i = 0; i < PASSES_B; ++i)
          if (i * ROWS_APART < b_lines) b_to[(s & 1) * (BK * LDB) + i * ROWS_APART] = rb[i];
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (tile_is_done(acc, exact, as)) break;
  }

#ifdef DEVICE_FENCE
  if (!tile_join(MEETING, TILE_NUMBER, split, SPLITS, acc, as)) return;
  const int copy = 0;
#else
  const int copy = split;
#endif
  const ulong dw_place = dw_offset + copy * dw_stride + (ulong)(group * outputs + row0) * columns + column0;
  const int aligned = ((dw_place | (ulong)columns) & 3) == 0;
  tile_store(dw + dw_place, columns, outputs - row0, columns - column0, aligned, acc, accumulate, 1.0f, 0, dw, 0, 0);
}
