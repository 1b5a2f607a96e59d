/* Store a tile of a convolution's result: epilogue, fused ReLU backward and channel reductions.
   The rows of the tile are channels. Its columns are positions of all samples (conv_gpu.cl, conv_mma.cl, conv_pointwise_mma.cl),
   or with TILE_W those of a rectangle of TILE_H x TILE_W positions of one sample, row by row (conv_patch_mma.cl).

   TILE_H, TILE_W   size of the rectangle in positions; TILE_W is a multiple of four or the whole width
   PLANES_OF_FOURS  1: a plane has a multiple of four positions, and all of them are written; for a rectangle: its width and the plane's
                    width are multiples of four. Four columns are then always neighbours, which takes fewer registers */
#ifndef OCAFFE_CONV_STORE_H
#define OCAFFE_CONV_STORE_H

#include "conv_window.h"
#include "epilogue.h"
#include "fused_relu.h"
#include "channel_reduction.h"
#include "tile_gpu.h"

#ifndef PLANES_OF_FOURS
#define PLANES_OF_FOURS 0
#endif

/* COLUMNS_T describes the positions of the columns (see four_columns). EXISTING_COUNT: the number of existing columns of the tile. */
#ifdef TILE_W
typedef struct { int sample, y, x, h, w, positions; } Rectangle; /* begins at row y, column x of a plane of h x w */
#define COLUMNS_T Rectangle
#define EXISTING_COUNT(f, column0) (min(TILE_H, (f).h - (f).y) * min(TILE_W, (f).w - (f).x))
/* Whether each group of four columns begins at a multiple of four in a plane. */
#define BY_FOUR(f) (PLANES_OF_FOURS || (TILE_W % 4 != 0 && ((TILE_H * TILE_W | (f).positions | (f).y * (f).w) & 3) == 0))

/* Return rectangle number `index`. The rectangles of a sample are numbered row by row. */
INLINE Rectangle rectangle_of(int index, int h, int w) {
  const int across = (w + TILE_W - 1) / TILE_W, each = (h + TILE_H - 1) / TILE_H * across, own = index % each;
  return (Rectangle){index / each, own / across * TILE_H, own % across * TILE_W, h, w, h * w};
}
#else
#define COLUMNS_T Phase
#define EXISTING_COUNT(f, column0) (min((f).columns - (column0), BN))
#define BY_FOUR(f) (((f).positions & 3) == 0)
#endif

#ifdef CHANNEL_REDUCTION
#define ROW_ITEMS (BN / TN) /* work-items that share a row of the tile */
#define ROW_ITEM(item) ((item) / WAVE % (BN / WN) * LANE_COLUMNS + LANE_PART((item) % WAVE))
#define REDUCTION_SIZE (BM * ROW_ITEMS) /* floats of local memory */
/* The place of value `i` of a row; ROW_ITEMS is a power of two. Places are XOR-swizzled, so that work-items that each read a row use
   different banks. */
#define ROW_PLACE(row, i) ((row) * ROW_ITEMS + ((i) ^ (row) % ROW_ITEMS))

/* Write each work-item's partial row sums to `shared`. */
INLINE void share_rows(local float* shared, const float sum[TM]) {
  const int item = get_local_id(0), row = tile_row(item);
#pragma unroll
  for (int i = 0; i < TM; ++i) shared[ROW_PLACE(row + ROW(i), ROW_ITEM(item))] = sum[i];
  barrier(CLK_LOCAL_MEM_FENCE);
}

/* Return the sum of a row over its work-items, in order. */
INLINE float row_total(local const float* shared, int row) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < ROW_ITEMS; ++i) sum += shared[ROW_PLACE(row, i)];
  return sum;
}

/* Write the total of each existing row to to[row * parts], from the partial sums of its work-items. `shared` may be reused afterwards. */
INLINE void row_totals(local float* shared, const float sum[TM], int rows, global float* to, int parts) {
  share_rows(shared, sum);
  for (int row = get_local_id(0); row < BM; row += NT)
    if (row < rows) to[row * parts] = row_total(shared, row);
  barrier(CLK_LOCAL_MEM_FENCE);
}
#else
#define REDUCTION_SIZE 0
#endif

/* Rows of a work-item that are read before the first is written (fused_relu.h). */
#if TM < 4
#define AT_ONCE TM
#else
#define AT_ONCE 4
#endif

/* Four neighbouring columns: the sample of each and its position in a plane. `exist` of them exist; columns past the end get the place
   of the last one that exists. */
typedef struct { int exist, sample[4], at[4]; } Four;

