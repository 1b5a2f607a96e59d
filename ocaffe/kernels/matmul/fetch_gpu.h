/* Fetching tiles of matrices to local memory as float4: gemm_gpu.cl, and conv_gpu.cl for windows of one pixel.

   A line is a row of the left operand or a column of the right one. `along` says which four neighbours a float4 holds: 1: of the depth of
   one line; 0: of four lines. BM * BK and BN * BK are multiples of 4 * NT, BK of 4. */
#ifndef OCAFFE_FETCH_GPU_H
#define OCAFFE_FETCH_GPU_H

#include "tile_gpu.h"

#define FOURS(lines) ((lines) * BK / 4 / NT) /* number of float4 that a work-item fetches of an operand with this many lines */

/* Declare, for a work-item's part of an operand of `lines` lines: its first (line, depth), the step to its next float4 as (line, depth),
   and the places of its elements (stage_places). */
#define PART(name, lines, ld, along, right)                                       \
  const int name##_line = along ? item / (BK / 4) : item % ((lines) / 4) * 4;     \
  const int name##_depth = along ? item % (BK / 4) * 4 : item / ((lines) / 4);    \
  const int name##_next_line = along ? NT / (BK / 4) : 0;                         \
  const int name##_next_depth = along ? 0 : NT / ((lines) / 4);                   \
  int name##_to[4];                                                               \
  stage_places(name##_to, name##_line, name##_depth, ld, along, right)

/* Compute the places in a tile with rows of `ld` floats, in the order in which `stage` stores. Along the depth, the four neighbours go to
   different rows. Of four work-items each begins with another neighbour, so that the stores of a warp use different banks (with MMA, where
   LDA and LDB are 8 modulo 32). */
INLINE void stage_places(int to[4], int line, int depth, int ld, int along, int right) {
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int row = along ? depth + (depth / 4 + e & 3) : depth;
    to[e] = row * ld + (along && right ? RIGHT_COLUMN(row, line) : line);
  }
}

/* FETCH_EDGE(T)  (p, n): return four neighbours of which `n` exist; T is their type in memory (bf16_operands.h). */
#define FETCH_EDGE(T) FETCH_EDGE_OF(T)
#define FETCH_EDGE_OF(T) fetch_edge_##T
#define FETCHES_EDGE(T)                               \
  INLINE float4 fetch_edge_##T(global const T* p, int n) { \
    float4 v = (float4)(0.0f);                        \
    if (n > 0) v.x = GET(T, p);                       \
    if (n > 1) v.y = GET(T, p + 1);                   \
    if (n > 2) v.z = GET(T, p + 2);                   \
    if (n > 3) v.w = GET(T, p + 3);                   \
    return v;                                         \
  }
FETCHES_EDGE(float)
FETCHES_EDGE(bfloat)

INLINE int existing(int line, int depth, int lines, int end, int along) { return along ? (line < lines ? end - depth : 0) : (depth < end ? lines - line : 0); }

/* Store a float4 to its place; `depth` is where the part begins. Successive float4 of a part are an even number of rows and a multiple of
   four columns apart, so RIGHT_COLUMN is the same for all of them. */
INLINE void stage(local float* tile, const int to[4], float4 v, int depth, int along, int right) {
  v = (float4)(staged(v.x), staged(v.y), staged(v.z), staged(v.w));
  if (along) {
    v = depth & 4 ? v.yzwx : v;
    v = depth & 8 ? v.zwxy : v;
    tile[to[0]] = v.x, tile[to[1]] = v.y, tile[to[2]] = v.z, tile[to[3]] = v.w;
  } else {
    const float4 turned = RIGHT_COLUMN(depth, 0) != 0 ? v.zwxy : v;
    *(local float4*)(tile + to[0]) = right ? turned : v;
  }
}

#endif
