/* Writing a tile of a convolution whose columns are positions of all samples: conv_gpu.cl, conv_mma.cl. */
#ifndef OCAFFE_CONV_STORE_H
#define OCAFFE_CONV_STORE_H

#include "conv_window.h"
#include "epilogue.h"
#include "tile_gpu.h"

/* SPREAD: an offset (and what is there) in the gaps behind the tile's results. A work-item keeps to one column and takes every NT / BN-th row, so that neighbours write
   neighbouring places. `target`, `bias`: the tile's first row; `rows` of it exist; in_pairs: the gap behind a result in its own row was written with the result. */
INLINE void fill_gaps(global float* target, ulong sample_stride, int column, int columns, int rows, int positions, int count_h, int count_w, int td, int th,
                      int tw, global const float* bias, ulong bias_stride, int in_pairs, int has_bias, int accumulate, float slope) {
  const int nothing_to_add = accumulate && !has_bias && slope == 1.0f;
  if (column >= columns || nothing_to_add) return;
  const int p = column % positions, x = p % count_w * STRIDE_W, y = p / count_w % count_h * STRIDE_H, z = p / count_w / count_h * STRIDE_D;
  const int depth = min(STRIDE_D, td - z), height = min(STRIDE_H, th - y), width = min(STRIDE_W, tw - x);
  target += column / positions * sample_stride + (z * th + y) * tw + x;
#pragma unroll 1
  for (int row = get_local_id(0) / BN; row < rows; row += NT / BN) {
    global float* to = target + (ulong)row * (td * th * tw);
    const float offset = OFFSET(bias, row);
    for (int d = 0; d < depth; ++d)
      for (int h = 0; h < height; ++h)
        for (int w = (d | h) ? 0 : in_pairs ? width : 1; w < width; ++w) put(to + (d * th + h) * tw + w, offset, accumulate, slope);
  }
}

/* `channel0`: the group's first channel in target and bias; row0, rows: the tile's first row and the group's; target is where a sample begins. */
INLINE void store_positions(float acc[TM][TN], const Phase f, global float* target, ulong sample_stride, int target_aligned, int channel0, int row0, int rows,
                            int column0, int td, int th, int tw, global const float* bias, ulong bias_stride, int has_bias, int accumulate,
                            float slope, const int backward) {
  const int item = get_local_id(0), plane = td * th * tw;
  target += (ulong)(channel0 + row0) * plane;
  bias += channel0 + row0;
  const int row = tile_row(item), column = column0 + tile_column(item);
  /* Four neighbouring columns are four neighbouring places of one plane. */
  const int dense = !(backward && STRIDED);
  const int by_four = dense && target_aligned && (f.positions & 3) == 0 && (sample_stride & 3) == 0;
  /* SPREAD: two results and the gaps between them are four neighbouring places of a row. */
  const int in_pairs = backward && SPREAD && STRIDE_W == 2 && target_aligned && (tw & 3) == 0 && (sample_stride & 3) == 0;
#pragma unroll
  for (int j = 0; j < TN; j += 4) {
    ulong place[4];
    int sample = (column + COLUMN(j)) / f.positions, p = column + COLUMN(j) - sample * f.positions;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      int at = p;
      if (!dense) {
        const int x = f.from_w + p % f.count_w * f.stride_w, y = f.from_h + p / f.count_w % f.count_h * f.stride_h;
        at = ((f.from_d + p / f.count_w / f.count_h * f.stride_d) * th + y) * tw + x;
      }
      place[e] = sample * sample_stride + at;
      if (++p == f.positions) p = 0, ++sample;
    }
#pragma unroll
    for (int i = 0; i < TM; ++i) {
      if (row + ROW(i) >= rows - row0) continue;
      global float* to = target + (ulong)(row + ROW(i)) * plane;
      const float factor = FACTOR(bias, row + ROW(i)), offset = OFFSET(bias, row + ROW(i));
      const float4 v = (float4)(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]) * factor + offset;
      if (in_pairs) {
        if (column + COLUMN(j) < f.columns) put4(to + place[0], (float4)(v.x, offset, v.y, offset), accumulate, slope);
        if (column + COLUMN(j) + 2 < f.columns) put4(to + place[2], (float4)(v.z, offset, v.w, offset), accumulate, slope);
      } else if (by_four) {
        if (column + COLUMN(j) < f.columns) put4(to + place[0], v, accumulate, slope);
      } else {
        if (column + COLUMN(j) < f.columns) put(to + place[0], v.x, accumulate, slope);
        if (column + COLUMN(j) + 1 < f.columns) put(to + place[1], v.y, accumulate, slope);
        if (column + COLUMN(j) + 2 < f.columns) put(to + place[2], v.z, accumulate, slope);
        if (column + COLUMN(j) + 3 < f.columns) put(to + place[3], v.w, accumulate, slope);
      }
    }
  }
  if (backward && SPREAD)
    fill_gaps(target, sample_stride, column0 + item % BN, f.columns, min(BM, rows - row0), f.positions, f.count_h, f.count_w, td, th, tw, bias, bias_stride, in_pairs,
              has_bias, accumulate, slope);
}

#endif