#ifdef TILE_W
INLINE Four four_columns(const Rectangle f, int column, int dense, int th, int tw) {
  Four four;
  const int y = f.y + column / TILE_W, x = f.x + column % TILE_W, at = y * f.w + x;
  /* If the rectangle has the whole width, all its positions are neighbours. */
  four.exist = TILE_W % 4 == 0 ? f.w - x : min(f.positions - at, TILE_H * TILE_W - column);
  if (y >= f.h || column >= TILE_H * TILE_W) four.exist = 0;
#pragma unroll
  for (int e = 0; e < 4; ++e) four.sample[e] = f.sample, four.at[e] = at + (PLANES_OF_FOURS ? e : min(e, max(four.exist - 1, 0)));
  return four;
}
#else
INLINE Four four_columns(const Phase f, int column, int dense, int th, int tw) {
  Four four;
  int sample = column / f.positions, p = column - sample * f.positions;
  four.exist = f.columns - column;
#if PLANES_OF_FOURS
#pragma unroll
  for (int e = 0; e < 4; ++e) four.sample[e] = sample, four.at[e] = p + e;
  return four;
#endif
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    if (e >= four.exist) {
      four.sample[e] = four.sample[max(e - 1, 0)], four.at[e] = four.at[max(e - 1, 0)];
      continue;
    }
    int at = p;
    if (!dense) {
      const int x = f.from_w + p % f.count_w * f.stride_w, y = f.from_h + p / f.count_w % f.count_h * f.stride_h;
      at = ((f.from_d + p / f.count_w / f.count_h * f.stride_d) * th + y) * tw + x;
    }
    four.sample[e] = sample, four.at[e] = at;
    if (++p == f.positions) p = 0, ++sample;
  }
  return four;
}
#endif

/* Return the sum of the existing columns of four. */
INLINE float existing_sum(int exist, float4 v) {
  if (PLANES_OF_FOURS) return exist > 0 ? (v.x + v.y) + (v.z + v.w) : 0.0f;
  return exist > 0 ? (v.x + (exist > 1 ? v.y : 0.0f)) + ((exist > 2 ? v.z : 0.0f) + (exist > 3 ? v.w : 0.0f)) : 0.0f;
}

