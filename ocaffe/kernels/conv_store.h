/* Writing a tile of a convolution whose columns are positions of all samples: conv_gpu.cl, conv_mma.cl. */
#ifndef OCAFFE_CONV_STORE_H
#define OCAFFE_CONV_STORE_H

#include "conv_window.h"
#include "epilogue.h"
#include "tile_gpu.h"

/* SPREAD: the results `v` of four neighbouring columns, of which `exist` exist, and `offset` in the gaps behind them. p: the first one's position in its
   sample; aligned: rows of the target begin at float4 places and have a multiple of four columns. */
INLINE void put_spread(global float* target, const ulong place[4], int p, int exist, float4 v, float offset, int positions, int count_h, int count_w, int td,
                       int th, int tw, int aligned, int has_bias, int accumulate, float slope) {
  const int gaps = !accumulate || has_bias || slope != 1.0f; /* else there is nothing to add */
  const int pairs = STRIDE_W == 2 && aligned && gaps;
  const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int q = (p + e) % positions, x = q % count_w * STRIDE_W, y = q / count_w % count_h * STRIDE_H, z = q / count_w / count_h * STRIDE_D;
    if (e >= exist || (pairs && e % 2)) continue;
    for (int d = 0; d < (gaps ? min(STRIDE_D, td - z) : 1); ++d)
      for (int h = 0; h < (gaps ? min(STRIDE_H, th - y) : 1); ++h) {
        global float* to = target + place[e] + (d * th + h) * tw;
        const int here = (d | h) == 0;
        if (pairs) {
          put4(to, (float4)(here ? values[e] : offset, offset, here ? values[(e + 1) % 4] : offset, offset), accumulate, slope);
        } else {
          for (int w = 0; w < (gaps ? min(STRIDE_W, tw - x) : 1); ++w) put(to + w, here && w == 0 ? values[e] : offset, accumulate, slope);
        }
      }
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
  const int spread_aligned = target_aligned && (tw & 3) == 0 && (sample_stride & 3) == 0;
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
      if (backward && SPREAD) {
        put_spread(to, place, (column + COLUMN(j)) % f.positions, f.columns - column - COLUMN(j), v, offset, f.positions, f.count_h, f.count_w, td, th, tw,
                   spread_aligned, has_bias, accumulate, slope);
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
}


#endif
