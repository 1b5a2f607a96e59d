/* How tiles of matrices come to local memory as float4: gemm_gpu.cl, and conv_gpu.cl where windows are of one pixel.

   Four neighbours are neighbours of a line of the tile (a row of the left operand, a column of the right one), or of the depth: `along`. BM * BK and BN * BK are
   multiples of 4 * NT, BK of 4. */
#ifndef OCAFFE_FETCH_GPU_H
#define OCAFFE_FETCH_GPU_H

#include "tile_gpu.h"

#define FOURS(lines) ((lines) * BK / 4 / NT) /* float4 of a work-item, of an operand of so many lines */

/* Where a work-item's part of an operand of `lines` lines begins, and how far its next float4 is, as (line, depth). */
#define PART(name, lines, along)                                                  \
  const int name##_line = along ? item / (BK / 4) : item % ((lines) / 4) * 4;     \
  const int name##_depth = along ? item % (BK / 4) * 4 : item / ((lines) / 4);    \
  const int name##_next_line = along ? NT / (BK / 4) : 0;                         \
  const int name##_next_depth = along ? 0 : NT / ((lines) / 4)

/* Four neighbours of which `n` exist. */
INLINE float4 fetch_edge(global const float* p, int n) {
  float4 v = (float4)(0.0f);
  if (n > 0) v.x = p[0];
  if (n > 1) v.y = p[1];
  if (n > 2) v.z = p[2];
  if (n > 3) v.w = p[3];
  return v;
}

INLINE int existing(int line, int depth, int lines, int end, int along) { return along ? (line < lines ? end - depth : 0) : (depth < end ? lines - line : 0); }

/* A float4 from `line` and `depth` on to its place in `tile`, whose rows are `ld` floats long. Neighbours along the depth go to different rows of the tile: each of
   four work-items begins with another of them, so that a warp's stores meet different banks (with MMA; LDA and LDB are then 8 modulo 32).
   right: it is of the right operand, see RIGHT_COLUMN. */
INLINE void stage(local float* tile, float4 v, int line, int depth, int ld, int along, int right) {
  const int swapped = right ? RIGHT_COLUMN(1, line) : line; /* the place in odd rows */
  v = (float4)(staged(v.x), staged(v.y), staged(v.z), staged(v.w));
  if (along) {
    const int quad = depth / 4;
    v = quad & 1 ? v.yzwx : v;
    v = quad & 2 ? v.zwxy : v;
    local float* even = tile + depth * ld + (quad & 1 ? swapped : line);
    local float* odd = tile + depth * ld + (quad & 1 ? line : swapped);
    even[(quad & 3) * ld] = v.x, odd[(quad + 1 & 3) * ld] = v.y, even[(quad + 2 & 3) * ld] = v.z, odd[(quad + 3 & 3) * ld] = v.w;
  } else {
    *(local float4*)(tile + depth * ld + line) = swapped != line && depth & 1 ? v.zwxy : v;
  }
}

#endif