#if CHANNEL_REDUCTION == 1
/* Write the statistics of the tile. `rows` of its rows exist; `to` points at the statistics of the first. */
INLINE void tile_moments(local float* shared, float acc[TM][TN], const COLUMNS_T f, int rows, int column0, global float* to, int parts, ulong apart) {
  const int item = get_local_id(0), row = tile_row(item), column = column0 + tile_column(item);
  const float count = EXISTING_COUNT(f, column0);
  float sum[TM];
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    sum[i] = 0.0f;
#pragma unroll
    for (int j = 0; j < TN; j += 4)
      sum[i] += existing_sum(four_columns(f, column + COLUMN(j), 1, 0, 0).exist, (float4)(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]));
  }
  share_rows(shared, sum);
  for (int r = item; r < BM; r += NT) {
    const float mean = row_total(shared, r) / count;
    shared[ROW_PLACE(r, 0)] = mean;
    if (r < rows) to[r * parts] = count, to[r * parts + apart] = mean;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll
  for (int i = 0; i < TM; ++i) {
    const float mean = shared[ROW_PLACE(row + ROW(i), 0)];
    sum[i] = 0.0f;
#pragma unroll
    for (int j = 0; j < TN; j += 4) {
      const float4 d = (float4)(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]) - mean;
      sum[i] += existing_sum(four_columns(f, column + COLUMN(j), 1, 0, 0).exist, d * d);
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  row_totals(shared, sum, rows, to + 2 * apart, parts);
}
#endif

#if CHANNEL_REDUCTION == 2
/* Write the sums for BatchNorm's backward pass of a tile that has been stored; the tile holds every position of the planes it covers.
   This is a pass after the stores, because the stores need the registers. `channel` is the tile's first row, `rows` of its rows exist,
   and its sums go to `to`. */
INLINE void tile_gradient_sums(local float* shared, float acc[TM][TN], const COLUMNS_T f, int channel, int rows, int column0, const ChannelReduction reduction,
                               global float* to, int parts) {
  const int item = get_local_id(0), row = tile_row(item), column = column0 + tile_column(item);
  const int by_four = reduction.x_aligned && BY_FOUR(f);
  global const NORMAL_T* x = reduction.x + (ulong)channel * f.positions;
  float sum_g[TM], sum_gh[TM];
#pragma unroll
  for (int i = 0; i < TM; ++i) sum_g[i] = sum_gh[i] = 0.0f;
#pragma unroll
  for (int j = 0; j < TN; j += 4) {
    const Four four = four_columns(f, column + COLUMN(j), 1, 0, 0);
    if (four.exist <= 0) continue;
    ulong place[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) place[e] = four.sample[e] * reduction.x_stride + four.at[e];
#pragma unroll
    for (int i0 = 0; i0 < TM; i0 += AT_ONCE) {
      float4 values[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        global const NORMAL_T* from = x + (ulong)(min(row + ROW(i0 + i), rows - 1) * f.positions); /* an offset within a sample fits an int */
        values[i] = by_four ? GET4(NORMAL_T, from + place[0])
                            : (float4)(GET(NORMAL_T, from + place[0]), GET(NORMAL_T, from + place[1]), GET(NORMAL_T, from + place[2]), GET(NORMAL_T, from + place[3]));
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const float value[4] = {values[i].x, values[i].y, values[i].z, values[i].w};
        const int own = min(row + ROW(i0 + i), rows - 1);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float2 more = gradient_sums(reduction, channel + own, value[e], acc[i0 + i][j + e]);
          if (e < four.exist) sum_g[i0 + i] += more.x, sum_gh[i0 + i] += more.y;
        }
      }
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  row_totals(shared, sum_g, rows, to, parts);
  row_totals(shared, sum_gh, rows, to + reduction.apart, parts);
}
#endif

/* Store the tile.
   row0, rows  the tile's first row, and the number of rows of the group of channels `group`
   target      the beginning of sample 0
   sign        the mask of the fused ReLU backward (fused_relu.h)
   shared      with CHANNEL_REDUCTION (channel_reduction.h): REDUCTION_SIZE floats of local memory that are free now. All positions must be
               written by this launch */
INLINE void store_positions(float acc[TM][TN], const COLUMNS_T f, global RESULT_T* target, ulong sample_stride, int target_aligned, int groups, int group, int row0, int rows,
                            int column0, int td, int th, int tw, global const float* bias, ulong bias_stride, int has_bias, int accumulate,
                            float slope, global const SIGNS_T* sign, ulong sign_stride, int sign_aligned, local float* shared,
                            const ChannelReduction reduction, const int backward) {
  const int item = get_local_id(0), plane = td * th * tw, channel = group * rows + row0;
  target += (ulong)channel * plane;
  bias += channel;
  const int row = tile_row(item), column = column0 + tile_column(item);
#if CHANNEL_REDUCTION == 3
  float sum[TM];
#pragma unroll
  for (int i = 0; i < TM; ++i) sum[i] = 0.0f;
#endif
  /* by_four: four neighbouring columns are four neighbouring positions of one plane, at an aligned place. */
  const int dense = !(backward && STRIDED), aligned = target_aligned && (sample_stride & 3) == 0 && sign_aligned;
  const int by_four = dense && aligned && BY_FOUR(f);
#pragma unroll
  for (int j = 0; j < TN; j += 4) {
    const Four four = four_columns(f, column + COLUMN(j), dense, th, tw);
    if (four.exist <= 0 || row >= rows - row0) continue;
    ulong place[4], sign_place[4];
    int element[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      place[e] = four.sample[e] * sample_stride + four.at[e];
      sign_place[e] = four.sample[e] * sign_stride;
      element[e] = channel * plane + four.at[e];
    }
#pragma unroll
    for (int i0 = 0; i0 < TM; i0 += AT_ONCE) {
      /* Rows past the end read at the work-item's first row. Work-items whose first row does not exist were skipped above. */
      Before before[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int own = row + ROW(i0 + i) < rows - row0 ? row + ROW(i0 + i) : row, more = own * plane;
        global const RESULT_T* to = target + (ulong)own * plane;
        if (by_four)
          before[i] = before_four(to + place[0], accumulate, sign + sign_place[0], element[0] + more);
        else
          before[i] = before_each(to, place, accumulate, sign, sign_place, element, more);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int own = row + ROW(i0 + i);
        if (own >= rows - row0) continue;
        global RESULT_T* to = target + (ulong)own * plane;
        const float factor = FACTOR(bias, own), offset = OFFSET(bias, own);
        float4 v = (float4)(acc[i0 + i][j], acc[i0 + i][j + 1], acc[i0 + i][j + 2], acc[i0 + i][j + 3]) * factor + offset;
        v = after(before[i], v, accumulate, slope);
        if (by_four) {
          SET4(RESULT_T, to + place[0], v);
        } else {
          SET(RESULT_T, to + place[0], v.x);
          if (four.exist > 1) SET(RESULT_T, to + place[1], v.y);
          if (four.exist > 2) SET(RESULT_T, to + place[2], v.z);
          if (four.exist > 3) SET(RESULT_T, to + place[3], v.w);
        }
#if CHANNEL_REDUCTION == 3
        sum[i0 + i] += existing_sum(four.exist, v);
#elif defined(CHANNEL_REDUCTION)
        acc[i0 + i][j] = v.x, acc[i0 + i][j + 1] = v.y, acc[i0 + i][j + 2] = v.z, acc[i0 + i][j + 3] = v.w;
#endif
      }
    }
  }
#ifdef CHANNEL_REDUCTION
  const int parts_of_row = reduction.apart / (groups * rows);
  global float* to = reduction.to + (ulong)channel * parts_of_row + get_group_id(0);
#if CHANNEL_REDUCTION == 1
  tile_moments(shared, acc, f, rows - row0, column0, to, parts_of_row, reduction.apart);
#elif CHANNEL_REDUCTION == 3
  row_totals(shared, sum, rows - row0, to, parts_of_row);
#else
  tile_gradient_sums(shared, acc, f, channel, rows - row0, column0, reduction, to, parts_of_row);
#endif
#endif
}

#endif
